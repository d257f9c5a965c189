//! Loads that make an allocation hard: fragmented memory, no free memory, a limit.

use std::{fs, process};

use anyhow::{Context as _, Result};
use nix::libc;
use serde_json::{Value, json};

use super::{
    HUGE,
    area::{Area, BASE},
    kernel::{Setting, Vmstat, high_watermark, meminfo, smaps},
};

/// Memory that is left beside what the kernel keeps for itself.
const MARGIN: usize = 2 << 20;
/// What the kernel keeps for itself meanwhile (`vm.min_free_kbytes`).
const RESERVE_KIB: &str = "4096";
/// How much is filled before looking again at what is free.
const STEP: usize = 4 << 20;

/// Base pages that fill memory up to where the kernel would begin to reclaim.
fn fill() -> Result<Vec<Area>> {
    let mut areas = Vec::new();
    // A 256th of the memory above is what the lowest zone keeps from us (`vm.lowmem_reserve_ratio`).
    let keep = high_watermark()? + meminfo("MemTotal")? / 256 + MARGIN + STEP;
    while meminfo("MemFree")? > keep {
        let area = Area::plain(STEP, HUGE)?;
        area.write(BASE);
        areas.push(area);
    }
    Ok(areas)
}

/// Settings with which the kernel keeps little for itself, and does nothing before a fault asks for it.
fn on_demand(defrag: &str) -> Result<Vec<Setting>> {
    let mut settings = vec![
        Setting::thp("defrag", defrag)?,
        Setting::set("/proc/sys/vm/min_free_kbytes", RESERVE_KIB)?,
    ];
    // Since 5.9.
    let proactive = "/proc/sys/vm/compaction_proactiveness";
    if fs::exists(proactive)? {
        settings.push(Setting::set(proactive, "0")?);
    }
    Ok(settings)
}

/// Faults `count` huge pages; what came of them by the kernel's own account.
fn fault(count: usize) -> Result<Value> {
    let before = Vmstat::now()?;
    let area = Area::huge(count * HUGE, HUGE)?;
    area.write(HUGE);
    let mapped = smaps(&area, "AnonHugePages")? / HUGE;
    Ok(json!({
        "faults": count,
        "mapped": mapped,
        "fallbacks": count - mapped,
        "vmstat": before.growth()?,
    }))
}

/// Free memory in base pages only: each huge page must be made by moving others.
pub(crate) fn fragmented(count: usize, defrag: &str) -> Result<Value> {
    let _settings = on_demand(defrag)?;
    let areas = fill()?;
    // Three of four: compaction needs room to move the fourth to.
    for area in &areas {
        for offset in (0..area.bytes()).step_by(4 * BASE) {
            area.advise_part(offset, 3 * BASE, libc::MADV_DONTNEED)?;
        }
    }
    fault(count)
}

/// No free memory, but much that can be had at once: pages that their owner has given back
/// (`MADV_FREE`) but the kernel has not taken yet. The only such without a swap or a disk.
pub(crate) fn reclaim(count: usize, defrag: &str) -> Result<Value> {
    let _settings = on_demand(defrag)?;
    let areas = fill()?;
    for area in &areas {
        area.advise(libc::MADV_FREE)?;
    }
    fault(count)
}

/// A cgroup that may have only so many bytes: the page is there, but cannot be charged.
pub(crate) fn limited(count: usize, limit: usize) -> Result<Value> {
    const ROOT: &str = "/sys/fs/cgroup";
    let group = format!("{ROOT}/limited");
    let write = |path: String, value: &str| {
        fs::write(&path, value).with_context(|| format!("{path} = {value}"))
    };
    write(format!("{ROOT}/cgroup.subtree_control"), "+memory")?;
    fs::create_dir(&group).with_context(|| group.clone())?;
    write(format!("{group}/memory.max"), &limit.to_string())?;
    let pid = process::id().to_string();
    write(format!("{group}/cgroup.procs"), &pid)?;
    let faulted = fault(count);
    write(format!("{ROOT}/cgroup.procs"), &pid)?;
    fs::remove_dir(&group).with_context(|| group.clone())?;
    faulted
}
