//! The counts of several runs in one table. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Count, Counts, Event, Figure, Missing, Reading, Unit, figures};
use crate::{
    grid::{Column, grid},
    stats::Spread,
};

/// The counters over the runs of a workload; [`fmt::Display`] lays them out as a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// One of each event, in the order of the first run.
    pub rows: Vec<SummaryRow>,
}

/// One event over the runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummaryRow {
    /// What was counted.
    pub event: Event,
    /// What the values are numbers of.
    pub unit: Unit,
    /// Only user space was counted.
    pub user_only: bool,
    /// The values of the runs that have one, scaled; `None` if no run has.
    pub spread: Option<Spread>,
    /// Ratios of the means over the runs.
    ///
    /// (`perf stat -r` as it was in 2025 divides the mean over the runs by the count of the last run alone, so that its
    /// figures differ from these by what that run differed.)
    pub figures: Vec<Figure>,
    /// Part of the time that the counter ran, mean over the runs, 0 to 1.
    pub running_share: Option<f64>,
    /// Why the first run without a value has none.
    pub missing: Option<Missing>,
}

impl Summary {
    /// Of runs that counted the same events: the time that each took, ns, and its counts.
    pub fn of<'a>(runs: impl IntoIterator<Item = (u64, &'a Counts)>) -> Self {
        let runs: Vec<(u64, &Counts)> = runs.into_iter().collect();
        let Some((_, first)) = runs.first() else {
            return Self { rows: Vec::new() };
        };
        let spread = |event| {
            Spread::of(
                runs.iter()
                    .filter_map(|(_, counts)| counts.value(event))
                    .map(|value| value as f64),
            )
        };
        let mean = |event| spread(event).map(|spread| spread.mean);
        let elapsed = Spread::of(runs.iter().map(|(elapsed_ns, _)| *elapsed_ns as f64));
        let elapsed_ns = elapsed.map_or(0.0, |spread| spread.mean);
        let row = |count: &Count| {
            let event = count.event;
            let shares = runs
                .iter()
                .filter_map(|(_, counts)| counts.counted(event))
                .map(|counted| counted.running_share);
            SummaryRow {
                event,
                unit: count.unit,
                user_only: count.user_only,
                spread: spread(event),
                figures: figures(event, mean, elapsed_ns),
                running_share: Spread::of(shares).map(|spread| spread.mean),
                missing: runs
                    .iter()
                    .flat_map(|(_, counts)| &counts.rows)
                    .filter(|row| row.event == event)
                    .find_map(|row| match &row.reading {
                        Reading::Counted(_) => None,
                        Reading::Missing(why) => Some(why.clone()),
                    }),
            }
        };
        Self {
            rows: first.rows.iter().map(row).collect(),
        }
    }

    /// What has no value in any run, by reason, in the order of the rows.
    fn missing(&self) -> Vec<(&Missing, Vec<Event>)> {
        let mut reasons: Vec<(&Missing, Vec<Event>)> = Vec::new();
        for row in self.rows.iter().filter(|row| row.spread.is_none()) {
            let Some(why) = &row.missing else { continue };
            match reasons.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, events)) => events.push(row.event),
                None => reasons.push((why, vec![row.event])),
            }
        }
        reasons
    }

    /// Whether the CPU counts nothing at all of what was asked for, which is how most virtual machines are.
    fn no_hardware(&self, missing: &[Event]) -> bool {
        let of_rows = |row: &&SummaryRow| row.event.is_hardware();
        let asked = self.rows.iter().filter(of_rows).count();
        let refused = missing.iter().filter(|event| event.is_hardware()).count();
        asked > 1 && asked == refused && refused == missing.len()
    }
}

