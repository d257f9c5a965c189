//! The huge zero page: the call that makes it clears it.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use hugeclear_ebpf::{
    config::Pair,
    key::{Cause, Dimensions, Site, UNSELECTED, pack},
    maps::{Inside, Run},
};

use super::{
    aggregate::{self, End},
    call::Call,
    clear::waited_ns,
    enclosing::enclosing,
    preempt,
    select::{Task, current_task},
    start,
    state::{PAUSED, block_of, config},
};

/// `mm_get_huge_zero_folio` is entered: of interest only while there is no huge zero page.
#[inline(always)]
pub(crate) fn enter(call: &impl Call, pair: Pair) {
    if exists() || PAUSED.get() != 0 {
        return;
    }
    let Task::Selected(thread) = current_task() else {
        return;
    };
    let order = config!(pmd_order);
    let model = preempt::model();
    let block = block_of(pack(Site::Allocator as u32, order, model));
    if block == UNSELECTED {
        return;
    }
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let dimensions = Dimensions {
        subject: Site::Allocator as u8,
        order: order as u8,
        model: model as u8,
        cause: Cause::HugeZeroPage as u8,
        ..Dimensions::default()
    };
    slot.entries += 1;
    start::put(slot, pair, cpu, thread, block, |start| {
        start.page = call.argument::<1>();
        start.dimensions = dimensions.pack();
        start.address = 0;
    });
}

/// It returns: if there is one now, this call has made it.
#[inline(always)]
pub(crate) fn exit(call: &impl Call, pair: Pair) {
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let thread = start::thread();
    let Some(start) =
        start::take(slot, thread, 0).or_else(|| start::take_elsewhere(pair, thread, 0))
    else {
        return;
    };
    let now = start::now();
    if !exists() {
        // No memory for it: no clear either.
        slot.entries = slot.entries.wrapping_sub(1);
        return;
    }
    if now < start.start_ns {
        slot.end_before_start += 1;
        return;
    }
    slot.recorded += 1;
    let end = End::of(&start, now, cpu, start.dimensions);
    if let Some(fault) = enclosing(cpu, thread).start() {
        // Not the page that the fault maps to write to: what happened there is still open.
        let inside = &mut fault.inside;
        let net_ns = end.net_ns(&start).wrapping_sub(waited_ns(inside));
        inside.clear_ns = inside.clear_ns.wrapping_add(net_ns);
    }
    aggregate::event(call, slot, &start, Inside::default(), end);
    aggregate::clear(slot, start.block, &start, end, Run::default());
}

/// Whether there is a huge zero page.
#[inline(always)]
fn exists() -> bool {
    let pointer = config!(huge_zero_page) as *const u64;
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(pointer) }.unwrap_or(1) != 0
}
