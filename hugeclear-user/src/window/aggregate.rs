//! The durations of a set of clears: exact moments and a histogram.

use std::collections::BTreeMap;

use hugeclear_ebpf::{
    bucket::{self, PER_COARSE},
    maps::{Block, Cell, Run, Totals},
};

/// Aggregated durations, in ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Number of clears.
    pub count: u64,
    /// Sum of the durations.
    pub sum_ns: u128,
    /// Sum of the squared durations.
    pub sum_squares: u128,
    /// Shortest duration; 0 if there is none.
    pub min_ns: u64,
    /// Longest duration; 0 if there is none.
    pub max_ns: u64,
    /// Sum of the time that the threads were runnable and did not run inside the clears.
    pub preempted_ns: u64,
    /// Context switches away from the threads inside the clears.
    pub switches: u64,
    /// Those that ended on another CPU than they began on.
    pub migrated: u64,
    /// The longest run of back-to-back clears by one thread; in a difference, nothing if none was
    /// longer than all before.
    pub longest_run: Run,
    /// Of faults: sums of what happened inside.
    pub parts: Parts,
    /// Number of durations by [`bucket::index`], without the empty buckets.
    pub histogram: BTreeMap<u16, u64>,
    /// Whether an entry of the histogram stands for [`PER_COARSE`] buckets, the first of which it
    /// names.
    pub coarse: bool,
}

/// What happened inside faults, in ns, each without the time that the thread waited for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Clearing.
    pub clear_ns: u64,
    /// Direct compaction.
    pub compaction_ns: u64,
    /// Direct reclaim.
    pub reclaim_ns: u64,
}

impl Aggregate {
    /// Adds the durations of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 {
            other.min_ns
        } else {
            self.min_ns.min(other.min_ns)
        };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.sum_squares = self.sum_squares.saturating_add(other.sum_squares);
        self.preempted_ns += other.preempted_ns;
        self.switches += other.switches;
        self.migrated += other.migrated;
        if other.longest_run.ns > self.longest_run.ns {
            self.longest_run = other.longest_run;
        }
        // Sums that wrap where a fault's parts were longer than the whole, which is counted.
        self.parts.clear_ns = self.parts.clear_ns.wrapping_add(other.parts.clear_ns);
        self.parts.compaction_ns += other.parts.compaction_ns;
        self.parts.reclaim_ns += other.parts.reclaim_ns;
        if other.coarse && !self.coarse {
            self.coarse = true;
            let fine = std::mem::take(&mut self.histogram);
            self.count_all(&fine);
        }
        self.count_all(&other.histogram);
    }

    /// Adds the entries of a histogram that is not coarser.
    fn count_all(&mut self, histogram: &BTreeMap<u16, u64>) {
        for (&index, &count) in histogram {
            let index = if self.coarse { coarse(index) } else { index };
            *self.histogram.entry(index).or_default() += count;
        }
    }

    /// The bounds of the durations that an entry of the histogram counts, in ns: from the first,
    /// inclusive, to the second, exclusive.
    fn bounds(&self, index: u16) -> (u64, u64) {
        let index = usize::from(index);
        let (low, high) = bucket::bounds(index);
        let alone = index == bucket::UNDERFLOW || index == bucket::OVERFLOW;
        if self.coarse && !alone {
            (low, bucket::bounds(index + PER_COARSE - 1).1)
        } else {
            (low, high)
        }
    }

    /// How far a quantile may be from the truth, as a part of it.
    #[must_use]
    pub fn quantile_error(&self) -> f64 {
        let width = if self.coarse { PER_COARSE as f64 } else { 1.0 };
        width / (2.0 * f64::from(bucket::SUB_BUCKETS))
    }

    /// The durations added since `earlier`, an older state of this same aggregate.
    ///
    /// Both may have been read while the kernel was adding a clear, so a field may lag behind
    /// another by one clear; it catches up in the next difference. The shortest and the longest
    /// duration of the difference are exact where they are new extremes, else the bounds of the
    /// outermost bucket that grew.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let histogram: BTreeMap<u16, u64> = self
            .histogram
            .iter()
            .map(|(&index, &count)| {
                (
                    index,
                    count.saturating_sub(earlier.histogram.get(&index).copied().unwrap_or(0)),
                )
            })
            .filter(|&(_, count)| count > 0)
            .collect();
        let count = self.count.saturating_sub(earlier.count);
        let bounds = |index: &u16| self.bounds(*index);
        let lowest = histogram
            .keys()
            .next()
            .map_or(self.min_ns, |index| bounds(index).0);
        let highest = histogram
            .keys()
            .next_back()
            .map_or(self.max_ns, |index| bounds(index).1 - 1);
        let is_new_min = earlier.count == 0 || self.min_ns < earlier.min_ns;
        Self {
            count,
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            sum_squares: self.sum_squares.saturating_sub(earlier.sum_squares),
            preempted_ns: self.preempted_ns.saturating_sub(earlier.preempted_ns),
            switches: self.switches.saturating_sub(earlier.switches),
            migrated: self.migrated.saturating_sub(earlier.migrated),
            longest_run: if self.longest_run.ns > earlier.longest_run.ns {
                self.longest_run
            } else {
                Run::default()
            },
            parts: Parts {
                clear_ns: self.parts.clear_ns.wrapping_sub(earlier.parts.clear_ns),
                compaction_ns: (self.parts.compaction_ns)
                    .saturating_sub(earlier.parts.compaction_ns),
                reclaim_ns: (self.parts.reclaim_ns).saturating_sub(earlier.parts.reclaim_ns),
            },
            coarse: self.coarse,
            min_ns: if is_new_min {
                self.min_ns
            } else {
                lowest.max(self.min_ns)
            },
            max_ns: if self.max_ns > earlier.max_ns {
                self.max_ns
            } else {
                highest.min(self.max_ns)
            },
            histogram,
        }
    }

    /// Mean, in ns; `None` without a clear.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// Sample standard deviation (n - 1), in ns; `None` below two clears.
    ///
    /// From exact integers, so that it does not suffer from cancellation; beyond 128 bits (months of
    /// clears) from floating point.
    #[must_use]
    pub fn stddev_ns(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        let n = u128::from(self.count);
        let exact = n
            .checked_mul(self.sum_squares)
            .zip(self.sum_ns.checked_mul(self.sum_ns))
            .map(|(n_squares, square)| n_squares.saturating_sub(square) as f64);
        let scatter = exact.unwrap_or_else(|| {
            (n as f64 * self.sum_squares as f64 - (self.sum_ns as f64).powi(2)).max(0.0)
        });
        Some((scatter / (n as f64 * (n - 1) as f64)).sqrt())
    }

    /// The duration, in ns, that a share of `quantile` (0 to 1) of the clears did not exceed, by
    /// nearest rank: the middle of its bucket, within [`Self::quantile_error`] of the true value. `None`
    /// without a clear.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let total: u64 = self.histogram.values().sum();
        let rank = ((quantile * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (&index, &count) in &self.histogram {
            seen += count;
            if seen >= rank {
                let (low, high) = self.bounds(index);
                return Some((low + (high - low) / 2).clamp(self.min_ns, self.max_ns));
            }
        }
        None
    }
}

