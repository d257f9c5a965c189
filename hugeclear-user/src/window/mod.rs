//! Snapshots of the kernel side's cumulative aggregates, their differences, and the rows they make.
//! Pure: no kernel, no clock.

mod aggregate;
mod events;
mod losses;
mod rows;

use std::{collections::BTreeMap, sync::Arc};

pub use aggregate::{Aggregate, Parts};
pub use events::{Event, EventKind, EventParts};
pub use losses::{Losses, PairCounts};
pub use rows::{
    By, FaultRow, Group, Grouping, ImpactRow, LongestRun, Only, Operation, Row, Rows, Terms, Times,
    rows,
};

use crate::probes::keys::{Key, Subject};

/// Everything recorded up to one moment: for each CPU and key, what ended there.
///
/// The aggregates are shared between snapshots: one that has not changed is not copied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// By CPU, and key; `None` for clears whose key has no block of its own.
    pub cells: BTreeMap<(u32, Option<Key>), Arc<Aggregate>>,
}

impl Snapshot {
    /// What was recorded between `earlier` and this snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut cells = BTreeMap::new();
        for (cell, now) in &self.cells {
            let difference = match earlier.cells.get(cell) {
                Some(before) if Arc::ptr_eq(before, now) => continue,
                Some(before) => Arc::new(now.since(before)),
                None => Arc::clone(now),
            };
            if difference.count > 0 {
                cells.insert(*cell, difference);
            }
        }
        Self { cells }
    }

    /// Number of clears; copies and faults apart.
    #[must_use]
    pub fn count(&self) -> u64 {
        let is_clear = |key: &Option<Key>| match key.map(|key| key.subject) {
            None => true,
            Some(Subject::Site(site)) => !site.copies(),
            Some(Subject::Fault | Subject::Impact) => false,
        };
        self.sum(is_clear, |aggregate| aggregate.count)
    }

    /// Number of clears and copies that ended on another CPU than they began on.
    #[must_use]
    pub fn migrated(&self) -> u64 {
        let is_site =
            |key: &Option<Key>| key.is_none_or(|key| matches!(key.subject, Subject::Site(_)));
        self.sum(is_site, |aggregate| aggregate.migrated)
    }

    /// Number of clears whose key has no block of its own.
    #[must_use]
    pub fn other_count(&self) -> u64 {
        self.sum(Option::is_none, |aggregate| aggregate.count)
    }

    fn sum(&self, takes: impl Fn(&Option<Key>) -> bool, field: impl Fn(&Aggregate) -> u64) -> u64 {
        let taken = self.cells.iter().filter(|((_, key), _)| takes(key));
        taken.map(|(_, aggregate)| field(aggregate)).sum()
    }
}
