//! Loads of transparent huge pages.

use std::{
    fs,
    os::unix::process::parent_id,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    libc,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{
    HUGE,
    area::{Area, BASE},
    in_child,
    kernel::{Setting, Vmstat, numa_maps, smaps},
    run_on,
};

/// How long khugepaged may take: it looks at all processes in turn.
const KHUGEPAGED_PATIENCE: Duration = Duration::from_secs(60);

/// madvise(2)'s MADV_COLLAPSE, since 6.1.
const MADV_COLLAPSE: i32 = 25;

/// A child writes to the huge pages of its parent: the kernel splits them, and copies base pages.
pub(crate) fn fork_cow(count: usize) -> Result<Value> {
    let before = Vmstat::now()?;
    let area = Area::huge(count * HUGE, HUGE)?;
    area.write(HUGE);
    ensure!(
        smaps(&area, "AnonHugePages")? == count * HUGE,
        "not all pages are huge"
    );
    in_child(|| {
        area.write(HUGE);
        Ok(true)
    })?;
    Ok(json!({"thp_faults": count, "clears": count, "copies": 0, "vmstat": before.growth()?}))
}

/// Reads of memory that was never written: all map the one huge zero page. `written`: each is then
/// written to.
pub(crate) fn zero_page(count: usize, written: bool) -> Result<Value> {
    // The kernel keeps the zero page for whoever is next, until memory is asked back: made again.
    fs::write("/proc/sys/vm/drop_caches", "2").context("drop_caches")?;
    let before = Vmstat::now()?;
    let area = Area::huge(count * HUGE, HUGE)?;
    ensure!(area.read(HUGE) == 0, "pages that are not zero");
    // One page table entry for each, or the base zero page would have been used.
    ensure!(
        smaps(&area, "Rss")? == 0,
        "pages that are not the zero page"
    );
    if written {
        area.write(HUGE);
    }
    let huge = smaps(&area, "AnonHugePages")? / HUGE;
    Ok(json!({
        "zero_page_faults": count,
        // By the write to a zero page: since 6.13 or so. Before, it was given base pages.
        "thp_by_write": huge,
        "vmstat": before.growth()?,
    }))
}

/// Base pages are put together to huge ones, by MADV_COLLAPSE or by khugepaged: no fault.
pub(crate) fn collapse(count: usize, by_khugepaged: bool) -> Result<Value> {
    let before = Vmstat::now()?;
    let area = Area::plain(count * HUGE, HUGE)?;
    area.write(BASE);
    if by_khugepaged {
        let _pause = Setting::thp("khugepaged/scan_sleep_millisecs", "1")?;
        let _pages = Setting::thp("khugepaged/pages_to_scan", "100000")?;
        area.advise(libc::MADV_HUGEPAGE)?;
        let since = Instant::now();
        while smaps(&area, "AnonHugePages")? < count * HUGE {
            ensure!(since.elapsed() < KHUGEPAGED_PATIENCE, "khugepaged is late");
            thread::sleep(Duration::from_millis(50));
        }
    } else {
        area.advise(libc::MADV_HUGEPAGE)?;
        area.advise(MADV_COLLAPSE).context("MADV_COLLAPSE")?;
    }
    ensure!(
        smaps(&area, "AnonHugePages")? == count * HUGE,
        "not all pages are huge"
    );
    Ok(json!({"thp_faults": 0, "clears": 0, "collapsed": count, "vmstat": before.growth()?}))
}

/// Areas that want huge pages, and into which none fits.
pub(crate) fn too_small(count: usize) -> Result<Value> {
    let before = Vmstat::now()?;
    for _ in 0..count {
        let area = Area::anonymous(HUGE / 2, HUGE, HUGE / 4)?;
        area.advise(libc::MADV_HUGEPAGE)?;
        area.write_at(0);
    }
    Ok(json!({"fallback_vma": count, "clears": 0, "vmstat": before.growth()?}))
}

/// Huge pages of `node`, faulted on `cpu`.
pub(crate) fn node(count: usize, cpu: usize, node: u32, hugetlb: bool) -> Result<Value> {
    run_on(cpu)?;
    let (_pool, area) = if hugetlb {
        let path = format!(
            "/sys/devices/system/node/node{node}/hugepages/hugepages-{}kB/nr_hugepages",
            HUGE >> 10
        );
        let pool = Setting::set(path, &count.to_string())?;
        (Some(pool), Area::hugetlb(count * HUGE, HUGE)?)
    } else {
        (None, Area::huge(count * HUGE, HUGE)?)
    };
    area.bind(node)?;
    area.write(HUGE);
    Ok(json!({"clears": count, "bytes_on_node": numa_maps(&area)?}))
}

/// Which tasks clear, and how much.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Flood {
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Times that each thread gives its memory back and faults it in again.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// Pages of each thread.
    #[arg(long, default_value_t = 16)]
    pages: usize,
    /// Bytes of a page; sizes below 2 MiB are to be enabled before.
    #[arg(long, default_value_t = HUGE)]
    page: usize,
    /// Stop the process that started this one meanwhile: if it reads events, they are lost.
    #[arg(long)]
    stop_parent: bool,
}

/// Threads that clear as fast as they can.
pub(crate) fn flood(flood: Flood) -> Result<Value> {
    let Flood {
        threads,
        rounds,
        pages,
        page,
        stop_parent,
    } = flood;
    let before = Vmstat::now()?;
    let areas: Vec<Area> = (0..threads)
        .map(|_| Area::huge(pages * page, page.max(HUGE)))
        .collect::<Result<_>>()?;
    let parent = Pid::from_raw(parent_id().cast_signed());
    if stop_parent {
        kill(parent, Signal::SIGSTOP).context("SIGSTOP to the parent")?;
    }
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for area in areas {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for _ in 0..rounds {
                    area.write(page);
                    // What cannot be given back is not faulted again, and the count tells.
                    let _ = area.advise(libc::MADV_DONTNEED);
                }
            });
        }
    });
    if stop_parent {
        kill(parent, Signal::SIGCONT).context("SIGCONT to the parent")?;
    }
    let clears = threads * rounds * pages;
    Ok(json!({"clears": clears, "page_bytes": page, "vmstat": before.growth()?}))
}