/// sd and SE in percent of the mean, as perf prints its `+-`, which is the SE; then a line per reason of what has no value.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = || {
            let rows = self.rows.iter();
            rows.filter_map(|row| Some((row, row.spread?)))
        };
        let took_turns =
            counted().any(|(row, _)| row.running_share.is_some_and(|share| share < 1.0));
        let mut columns: Vec<Column> = vec![
            ("event", true),
            ("mean", false),
            ("unit", true),
            ("derived", true),
            ("sd", false),
            ("SE", false),
            ("n", false),
        ];
        if took_turns {
            columns.push(("running", false));
        }
        let records = counted().map(|(row, spread)| {
            let mut cells = cells(row, &spread);
            if took_turns {
                // As perf does: only where it ran less than all the time.
                let share = row.running_share.filter(|share| *share < 1.0);
                cells.push(share.map_or_else(String::new, |share| percent(Some(share))));
            }
            cells
        });
        if counted().next().is_some() {
            writeln!(f, "{}", grid(&columns, records))?;
        }
        for (why, events) in self.missing() {
            let names = if self.no_hardware(&events) {
                format!(
                    "{} and the other {} hardware events (most virtual machines have no hardware counters)",
                    events[0].name(),
                    events.len() - 1
                )
            } else {
                let names: Vec<&str> = events.iter().map(|event| event.name()).collect();
                names.join(", ")
            };
            match why {
                Missing::NotSupported => writeln!(f, "not supported here: {names}")?,
                Missing::NotPermitted => writeln!(
                    f,
                    "not permitted: {names}; write 1 to /proc/sys/kernel/perf_event_paranoid, or run with CAP_PERFMON"
                )?,
                Missing::NotCounted => writeln!(
                    f,
                    "not counted: {names}; never had a turn on the CPU's counters"
                )?,
                Missing::Failed(error) => writeln!(f, "cannot count {names}: {error}")?,
            }
        }
        Ok(())
    }
}

fn cells(row: &SummaryRow, spread: &Spread) -> Vec<String> {
    let user_only = if row.user_only { ":u" } else { "" };
    let (mean, unit) = match row.unit {
        Unit::Ns => (decimal(spread.mean / 1e6, 2), "ms"),
        // Few events differ between runs by less than one in the mean.
        Unit::Events if spread.n > 1 && spread.mean < 1e3 => (decimal(spread.mean, 1), ""),
        Unit::Events => (decimal(spread.mean, 0), ""),
    };
    let figures: Vec<String> = row.figures.iter().map(Figure::to_string).collect();
    let of_mean = |deviation: Option<f64>| {
        let share = deviation.map(|deviation| deviation / spread.mean);
        percent(share.filter(|share| share.is_finite()))
    };
    vec![
        format!("{}{user_only}", row.event.name()),
        mean,
        unit.to_owned(),
        figures.join(", "),
        of_mean(spread.sd),
        of_mean(spread.se),
        spread.n.to_string(),
    ]
}

/// A share of 1 in percent; `-` if there is none.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", share * 100.0))
}

