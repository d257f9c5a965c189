//! Entry and exit of a function that clears or copies.

use core::sync::atomic::{Ordering, compiler_fence};

use hugeclear_ebpf::{
    config::{AddressFrom, Pair, wanted},
    key::{Cause, Dimensions, OTHER, Site, UNSELECTED, pack},
    maps::{CLEARED, COPIED, Inside, Run, SKIP, Slot, Start},
};

use super::{
    aggregate::{self, End},
    call::Call,
    enclosing::{Enclosing, enclosing},
    impact, preempt,
    select::{Task, current_task, order},
    start,
    state::{PAUSED, block_of, config},
};

/// The function is entered.
#[inline(always)]
pub(crate) fn enter<C: Call>(call: &C, pair: Pair) {
    let task = current_task();
    if let Task::Other = task {
        return;
    }
    let order = order(call, pair);
    let model = preempt::model();
    let site = config!(clears[pair as usize].site);
    let block = block_of(pack(site, order, model));
    if block == UNSELECTED && C::ARGUMENTS_AT_EXIT {
        return;
    }
    let cpu = start::cpu();
    let Some(slot) = start::slot(cpu, pair) else {
        return;
    };
    let Task::Selected(thread) = task else {
        slot.own_process += u64::from(block != UNSELECTED && PAUSED.get() == 0);
        return;
    };
    if block == UNSELECTED || PAUSED.get() != 0 {
        start::put(slot, pair, cpu, thread, SKIP, |start| {
            start.page = call.argument::<1>();
        });
        return;
    }

    let is_allocator = pair as u32 == Pair::Allocator as u32;
    let only_in_fault = is_allocator && config!(allocator_in_fault) != 0;
    let is_second = pair as u32 == Pair::Clear as u32 && config!(allocator_before_clear) != 0;
    let around = if config!(faults) != 0 || only_in_fault || is_second {
        enclosing(cpu, thread)
    } else {
        Enclosing::NOTHING
    };
    let in_fault = around.is_anonymous_fault();
    let block = if only_in_fault && (block == OTHER || !in_fault) {
        slot.outside_faults += 1;
        SKIP
    } else if is_allocator && in_zero_page(cpu, thread) {
        // It is recorded there.
        SKIP
    } else {
        slot.entries += 1;
        block
    };
    let of_fault = around.start().map_or(0, |start| start.address);
    let cause = around.cause();
    // These are given an offset in a file.
    let address = match cause {
        Cause::Fallocate | Cause::Memfd => 0,
        _ => address(call, pair, of_fault),
    };
    let mut dimensions = Dimensions {
        subject: site as u8,
        order: order as u8,
        model: model as u8,
        cause: 0,
        outcome: 0,
        sixteenth: sixteenth(address, order),
        memory_node: memory_node(call, pair),
    };
    if config!(faults) != 0 {
        dimensions.cause = cause as u8;
    }
    let waited_before_ns = around.start().map_or(0, |start| waited_ns(&start.inside));
    if is_second
        && in_fault
        && let Some(fault) = around.start()
        && fault.block != SKIP
    {
        allocated(call, cpu, fault, dimensions);
    }
    let mut run = slot.run;
    let run_end_ns = slot.run_end_ns;
    // Tested after the copy: a clear of another thread may have ended in the middle of it.
    compiler_fence(Ordering::Acquire);
    if slot.run_owner != thread {
        run = Run::default();
    }
    if block != SKIP {
        impact::begin(pair, cpu, thread, dimensions);
    }
    start::put(slot, pair, cpu, thread, block, |start| {
        start.page = call.argument::<1>();
        start.dimensions = dimensions.pack();
        start.address = address;
        start.run = run;
        start.run_end_ns = run_end_ns;
        start.waited_before_ns = waited_before_ns;
    });
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
            if C::ARGUMENTS_AT_EXIT {
                let key = pack(
                    config!(clears[pair as usize].site),
                    order(call, pair),
                    preempt::model(),
                );
                if block_of(key) == UNSELECTED {
                    return;
                }
            }
            let now = start::now();
            let Some(start) = start::take_elsewhere(pair, thread, page) else {
                slot.exits_without_entry += 1;
                impact::end(pair, cpu, thread, now);
                return;
            };
            (start, now)
        }
    };
    impact::end(pair, cpu, thread, now);
    if start.block == SKIP {
        return;
    }
    let derived = config!(clears[pair as usize].derived) != 0;
    if derived && call.returned_null() {
        // An allocation that failed: nothing was cleared.
        slot.entries = slot.entries.wrapping_sub(1);
        return;
    }
    if now < start.start_ns {
        slot.end_before_start += 1;
        return;
    }
    slot.recorded += 1;
    let end = End::of(&start, now, cpu, start.dimensions);
    aggregate::event(call, slot, &start, Inside::default(), end);
    let run = run(slot, thread, &start, now);
    if config!(faults) != 0
        && let Some(fault) = enclosing(cpu, thread).start()
    {
        let order = Dimensions::unpack(start.dimensions).order.into();
        if pair as u32 == Pair::Copy as u32 {
            note(&mut fault.inside, order, COPIED);
        } else {
            let inside = &mut fault.inside;
            let mut net_ns = end.net_ns(&start);
            if derived {
                // What the allocation waited for is told apart.
                net_ns = net_ns.wrapping_sub(waited_ns(inside) - start.waited_before_ns);
            }
            inside.clear_ns = inside.clear_ns.wrapping_add(net_ns);
            note(inside, order, CLEARED);
        }
    }
    // Last: its many ways through the histogram are the end of the verifier's work.
    aggregate::clear(slot, start.block, &start, end, run);
}

