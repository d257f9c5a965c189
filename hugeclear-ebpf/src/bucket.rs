//! The log-linear histogram: which bucket a duration falls into, and what a bucket holds.
//!
//! Each power of two is divided into [`SUB_BUCKETS`] buckets of equal width, from [`MIN_NS`] to
//! [`MAX_NS`]. A bucket is at most 1/32 of its lower bound wide, so its middle is within 1/64
//! (1.6 %) of every duration in it. One bucket below and one above take what is out of range.

/// log2 of the buckets per power of two.
const SUB_BITS: u32 = 5;
/// Buckets per power of two.
pub const SUB_BUCKETS: u32 = 1 << SUB_BITS;
/// log2 of the shortest duration with a bucket of its own.
const MIN_BITS: u32 = 8;
/// log2 of the first duration, in ns, above the range.
const MAX_BITS: u32 = 42;
/// The shortest duration in range, in ns.
pub const MIN_NS: u64 = 1 << MIN_BITS;
/// The first duration above the range, in ns: 73 minutes.
pub const MAX_NS: u64 = 1 << MAX_BITS;

/// The bucket of durations below [`MIN_NS`].
pub const UNDERFLOW: usize = 0;
/// The bucket of durations of [`MAX_NS`] and more.
pub const OVERFLOW: usize = BUCKETS - 1;
const _: () = assert!(MAX_NS > 3_600_000_000_000, "an hour is in range");
/// Number of buckets, [`UNDERFLOW`] and [`OVERFLOW`] included.
pub const BUCKETS: usize = ((MAX_BITS - MIN_BITS) * SUB_BUCKETS) as usize + 2;

/// log2 of the buckets that a coarse bucket takes together.
const COARSE_BITS: u32 = 2;
/// How many buckets a coarse bucket takes together: it is at most 1/8 of its lower bound wide, so its
/// middle is within 1/16 (6.3 %) of every duration in it.
pub const PER_COARSE: usize = 1 << COARSE_BITS;
/// Number of coarse buckets.
pub const COARSE_BUCKETS: usize = (BUCKETS - 2) / PER_COARSE + 2;

/// The coarse bucket of what [`index`] says. Always below [`COARSE_BUCKETS`].
#[must_use]
#[inline(always)]
pub const fn coarse(index: usize) -> usize {
    // UNDERFLOW stays 0, OVERFLOW becomes the last; in between four make one.
    (index + PER_COARSE - 1) >> COARSE_BITS
}

/// The first bucket in a coarse bucket.
#[must_use]
pub const fn first_of_coarse(coarse: usize) -> usize {
    match coarse {
        0 => UNDERFLOW,
        coarse => (coarse - 1) * PER_COARSE + 1,
    }
}

/// The bucket of a duration of `ns` nanoseconds. Always below [`BUCKETS`].
#[must_use]
#[inline(always)]
pub const fn index(ns: u64) -> usize {
    if ns < MIN_NS {
        return UNDERFLOW;
    }
    if ns >= MAX_NS {
        return OVERFLOW;
    }
    let log2 = log2_in_range(ns);
    // The leading bit and the SUB_BITS below it: SUB_BUCKETS..2 * SUB_BUCKETS.
    let mantissa = ns >> (log2 - SUB_BITS);
    ((log2 - MIN_BITS) as u64 * SUB_BUCKETS as u64 + mantissa - (SUB_BUCKETS as u64 - 1)) as usize
}

/// floor(log2) of a duration within range.
///
/// By comparisons that end in constants: the eBPF instruction set cannot count leading zeros, and
/// each halving by shifts would cost several instructions instead of one or two.
#[inline(always)]
const fn log2_in_range(ns: u64) -> u32 {
    /// The largest of 2 (then 4, 8) neighbouring exponents, beginning with `$low`, that fits.
    macro_rules! of_2 {
        ($low:expr) => {
            if ns < 1 << ($low + 1) { $low } else { $low + 1 }
        };
    }
    macro_rules! of_4 {
        ($low:expr) => {
            if ns < 1 << ($low + 2) {
                of_2!($low)
            } else {
                of_2!($low + 2)
            }
        };
    }
    macro_rules! of_8 {
        ($low:expr) => {
            if ns < 1 << ($low + 4) {
                of_4!($low)
            } else {
                of_4!($low + 4)
            }
        };
    }
    // Most clears take 4 microseconds to a second.
    if ns < 1 << 24 {
        if ns < 1 << 16 { of_8!(8) } else { of_8!(16) }
    } else if ns < 1 << 32 {
        of_8!(24)
    } else if ns < 1 << 40 {
        of_8!(32)
    } else {
        of_2!(40)
    }
}

/// The bounds of bucket `index`, in ns: from the first, inclusive, to the second, exclusive.
///
/// [`OVERFLOW`] ends at `u64::MAX`. An `index` of [`BUCKETS`] or more is treated as [`OVERFLOW`].
#[must_use]
pub const fn bounds(index: usize) -> (u64, u64) {
    if index == UNDERFLOW {
        return (0, MIN_NS);
    }
    if index >= OVERFLOW {
        return (MAX_NS, u64::MAX);
    }
    let offset = (index - 1) as u64;
    let shift = offset / SUB_BUCKETS as u64 + (MIN_BITS - SUB_BITS) as u64;
    let low = (SUB_BUCKETS as u64 + offset % SUB_BUCKETS as u64) << shift;
    (low, low + (1 << shift))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn edges_of_the_range() {
        assert_eq!(index(0), UNDERFLOW);
        assert_eq!(index(MIN_NS - 1), UNDERFLOW);
        assert_eq!(index(MIN_NS), UNDERFLOW + 1);
        assert_eq!(index(MAX_NS - 1), OVERFLOW - 1);
        assert_eq!(index(MAX_NS), OVERFLOW);
        assert_eq!(index(u64::MAX), OVERFLOW);
    }

    #[test]
    fn buckets_tile_the_range_without_gap_or_overlap() {
        for index in 1..BUCKETS {
            assert_eq!(bounds(index - 1).1, bounds(index).0, "bucket {index}");
        }
    }

    #[test]
    fn coarse_buckets_are_runs_of_buckets() {
        for index in 0..BUCKETS {
            let coarse = coarse(index);
            assert!(coarse < COARSE_BUCKETS);
            let first = first_of_coarse(coarse);
            let alone = index == UNDERFLOW || index == OVERFLOW;
            let last = if alone { first } else { first + PER_COARSE - 1 };
            assert!((first..=last).contains(&index), "{index} in {coarse}");
        }
        assert_eq!(coarse(OVERFLOW), COARSE_BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_durations(ns: u64, shift in 0_u32..64) {
            let ns = ns >> shift;
            let (low, high) = bounds(index(ns));
            prop_assert!(low <= ns && (ns < high || ns == u64::MAX));
        }

        #[test]
        fn the_middle_is_within_one_part_in_64(ns in MIN_NS..MAX_NS) {
            let (low, high) = bounds(index(ns));
            let middle = low + (high - low) / 2;
            prop_assert!(middle.abs_diff(ns) * 64 <= ns);
        }
    }
}
