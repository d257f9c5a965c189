//! Entry and exit of a function that clears.

use hugeclear_ebpf::{
    config::Pair,
    key::{OTHER, Site, UNSELECTED},
    maps::{SKIP, Slot},
};

use super::{
    aggregate,
    call::Call,
    select::{Task, block, current_task, order},
    start,
    state::config,
};

/// The function is entered.
#[inline(always)]
pub(crate) fn enter<C: Call>(call: &C, pair: Pair) {
    let task = current_task();
    if let Task::Other = task {
        return;
    }
    let order = order(call, pair);
    let block = block(config!(clears[pair as usize].site), order);
    if block == UNSELECTED && C::ARGUMENTS_AT_EXIT {
        return;
    }
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let Task::Selected(thread) = task else {
        slot.own_process += u64::from(block != UNSELECTED);
        return;
    };
    let block = if block == UNSELECTED {
        SKIP
    } else {
        block_to_record(slot, pair, cpu, thread, order, block)
    };
    start::put(slot, pair, cpu, thread, block, call.argument::<1>());
}

/// The block in which to record this selected clear, or [`SKIP`].
#[inline(always)]
fn block_to_record(
    slot: &mut Slot,
    pair: Pair,
    cpu: u32,
    thread: u32,
    order: u32,
    block: u32,
) -> u32 {
    if pair as u32 == Pair::Allocator as u32
        && config!(allocator_in_fault) != 0
        && (block == OTHER || !in_fault(cpu, thread))
    {
        slot.outside_faults += 1;
        return SKIP;
    }
    slot.entries += 1;
    if pair as u32 == Pair::Clear as u32 && config!(allocator_before_clear) != 0 {
        allocated(cpu, thread, order);
    }
    block
}

/// The function returns.
#[inline(always)]
pub(crate) fn exit<C: Call>(call: &C, pair: Pair) {
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let thread = start::thread();
    let page = call.argument::<1>();
    let (start, now) = match start::take(slot, thread, page) {
        Some(start) => (start, start::now()),
        None => {
            // It was not selected, or its start is elsewhere.
            let Task::Selected(_) = current_task() else {
                return;
            };
            if C::ARGUMENTS_AT_EXIT
                && block(config!(clears[pair as usize].site), order(call, pair)) == UNSELECTED
            {
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
    if start.block == SKIP {
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
    aggregate::add(cpu, start.block, &start, now);
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
    let Some(fault) = start::peek(pair, cpu, thread) else {
        return;
    };
    let now = start::now();
    if now >= fault.start_ns {
        aggregate::add(cpu, block(Site::Allocator as u32, order), &fault, now);
    }
}

/// Whether the thread is inside an anonymous huge-page fault.
#[inline(always)]
fn in_fault(cpu: u32, thread: u32) -> bool {
    start::peek(Pair::ThpFault, cpu, thread).is_some()
        || start::peek(Pair::AnonFault, cpu, thread).is_some()
}