/// With a comma between thousands.
fn decimal(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.char_indices() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{
        Counted,
        measured::{BASE, Measured, PATCHED},
    };

    fn count(event: Event, reading: Reading) -> Count {
        Count {
            event,
            unit: event.unit(),
            user_only: false,
            reading,
        }
    }

    /// A run whose counts are the measured means times a factor.
    fn run(measured: &Measured, factor: f64) -> (u64, Counts) {
        let times = |value: u64| (value as f64 * factor).round() as u64;
        let row = |event: Event| {
            let Some((_, mean)) = measured.means.iter().find(|(of, _)| *of == event) else {
                return count(event, Reading::Missing(Missing::NotSupported));
            };
            let running_share = if event.is_hardware() {
                measured.running_share
            } else {
                1.0
            };
            let enabled_ns = times(measured.means[0].1);
            let value = times(*mean);
            count(
                event,
                Reading::Counted(Counted {
                    value,
                    raw: (value as f64 * running_share) as u64,
                    enabled_ns,
                    running_ns: (enabled_ns as f64 * running_share) as u64,
                    running_share,
                }),
            )
        };
        let counts = Counts {
            rows: Event::ALL.into_iter().map(row).collect(),
        };
        (times(measured.elapsed_ns), counts)
    }

    fn summary(runs: &[(u64, Counts)]) -> Summary {
        Summary::of(runs.iter().map(|(elapsed, counts)| (*elapsed, counts)))
    }

    fn three(measured: &Measured) -> Summary {
        summary(&[0.99, 1.0, 1.01].map(|factor| run(measured, factor)))
    }

    #[test]
    fn measured_on_a_cpu_with_hardware_counters() {
        insta::assert_snapshot!("base", three(&BASE));
        insta::assert_snapshot!("patched", three(&PATCHED));
        insta::assert_snapshot!("one_run", summary(&[run(&BASE, 1.0)]));
    }

    #[test]
    fn means_and_deviations_are_of_the_scaled_values() {
        let summary = three(&BASE);
        let cycles = summary.rows.iter().find(|row| row.event == Event::Cycles);
        let spread = cycles.unwrap().spread.unwrap();
        assert_eq!(spread.n, 3);
        assert!((spread.mean / 7_348_664_233.0 - 1.0).abs() < 1e-9);
        assert!((spread.sd.unwrap() / spread.mean - 0.01).abs() < 1e-9);
        assert!((spread.se.unwrap() / spread.mean - 0.01 / 3f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn a_virtual_machine_without_hardware_counters() {
        let counts = |switches| Counts {
            rows: Event::ALL
                .into_iter()
                .map(|event| {
                    let reading = if event.is_hardware() {
                        Reading::Missing(Missing::NotSupported)
                    } else {
                        let value = if event == Event::TaskClock {
                            1_500_000_000
                        } else {
                            switches
                        };
                        Reading::Counted(Counted {
                            value,
                            raw: value,
                            enabled_ns: 1_500_000_000,
                            running_ns: 1_500_000_000,
                            running_share: 1.0,
                        })
                    };
                    count(event, reading)
                })
                .collect(),
        };
        let runs = [(1_000_000_000, counts(0)), (1_000_000_000, counts(3))];
        insta::assert_snapshot!(summary(&runs));
    }

    #[test]
    fn each_reason_has_its_line() {
        let reasons = [
            (Event::ContextSwitches, Missing::NotPermitted),
            (Event::CpuMigrations, Missing::NotPermitted),
            (Event::LlcLoads, Missing::NotSupported),
            (Event::LlcLoadMisses, Missing::NotCounted),
            (
                Event::DtlbLoads,
                Missing::Failed("Too many open files (os error 24)".to_owned()),
            ),
        ];
        let mut rows = vec![Count {
            user_only: true,
            ..run(&BASE, 1.0).1.rows[4].clone()
        }];
        rows.extend(reasons.map(|(event, why)| count(event, Reading::Missing(why))));
        insta::assert_snapshot!(summary(&[(1_000_000_000, Counts { rows })]));
        assert_eq!(summary(&[]).to_string(), "");
    }

    #[test]
    fn runs_without_a_value_are_left_out_of_the_mean() {
        let counted = run(&BASE, 1.0);
        let mut not_counted = counted.clone();
        for row in &mut not_counted.1.rows {
            row.reading = Reading::Missing(Missing::NotCounted);
        }
        let summary = summary(&[counted, not_counted]);
        let cycles = summary
            .rows
            .iter()
            .find(|row| row.event == Event::Cycles)
            .unwrap();
        let spread = cycles.spread.unwrap();
        assert_eq!((spread.n, spread.mean), (1, 7_348_664_233.0));
        assert_eq!(cycles.missing, Some(Missing::NotCounted));
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!(decimal(0.0, 0), "0");
        assert_eq!(decimal(999.0, 0), "999");
        assert_eq!(decimal(1000.0, 0), "1,000");
        assert_eq!(decimal(1_234_567.891, 2), "1,234,567.89");
    }
}
