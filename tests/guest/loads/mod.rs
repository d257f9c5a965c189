//! Loads: each makes exactly known clears, copies and faults by its own system calls, and prints one line
//! of JSON of what it caused and what the kernel counted meanwhile. They know nothing of the tracer.
//!
//! Huge pages are 2 MiB here. A load leaves the settings as they were; whether memory has huge pages at
//! all is the caller's (`enabled` must be `madvise` or `always`; with `always` a load may fault some that
//! it does not mean to).

mod area;
mod hugetlb;
mod kernel;
mod pressure;
mod thp;

use anyhow::{Result, ensure};
use clap::Subcommand;
use nix::libc;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Load {
    /// Huge pages in fragmented memory: compaction in the faults.
    Fragmented {
        #[arg(long, default_value_t = 32)]
        count: usize,
        /// When to compact.
        #[arg(long, default_value = "always")]
        defrag: String,
    },
    /// Huge pages when nothing is free: reclaim in the faults.
    Reclaim {
        #[arg(long, default_value_t = 32)]
        count: usize,
        /// When to reclaim.
        #[arg(long, default_value = "always")]
        defrag: String,
    },
    /// More huge pages than a cgroup may have: those beyond cannot be charged.
    Limited {
        #[arg(long, default_value_t = 16)]
        count: usize,
        /// Bytes that it may have.
        #[arg(long, default_value_t = 8 << 20)]
        limit: usize,
    },
    /// Areas that want huge pages, and into which none fits.
    TooSmall {
        #[arg(long, default_value_t = 8)]
        count: usize,
    },
    /// A child writes to the huge pages of its parent: base pages are copied.
    ThpForkCow {
        #[arg(long, default_value_t = 8)]
        count: usize,
    },
    /// Read faults that map the huge zero page.
    ZeroPage {
        #[arg(long, default_value_t = 8)]
        count: usize,
        /// Then write to each.
        #[arg(long)]
        written: bool,
    },
    /// Base pages become huge ones by MADV_COLLAPSE.
    Collapse {
        #[arg(long, default_value_t = 4)]
        count: usize,
        /// By khugepaged instead.
        #[arg(long)]
        khugepaged: bool,
    },
    /// Huge pages of a node, faulted on a CPU.
    Node {
        #[arg(long, default_value_t = 8)]
        count: usize,
        #[arg(long)]
        cpu: usize,
        #[arg(long)]
        node: u32,
        /// From the hugetlb pool instead of THP.
        #[arg(long)]
        hugetlb: bool,
    },
    /// Threads that clear as fast as they can.
    Flood(thp::Flood),
    /// A child writes to the hugetlb pages of its parent: each is copied.
    HugetlbForkCow {
        #[arg(long, default_value_t = 4)]
        count: usize,
    },
    /// fallocate(2) of a file of hugetlbfs.
    HugetlbFallocate {
        #[arg(long, default_value_t = 4)]
        count: usize,
    },
    /// A memfd of hugetlb pages: half by fallocate(2), half by touches.
    Memfd {
        #[arg(long, default_value_t = 8)]
        count: usize,
    },
    /// A memfd of hugetlb pages that a driver pins: since 6.12 or so, that allocates them.
    MemfdPin {
        #[arg(long, default_value_t = 4)]
        count: usize,
    },
    /// The hugetlb pool grows and shrinks.
    PoolGrowth {
        #[arg(long, default_value_t = 8)]
        count: usize,
    },
}

#[expect(clippy::print_stdout, reason = "it is the load's report")]
pub(crate) fn run(load: Load) -> Result<()> {
    let caused = match load {
        Load::Fragmented { count, defrag } => pressure::fragmented(count, &defrag),
        Load::Reclaim { count, defrag } => pressure::reclaim(count, &defrag),
        Load::Limited { count, limit } => pressure::limited(count, limit),
        Load::TooSmall { count } => thp::too_small(count),
        Load::ThpForkCow { count } => thp::fork_cow(count),
        Load::ZeroPage { count, written } => thp::zero_page(count, written),
        Load::Collapse { count, khugepaged } => thp::collapse(count, khugepaged),
        Load::Node {
            count,
            cpu,
            node,
            hugetlb,
        } => thp::node(count, cpu, node, hugetlb),
        Load::Flood(flood) => thp::flood(flood),
        Load::HugetlbForkCow { count } => hugetlb::fork_cow(count),
        Load::HugetlbFallocate { count } => hugetlb::fallocate(count),
        Load::Memfd { count } => hugetlb::memfd(count),
        Load::MemfdPin { count } => hugetlb::pinned(count),
        Load::PoolGrowth { count } => hugetlb::pool_growth(count),
    }?;
    println!("{caused}");
    Ok(())
}

/// Runs `body` in a child process; an error unless it returns true.
fn in_child(body: impl FnOnce() -> Result<bool>) -> Result<()> {
    // SAFETY: this process has one thread, so that the child may do what it likes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = matches!(body(), Ok(true));
        // SAFETY: it ends the child, without what the parent would run at its end.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    area::check(child, "fork")?;
    let mut status = 0;
    // SAFETY: the status is a valid place to write to.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    area::check(ended, "waitpid")?;
    ensure!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child did not get its pages: status {status:#x}"
    );
    Ok(())
}

/// Keeps the calling thread on a CPU.
fn run_on(cpu: usize) -> Result<()> {
    // SAFETY: the set is valid when zero, and the kernel reads as much as it is told.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    area::check(done, "sched_setaffinity")
}
