//! The checks of the kernel matrix. Runs as root inside a guest; exit status 0 if all hold.

mod causes;
mod counts;
mod events;
mod ftrace;
mod impact;
mod lifecycle;
mod loads;
mod models;
mod nodes;
mod parts;
mod strategy;
mod sweep;
mod trace;
mod waiting;
mod workloads;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// What the host expects of this kernel.
#[derive(Clone, Debug, clap::Args)]
struct Expected {
    /// Function with which the kernel clears huge pages.
    #[arg(long)]
    site: String,
    /// With init_on_alloc: whether an anonymous page is cleared in the allocator, and not by `site`.
    #[arg(long)]
    allocator_instead: bool,
    /// Whether the guest was booted with init_on_alloc=1.
    #[arg(long)]
    init_on_alloc: bool,
    /// The kernel has no transparent huge pages.
    #[arg(long)]
    no_thp: bool,
    /// How `site` clears.
    #[arg(long)]
    strategy: String,
    /// How the page allocator clears, if it does.
    #[arg(long)]
    allocator_strategy: String,
}

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// Clears are counted exactly, by both methods, at the right site.
    Counts {
        #[command(flatten)]
        expected: Expected,
        /// Also try every filter.
        #[arg(long)]
        filters: bool,
    },
    /// Durations agree with ftrace's function_graph, and waiting for a CPU inside a clear is told apart
    /// from running.
    Durations {
        #[command(flatten)]
        expected: Expected,
        /// Way to attach.
        #[arg(long)]
        method: String,
        /// The preemption models that can be switched to.
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
    },
    /// The preemption model is the one asked for, also when switched at run time.
    Models {
        #[command(flatten)]
        expected: Expected,
        /// The model that must be reported.
        #[arg(long)]
        model: String,
        /// The models that can be switched to.
        #[arg(long, value_delimiter = ',')]
        switch: Vec<String>,
        /// Ways to attach.
        #[arg(long, value_delimiter = ',')]
        methods: Vec<String>,
    },
    /// Hundreds of possible CPUs: the maps stay small, the verifier agrees, the counts are exact.
    ManyCpus {
        #[command(flatten)]
        expected: Expected,
        /// How many.
        #[arg(long)]
        cpus: u32,
    },
    /// How the kernel clears is named rightly, and seen so.
    Strategy(Expected),
    /// Signals, exit statuses, and nothing left behind.
    Lifecycle(Expected),
    /// How long tasks that wake beside a clear wait for it; also part of `durations`.
    Impact(Expected),
    /// Not a scenario: what `impact` traces.
    #[command(hide = true)]
    SleepBesideClear,
    /// Each cause of a clear is told, and what is no fault is not taken for one.
    Causes {
        #[command(flatten)]
        expected: Expected,
        /// Ways to attach.
        #[arg(long, value_delimiter = ',')]
        methods: Vec<String>,
    },
    /// What a fault consists of, where memory is free, fragmented, used up and limited.
    Parts(Expected),
    /// Local and remote clears are told apart, in a guest with two nodes.
    Nodes(Expected),
    /// Every clear is printed as it ends, or counted as lost.
    Events(Expected),
    /// Each workload causes what it says, and its options do what they say.
    Workloads(Expected),
    /// A sweep runs under every model, and puts all settings back.
    Sweep {
        #[command(flatten)]
        expected: Expected,
        /// The preemption models that can be switched to.
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
    },
    /// Makes clears for the other scenarios to count.
    #[command(subcommand)]
    Load(loads::Load),
}

fn main() -> Result<()> {
    match Arguments::parse().scenario {
        Scenario::Counts { expected, filters } => {
            counts::run(&expected)?;
            // Here for the sake of the boots: it needs one with init_on_alloc and one without.
            strategy::run(&expected)?;
            if filters {
                counts::filters(&expected)
            } else {
                Ok(())
            }
        }
        Scenario::Durations {
            expected,
            method,
            models,
        } => {
            ftrace::run(&expected, &method)?;
            waiting::run(&expected, &models)
        }
        Scenario::Models {
            expected,
            model,
            switch,
            methods,
        } => models::run(&expected, &model, &switch, &methods),
        Scenario::ManyCpus { expected, cpus } => counts::many_cpus(&expected, cpus),
        Scenario::Strategy(expected) => strategy::run(&expected),
        Scenario::Lifecycle(expected) => lifecycle::run(&expected),
        Scenario::Impact(expected) => impact::run(&expected),
        Scenario::SleepBesideClear => impact::sleep_beside_clear(),
        Scenario::Causes { expected, methods } => causes::run(&expected, &methods),
        Scenario::Parts(expected) => {
            parts::run(&expected)?;
            workloads::fragment(&expected)
        }
        Scenario::Nodes(expected) => {
            nodes::run(&expected)?;
            workloads::nodes(&expected)
        }
        Scenario::Workloads(expected) => workloads::run(&expected),
        Scenario::Events(expected) => events::run(&expected),
        Scenario::Sweep { expected, models } => sweep::run(&expected, &models),
        Scenario::Load(load) => loads::run(load),
    }
}
