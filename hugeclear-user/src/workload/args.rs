//! The command line of the driver; its doc comments are the help text.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    counters::Event,
    units::{Numbers, format_bytes, numbers, parse_bytes, seconds},
};

/// Cause huge-page faults: a known number, where, how and how fast you like
///
/// Maps memory, touches each huge page of it so that the kernel clears it, times each touch, unmaps, and repeats. Then
/// tells how long it took, over the runs, and how many huge pages the kernel says it got: the number of clears that a
/// trace must show.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to do
    #[arg(value_enum, value_name = "NAME")]
    pub kind: Kind,

    /// Size of one huge page [default: what a PMD maps, 2M on x86; mthp: 64K; hugetlb: the system's default]
    ///
    /// thp, mthp, populate: any size below /sys/kernel/mm/transparent_hugepage (64K, ..., 2M; sizes below 2M since
    /// Linux 6.8). The hugetlb kinds: any size below /sys/kernel/mm/hugepages (2M and 1G on x86).
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub page_size: Option<u64>,

    /// Memory of one run, a multiple of the page size [default: 64M, or one page if that is larger; zero-page: 8G]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,

    /// Number of runs, each on fresh memory
    #[arg(long, value_name = "RUNS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,

    /// Run for so long, again and again on fresh memory, instead of once over the memory
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,

    /// Faults per second of all threads together [default: as fast as they can]
    #[arg(long, value_name = "FAULTS", value_parser = rate)]
    pub rate: Option<f64>,

    /// For fork-cow: transparent huge pages instead of private hugetlb pages
    #[arg(long, help_heading = KINDS)]
    pub thp: bool,

    /// For thp, mthp and populate: do not ask by madvise(MADV_HUGEPAGE); the setting must be `always`
    #[arg(long, help_heading = KINDS)]
    pub no_madvise: bool,

    /// Run also where the settings allow small pages only, as a comparison
    #[arg(long, help_heading = KINDS)]
    pub allow_small: bool,

    /// For populate: by which call
    #[arg(long, value_enum, value_name = "CALL", help_heading = KINDS)]
    pub populate_by: Option<PopulateBy>,

    /// For zero-page: how the two halves of the memory are compared
    #[arg(long, value_enum, value_name = "BENCH", help_heading = KINDS)]
    pub bench: Option<Bench>,

    /// For zero-page: what maps the untouched memory
    #[arg(long, value_enum, value_name = "PAGES", help_heading = KINDS)]
    pub mapping: Option<ZeroMapping>,

    /// For zero-page: how often the halves are compared in each run [default: compare 100, stride 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = KINDS)]
    pub iterations: Option<u32>,

    /// Where in a page it is touched first: first, middle, last, random, or bytes from its start, such as 64K
    #[arg(long, value_name = "WHERE", default_value = "first", value_parser = Touch::parse, help_heading = TOUCHES)]
    pub touch: Touch,

    /// Bytes from one touch to the next, a multiple or a divisor of the page size [default: the page size]
    ///
    /// Larger: only some of the pages are touched. Smaller: each page is touched at --touch first, and then at
    /// every stride from its start.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = TOUCHES)]
    pub stride: Option<u64>,

    /// Read all the memory again after the faults, then write it, and time both
    ///
    /// `run`: after all touches of the run; `page`: each page right after its fault, while it is in the caches as the
    /// clear left it. A kernel that clears faster can leave slower memory.
    #[arg(long, value_enum, value_name = "AFTER", num_args = 0..=1, default_missing_value = "run", help_heading = TOUCHES)]
    pub retouch: Option<Retouch>,

    /// Seed of `--touch random`
    #[arg(long, value_name = "SEED", default_value_t = 1, help_heading = TOUCHES)]
    pub seed: u64,

    /// Threads that share the memory of a run, each a part of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = PLACES)]
    pub threads: u32,

    /// CPUs to run on, such as 0-3,8: each thread is pinned to one of them in turn
    #[arg(long, value_name = "LIST", value_parser = numbers, help_heading = PLACES)]
    pub cpu: Option<Numbers>,

    /// Run on the CPUs of this node, as `numactl -N`
    #[arg(long, value_name = "NODE", conflicts_with = "cpu", help_heading = PLACES)]
    pub node: Option<u32>,

    /// Take memory from this node only, as `numactl -m`
    #[arg(long, value_name = "NODE", help_heading = PLACES)]
    pub mem_node: Option<u32>,

    /// Fragment so many percent of the free memory first, so that huge pages must be made by compaction
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99), help_heading = PRESSURE)]
    pub fragment: Option<u8>,

    /// Threads that spin on the same CPUs meanwhile
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=4096), help_heading = PRESSURE)]
    pub compete: u32,

    /// Threads that write to memory as fast as it takes it meanwhile, on other CPUs if there are others
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=4096), help_heading = PRESSURE)]
    pub saturate: u32,

    /// What perf counts of the workload meanwhile: all, none, or events by perf's names, such as cycles,dTLB-load-misses
    ///
    /// Few at a time are exact; many take turns on the CPU's counters, and the values are scaled up.
    #[arg(long, value_name = "EVENTS", default_value = "all", value_parser = Events::parse)]
    pub counters: Events,

    /// Change the settings that are in the way, and put them back afterwards
    ///
    /// The hugetlb pool is grown to what is needed; the setting of the page size is set to `madvise` (`always` with
    /// --no-madvise) if it is off, larger sizes to `never` if a smaller one is asked for, with --fragment `defrag` to
    /// `madvise` if faults would not compact. They are put back on every exit; should this process be killed by
    /// SIGKILL, the next start of this program puts them back. Needs root.
    #[arg(long)]
    pub configure: bool,

    /// Print the report as JSON, with every run
    #[arg(long)]
    pub json: bool,
}

