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

/// floor(log2) of a duration within range. By halving: the eBPF instruction set cannot count
/// leading zeros, and this executes fewer instructions than the arithmetic LLVM puts in its place.
#[inline(always)]
const fn log2_in_range(ns: u64) -> u32 {
    let mut rest = ns;
    let mut log2 = 0;
    if rest >= 1 << 32 {
        rest >>= 32;
        log2 += 32;
    }
    if rest >= 1 << 16 {
        rest >>= 16;
        log2 += 16;
    }
    if rest >= 1 << 8 {
        rest >>= 8;
        log2 += 8;
    }
    if rest >= 1 << 4 {
        rest >>= 4;
        log2 += 4;
    }
    if rest >= 1 << 2 {
        rest >>= 2;
        log2 += 2;
    }
    log2 + (rest >> 1) as u32
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
