//! Entry and exit of a function that clears.

use hugeclear_ebpf::{
    config::Pair,
    key::{OTHER, Site, pack},
    maps::{SKIP, Slot},
};

use super::{
    aggregate,
    call::Call,
    preempt,
    select::{Task, current_task, selected_order},
    start,
    state::{block_of, config},
};

/// The function is entered.
#[inline(always)]
pub(crate) fn enter<C: Call>(call: &C, pair: Pair) {
    let task = current_task();
    if let Task::Other = task {
        return;
    }
    let order = selected_order(call, pair);
    if order.is_none() && C::ARGUMENTS_AT_EXIT {
        return;
    }
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let Task::Selected(thread) = task else {
        slot.own_process += u64::from(order.is_some());
        return;
    };
    let key = match order {
        Some(order) => key_of_selected(pair, slot, cpu, thread, order),
        None => SKIP,
    };
    start::put(slot, pair, cpu, thread, key, call.argument::<1>());
}

/// The key under which to record this clear of a page of `order`, or [`SKIP`].
#[inline(always)]
fn key_of_selected(pair: Pair, slot: &mut Slot, cpu: u32, thread: u32, order: u32) -> u32 {
    let key = pack(config!(clears[pair as usize].site), order, preempt::model());
    if pair as u32 == Pair::Allocator as u32
        && config!(allocator_in_fault) != 0
        && (block_of(key) == u32::from(OTHER) || !in_fault(cpu, thread))
    {
        slot.outside_faults += 1;
        return SKIP;
    }
    slot.entries += 1;
    if pair as u32 == Pair::Clear as u32 && config!(allocator_before_clear) != 0 {
        allocated(cpu, thread, order);
    }
    key
}

/// The function returns.
#[inline(always)]
pub(crate) fn exit<C: Call>(call: &C, pair: Pair) {
    let Task::Selected(thread) = current_task() else {
        return;
    };
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let page = call.argument::<1>();
    let (start, now) = match start::take(slot, cpu, thread, page) {
        Some(start) => (start, start::now()),
        None => {
            if C::ARGUMENTS_AT_EXIT && selected_order(call, pair).is_none() {
                return;
            }
            let now = start::now();
            let Some(start) = start::take_elsewhere(pair, thread, page) else {
                slot.exits_without_entry += 1;
                return;
            };
            (start, now)
        }
    };
    if start.key == SKIP {
        return;
    }
    if start.cpu != cpu {
        slot.migrated += 1;
    }
    if now < start.start_ns {
        slot.end_before_start += 1;
        return;
    }
    slot.recorded += 1;
    aggregate::add(cpu, start.key, now - start.start_ns);
}

/// The allocation that precedes this clear has ended: the time since the fault's entry is its
/// derived duration.
#[inline(always)]
fn allocated(cpu: u32, thread: u32, order: u32) {
    let pair = if order == config!(pmd_order) {
        Pair::ThpFault
    } else {
        Pair::AnonFault
    };
    let fault_ns = start::peek(pair, cpu, thread);
    let now = start::now();
    if fault_ns != 0 && now >= fault_ns {
        let key = pack(Site::Allocator as u32, order, preempt::model());
        aggregate::add(cpu, key, now - fault_ns);
    }
}

/// Whether the thread is inside an anonymous huge-page fault.
#[inline(always)]
fn in_fault(cpu: u32, thread: u32) -> bool {
    start::peek(Pair::ThpFault, cpu, thread) != 0 || start::peek(Pair::AnonFault, cpu, thread) != 0
}