const KINDS: &str = "Options of some names";
const TOUCHES: &str = "How memory is touched";
const PLACES: &str = "Where it runs";
const PRESSURE: &str = "What else goes on";

const EXAMPLES: &str = "\
Examples:
  32 clears of 2 MiB on CPU 1:
      hugeclear-trace workload thp --size 64M --cpu 1
  The same, traced:
      sudo hugeclear-trace --per-cpu -- hugeclear-trace workload thp --size 64M --cpu 1
  As on the mailing list (perf stat -r 10 numactl -m 0 -N 0), from a pool that is made for it:
      sudo hugeclear-trace workload hugetlb --page-size 1G --size 64G --node 0 --mem-node 0 --repeat 10 --configure
  64 KiB pages (Linux 6.8 and later):
      sudo hugeclear-trace workload mthp --size 4M --configure
  What the order of clearing is worth to the program that touches its memory next:
      hugeclear-trace workload thp --touch middle --retouch page --repeat 10
  Faults that have to compact, with a competitor on their CPU:
      sudo hugeclear-trace workload thp --fragment 95 --cpu 1 --compete 1 --configure
  The huge zero page against 4 KiB zero pages:
      hugeclear-trace workload zero-page --bench stride --mapping huge

GB/s is 1e9 bytes per second, GiB/s 2^30. sd is the standard deviation of the runs, SE the standard error of their mean,
which is what `perf stat -r` prints.
Exit status: 0 done; 1 it could not be done; 2 it cannot be done as asked; 128 + N ended by signal N.";

/// What a workload does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Transparent huge pages: anonymous memory with madvise(MADV_HUGEPAGE)
    Thp,
    /// The same in sizes below that of a PMD
    Mthp,
    /// The hugetlb pool: anonymous memory with MAP_HUGETLB
    Hugetlb,
    /// Huge pages of shared memory, which are cleared elsewhere: no clear to trace
    Shmem,
    /// A memfd of hugetlb pages
    MemfdHugetlb,
    /// The same by fallocate(2), a page at a time, instead of by touches
    FallocateHugetlb,
    /// A child writes to what its parent has filled: private hugetlb pages are copied
    ForkCow,
    /// MADV_COLLAPSE of base pages to huge pages (Linux 6.1 and later): no clear to trace
    Collapse,
    /// Memory that is only read: the huge zero page against base zero pages; no clear to trace
    ZeroPage,
    /// Transparent huge pages by MADV_POPULATE_WRITE (5.14 and later) or MAP_POPULATE instead of by touches
    Populate,
    /// Base pages, as a comparison: no clear to trace
    Base,
}

impl Kind {
    /// The word used on the command line and in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Thp => "thp",
            Self::Mthp => "mthp",
            Self::Hugetlb => "hugetlb",
            Self::Shmem => "shmem",
            Self::MemfdHugetlb => "memfd-hugetlb",
            Self::FallocateHugetlb => "fallocate-hugetlb",
            Self::ForkCow => "fork-cow",
            Self::Collapse => "collapse",
            Self::ZeroPage => "zero-page",
            Self::Populate => "populate",
            Self::Base => "base",
        }
    }
}

/// Events to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events(pub Vec<Event>);

impl Events {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self(Event::ALL.to_vec())),
            "none" => Ok(Self(Vec::new())),
            list => list
                .split(',')
                .map(|name| Event::from_str(name, false))
                .collect::<Result<_, _>>()
                .map(Self)
                .map_err(|_| {
                    let names: Vec<&str> = Event::ALL.into_iter().map(Event::name).collect();
                    format!("write all, none, or a list of {}", names.join(", "))
                }),
        }
    }
}

/// Where in a page it is touched first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Touch {
    /// Its first byte.
    First,
    /// The byte at half its size.
    Middle,
    /// The first byte of its last base page.
    Last,
    /// Any byte, another one in each page.
    Random,
    /// The byte so many bytes from its start.
    Offset(u64),
}

impl Touch {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "first" => Ok(Self::First),
            "middle" => Ok(Self::Middle),
            "last" => Ok(Self::Last),
            "random" => Ok(Self::Random),
            offset => parse_bytes(offset)
                .map(Self::Offset)
                .map_err(|error| format!("write first, middle, last, random or bytes; {error}")),
        }
    }
}

impl std::fmt::Display for Touch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::First => f.write_str("first"),
            Self::Middle => f.write_str("middle"),
            Self::Last => f.write_str("last"),
            Self::Random => f.write_str("random"),
            Self::Offset(bytes) => f.write_str(&format_bytes(*bytes)),
        }
    }
}

/// When memory is read and written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retouch {
    /// After all touches of a run
    Run,
    /// Each page right after its fault
    Page,
}

/// The call that makes the memory present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PopulateBy {
    /// madvise(MADV_POPULATE_WRITE), one call a huge page
    Madvise,
    /// mmap(MAP_POPULATE), one call for all the memory of a thread
    Mmap,
}

/// A microbenchmark of the huge zero page (Kirill Shutemov, "Introduce huge zero page", October 2012).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bench {
    /// Both halves, byte by byte, by memcmp(3)
    Compare,
    /// One byte of every 4 KiB of both halves
    Stride,
}

/// What maps memory that is only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroMapping {
    /// The huge zero page, once per PMD
    Huge,
    /// The zero page, once per base page
    Small,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        Ok(_) | Err(_) => Err("a number of faults per second above 0".to_owned()),
    }
}
