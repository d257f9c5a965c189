//! What counters counted, as plain data.

use serde::{Deserialize, Serialize};

use super::{Event, Unit};

/// What the counters of one run counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// One of each event that was asked for, in that order.
    pub rows: Vec<Count>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// What was counted.
    pub event: Event,
    /// What the value is a number of.
    pub unit: Unit,
    /// Only what happened in user space was counted, because the kernel allows no more; perf marks it `:u`.
    /// (`task-clock` is all the time on a CPU even then.)
    pub user_only: bool,
    /// The value, or why there is none.
    #[serde(flatten)]
    pub reading: Reading,
}

/// The value of a counter, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// It counted.
    Counted(Counted),
    /// It has no value, which is not 0.
    Missing(Missing),
}

/// The value of a counter that ran at least part of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// What it would have counted had it run all the time: `raw * enabled_ns / running_ns`.
    pub value: u64,
    /// What it counted.
    pub raw: u64,
    /// How long it was to count, ns, summed over the threads, each while it was on a CPU.
    pub enabled_ns: u64,
    /// How long it did count, ns: less than `enabled_ns` where events took turns on the CPU's counters.
    pub running_ns: u64,
    /// `running_ns / enabled_ns`, 0 to 1.
    pub running_share: f64,
}

/// Why a counter has no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// This CPU, virtual machine or kernel cannot count it.
    NotSupported,
    /// The kernel does not let this user count it: `kernel.perf_event_paranoid` is too high and `CAP_PERFMON` is missing.
    NotPermitted,
    /// It never got its turn on the CPU's counters, or no time passed while it was enabled.
    NotCounted,
    /// The kernel refused for another reason, in its words.
    Failed(String),
}

/// What the kernel gives for a counter; all of it only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) count: u64,
    pub(super) enabled_ns: u64,
    pub(super) running_ns: u64,
}

impl Raw {
    /// What was added since an earlier reading.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            enabled_ns: self.enabled_ns.saturating_sub(earlier.enabled_ns),
            running_ns: self.running_ns.saturating_sub(earlier.running_ns),
        }
    }
}

impl From<Raw> for Reading {
    fn from(raw: Raw) -> Self {
        let Raw {
            count,
            enabled_ns,
            running_ns,
        } = raw;
        let Some(value) = scale(count, enabled_ns, running_ns) else {
            return Self::Missing(Missing::NotCounted);
        };
        Self::Counted(Counted {
            value,
            raw: count,
            enabled_ns,
            running_ns,
            running_share: running_ns as f64 / enabled_ns as f64,
        })
    }
}

/// What a counter would have counted in all of `enabled_ns` by what it counted in `running_ns`: rounded to the nearest,
/// halves up, at most `u64::MAX`. `None` if it never ran: nothing is known then.
pub fn scale(value: u64, enabled_ns: u64, running_ns: u64) -> Option<u64> {
    let (value, enabled, running) = (
        u128::from(value),
        u128::from(enabled_ns),
        u128::from(running_ns),
    );
    let scaled = (value * enabled + running / 2).checked_div(running)?;
    Some(u64::try_from(scaled).unwrap_or(u64::MAX))
}

impl Counts {
    /// The value of an event, if it was counted.
    pub fn value(&self, event: Event) -> Option<u64> {
        self.counted(event).map(|counted| counted.value)
    }

    /// The value of an event and how it came about, if it was counted.
    pub fn counted(&self, event: Event) -> Option<&Counted> {
        let row = self.rows.iter().find(|row| row.event == event)?;
        match &row.reading {
            Reading::Counted(counted) => Some(counted),
            Reading::Missing(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_counter_that_never_ran_has_no_value() {
        assert_eq!(scale(0, 1000, 0), None);
        assert_eq!(
            Reading::from(Raw {
                count: 0,
                enabled_ns: 1000,
                running_ns: 0
            }),
            Reading::Missing(Missing::NotCounted)
        );
        assert_eq!(scale(0, 1000, 1), Some(0));
    }

    #[test]
    fn a_third_of_the_time_counts_three_times() {
        let reading = Reading::from(Raw {
            count: 7,
            enabled_ns: 3_000_000_000,
            running_ns: 1_000_000_000,
        });
        let Reading::Counted(counted) = reading else {
            panic!("{reading:?}");
        };
        assert_eq!((counted.value, counted.raw), (21, 7));
        assert!((counted.running_share - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(scale(1, 3, 2), Some(2), "1.5 is rounded up");
        assert_eq!(scale(1, 4, 3), Some(1), "1.33 is rounded down");
        assert_eq!(scale(u64::MAX, 2, 1), Some(u64::MAX));
    }

    #[test]
    fn json_says_why_there_is_no_value() {
        let count = |reading| Count {
            event: Event::Cycles,
            unit: Event::Cycles.unit(),
            user_only: true,
            reading,
        };
        let counts = Counts {
            rows: vec![
                count(Reading::from(Raw {
                    count: 1,
                    enabled_ns: 4,
                    running_ns: 2,
                })),
                count(Reading::Missing(Missing::NotSupported)),
                count(Reading::Missing(Missing::Failed("EMFILE".to_owned()))),
            ],
        };
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(
            json,
            r#"{"rows":[{"event":"cycles","unit":"events","user_only":true,"counted":{"value":2,"raw":1,"enabled_ns":4,"running_ns":2,"running_share":0.5}},{"event":"cycles","unit":"events","user_only":true,"missing":"not_supported"},{"event":"cycles","unit":"events","user_only":true,"missing":{"failed":"EMFILE"}}]}"#
        );
        assert_eq!(serde_json::from_str::<Counts>(&json).unwrap(), counts);
    }

    proptest! {
        #[test]
        fn what_ran_all_the_time_is_not_scaled(value: u64, time in 1..=u64::MAX) {
            prop_assert_eq!(scale(value, time, time), Some(value));
        }

        #[test]
        fn scaling_is_off_by_half_at_most(value in 0_u64..1 << 40, running in 1_u64..1 << 40, waiting in 0_u64..1 << 40) {
            let enabled = running + waiting;
            // Below u64::MAX, so that nothing saturates.
            prop_assume!(u128::from(value) * u128::from(enabled) / u128::from(running) < u128::from(u64::MAX));
            let scaled = scale(value, enabled, running).unwrap();
            let exact = u128::from(value) * u128::from(enabled);
            let got = u128::from(scaled) * u128::from(running);
            prop_assert!(2 * exact.abs_diff(got) <= u128::from(running));
            prop_assert!(scaled >= value);
        }

        #[test]
        fn more_is_never_less(value: u64, more: u64, enabled: u64, running in 1..=u64::MAX) {
            let (low, high) = (value.min(more), value.max(more));
            prop_assert!(scale(low, enabled, running) <= scale(high, enabled, running));
        }

        #[test]
        fn a_reading_is_what_was_before_and_since(counts: [u32; 2], enabled: [u32; 2], running: [u32; 2]) {
            let raw = |index: usize| Raw {
                count: counts[index].into(),
                enabled_ns: enabled[index].into(),
                running_ns: running[index].into(),
            };
            let (before, grown) = (raw(0), raw(1));
            let now = Raw {
                count: before.count + grown.count,
                enabled_ns: before.enabled_ns + grown.enabled_ns,
                running_ns: before.running_ns + grown.running_ns,
            };
            prop_assert_eq!(now.since(before), grown);
        }
    }
}
