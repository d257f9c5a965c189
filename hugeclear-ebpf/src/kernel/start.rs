//! The start of a call, kept until its exit: in the slot of the CPU and pair, else in a hash map.
//! [`Slot`] says why.

use core::sync::atomic::{Ordering, compiler_fence};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns};
use hugeclear_ebpf::{
    config::Pair,
    maps::{SKIP, Slot, Start},
};

use super::state::{SLOTS, STARTS, config};

/// The slot of `pair` on `cpu`; `None` only for a CPU that user space did not count on.
#[inline(always)]
pub(crate) fn slot(cpu: u32, pair: Pair) -> Option<&'static mut Slot> {
    let slot = SLOTS.get_ptr_mut(cpu * Pair::COUNT + pair as u32)?;
    // SAFETY: a valid element of the map. Other programs change it only where `Slot` allows.
    Some(unsafe { &mut *slot })
}

/// Keeps the start of a call. The clock is read last, so that the duration holds as little of our
/// own work as can be.
#[inline(always)]
pub(crate) fn put(slot: &mut Slot, pair: Pair, cpu: u32, thread: u32, block: u32, page: u64) {
    let owner = slot.owner;
    if owner == 0 || owner == thread {
        if owner == thread {
            slot.overwritten += 1;
        }
        slot.owner = thread;
        slot.block = block;
        slot.page = page;
        slot.start_ns = if block == SKIP { 0 } else { now() };
    } else {
        let mut start = Start {
            start_ns: 0,
            page,
            block,
            cpu,
        };
        if block != SKIP {
            start.start_ns = now();
        }
        if STARTS.insert(hash_key(pair, thread), start, 0).is_err() {
            slot.map_full += 1;
        }
    }
}

/// Takes the start of the call that `thread` now ends out of its CPU's slot, where it is unless the
/// thread migrated or found the slot taken. `page` is the call's first argument, or 0 where it is
/// not known.
#[inline(always)]
pub(crate) fn take(slot: &mut Slot, cpu: u32, thread: u32, page: u64) -> Option<Start> {
    if slot.owner != thread || (page != 0 && page != slot.page) {
        return None;
    }
    let start = Start {
        start_ns: slot.start_ns,
        page,
        block: slot.block,
        cpu,
    };
    release(slot);
    Some(start)
}

/// Takes the start of the call from wherever else it can be.
#[inline(always)]
pub(crate) fn take_elsewhere(pair: Pair, thread: u32, page: u64) -> Option<Start> {
    let mut start = Start {
        start_ns: 0,
        page,
        block: SKIP,
        cpu: 0,
    };
    (find_and_take(&mut start, pair as u32, thread) != 0).then_some(start)
}

/// Takes the start of the call out of the hash map, or out of the slot of the CPU on which it began.
/// Returns 0 if there is none. `start.page` is an input, all of it the output.
///
/// Not inlined: it is rare, and long for the verifier.
#[inline(never)]
fn find_and_take(start: &mut Start, pair: u32, thread: u32) -> u32 {
    let page = start.page;
    let key = (u64::from(pair) << 32) | u64::from(thread);
    if let Some(kept) = STARTS.get_ptr(key) {
        // SAFETY: only this thread inserts and removes this key, so the element stays its own.
        let kept = unsafe { &*kept };
        let fits = page == 0 || page == kept.page;
        if fits {
            start.start_ns = kept.start_ns;
            start.block = kept.block;
            start.cpu = kept.cpu;
        }
        let _ = STARTS.remove(key);
        if fits {
            return 1;
        }
    }
    // The thread migrated: nobody else frees or takes the slot it owns there.
    for cpu in 0..config!(cpus) {
        let Some(slot) = SLOTS.get_ptr_mut(cpu * Pair::COUNT + pair) else {
            break;
        };
        // SAFETY: a valid element of the map.
        let slot = unsafe { &mut *slot };
        if slot.owner == thread {
            let fits = page == 0 || page == slot.page;
            if fits {
                start.start_ns = slot.start_ns;
                start.block = slot.block;
                start.cpu = cpu;
            }
            release(slot);
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

/// When the call of `pair` that `thread` is now inside of began; 0 if it is inside of none.
#[inline(always)]
pub(crate) fn peek(pair: Pair, cpu: u32, thread: u32) -> u64 {
    if let Some(slot) = slot(cpu, pair)
        && slot.owner == thread
    {
        return slot.start_ns;
    }
    peek_elsewhere(pair as u32, thread)
}

#[inline(never)]
fn peek_elsewhere(pair: u32, thread: u32) -> u64 {
    if let Some(kept) = STARTS.get_ptr((u64::from(pair) << 32) | u64::from(thread)) {
        // SAFETY: only this thread inserts and removes this key, so the element stays its own.
        return unsafe { (*kept).start_ns };
    }
    for cpu in 0..config!(cpus) {
        let Some(slot) = SLOTS.get_ptr(cpu * Pair::COUNT + pair) else {
            break;
        };
        // SAFETY: a valid element of the map.
        let slot = unsafe { &*slot };
        if slot.owner == thread {
            return slot.start_ns;
        }
    }
    0
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