/// The run of clears that the clear that now ends belongs to, which may go on.
#[inline(always)]
fn run(slot: &mut Slot, thread: u32, start: &Start, now: u64) -> Run {
    let before = start.run;
    let mut run = Run {
        ns: now - start.start_ns,
        clears: 1,
    };
    if before.clears != 0 && start.start_ns.wrapping_sub(start.run_end_ns) <= config!(run_gap_ns) {
        run.ns += before.ns;
        run.clears += before.clears;
    }
    slot.run_owner = thread;
    // First: an entry that comes in between finds it is not its own run.
    compiler_fence(Ordering::Release);
    slot.run_end_ns = now;
    slot.run = run;
    run
}

/// What the fault has waited for so far, in compaction and reclaim.
#[inline(always)]
pub(crate) fn waited_ns(inside: &Inside) -> u64 {
    inside.compaction_ns.wrapping_add(inside.reclaim_ns)
}

/// Whether the thread is making the huge zero page.
#[inline(always)]
fn in_zero_page(cpu: u32, thread: u32) -> bool {
    config!(huge_zero_page) != 0 && start::here(Pair::HugeZeroPage, cpu, thread).is_some()
}

#[inline(always)]
fn note(inside: &mut Inside, order: u32, what: u32) {
    inside.order = order;
    inside.happened |= what;
}

/// The allocation that precedes this clear has ended: the time since the fault's entry is its
/// derived duration.
#[inline(always)]
fn allocated(call: &impl Call, cpu: u32, start: &mut Start, dimensions: Dimensions) {
    // Not that of the clear, whose exit program writes these counters.
    let Some(slot) = start::slot(cpu, Pair::Allocator) else {
        return;
    };
    let now = start::now();
    if now < start.start_ns {
        return;
    }
    let dimensions = Dimensions {
        subject: Site::Allocator as u8,
        ..dimensions
    };
    let order = dimensions.order.into();
    let block = block_of(pack(Site::Allocator as u32, order, dimensions.model.into()));
    let end = End::of(start, now, cpu, dimensions.pack());
    aggregate::event(call, slot, start, Inside::default(), end);
    aggregate::clear(slot, block, start, end, Run::default());
    let net_ns = end.net_ns(start).wrapping_sub(waited_ns(&start.inside));
    start.inside.clear_ns = start.inside.clear_ns.wrapping_add(net_ns);
    note(&mut start.inside, order, CLEARED);
}

/// The address that faulted; `of_fault` is what the fault around it says.
#[inline(always)]
fn address(call: &impl Call, pair: Pair, of_fault: u64) -> u64 {
    if config!(clears[pair as usize].address_from) != AddressFrom::Argument as u32 {
        of_fault
    } else if pair as u32 == Pair::Copy as u32 {
        call.argument::<3>()
    } else {
        call.argument::<2>()
    }
}

/// 1 + the sixteenth of a page of `order` in which `address` is; 0 if that is not asked for, or the
/// address is not known.
#[inline(always)]
pub(crate) fn sixteenth(address: u64, order: u32) -> u8 {
    if (config!(wanted) & wanted::SIXTEENTH == 0 && config!(events) == 0) || address == 0 {
        return 0;
    }
    let shift = (config!(page_shift) + order).wrapping_sub(4) & 63;
    (address >> shift) as u8 % 16 + 1
}

/// 1 + the node of the page that argument 1 points to; 0 if that is not asked for, or not known.
#[inline(always)]
fn memory_node(call: &impl Call, pair: Pair) -> u16 {
    let shift = config!(node_shift);
    if (config!(wanted) & wanted::MEMORY_NODE == 0 && config!(events) == 0)
        || config!(clears[pair as usize].page_is_arg1) == 0
        || shift == 0
    {
        return 0;
    }
    // `flags` is the first member of both `struct page` and `struct folio`.
    let flags: u64 = call.member_of_argument1(0);
    (flags >> (shift & 63)) as u16 + 1
}
