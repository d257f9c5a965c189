//! Snapshots of the kernel side's cumulative aggregates, their differences, and the rows they make.
//! Pure: no kernel, no clock.

mod aggregate;
mod losses;
mod rows;

use std::{collections::BTreeMap, sync::Arc};

pub use aggregate::Aggregate;
pub use losses::{Losses, PairCounts};
pub use rows::{Grouping, Row, Terms, rows};

use crate::probes::keys::Key;

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

    /// Number of clears.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.cells.values().map(|aggregate| aggregate.count).sum()
    }

    /// Number of clears whose key has no block of its own.
    #[must_use]
    pub fn other_count(&self) -> u64 {
        let other = self.cells.iter().filter(|((_, key), _)| key.is_none());
        other.map(|(_, aggregate)| aggregate.count).sum()
    }
}
