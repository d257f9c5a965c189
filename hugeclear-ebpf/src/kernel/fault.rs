//! Entry and exit of an anonymous fault that may be served by a huge page: what the allocator clears
//! in between is a clear.

use hugeclear_ebpf::config::Pair;

use super::{
    call::Call,
    select::{Task, current_task},
    start,
};

/// The function is entered.
#[inline(always)]
pub(crate) fn enter(call: &impl Call, pair: Pair) {
    let Task::Selected(thread) = current_task() else {
        return;
    };
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    start::put(slot, pair, cpu, thread, 0, call.argument::<1>());
}

/// The function returns.
#[inline(always)]
pub(crate) fn exit(call: &impl Call, pair: Pair) {
    let Task::Selected(thread) = current_task() else {
        return;
    };
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let argument = call.argument::<1>();
    if start::take(slot, thread, argument).is_none() {
        let _ = start::take_elsewhere(pair, thread, argument);
    }
}
