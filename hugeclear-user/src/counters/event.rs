//! What can be counted, under the names of `perf list`.

use clap::{ValueEnum, builder::PossibleValue};
use serde::{Deserialize, Serialize};

/// An event that `perf stat -d -d` counts. On the command line and in JSON it has perf's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Event {
    /// Time on a CPU, ns.
    TaskClock,
    /// Times that a thread left its CPU to another.
    ContextSwitches,
    /// Times that a thread went on on another CPU.
    CpuMigrations,
    /// Faults, minor and major; a huge page is one.
    PageFaults,
    /// CPU cycles, at whatever frequency.
    Cycles,
    /// Cycles in which the front end gave no instruction to execute.
    StalledCyclesFrontend,
    /// Instructions retired.
    Instructions,
    /// Branch instructions retired.
    Branches,
    /// Branches that were mispredicted.
    BranchMisses,
    /// Reads of the level-1 data cache.
    L1DcacheLoads,
    /// Those that missed.
    L1DcacheLoadMisses,
    /// Reads of the last-level cache.
    LlcLoads,
    /// Those that missed.
    LlcLoadMisses,
    /// Reads of the level-1 instruction cache.
    L1IcacheLoads,
    /// Those that missed.
    L1IcacheLoadMisses,
    /// Look-ups of addresses of data reads in the TLB.
    DtlbLoads,
    /// Those that missed.
    DtlbLoadMisses,
    /// Look-ups of addresses of instructions in the TLB.
    ItlbLoads,
    /// Those that missed.
    ItlbLoadMisses,
}

/// What the value of a counter is a number of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// The event itself.
    Events,
}

impl Event {
    /// All of them, in the order in which perf prints them.
    pub const ALL: [Self; 19] = [
        Self::TaskClock,
        Self::ContextSwitches,
        Self::CpuMigrations,
        Self::PageFaults,
        Self::Cycles,
        Self::StalledCyclesFrontend,
        Self::Instructions,
        Self::Branches,
        Self::BranchMisses,
        Self::L1DcacheLoads,
        Self::L1DcacheLoadMisses,
        Self::LlcLoads,
        Self::LlcLoadMisses,
        Self::L1IcacheLoads,
        Self::L1IcacheLoadMisses,
        Self::DtlbLoads,
        Self::DtlbLoadMisses,
        Self::ItlbLoads,
        Self::ItlbLoadMisses,
    ];

    /// As perf names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TaskClock => "task-clock",
            Self::ContextSwitches => "context-switches",
            Self::CpuMigrations => "cpu-migrations",
            Self::PageFaults => "page-faults",
            Self::Cycles => "cycles",
            Self::StalledCyclesFrontend => "stalled-cycles-frontend",
            Self::Instructions => "instructions",
            Self::Branches => "branches",
            Self::BranchMisses => "branch-misses",
            Self::L1DcacheLoads => "L1-dcache-loads",
            Self::L1DcacheLoadMisses => "L1-dcache-load-misses",
            Self::LlcLoads => "LLC-loads",
            Self::LlcLoadMisses => "LLC-load-misses",
            Self::L1IcacheLoads => "L1-icache-loads",
            Self::L1IcacheLoadMisses => "L1-icache-load-misses",
            Self::DtlbLoads => "dTLB-loads",
            Self::DtlbLoadMisses => "dTLB-load-misses",
            Self::ItlbLoads => "iTLB-loads",
            Self::ItlbLoadMisses => "iTLB-load-misses",
        }
    }

    /// Whether the CPU counts it, and not the kernel.
    pub fn is_hardware(self) -> bool {
        match self {
            Self::TaskClock | Self::ContextSwitches | Self::CpuMigrations | Self::PageFaults => {
                false
            }
            Self::Cycles
            | Self::StalledCyclesFrontend
            | Self::Instructions
            | Self::Branches
            | Self::BranchMisses
            | Self::L1DcacheLoads
            | Self::L1DcacheLoadMisses
            | Self::LlcLoads
            | Self::LlcLoadMisses
            | Self::L1IcacheLoads
            | Self::L1IcacheLoadMisses
            | Self::DtlbLoads
            | Self::DtlbLoadMisses
            | Self::ItlbLoads
            | Self::ItlbLoadMisses => true,
        }
    }

    /// What its value is a number of.
    pub fn unit(self) -> Unit {
        if self == Self::TaskClock {
            Unit::Ns
        } else {
            Unit::Events
        }
    }
}

impl ValueEnum for Event {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl From<Event> for &'static str {
    fn from(event: Event) -> Self {
        event.name()
    }
}

impl TryFrom<String> for Event {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(&name, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for event in Event::ALL {
            let json = serde_json::to_string(&event).unwrap();
            assert_eq!(json, format!("\"{}\"", event.name()));
            assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
        }
        assert!(serde_json::from_str::<Event>("\"cycle\"").is_err());
    }
}
