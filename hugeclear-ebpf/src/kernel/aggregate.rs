//! Adds a clear to its block.

use hugeclear_ebpf::{
    bucket::{self, BUCKETS},
    maps::{Start, square},
};

use super::{
    state::{BLOCKS, config},
    task,
};

/// Adds the clear that began as `start` says and ended on `cpu`, at `now`, not before it began.
///
/// No other program can be in the middle of this on the same block: a CPU runs a program once at a
/// time (the kernel skips and counts a second run), and each pair has sites of its own. Only block
/// [`hugeclear_ebpf::key::OTHER`] is shared: where programs can preempt each other, two pairs that
/// meet there may lose one of its counts.
#[inline(always)]
pub(crate) fn add(cpu: u32, block: u32, start: &Start, now: u64) {
    let ns = now - start.start_ns;
    let waited = task::waited();
    let Some(block) = BLOCKS.get_ptr_mut(cpu * config!(blocks) + block) else {
        return;
    };
    // SAFETY: a valid element of the map.
    let block = unsafe { &mut *block };
    block.sum_ns += ns;
    let (low, high) = square(ns);
    let (sum, carry) = block.sum_squares[0].overflowing_add(low);
    block.sum_squares[0] = sum;
    block.sum_squares[1] = block.sum_squares[1]
        .wrapping_add(high)
        .wrapping_add(u64::from(carry));
    if ns > block.max_ns {
        block.max_ns = ns;
    }
    if !ns > block.max_complement {
        block.max_complement = !ns;
    }
    // The compiler knows that the index is in range and would drop the comparison that the
    // verifier needs.
    let index = core::hint::black_box(bucket::index(ns));
    if index < BUCKETS {
        // SAFETY: in bounds.
        unsafe { *(&raw mut block.buckets).cast::<u64>().add(index) += 1 };
    }
    block.waited.run_delay_ns += waited.run_delay_ns.wrapping_sub(start.waited.run_delay_ns);
    block.waited.switches += waited.switches.wrapping_sub(start.waited.switches);
    block.count += 1;
}
