//! The records in the maps. Both arrays of records are mapped into the tracer's memory, so reading
//! them costs no system call.

use crate::bucket::{BUCKETS, COARSE_BUCKETS};

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

/// Back-to-back clears by one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    /// Sum of their durations, in ns.
    pub ns: u64,
    /// How many.
    pub clears: u64,
}

/// What happened inside a fault, each net of the time that the thread waited for a CPU meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Inside {
    /// Clearing, in ns.
    pub clear_ns: u64,
    /// Direct compaction, in ns.
    pub compaction_ns: u64,
    /// Direct reclaim, in ns.
    pub reclaim_ns: u64,
    /// Order of the page that was cleared or copied.
    pub order: u32,
    /// [`CLEARED`], [`COPIED`], [`CGROUP_RECLAIMED`].
    pub happened: u32,
}

/// [`Inside::happened`]: a page was cleared.
pub const CLEARED: u32 = 1;
/// [`Inside::happened`]: a page was copied.
pub const COPIED: u32 = 2;

/// [`Inside::happened`]: pages were reclaimed for a memory cgroup's limit.
pub const CGROUP_RECLAIMED: u32 = 4;

/// The CPU's count of THP faults that fell back, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fallbacks {
    /// For any counted reason (`THP_FAULT_FALLBACK`).
    pub any: u32,
    /// For the memory cgroup's limit (`THP_FAULT_FALLBACK_CHARGE`).
    pub charge: u32,
}

/// The start of a call: of a clear, a copy, a fault, or what is inside a fault.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Start {
    /// Thread whose call this is; 0 if there is none.
    pub owner: u32,
    /// CPU on which it began.
    pub cpu: u32,
    /// When it began, in ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// First argument of the function: tells one call of a thread from a stale one.
    pub page: u64,
    /// The thread's counters when it began.
    pub waited: Waited,
    /// [`crate::key::Dimensions`], packed.
    pub dimensions: u64,
    /// The address that faulted, or 0.
    pub address: u64,
    /// Block of the clear, or [`SKIP`].
    pub block: u32,
    /// 1 for a THP fault that reads, and so may map the huge zero page.
    pub reads: u32,
    /// The thread's run of clears before this one.
    pub run: Run,
    /// When the last clear of that run ended.
    pub run_end_ns: u64,
    /// Of a clear: what the fault around it had waited for by then, in compaction and reclaim, in ns.
    pub waited_before_ns: u64,
    /// Of a fault: what happened inside so far.
    pub inside: Inside,
    /// Of a THP fault: the fallbacks that the CPU had counted.
    pub fallbacks: Fallbacks,
}

const _: () = assert!(size_of::<Start>() == 136);

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, only integers, no padding (the size is asserted above), any bytes are valid.
unsafe impl aya::Pod for Start {}

/// Keeps the start of a call until its exit.
///
/// A call that begins on a CPU takes that CPU's slot of its pair. If the slot is taken (by a task
/// that was preempted in mid-call, or that migrated away), the start goes to a hash map. The owner
/// alone frees a slot, so a start is never overwritten by another task.
///
/// The counters are cumulative; each is written by one program only, on its own CPU.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Slot {
    /// The start, if the slot is taken.
    pub start: Start,
    /// Thread of the last clear that ended here, whose run of clears may go on.
    pub run_owner: u32,
    /// No meaning.
    pub padding: u32,
    /// When that clear ended.
    pub run_end_ns: u64,
    /// That run.
    pub run: Run,
    /// Selected calls that began here.
    pub entries: u64,
    /// Calls of the tracer itself, not recorded.
    pub own_process: u64,
    /// Calls whose start replaced another start of the same thread, whose exit was never seen.
    pub overwritten: u64,
    /// Calls whose start found no room: [`Slot`] taken and the hash map full.
    pub map_full: u64,
    /// Calls of the allocator's clearing outside any huge-page fault, not recorded.
    pub outside_faults: u64,
    /// Calls that ended here and were recorded.
    pub recorded: u64,
    /// Exits whose start is not known.
    pub exits_without_entry: u64,
    /// Calls that ended before they began, by the clock; discarded.
    pub end_before_start: u64,
    /// Recorded calls whose key found no room among the cells: they are in block
    /// [`crate::key::OTHER`].
    pub cells_full: u64,
    /// Recorded calls whose event found no room in the ring buffer.
    pub events_dropped: u64,
    /// Recorded faults whose parts are longer than the whole.
    pub negative_rest: u64,
}

