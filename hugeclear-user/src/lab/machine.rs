//! What the machine offers the lab, and what it did meanwhile.

use std::path::Path;

use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use crate::{
    facts::{Cpu, HugetlbPool, source::Source},
    units::parse_bytes,
    workload,
};

/// What the machine offers the lab.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Kernel release, `uname -r`. Source: `/proc/sys/kernel/osrelease`.
    pub release: Option<String>,
    /// Processor.
    pub cpu: Cpu,
    /// The CPU on which this runs.
    pub current_cpu: u32,
    /// Online CPUs.
    pub online: Vec<u32>,
    /// Caches of the current CPU that hold data. Empty: the kernel does not tell, as in some guests.
    pub caches: Vec<Cache>,
    /// Bytes that can be had without swapping. Source: `MemAvailable` of `/proc/meminfo`.
    pub available_bytes: Option<u64>,
    /// Bytes of a page that a PMD maps, which is what smaps counts as huge. `None`: no THP.
    pub pmd_bytes: Option<u64>,
    /// hugetlb pools by size; empty: not built in.
    pub hugetlb: Vec<HugetlbPool>,
    /// Page size of `MAP_HUGETLB` without a size.
    pub hugetlb_default_bytes: Option<u64>,
}

/// A cache that holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1 is nearest to the CPU.
    pub level: u8,
    /// Bytes, shared by all CPUs that share it.
    pub bytes: u64,
}

impl Machine {
    /// Reads it below `root`, `/` in production.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        // SAFETY: no memory is involved.
        let current_cpu = u32::try_from(unsafe { libc::sched_getcpu() })
            .expect("the kernel knows where this runs");
        let mut source = Source::new(root);
        let offers = workload::Machine::read(root);
        Self {
            release: source.text("proc/sys/kernel/osrelease"),
            cpu: Cpu::read(&mut source),
            current_cpu,
            online: offers.online,
            caches: caches(&mut source, current_cpu),
            available_bytes: offers.available_bytes,
            pmd_bytes: offers.thp.and_then(|thp| thp.pmd_size_bytes),
            hugetlb: offers.hugetlb,
            hugetlb_default_bytes: offers.hugetlb_default_bytes,
        }
    }

    /// Size of the L1 data cache, bytes.
    #[must_use]
    pub fn l1d_bytes(&self) -> Option<u64> {
        let l1 = self.caches.iter().find(|cache| cache.level == 1);
        l1.map(|cache| cache.bytes)
    }
}

fn caches(source: &mut Source, cpu: u32) -> Vec<Cache> {
    let dir = format!("sys/devices/system/cpu/cpu{cpu}/cache");
    let mut caches: Vec<Cache> = source
        .names(&dir)
        .iter()
        .filter(|name| name.starts_with("index"))
        .filter_map(|name| {
            let mut field = |field| source.text(format!("{dir}/{name}/{field}"));
            if field("type")? == "Instruction" {
                return None;
            }
            Some(Cache {
                level: field("level")?.parse().ok()?,
                bytes: parse_bytes(&field("size")?).ok()?,
            })
        })
        .collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// What disturbs measurements, at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disturbances {
    khz: Option<u64>,
    steal_ticks: Option<u64>,
    preempted: u64,
}

/// What disturbed the measurements, from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Conditions {
    /// Frequency of the CPU before, kHz. `None`: the kernel does not tell, as in most guests. Source:
    /// `scaling_cur_freq` of cpufreq.
    pub khz_before: Option<u64>,
    /// And after.
    pub khz_after: Option<u64>,
    /// Time that a hypervisor gave to others while this CPU had work, ms, to a clock tick (10 ms).
    /// Source: `/proc/stat`.
    pub steal_ms: Option<u64>,
    /// How often the lab's thread was preempted. Source: `ru_nivcsw` of getrusage(2).
    pub preempted: u64,
}

impl Disturbances {
    /// Of this CPU and this thread.
    pub(super) fn read(root: &Path, cpu: u32) -> Self {
        let mut source = Source::new(root);
        let usage = getrusage(UsageWho::RUSAGE_THREAD)
            .expect("getrusage(RUSAGE_THREAD) always answers on Linux");
        Self {
            khz: source
                .text_if_present(format!(
                    "sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"
                ))
                .and_then(|khz| khz.parse().ok()),
            steal_ticks: source
                .text("proc/stat")
                .and_then(|stat| steal_ticks(&stat, cpu)),
            preempted: usage
                .involuntary_context_switches()
                .try_into()
                .unwrap_or_default(),
        }
    }

    pub(super) fn until(self, after: Self) -> Conditions {
        let steal_ticks = after
            .steal_ticks
            .zip(self.steal_ticks)
            .map(|(after, before)| after.saturating_sub(before));
        Conditions {
            khz_before: self.khz,
            khz_after: after.khz,
            // USER_HZ is 100 on every architecture that we run on.
            steal_ms: steal_ticks.map(|ticks| ticks * 10),
            preempted: after.preempted.saturating_sub(self.preempted),
        }
    }
}

/// The eighth number of the CPU's line (proc_stat(5)).
fn steal_ticks(stat: &str, cpu: u32) -> Option<u64> {
    let name = format!("cpu{cpu}");
    let mut fields = stat
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut fields| (fields.next() == Some(&name)).then_some(fields))?;
    fields.nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn steal_is_that_of_the_cpu() {
        let stat =
            "cpu  9 9 9 9 9 9 9 33 9 9\ncpu1 1 2 3 4 5 6 7 11 0 0\ncpu10 1 2 3 4 5 6 7 22 0 0\n";
        assert_eq!(steal_ticks(stat, 1), Some(11));
        assert_eq!(steal_ticks(stat, 10), Some(22));
        assert_eq!(steal_ticks(stat, 0), None);
        assert_eq!(steal_ticks("cpu0 1 2 3\n", 0), None);
    }

    #[test]
    fn caches_are_those_of_data() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("sys/devices/system/cpu/cpu3/cache");
        for (index, level, kind, size) in [
            (0, "1", "Data", "48K"),
            (1, "1", "Instruction", "32K"),
            (2, "2", "Unified", "2048K"),
            (3, "3", "Unified", "307200K"),
        ] {
            let dir = dir.join(format!("index{index}"));
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(dir.join(file), format!("{text}\n")).unwrap();
            }
        }
        let mut source = Source::new(root.path());
        let of = |level, bytes| Cache { level, bytes };
        assert_eq!(
            caches(&mut source, 3),
            [of(1, 48 << 10), of(2, 2 << 20), of(3, 300 << 20)]
        );
        assert_eq!(caches(&mut source, 0), []);
    }

    #[test]
    fn this_machine_is_read() {
        let machine = Machine::read(Path::new("/"));
        assert!(machine.online.contains(&machine.current_cpu));
    }
}
