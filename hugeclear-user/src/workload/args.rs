//! The command line of the driver; its doc comments are the help text.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::units::parse_bytes;

/// Cause huge-page faults: a known number, on a known CPU
///
/// Maps memory, touches one byte of each huge page so that the kernel clears it, times each touch,
/// unmaps, and repeats. Then tells how many huge pages the kernel says it mapped: the number of
/// clears that a trace must show.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the huge pages come from
    #[arg(value_enum)]
    pub kind: Kind,

    /// Size of one huge page [default: thp: what a PMD maps, 2M on x86; hugetlb: the system's default]
    ///
    /// thp: any size below /sys/kernel/mm/transparent_hugepage (64K, ..., 2M; sizes below 2M since Linux 6.8). hugetlb: any
    /// size below /sys/kernel/mm/hugepages (2M and 1G on x86).
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub page_size: Option<u64>,

    /// Memory to map and touch in each run, a multiple of the page size [default: 64M, or one page if that is larger]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,

    /// CPU to run on [default: wherever the scheduler likes]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,

    /// Number of runs, each on fresh memory
    #[arg(long, value_name = "RUNS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,

    /// Change the settings that are in the way, and put them back afterwards
    ///
    /// hugetlb: grows the pool to what is needed. thp: sets the page size to `madvise` if it is off, and larger sizes
    /// to `never` if a smaller one is asked for. Put back on every exit but SIGKILL and power loss. Needs root.
    #[arg(long)]
    pub configure: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  32 clears of 2 MiB on CPU 1:
      hugeclear-trace workload thp --size 64M --cpu 1
  The same, traced:
      sudo hugeclear-trace --per-cpu -- hugeclear-trace workload thp --size 64M --cpu 1
  One 1 GiB page, five times, from a pool that is made for it:
      sudo hugeclear-trace workload hugetlb --page-size 1G --size 1G --repeat 5 --configure
  64 KiB pages (Linux 6.8 and later):
      sudo hugeclear-trace workload thp --page-size 64K --size 4M --configure

Exit status: 0 done; 1 it could not be done; 2 it cannot be done as asked; 128 + N ended by signal N.";

/// Where huge pages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Transparent huge pages: anonymous memory with madvise(MADV_HUGEPAGE)
    Thp,
    /// The hugetlb pool: anonymous memory with MAP_HUGETLB
    Hugetlb,
}

impl Kind {
    /// The word used on the command line and in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Thp => "thp",
            Self::Hugetlb => "hugetlb",
        }
    }
}