const _: () = assert!(size_of::<Slot>() == 256);

/// In place of a block: a call that is tracked, so that its exit is recognised, but not recorded.
pub const SKIP: u32 = u32::MAX;

/// The exact figures of an aggregate: cumulative, never reset.
///
/// The kernel updates them while user space reads, so a copy may be one clear ahead in one field and
/// behind in another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Totals {
    /// Number of clears, or of whatever the key says.
    pub count: u64,
    /// Sum of the durations, in ns.
    pub sum_ns: u64,
    /// Low and high half of the sum of the squared durations, in ns².
    pub sum_squares: [u64; 2],
    /// Longest duration, in ns.
    pub max_ns: u64,
    /// Bitwise complement of the shortest duration, in ns: as a maximum, it starts right at 0.
    pub max_complement: u64,
    /// Sum of what the threads waited for a CPU inside.
    pub waited: Waited,
    /// Those that ended on another CPU than they began on.
    pub migrated: u64,
    /// The longest run of clears that ended here.
    pub longest_run: Run,
}

/// The clears of one packed key that ended on one CPU.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Block {
    /// The exact figures.
    pub totals: Totals,
    /// Durations by [`crate::bucket::index`].
    pub buckets: [u64; BUCKETS],
}

const _: () = assert!(size_of::<Block>().is_multiple_of(64));

impl Block {
    /// A block without a clear.
    pub const EMPTY: Self = Self {
        totals: Totals {
            count: 0,
            sum_ns: 0,
            sum_squares: [0; 2],
            max_ns: 0,
            max_complement: 0,
            waited: Waited {
                run_delay_ns: 0,
                switches: 0,
            },
            migrated: 0,
            longest_run: Run { ns: 0, clears: 0 },
        },
        buckets: [0; BUCKETS],
    };
}

/// The clears, copies or faults of one [`crate::key::CellKey`]. Coarser than a block, because there
/// may be many.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cell {
    /// The exact figures.
    pub totals: Totals,
    /// Of faults: the sums of what happened inside; `order` and `happened` have no meaning.
    pub inside: Inside,
    /// Durations by [`crate::bucket::coarse`].
    pub buckets: [u32; COARSE_BUCKETS],
}

const _: () = assert!(size_of::<Cell>().is_multiple_of(8));

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, only integers, no padding (an even number of 32-bit buckets follows words), any
// bytes are valid.
unsafe impl aya::Pod for Cell {}

/// Most frames of a kernel stack in an event.
pub const STACK_FRAMES: usize = 48;

/// One clear, copy or fault, as it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When it began, in ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// What the thread waited for a CPU inside.
    pub waited: Waited,
    /// [`crate::key::Dimensions`], packed.
    pub dimensions: u64,
    /// The address that faulted, or 0.
    pub address: u64,
    /// Of a fault: what happened inside.
    pub inside: Inside,
    /// Id of the cgroup (v2).
    pub cgroup: u64,
    /// Name of the thread.
    pub comm: [u8; 16],
    /// Process and thread, as the host numbers them.
    pub pid: u32,
    /// See `pid`.
    pub tid: u32,
    /// CPU on which it began.
    pub cpu_start: u32,
    /// CPU on which it ended.
    pub cpu_end: u32,
}

const _: () = assert!(size_of::<Event>() == 120);

/// An event with the kernel stack at its end.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EventWithStack {
    /// The event.
    pub event: Event,
    /// Bytes of `stack` that are filled, or a negative error number.
    pub stack_bytes: i64,
    /// Return addresses, innermost first.
    pub stack: [u64; STACK_FRAMES],
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
