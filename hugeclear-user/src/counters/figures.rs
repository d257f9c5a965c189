//! What counts say in relation to each other: what perf prints behind its `#`. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Event;

/// A ratio of two counts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// In the unit that `kind` says.
    pub value: f64,
    /// What it is the ratio of.
    pub kind: FigureKind,
}

/// What a figure is the ratio of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureKind {
    /// Time on CPUs per time elapsed: 2 if two CPUs were busy all the time.
    CpusUtilized,
    /// Events per second on a CPU.
    PerSecond,
    /// Cycles per nanosecond on a CPU: the frequency it ran at.
    Ghz,
    /// Instructions per cycle.
    InsnPerCycle,
    /// Stalled cycles of the front end per instruction.
    StalledCyclesPerInsn,
    /// Percent of what this event counts.
    PercentOf(Event),
}

/// What follows from the value of an event and those of others; nothing where one of them is missing, or 0 below the line.
///
/// `value` gives the counts (task-clock in ns), of one run or as means over runs; `elapsed_ns` is the time that passed.
pub fn figures(event: Event, value: impl Fn(Event) -> Option<f64>, elapsed_ns: f64) -> Vec<Figure> {
    let ratio = |kind, above: Event, below: Option<f64>, factor: f64| {
        let below = below.filter(|below| *below > 0.0)?;
        Some(Figure {
            value: value(above)? / below * factor,
            kind,
        })
    };
    let per_second = || ratio(FigureKind::PerSecond, event, value(Event::TaskClock), 1e9);
    let percent_of = |of| ratio(FigureKind::PercentOf(of), event, value(of), 100.0);
    let both = match event {
        Event::TaskClock => [
            ratio(FigureKind::CpusUtilized, event, Some(elapsed_ns), 1.0),
            None,
        ],
        Event::Cycles => [
            ratio(FigureKind::Ghz, event, value(Event::TaskClock), 1.0),
            None,
        ],
        Event::Instructions => [
            ratio(FigureKind::InsnPerCycle, event, value(Event::Cycles), 1.0),
            ratio(
                FigureKind::StalledCyclesPerInsn,
                Event::StalledCyclesFrontend,
                value(event),
                1.0,
            ),
        ],
        Event::StalledCyclesFrontend => [percent_of(Event::Cycles), None],
        Event::BranchMisses => [percent_of(Event::Branches), None],
        Event::L1DcacheLoadMisses => [percent_of(Event::L1DcacheLoads), None],
        Event::LlcLoadMisses => [percent_of(Event::LlcLoads), None],
        Event::L1IcacheLoadMisses => [percent_of(Event::L1IcacheLoads), None],
        Event::DtlbLoadMisses => [percent_of(Event::DtlbLoads), None],
        Event::ItlbLoadMisses => [percent_of(Event::ItlbLoads), None],
        Event::ContextSwitches
        | Event::CpuMigrations
        | Event::PageFaults
        | Event::Branches
        | Event::L1DcacheLoads
        | Event::LlcLoads
        | Event::L1IcacheLoads
        | Event::DtlbLoads
        | Event::ItlbLoads => [per_second(), None],
    };
    both.into_iter().flatten().collect()
}

/// To perf's precision, with its prefixes of 1000.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.kind {
            FigureKind::CpusUtilized => write!(f, "{value:.3} CPUs utilized"),
            FigureKind::PerSecond => {
                let (value, prefix) = match value {
                    value if value > 1e9 => (value / 1e9, "G"),
                    value if value > 1e6 => (value / 1e6, "M"),
                    value if value > 1e3 => (value / 1e3, "K"),
                    value => (value, ""),
                };
                write!(f, "{value:.3} {prefix}/sec")
            }
            FigureKind::Ghz => write!(f, "{value:.3} GHz"),
            FigureKind::InsnPerCycle => write!(f, "{value:.2} insn per cycle"),
            FigureKind::StalledCyclesPerInsn => write!(f, "{value:.2} stalled cycles per insn"),
            FigureKind::PercentOf(event) => write!(f, "{value:.2}% of {}", event.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::measured::{BASE, Measured, PATCHED};

    fn first(event: Event, measured: &Measured, task_clock_ns: Option<u64>) -> Figure {
        let value = |event| match task_clock_ns {
            Some(task_clock_ns) if event == Event::TaskClock => Some(task_clock_ns as f64),
            Some(_) | None => measured.mean(event),
        };
        figures(event, value, measured.elapsed_ns as f64)[0]
    }

    #[test]
    fn rates_are_those_that_perf_prints() {
        for measured in [BASE, PATCHED] {
            for (event, printed) in measured.rates {
                let figure = first(*event, &measured, Some(measured.last_task_clock_ns));
                assert_eq!(figure.to_string(), *printed, "{}", event.name());
            }
            for (event, printed) in measured.others {
                let figure = first(*event, &measured, None);
                assert_eq!(figure.to_string(), *printed, "{}", event.name());
            }
        }
    }

    #[test]
    fn percentages_are_those_that_perf_prints_within_what_runs_differ() {
        for measured in [BASE, PATCHED] {
            for (event, printed) in measured.percentages {
                let figure = first(*event, &measured, None);
                assert!(matches!(figure.kind, FigureKind::PercentOf(_)));
                assert!(
                    (figure.value / printed - 1.0).abs() < 0.02,
                    "{}: {figure}, perf {printed}%",
                    event.name()
                );
            }
        }
    }

    #[test]
    fn made_numbers() {
        let value = |event| match event {
            Event::TaskClock => Some(2e9),
            Event::Cycles => Some(6e9),
            Event::StalledCyclesFrontend => Some(1.5e9),
            Event::Instructions => Some(3e9),
            Event::LlcLoads => Some(4e6),
            Event::LlcLoadMisses => Some(1e6),
            Event::DtlbLoads => Some(0.0),
            Event::DtlbLoadMisses => Some(5.0),
            _ => None,
        };
        for (event, expected) in [
            (Event::TaskClock, "4.000 CPUs utilized"),
            (Event::Cycles, "3.000 GHz"),
            (Event::StalledCyclesFrontend, "25.00% of cycles"),
            (
                Event::Instructions,
                "0.50 insn per cycle, 0.50 stalled cycles per insn",
            ),
            (Event::LlcLoads, "2.000 M/sec"),
            (Event::LlcLoadMisses, "25.00% of LLC-loads"),
            (Event::DtlbLoadMisses, ""),
            (Event::Branches, ""),
            (Event::BranchMisses, ""),
        ] {
            let texts: Vec<String> = figures(event, value, 0.5e9)
                .iter()
                .map(Figure::to_string)
                .collect();
            assert_eq!(texts.join(", "), expected, "{}", event.name());
        }
    }
}
