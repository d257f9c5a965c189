//! The start of a call, kept until its exit: in the slot of the CPU and pair, else in a hash map.
//! [`Slot`] says why.

use core::sync::atomic::{Ordering, compiler_fence};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns};
use hugeclear_ebpf::{
    config::Pair,
    maps::{SKIP, Slot, Start, Waited},
};

use super::{
    state::{SLOTS, STARTS, config},
    task,
};

/// The slot of `pair` on `cpu`; `None` only for a CPU that user space did not count on.
#[inline(always)]
pub(crate) fn slot(cpu: u32, pair: Pair) -> Option<&'static mut Slot> {
    let slot = SLOTS.get_ptr_mut(cpu * Pair::COUNT + pair as u32)?;
    // SAFETY: a valid element of the map. Other programs change it only where `Slot` allows.
    Some(unsafe { &mut *slot })
}

/// Keeps the start of a call.
#[inline(always)]
pub(crate) fn put(slot: &mut Slot, pair: Pair, cpu: u32, thread: u32, block: u32, page: u64) {
    let owner = slot.owner;
    if config!(slot_cpus) != 0 && (owner == 0 || owner == thread) {
        if owner == thread && slot.start.block != SKIP {
            slot.overwritten += 1;
        }
        slot.owner = thread;
        begin(&mut slot.start, cpu, block, page);
    } else {
        let mut start = EMPTY;
        begin(&mut start, cpu, block, page);
        let kept = STARTS.insert(hash_key(pair, thread), start, 0).is_ok();
        if !kept && block != SKIP {
            slot.map_full += 1;
        }
    }
}

/// Fills in a start. The clock is read last, so that the duration holds as little of our own work as
/// can be.
#[inline(always)]
fn begin(start: &mut Start, cpu: u32, block: u32, page: u64) {
    start.page = page;
    start.block = block;
    start.cpu = cpu;
    if block != SKIP {
        start.waited = task::waited();
        start.start_ns = now();
    }
}

const EMPTY: Start = Start {
    start_ns: 0,
    page: 0,
    waited: Waited {
        run_delay_ns: 0,
        switches: 0,
    },
    block: SKIP,
    cpu: 0,
};

/// Takes the start of the call that `thread` now ends out of its CPU's slot, where it is unless the
/// thread migrated or found the slot taken. `page` is the call's first argument, or 0 where it is
/// not known.
#[inline(always)]
pub(crate) fn take(slot: &mut Slot, thread: u32, page: u64) -> Option<Start> {
    if slot.owner != thread || (page != 0 && page != slot.start.page) {
        return None;
    }
    let start = slot.start;
    release(slot);
    Some(start)
}

/// Takes the start of the call from wherever else it can be.
#[inline(always)]
pub(crate) fn take_elsewhere(pair: Pair, thread: u32, page: u64) -> Option<Start> {
    find(pair, thread, page, Then::Take)
}

/// The start of the call of `pair` that `thread` is now inside of.
#[inline(always)]
pub(crate) fn peek(pair: Pair, cpu: u32, thread: u32) -> Option<Start> {
    if let Some(slot) = slot(cpu, pair)
        && slot.owner == thread
    {
        return Some(slot.start);
    }
    find(pair, thread, 0, Then::Keep)
}

/// What to do with a start once it is found.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Then {
    Keep,
    Take,
}

#[inline(always)]
fn find(pair: Pair, thread: u32, page: u64, then: Then) -> Option<Start> {
    let mut start = Start { page, ..EMPTY };
    (find_elsewhere(&mut start, pair as u32, thread, then as u32) != 0).then_some(start)
}

/// Finds the start of a call in the hash map, or in the slot of the CPU on which it began. Returns 0 if
/// there is none. `start.page` is an input, all of it the output. Taking also frees the stale starts
/// that it meets: of calls of this thread whose exit was missed.
///
/// Not inlined: it is rare, and long for the verifier.
#[inline(never)]
fn find_elsewhere(start: &mut Start, pair: u32, thread: u32, then: u32) -> u32 {
    let page = start.page;
    let take = then == Then::Take as u32;
    let key = (u64::from(pair) << 32) | u64::from(thread);
    if let Some(kept) = STARTS.get_ptr(key) {
        // SAFETY: only this thread inserts and removes this key, so the element stays its own.
        let kept = unsafe { &*kept };
        let fits = page == 0 || page == kept.page;
        if fits {
            *start = *kept;
        }
        if take {
            let _ = STARTS.remove(key);
        }
        if fits {
            return 1;
        }
    }
    // The thread migrated: nobody else frees or takes the slot it owns there.
    for cpu in 0..config!(slot_cpus) {
        let Some(slot) = SLOTS.get_ptr_mut(cpu * Pair::COUNT + pair) else {
            break;
        };
        // SAFETY: a valid element of the map.
        let slot = unsafe { &mut *slot };
        if slot.owner == thread {
            let fits = page == 0 || page == slot.start.page;
            if fits {
                *start = slot.start;
            }
            if take {
                release(slot);
            }
            if fits {
                return 1;
            }
        }
    }
    0
}

/// Frees a slot after it was read. Once it is free, a task that preempts us may take and overwrite
/// it, so the compiler must not move the reads below the store.
#[inline(always)]
fn release(slot: &mut Slot) {
    compiler_fence(Ordering::Release);
    slot.owner = 0;
}

#[inline(always)]
fn hash_key(pair: Pair, thread: u32) -> u64 {
    ((pair as u64) << 32) | u64::from(thread)
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
