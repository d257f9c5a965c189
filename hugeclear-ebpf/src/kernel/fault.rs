//! Entry and exit of the functions around clears: faults, and others that ask for huge pages.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use hugeclear_ebpf::{
    config::Pair,
    key::{Cause, Dimensions, FAULT, Outcome, Site, UNSELECTED, WRITE_FAULT, pack},
    maps::{CGROUP_RECLAIMED, CLEARED, COPIED, Fallbacks, Inside, SKIP, Start},
};

use super::{
    aggregate::{self, End},
    call::Call,
    clear, preempt,
    select::{Task, current_task},
    start,
    state::{PAUSED, block_of, config},
};

/// Bits of a `vm_fault_t` (include/linux/mm_types.h).
mod vm_fault {
    pub(super) const OOM: u32 = 0x1;
    pub(super) const SIGBUS: u32 = 0x2;
    pub(super) const HWPOISON: u32 = 0x10;
    pub(super) const HWPOISON_LARGE: u32 = 0x20;
    pub(super) const SIGSEGV: u32 = 0x40;
    pub(super) const RETRY: u32 = 0x400;
    pub(super) const FALLBACK: u32 = 0x800;
    pub(super) const FAILED: u32 = OOM | SIGBUS | HWPOISON | HWPOISON_LARGE | SIGSEGV | RETRY;
}

/// `FAULT_FLAG_WRITE` (include/linux/mm.h).
const FAULT_FLAG_WRITE: u32 = 1;

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
    let records = config!(faults) != 0;
    let block = if PAUSED.get() != 0 { SKIP } else { 0 };
    let is_thp = pair as u32 == Pair::ThpFault as u32;
    let has_vm_fault = matches!(pair, Pair::ThpFault | Pair::AnonFault | Pair::WriteFault);
    start::put(slot, pair, cpu, thread, block, |start| {
        start.page = call.argument::<1>();
        start.address = 0;
        if !records {
            return;
        }
        start.inside = Inside::default();
        if has_vm_fault {
            start.address = call.member_of_argument1(config!(fault_address_offset) as usize);
        } else if pair as u32 == Pair::HugetlbFault as u32 {
            start.address = call.argument::<3>();
        }
        if is_thp {
            start.reads = 0;
            let flags_offset = config!(fault_flags_offset);
            if flags_offset != 0 {
                let flags: u32 = call.member_of_argument1(flags_offset as usize);
                start.reads = u32::from(flags & FAULT_FLAG_WRITE == 0);
            }
        }
        if is_thp || pair as u32 == Pair::WriteFault as u32 {
            start.fallbacks = fallbacks(cpu);
        }
    });
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
    let Some(start) = start::take(slot, thread, argument)
        .or_else(|| start::take_elsewhere(pair, thread, argument))
    else {
        return;
    };
    if config!(faults) == 0 || start.block == SKIP {
        return;
    }
    let cause = match pair {
        Pair::ThpFault | Pair::WriteFault => Cause::ThpFault,
        Pair::AnonFault => Cause::MthpFault,
        Pair::HugetlbFault => Cause::HugetlbFault,
        // No fault.
        _ => return,
    };
    let happened = start.inside.happened;
    if pair as u32 == Pair::AnonFault as u32 && happened & CLEARED == 0 {
        // An ordinary page.
        return;
    }
    let now = start::now();
    if now < start.start_ns {
        slot.end_before_start += 1;
        return;
    }
    let mut end = End::of(&start, now, cpu, 0);
    let returned = match pair {
        Pair::HugetlbFault => call.returned::<4>(),
        _ => call.returned::<1>(),
    } as u32;
    let is_write = pair as u32 == Pair::WriteFault as u32;
    let outcome = if is_write && happened & CLEARED == 0 {
        // A huge page that was split, or needed nothing; or none could be had in place of the huge zero
        // page, which the kernel counts.
        match reason(&start, end) {
            reason @ (Outcome::FallbackAlloc | Outcome::FallbackCharge) => reason,
            _ => return,
        }
    } else if returned & vm_fault::FALLBACK != 0 {
        reason(&start, end)
    } else if returned & vm_fault::FAILED != 0 {
        Outcome::Failed
    } else if happened & COPIED != 0 {
        Outcome::Copied
    } else if happened & CLEARED != 0 {
        Outcome::Mapped
    } else if pair as u32 == Pair::HugetlbFault as u32 {
        // A page that was there already.
        return;
    } else if start.reads != 0 {
        Outcome::ZeroPage
    } else {
        Outcome::Mapped
    };
    let order = if pair as u32 == Pair::ThpFault as u32 || is_write {
        config!(pmd_order)
    } else {
        start.inside.order
    };
    let model = preempt::model();
    // Which sizes are selected does not depend on the site. That of a fault that failed is not known.
    if order != 0 && block_of(pack(Site::Allocator as u32, order, model)) == UNSELECTED {
        return;
    }
    end.dimensions = Dimensions {
        subject: if is_write { WRITE_FAULT } else { FAULT },
        order: order as u8,
        model: model as u8,
        cause: cause as u8,
        outcome: outcome as u8,
        sixteenth: clear::sixteenth(start.address, order),
        memory_node: 0,
    }
    .pack();
    let parts_ns = start
        .inside
        .clear_ns
        .wrapping_add(start.inside.compaction_ns)
        .wrapping_add(start.inside.reclaim_ns)
        .wrapping_add(end.waited.run_delay_ns);
    if parts_ns > now - start.start_ns {
        slot.negative_rest += 1;
    }
    slot.recorded += 1;
    aggregate::event(call, slot, &start, start.inside, end);
    aggregate::fault(slot, &start, end);
}

/// Why a THP fault fell back: which of its CPU's counters grew meanwhile. Another thread may have
/// made them grow if there was a switch. Then only reclaim for a cgroup's limit tells, because nothing
/// but the charge of an allocated page asks for it.
#[inline(always)]
fn reason(start: &Start, end: End) -> Outcome {
    if config!(fallback_counters.address) == 0 || config!(task.run_delay) == 0 {
        return Outcome::FallbackUnknown;
    }
    let after = fallbacks(end.cpu);
    let stayed = start.cpu == end.cpu;
    let charge_grew = after.charge != start.fallbacks.charge;
    if !stayed || end.waited.switches != 0 {
        let reclaimed = start.inside.happened & CGROUP_RECLAIMED != 0;
        return if reclaimed && (charge_grew || !stayed) {
            Outcome::FallbackCharge
        } else {
            Outcome::FallbackUnknown
        };
    }
    if charge_grew {
        Outcome::FallbackCharge
    } else if after.any != start.fallbacks.any {
        Outcome::FallbackAlloc
    } else {
        Outcome::FallbackVma
    }
}

/// What `cpu`, the current one, has counted.
#[inline(always)]
fn fallbacks(cpu: u32) -> Fallbacks {
    let counters = config!(fallback_counters.address);
    if counters == 0 {
        return Fallbacks::default();
    }
    let offsets = config!(fallback_counters.per_cpu_offset) as *const u64;
    // SAFETY: the helper checks the addresses.
    let counts = unsafe {
        let offset = bpf_probe_read_kernel(offsets.wrapping_add(cpu as usize)).unwrap_or(0);
        bpf_probe_read_kernel(counters.wrapping_add(offset) as *const [u64; 2]).unwrap_or_default()
    };
    Fallbacks {
        any: counts[0] as u32,
        charge: counts[1] as u32,
    }
}