/// The name of the coarse entry that counts bucket `index`.
fn coarse(index: u16) -> u16 {
    let first = bucket::first_of_coarse(bucket::coarse(usize::from(index)));
    u16::try_from(first).unwrap_or(index)
}

impl From<&Totals> for Aggregate {
    fn from(totals: &Totals) -> Self {
        let Totals {
            count,
            sum_ns,
            sum_squares: [low, high],
            max_ns,
            max_complement,
            waited,
            migrated,
            longest_run,
        } = *totals;
        Self {
            count,
            sum_ns: u128::from(sum_ns),
            sum_squares: u128::from(high) << 64 | u128::from(low),
            min_ns: if count == 0 { 0 } else { !max_complement },
            max_ns,
            preempted_ns: waited.run_delay_ns,
            switches: waited.switches,
            migrated,
            longest_run,
            ..Self::default()
        }
    }
}

impl From<&Block> for Aggregate {
    fn from(block: &Block) -> Self {
        Self {
            histogram: (0..)
                .zip(&block.buckets)
                .filter(|(_, count)| **count > 0)
                .map(|(index, count)| (index, *count))
                .collect(),
            ..Self::from(&block.totals)
        }
    }
}

impl From<&Cell> for Aggregate {
    fn from(cell: &Cell) -> Self {
        let index = |coarse| u16::try_from(bucket::first_of_coarse(coarse)).unwrap_or(u16::MAX);
        Self {
            parts: Parts {
                clear_ns: cell.inside.clear_ns,
                compaction_ns: cell.inside.compaction_ns,
                reclaim_ns: cell.inside.reclaim_ns,
            },
            histogram: (0..)
                .zip(&cell.buckets)
                .filter(|(_, count)| **count > 0)
                .map(|(coarse, count)| (index(coarse), u64::from(*count)))
                .collect(),
            coarse: true,
            ..Self::from(&cell.totals)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn aggregate(durations: &[u64]) -> Aggregate {
        let mut aggregate = Aggregate::default();
        for &ns in durations {
            aggregate.merge(&Aggregate {
                count: 1,
                sum_ns: u128::from(ns),
                sum_squares: u128::from(ns) * u128::from(ns),
                min_ns: ns,
                max_ns: ns,
                preempted_ns: ns / 4,
                switches: 1,
                histogram: BTreeMap::from([(bucket::index(ns) as u16, 1)]),
                ..Aggregate::default()
            });
        }
        aggregate
    }

    #[test]
    fn stddev_of_a_known_sample() {
        // 2, 4, 4, 4, 5, 5, 7, 9: the sum of squared deviations from the mean 5 is 32.
        let sample = aggregate(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!(sample.mean_ns(), Some(5.0));
        assert_eq!(sample.stddev_ns(), Some((32.0_f64 / 7.0).sqrt()));
    }

    #[test]
    fn nothing_has_no_statistics() {
        let nothing = Aggregate::default();
        assert_eq!(
            (
                nothing.mean_ns(),
                nothing.stddev_ns(),
                nothing.quantile_ns(0.5)
            ),
            (None, None, None)
        );
        assert_eq!(aggregate(&[7]).stddev_ns(), None);
    }

    #[test]
    fn stddev_survives_a_small_spread_around_a_large_mean() {
        let sample = aggregate(&[1 << 40, (1 << 40) + 2]);
        assert_eq!(sample.stddev_ns(), Some(2.0_f64.sqrt()));
    }

    fn durations() -> impl Strategy<Value = Vec<u64>> {
        vec(1_u64..(1 << 42), 1..200)
    }

    proptest! {
        #[test]
        fn merging_is_the_same_in_any_grouping(a in durations(), b in durations(), c in durations()) {
            let (a, b, c) = (aggregate(&a), aggregate(&b), aggregate(&c));
            let mut left = a.clone();
            left.merge(&b);
            left.merge(&c);
            let mut right = b;
            right.merge(&c);
            let mut all = a;
            all.merge(&right);
            prop_assert_eq!(left, all);
        }

        #[test]
        fn a_difference_added_back_restores_the_sum(a in durations(), b in durations()) {
            let earlier = aggregate(&a);
            let later = aggregate(&[a, b.clone()].concat());
            let difference = later.since(&earlier);
            prop_assert_eq!(difference.count, b.len() as u64);
            let mut sum = earlier;
            sum.merge(&difference);
            prop_assert_eq!(sum, later);
        }

        #[test]
        fn quantiles_are_within_one_part_in_64(
            mut sample in vec(bucket::MIN_NS..bucket::MAX_NS, 1..200),
            quantile in 0.0_f64..=1.0,
        ) {
            let estimate = aggregate(&sample).quantile_ns(quantile).unwrap();
            sample.sort_unstable();
            let rank = ((quantile * sample.len() as f64).ceil() as usize).clamp(1, sample.len());
            let truth = sample[rank - 1];
            prop_assert!(estimate.abs_diff(truth) * 64 <= truth, "{} is not {}", estimate, truth);
        }

        #[test]
        fn coarse_quantiles_are_within_one_part_in_16(
            mut sample in vec(bucket::MIN_NS..bucket::MAX_NS, 1..200),
            quantile in 0.0_f64..=1.0,
        ) {
            let mut all = Aggregate { coarse: true, ..Aggregate::default() };
            all.merge(&aggregate(&sample));
            let estimate = all.quantile_ns(quantile).unwrap();
            sample.sort_unstable();
            let rank = ((quantile * sample.len() as f64).ceil() as usize).clamp(1, sample.len());
            let truth = sample[rank - 1];
            prop_assert!(estimate.abs_diff(truth) * 16 <= truth, "{} is not {}", estimate, truth);
        }

        #[test]
        fn fine_and_coarse_merge_the_same_in_any_order(a in durations(), b in durations()) {
            let mut rough = Aggregate { coarse: true, ..Aggregate::default() };
            rough.merge(&aggregate(&b));
            let mut left = aggregate(&a);
            left.merge(&rough);
            rough.merge(&aggregate(&a));
            prop_assert_eq!(left, rough);
        }

        #[test]
        fn extremes_of_a_difference_are_within_a_bucket(a in durations(), b in durations()) {
            let earlier = aggregate(&a);
            let difference = aggregate(&[a, b.clone()].concat()).since(&earlier);
            let (min, max) = (*b.iter().min().unwrap(), *b.iter().max().unwrap());
            prop_assert!(difference.min_ns <= min && difference.max_ns >= max);
            if min >= bucket::MIN_NS {
                prop_assert!((min - difference.min_ns) * 32 <= min);
            }
            prop_assert!((difference.max_ns - max) * 32 <= max.max(bucket::MIN_NS * 32));
        }
    }
}
