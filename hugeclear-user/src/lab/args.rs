//! The command line of the lab; its doc comments are the help text.

use clap::{ValueEnum, builder::PossibleValuesParser};
use serde::{Deserialize, Serialize};

use super::Primitive;
use crate::{strategy::Touch, units::parse_bytes};

/// Measure in user space what the order and the instructions of clearing cost, without root
///
/// Clears memory as kernels clear huge pages, or might: in one go, page by page in several orders, in chunks; each with
/// every store instruction of this processor. Then reads the surroundings of the fault, to see what the clear has
/// left in the caches.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Sizes of the region that is cleared, each measured by itself
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "2M", value_parser = parse_bytes)]
    pub size: Vec<u64>,

    /// Where the fault is: first, middle, last, or the number of a 4K sub-page from 0
    #[arg(long, value_name = "PAGE", default_value = "middle", value_parser = Touch::parse)]
    pub touch: Touch,

    /// Strategies, instead of all
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    pub strategy: Vec<Kind>,

    /// Store instructions, instead of all that this processor has
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(Primitive::all().iter().map(|primitive| primitive.name)))]
    pub primitive: Vec<String>,

    /// Sizes of the chunks; those that are no smaller than the region are left out
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "32K,256K,2M,32M", value_parser = parse_bytes)]
    pub chunk: Vec<u64>,

    /// Where the first pass of two-pass begins, from the fault [default: the size of the L1 data cache]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub two_pass_offset: Option<u64>,

    /// What the memory is made of
    #[arg(long, value_enum, value_name = "PAGES", default_value = "thp")]
    pub backing: Backing,

    /// Clears of each strategy with each primitive [default: 100; fewer above 40M, so that 4G are cleared, but at
    /// least 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub repeat: Option<u32>,

    /// Rounds before those that are measured; the first also checks that all is cleared
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub warmup: u32,

    /// Drop the region from the caches before each clear
    ///
    /// Otherwise it has just been written, so that it is in the caches as far as they hold it: a page that was freed
    /// a moment ago. With it: a page that was not used for long.
    #[arg(long)]
    pub evict: bool,

    /// CPU to run on [default: the one it starts on]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,

    /// Seed of the order in which it all runs
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,

    /// Print everything as JSON, with every time measured
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  All of it, for a page of 2 MiB:
      hugeclear-trace lab
  Orders of clearing with the instruction that Linux uses on this kind of processor, for two sizes:
      hugeclear-trace lab --primitive rep-stosb --size 2M,1G
  Page by page against one go, of memory that is in no cache:
      hugeclear-trace lab --strategy one-shot,forward,reverse --size 100M --evict
  Chunks of 8 pages to 32 MiB:
      hugeclear-trace lab --strategy one-shot,chunked --chunk 32K,512K,8M,32M --size 1G

GB/s is 1e9 bytes per second. sd is the sample standard deviation.
Exit status: 0 done; 1 it could not be done; 2 it cannot be done as asked; 128 + N ended by signal N, after a report of
what was measured until then.";

/// Kinds of strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// All at one go
    OneShot,
    /// A 4K page at a time, ascending
    Forward,
    /// A 4K page at a time, descending
    Reverse,
    /// A 4K page at a time from both ends towards the fault: Linux until 6.19
    Converging,
    /// From the fault, and an offset, to the end; then from the start up to there
    TwoPass,
    /// Chunks, with sched_yield(2) between
    Chunked,
    /// Right of the fault's neighbourhood, left of it, the neighbourhood: Linux from 7.0 on
    Ranges,
}

/// What memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// Transparent huge pages, if the kernel gives them
    Thp,
    /// The hugetlb pool
    Hugetlb,
    /// Base pages
    Base,
}
