//! The command line of the sweep; its doc comments are the help text.

use clap::ValueEnum;

use super::plan::Factor;
use crate::units::{format_bytes, parse_bytes};

/// Run a workload under every combination of preemption models and other settings, and compare
///
/// Every combination runs once per round, in random order, each run in a process of its own. Values that this kernel lacks
/// are named and left out. Where the kernel can be traced, the clears of each run are traced too.
///
/// Settings are switched while the kernel runs, also those that the workload needs if it is given --configure, and put
/// back on every exit; should this process be killed by SIGKILL, the next start of this program puts them back. Needs
/// root where a setting is switched.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Preemption models, switched in debugfs (sched/preempt)
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',', value_parser = ["none", "voluntary", "full", "lazy"], help_heading = FACTORS)]
    pub preempt: Vec<String>,
    /// Settings of transparent huge pages (transparent_hugepage/enabled)
    ///
    /// Where one leaves the workload no huge pages, it runs on small pages, as a comparison.
    #[arg(long, value_name = "WHEN,...", value_delimiter = ',', value_parser = ["always", "madvise", "never"], help_heading = FACTORS)]
    pub thp: Vec<String>,
    /// How hard a fault tries to get a huge page (transparent_hugepage/defrag)
    #[arg(long, value_name = "WHEN,...", value_delimiter = ',', value_parser = ["always", "defer", "defer+madvise", "madvise", "never"], help_heading = FACTORS)]
    pub defrag: Vec<String>,
    /// Values of the workload's --page-size
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = parse_bytes, help_heading = FACTORS)]
    pub page_size: Vec<u64>,
    /// Values of the workload's --touch
    #[arg(long, value_name = "WHERE,...", value_delimiter = ',', help_heading = FACTORS)]
    pub touch: Vec<String>,

    /// Number of rounds: runs of each combination
    #[arg(long, value_name = "ROUNDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Repeats the order of an earlier sweep [default: another one each time]
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Whether to trace the clears
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Tracing::Auto)]
    pub trace: Tracing,
    /// Print JSON: every run in the order in which it ran, with the workload's own report
    #[arg(long)]
    pub json: bool,

    /// The workload and its options, as `hugeclear-trace workload` takes them
    #[arg(trailing_var_arg = true, required = true, value_name = "WORKLOAD")]
    pub workload: Vec<String>,
}

const FACTORS: &str = "What to vary";

const EXAMPLES: &str = "\
Examples:
  Which preemption model clears 2 MiB pages fastest, in 5 rounds:
      sudo hugeclear-trace sweep --preempt none,voluntary,full,lazy thp --size 256M --cpu 1
  Pages of three sizes, each cleared from its first and its middle byte:
      sudo hugeclear-trace sweep --page-size 64K,1M,2M --touch first,middle thp --size 64M --configure
  hugetlb pages under two models, in 10 rounds, as JSON:
      sudo hugeclear-trace sweep --preempt none,full --repeat 10 --json hugetlb --size 1G --configure

sd is the standard deviation of the runs, SE the standard error of their mean.
Exit status: 0 done; 1 it could not be done; 2 it cannot be done as asked; 128 + N ended by signal N.";

/// Whether clears are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tracing {
    /// Where this kernel and this user can
    Auto,
    /// Or nothing is run
    On,
    /// Not at all
    Off,
}

impl Args {
    /// The values of each factor that is varied, in the order of the table's columns, each value once.
    pub(super) fn factors(&self) -> Vec<(Factor, Vec<String>)> {
        let page_sizes: Vec<String> = self.page_size.iter().copied().map(format_bytes).collect();
        [
            (Factor::PageSize, page_sizes),
            (Factor::Touch, self.touch.clone()),
            (Factor::Thp, self.thp.clone()),
            (Factor::Defrag, self.defrag.clone()),
            (Factor::Preempt, self.preempt.clone()),
        ]
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(factor, values)| {
            let mut once: Vec<String> = Vec::new();
            for value in values {
                if !once.contains(&value) {
                    once.push(value);
                }
            }
            (factor, once)
        })
        .collect()
    }
}
