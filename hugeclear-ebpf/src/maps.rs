//! The records in the maps. Both arrays of records are mapped into the tracer's memory, so reading
//! them costs no system call.

use crate::bucket::BUCKETS;

/// How long and how often a task had to wait for a CPU; the difference of two readings is what happened
/// in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Waited {
    /// Time that it was runnable and not running, in ns.
    pub run_delay_ns: u64,
    /// Context switches away from it.
    pub switches: u64,
}

/// The start of a clear.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Start {
    /// When the clear began, in ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// First argument of the function: tells one clear of a thread from a stale one.
    pub page: u64,
    /// The thread's counters when the clear began.
    pub waited: Waited,
    /// Block of the clear, or [`SKIP`].
    pub block: u32,
    /// CPU on which the clear began.
    pub cpu: u32,
}

const _: () = assert!(size_of::<Start>() == 40);

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, only integers, no padding (the size is asserted above), any bytes are valid.
unsafe impl aya::Pod for Start {}

/// Keeps the start of a clear until its exit.
///
/// A clear that begins on a CPU takes that CPU's slot of its pair. If the slot is taken (by a task
/// that was preempted in mid-clear, or that migrated away), the start goes to a hash map. The owner
/// alone frees a slot, so a start is never overwritten by another task.
///
/// The counters are cumulative; each is written by one program only, on its own CPU.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(128))]
pub struct Slot {
    /// Thread whose clear this is; 0 if the slot is free.
    pub owner: u32,
    /// No meaning.
    pub padding: u32,
    /// The start, if the slot is taken.
    pub start: Start,
    /// Selected clears that began here.
    pub entries: u64,
    /// Clears of the tracer itself, not recorded.
    pub own_process: u64,
    /// Clears whose start replaced another start of the same thread, whose exit was never seen.
    pub overwritten: u64,
    /// Clears whose start found no room: [`Slot`] taken and the hash map full.
    pub map_full: u64,
    /// Calls of the allocator's clearing outside any huge-page fault, not recorded.
    pub outside_faults: u64,
    /// Clears that ended here and were recorded.
    pub recorded: u64,
    /// Exits whose start is not known.
    pub exits_without_entry: u64,
    /// Clears that ended before they began, by the clock; discarded.
    pub end_before_start: u64,
    /// Clears that ended on this CPU and began on another.
    pub migrated: u64,
}

const _: () = assert!(size_of::<Slot>() == 128);

/// In place of a block: a call that is tracked, so that its exit is recognised, but not recorded.
pub const SKIP: u32 = u32::MAX;

/// The clears of one key that ended on one CPU: cumulative, never reset.
///
/// The kernel updates it while user space reads, so a copy may be one clear ahead in one field and
/// behind in another.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Block {
    /// Number of clears.
    pub count: u64,
    /// Sum of the durations, in ns.
    pub sum_ns: u64,
    /// Low and high half of the sum of the squared durations, in ns².
    pub sum_squares: [u64; 2],
    /// Longest duration, in ns.
    pub max_ns: u64,
    /// Bitwise complement of the shortest duration, in ns: as a maximum, it starts right at 0.
    pub max_complement: u64,
    /// Sum of what the threads waited for a CPU inside the clears.
    pub waited: Waited,
    /// Durations by [`crate::bucket::index`].
    pub buckets: [u64; BUCKETS],
}

const _: () = assert!(size_of::<Block>().is_multiple_of(64));

impl Block {
    /// A block without a clear.
    pub const EMPTY: Self = Self {
        count: 0,
        sum_ns: 0,
        sum_squares: [0; 2],
        max_ns: 0,
        max_complement: 0,
        waited: Waited {
            run_delay_ns: 0,
            switches: 0,
        },
        buckets: [0; BUCKETS],
    };
}

/// The square of `ns` as the low and high half of 128 bits. The eBPF target has no 128-bit multiply.
#[must_use]
#[inline(always)]
pub const fn square(ns: u64) -> (u64, u64) {
    if ns <= u32::MAX as u64 {
        return (ns * ns, 0);
    }
    let (high, low) = (ns >> 32, ns & u32::MAX as u64);
    // (high * 2^32 + low)^2 = high^2 * 2^64 + 2 * high * low * 2^32 + low^2
    let cross = high.wrapping_mul(low);
    let (result, carry) = (low * low).overflowing_add(cross << 33);
    (
        result,
        (high * high)
            .wrapping_add(cross >> 31)
            .wrapping_add(carry as u64),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::square;

    proptest! {
        #[test]
        fn square_agrees_with_128_bit_arithmetic(ns: u64, shift in 0_u32..64) {
            let ns = ns >> shift;
            let (low, high) = square(ns);
            prop_assert_eq!(u128::from(high) << 64 | u128::from(low), u128::from(ns).pow(2));
        }
    }
}
