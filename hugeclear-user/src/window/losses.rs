//! What was missed, counted.

use serde::{Deserialize, Serialize};

use super::Snapshot;

/// The kernel side's counts of one pair of programs, or of those at the scheduler's tracepoints, summed
/// over the CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairCounts {
    /// Selected clears that began.
    pub entries: u64,
    /// Clears that were recorded.
    pub recorded: u64,
    /// Clears that have begun and not ended.
    pub open: u64,
    /// See [`Losses::own_process`].
    pub own_process: u64,
    /// See [`Losses::starts_overwritten`].
    pub overwritten: u64,
    /// See [`Losses::map_full`].
    pub map_full: u64,
    /// See [`Losses::outside_faults`].
    pub outside_faults: u64,
    /// See [`Losses::exits_without_entry`].
    pub exits_without_entry: u64,
    /// See [`Losses::end_before_start`].
    pub end_before_start: u64,
    /// See [`Losses::cells_full`].
    pub cells_full: u64,
    /// See [`Losses::events_dropped`].
    pub events_dropped: u64,
    /// See [`Losses::negative_rest`].
    pub negative_rest: u64,
    /// See [`Losses::impact_lost`].
    pub impact_lost: u64,
    /// See [`Losses::impact_open`].
    pub impact_open: u64,
    /// See [`Losses::programs_skipped`].
    pub programs_skipped: Option<u64>,
}

/// What the numbers do not hold, and what is remarkable about how they were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Clears that began, and neither ended nor are still running: their exit was missed.
    pub entries_without_exit: u64,
    /// Exits of clears whose entry was missed, or that were already running at attach.
    pub exits_without_entry: u64,
    /// Starts replaced by the next clear of the same thread, because their exit was missed. Part of
    /// `entries_without_exit`.
    pub starts_overwritten: u64,
    /// Clears that ended before they began, by the clock; discarded.
    pub end_before_start: u64,
    /// Clears whose start found no room; their exits are part of `exits_without_entry`.
    pub map_full: u64,
    /// Clears still running when the probes were detached.
    pub open_at_detach: u64,
    /// Runs of our programs that the kernel skipped, because the program was running on that CPU
    /// already. `None`: this kernel does not count them (before 5.12).
    pub programs_skipped: Option<u64>,
    /// Recorded clears whose key had no block of its own: their page size is not known.
    pub other_keys: u64,
    /// Clears in the row `other`, and faults in none, because all cells were taken by other keys.
    pub cells_full: u64,
    /// Recorded clears, copies and faults that were not printed one by one, because the ring buffer was
    /// full.
    pub events_dropped: u64,
    /// Recorded faults whose parts add up to more than the whole.
    pub negative_rest: u64,
    /// Tasks whose wait for a clear was not recorded: too many at once, or the end of the clear was
    /// forgotten by the time they ran.
    pub impact_lost: u64,
    /// Tasks that still waited for a clear when the probes were detached.
    pub impact_open: u64,
    /// Recorded clears that ended on another CPU than they began on.
    pub migrated: u64,
    /// Clears of the tracer itself, left out.
    pub own_process: u64,
    /// Clears in the page allocator that no huge-page fault asked for (page cache, pool growth,
    /// khugepaged), left out.
    pub outside_faults: u64,
}

impl Losses {
    /// Sums the counts of all pairs, and what the snapshot itself tells.
    #[must_use]
    pub fn new(pairs: &[PairCounts], snapshot: &Snapshot) -> Self {
        let sum = |field: fn(&PairCounts) -> u64| pairs.iter().map(field).sum::<u64>();
        let missing = |pair: &PairCounts| {
            pair.entries
                .saturating_sub(pair.recorded + pair.end_before_start + pair.map_full + pair.open)
        };
        Self {
            entries_without_exit: sum(missing),
            exits_without_entry: sum(|pair| pair.exits_without_entry),
            starts_overwritten: sum(|pair| pair.overwritten),
            end_before_start: sum(|pair| pair.end_before_start),
            map_full: sum(|pair| pair.map_full),
            open_at_detach: sum(|pair| pair.open),
            programs_skipped: pairs.iter().map(|pair| pair.programs_skipped).sum(),
            other_keys: snapshot.other_count(),
            cells_full: sum(|pair| pair.cells_full),
            events_dropped: sum(|pair| pair.events_dropped),
            negative_rest: sum(|pair| pair.negative_rest),
            impact_lost: sum(|pair| pair.impact_lost),
            impact_open: sum(|pair| pair.impact_open),
            migrated: snapshot.migrated(),
            own_process: sum(|pair| pair.own_process),
            outside_faults: sum(|pair| pair.outside_faults),
        }
    }

    /// Whether any clear that should have been recorded was not, or may not have been.
    #[must_use]
    pub fn any_lost(&self) -> bool {
        let Self {
            entries_without_exit,
            exits_without_entry,
            starts_overwritten: _,
            end_before_start,
            map_full,
            open_at_detach,
            programs_skipped,
            other_keys: _,
            cells_full,
            events_dropped,
            negative_rest,
            impact_lost,
            impact_open,
            migrated: _,
            own_process: _,
            outside_faults: _,
        } = *self;
        entries_without_exit
            + exits_without_entry
            + end_before_start
            + map_full
            + open_at_detach
            + cells_full
            + events_dropped
            + negative_rest
            + impact_lost
            + impact_open
            + programs_skipped.unwrap_or(0)
            > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_missing_its_exit_only_if_nothing_else_explains_it() {
        let pair = PairCounts {
            entries: 10,
            recorded: 5,
            end_before_start: 1,
            map_full: 1,
            open: 1,
            overwritten: 2,
            ..PairCounts::default()
        };
        let losses = Losses::new(&[pair, PairCounts::default()], &Snapshot::default());
        assert_eq!(losses.entries_without_exit, 2);
        assert_eq!(losses.starts_overwritten, 2);
        assert!(losses.any_lost());
        assert!(!Losses::default().any_lost());
    }
}
