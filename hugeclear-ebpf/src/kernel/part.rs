//! Entry and exit of what a fault may have to wait for: direct compaction and direct reclaim.

use hugeclear_ebpf::{
    config::Pair,
    maps::{CGROUP_RECLAIMED, SKIP},
};

use super::{
    aggregate::End,
    call::Call,
    enclosing::enclosing,
    select::{Task, current_task},
    start,
};

/// The function is entered: of interest only inside a fault.
#[inline(always)]
pub(crate) fn enter(call: &impl Call, pair: Pair) {
    let Task::Selected(thread) = current_task() else {
        return;
    };
    let cpu = start::cpu();
    if enclosing(cpu, thread).start().is_none() {
        return;
    }
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    start::put(slot, pair, cpu, thread, 0, |start| {
        start.page = call.argument::<1>();
    });
}

/// The function returns: its time is a part of the fault, without what the thread waited for a CPU,
/// which is a part of its own.
#[inline(always)]
pub(crate) fn exit(_call: &impl Call, pair: Pair) {
    let Task::Selected(thread) = current_task() else {
        return;
    };
    let cpu = start::cpu();
    let Some(fault) = enclosing(cpu, thread).start() else {
        return;
    };
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    // The functions do not call themselves, so a start of this thread is that of this call.
    let Some(start) =
        start::take(slot, thread, 0).or_else(|| start::take_elsewhere(pair, thread, 0))
    else {
        slot.exits_without_entry += 1;
        return;
    };
    let now = start::now();
    if start.block == SKIP || now < start.start_ns {
        return;
    }
    let net_ns = End::of(&start, now, cpu, 0).net_ns(&start);
    let inside = &mut fault.inside;
    if pair as u32 == Pair::Compaction as u32 {
        inside.compaction_ns += net_ns;
    } else {
        inside.reclaim_ns += net_ns;
        if pair as u32 == Pair::CgroupReclaim as u32 {
            inside.happened |= CGROUP_RECLAIMED;
        }
    }
}
