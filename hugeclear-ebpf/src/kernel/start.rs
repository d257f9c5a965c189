//! The start of a call, kept until its exit: in the slot of the CPU and pair, else in a hash map.
//! [`Slot`] says why.

use core::{
    ptr::NonNull,
    sync::atomic::{Ordering, compiler_fence},
};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns};
use hugeclear_ebpf::{
    config::Pair,
    maps::{Fallbacks, Inside, Run, SKIP, Slot, Start, Waited},
};

use super::{
    state::{SLOTS, STARTS, config},
    task,
};

/// A start before its times are filled in.
pub(crate) const EMPTY: Start = Start {
    owner: 0,
    cpu: 0,
    start_ns: 0,
    page: 0,
    waited: Waited {
        run_delay_ns: 0,
        switches: 0,
    },
    dimensions: 0,
    address: 0,
    block: SKIP,
    reads: 0,
    run: Run { ns: 0, clears: 0 },
    run_end_ns: 0,
    waited_before_ns: 0,
    inside: Inside {
        clear_ns: 0,
        compaction_ns: 0,
        reclaim_ns: 0,
        order: 0,
        happened: 0,
    },
    fallbacks: Fallbacks { any: 0, charge: 0 },
};

/// The slot of `pair` on `cpu`; `None` only for a CPU that user space did not count on.
#[inline(always)]
pub(crate) fn slot(cpu: u32, pair: Pair) -> Option<&'static mut Slot> {
    let slot = SLOTS.get_ptr_mut(cpu * Pair::COUNT + pair as u32)?;
    // SAFETY: a valid element of the map. Other programs change it only where `Slot` allows.
    Some(unsafe { &mut *slot })
}

/// Keeps the start of a call: what `fill` says, and the time, which is read last, so that the duration
/// holds as little of our own work as can be.
#[inline(always)]
pub(crate) fn put(
    slot: &mut Slot,
    pair: Pair,
    cpu: u32,
    thread: u32,
    block: u32,
    fill: impl Fn(&mut Start),
) {
    let owner = slot.start.owner;
    if config!(slot_cpus) != 0 && (owner == 0 || owner == thread) {
        if owner == thread && slot.start.block != SKIP {
            slot.overwritten += 1;
        }
        slot.start.owner = thread;
        begin(&mut slot.start, cpu, block, fill);
    } else {
        let mut start = EMPTY;
        start.owner = thread;
        begin(&mut start, cpu, block, fill);
        let kept = STARTS
            .insert(hash_key(pair as u32, thread), start, 0)
            .is_ok();
        if !kept && block != SKIP {
            slot.map_full += 1;
        }
    }
}

#[inline(always)]
fn begin(start: &mut Start, cpu: u32, block: u32, fill: impl Fn(&mut Start)) {
    start.block = block;
    start.cpu = cpu;
    fill(start);
    if block != SKIP {
        start.waited = task::waited();
        start.start_ns = now();
    }
}

/// Takes the start of the call that `thread` now ends out of its CPU's slot, where it is unless the
/// thread migrated or found the slot taken. `page` is the call's first argument, or 0 where it is
/// not known.
#[inline(always)]
pub(crate) fn take(slot: &mut Slot, thread: u32, page: u64) -> Option<Start> {
    if slot.start.owner != thread || (page != 0 && page != slot.start.page) {
        return None;
    }
    let start = slot.start;
    release(&mut slot.start);
    Some(start)
}

/// Takes the start of the call from wherever else it can be.
#[inline(always)]
pub(crate) fn take_elsewhere(pair: Pair, thread: u32, page: u64) -> Option<Start> {
    let found = find_elsewhere(pair as u32, thread, page, Then::Take as u32);
    let mut found = NonNull::new(found)?;
    // SAFETY: a start of this thread, in a slot or in the hash map: nobody else changes it.
    let found = unsafe { found.as_mut() };
    let start = *found;
    release(found);
    // It may have been in the hash map.
    let _ = STARTS.remove(hash_key(pair as u32, thread));
    Some(start)
}

/// The start of the call of `pair` that `thread` is now inside of, if it began on `cpu`, in its slot.
#[inline(always)]
pub(crate) fn here(pair: Pair, cpu: u32, thread: u32) -> Option<&'static mut Start> {
    let slot = slot(cpu, pair)?;
    (slot.start.owner == thread).then_some(&mut slot.start)
}

/// The start of the call of `pair` that `thread` is now inside of, wherever else it is.
#[inline(always)]
pub(crate) fn elsewhere(pair: Pair, thread: u32) -> Option<&'static mut Start> {
    let found = find_elsewhere(pair as u32, thread, 0, Then::Keep as u32);
    // SAFETY: a start of this thread, in a slot or in the hash map: nobody else changes it.
    NonNull::new(found).map(|mut found| unsafe { found.as_mut() })
}

/// What to do with the starts that are met.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Then {
    Keep,
    /// The call ends: free the stale starts that are met, of calls of this thread whose exit was missed.
    Take,
}

/// Finds the start of a call in the hash map, or in the slot of the CPU on which it began; null if there
/// is none. `page` is the call's first argument; 0 fits any.
///
/// Not inlined: it is rare, and long for the verifier.
#[inline(never)]
fn find_elsewhere(pair: u32, thread: u32, page: u64, then: u32) -> *mut Start {
    let take = then == Then::Take as u32;
    let key = hash_key(pair, thread);
    if let Some(kept) = STARTS.get_ptr_mut(key) {
        // SAFETY: only this thread inserts and removes this key, so the element stays its own.
        if page == 0 || page == unsafe { (*kept).page } {
            return kept;
        }
        if take {
            let _ = STARTS.remove(key);
        }
    }
    // The thread migrated: nobody else frees or takes the slot it owns there.
    for cpu in 0..config!(slot_cpus) {
        let Some(slot) = SLOTS.get_ptr_mut(cpu * Pair::COUNT + pair) else {
            break;
        };
        // SAFETY: a valid element of the map.
        let start = unsafe { &mut (*slot).start };
        if start.owner == thread {
            if page == 0 || page == start.page {
                return start;
            }
            if take {
                release(start);
            }
        }
    }
    core::ptr::null_mut()
}

/// Frees a slot after it was read. Once it is free, a task that preempts us may take and overwrite
/// it, so the compiler must not move the reads below the store.
#[inline(always)]
fn release(start: &mut Start) {
    compiler_fence(Ordering::Release);
    start.owner = 0;
}

#[inline(always)]
fn hash_key(pair: u32, thread: u32) -> u64 {
    (u64::from(pair) << 32) | u64::from(thread)
}

/// The thread we are in; never 0, since an idle CPU clears nothing.
#[inline(always)]
pub(crate) fn thread() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

/// The CPU we are on, which cannot change while a program runs.
#[inline(always)]
pub(crate) fn cpu() -> u32 {
    // SAFETY: no conditions.
    unsafe { bpf_get_smp_processor_id() as u32 }
}

/// CLOCK_MONOTONIC in ns.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: no conditions.
    unsafe { bpf_ktime_get_ns() }
}
