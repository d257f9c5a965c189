//! Which calls are ours to record.

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid,
    generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_comm},
};
use hugeclear_ebpf::{
    config::{Pair, SizeFrom},
    key::pack,
};

use super::{
    call::Call,
    preempt,
    state::{block_of, config},
};

/// Whether the current task is to be traced.
pub(crate) enum Task {
    /// Yes; with its thread id.
    Selected(u32),
    /// It is the tracer.
    Own,
    /// A filter leaves it out.
    Other,
}

/// Decides by the current task. The same at the entry and at the exit of a call.
#[inline(always)]
pub(crate) fn current_task() -> Task {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if tgid == config!(own_tgid) {
        return Task::Own;
    }
    let wanted = config!(tgid);
    if wanted != 0 && wanted != tgid {
        return Task::Other;
    }
    let cgroup = config!(cgroup);
    if cgroup != 0 {
        let level = config!(cgroup_level).cast_signed();
        // SAFETY: no conditions.
        if unsafe { bpf_get_current_ancestor_cgroup_id(level) } != cgroup {
            return Task::Other;
        }
    }
    let wanted = config!(comm[0]);
    if wanted != 0 {
        let comm = comm();
        if comm[0] != wanted || comm[1] != config!(comm[1]) {
            return Task::Other;
        }
    }
    Task::Selected(id as u32)
}

/// The name of the current thread, padded with zero bytes, as two words in memory order.
#[inline(always)]
pub(crate) fn comm() -> [u64; 2] {
    let mut name = [0_u64; 2];
    // The helper itself, not the wrapper, which copies byte by byte in a loop that the verifier follows.
    // SAFETY: valid for writes of that many bytes.
    unsafe { bpf_get_current_comm((&raw mut name).cast(), size_of_val(&name) as u32) };
    name
}

/// The block of a clear of `site` and `order` under the preemption model in force, or
/// [`hugeclear_ebpf::key::UNSELECTED`].
#[inline(always)]
pub(crate) fn block(site: u32, order: u32) -> u32 {
    block_of(pack(site, order, preempt::model()))
}

/// The order of the page that the call clears; 0, which is never selected, if it clears nothing.
#[inline(always)]
pub(crate) fn order(call: &impl Call, pair: Pair) -> u32 {
    let only_function = config!(clears[pair as usize].only_function);
    let size_from = config!(clears[pair as usize].size_from);
    if only_function != 0 && call.argument::<3>() != only_function {
        return 0;
    }
    if size_from == SizeFrom::FolioOrder as u32 {
        u32::from(call.member_of_argument1::<u8>(config!(folio_order_offset) as usize))
    } else if pair as u32 == Pair::Copy as u32 {
        // `SizeFrom::PagesArg5`. By the pair, which the compiler knows too: it would make one load at a
        // computed offset of all that depend on the configuration alone, which the verifier refuses.
        order_of_pages(call.argument::<5>() as u32)
    } else if size_from == SizeFrom::PagesArg2 as u32 {
        order_of_pages(call.argument::<2>() as u32)
    } else if size_from == SizeFrom::PagesArg3 as u32 {
        order_of_pages(call.argument::<3>() as u32)
    } else if size_from == SizeFrom::OrderArg2 as u32 {
        call.argument::<2>() as u32
    } else {
        config!(pmd_order)
    }
}

/// log2 of a number of base pages. A folio has a power of two of them; if ever it had not, the size
/// would be rounded down.
#[inline(always)]
fn order_of_pages(pages: u32) -> u32 {
    let mut rest = pages;
    let mut order = 0;
    if rest >= 1 << 16 {
        rest >>= 16;
        order += 16;
    }
    if rest >= 1 << 8 {
        rest >>= 8;
        order += 8;
    }
    if rest >= 1 << 4 {
        rest >>= 4;
        order += 4;
    }
    if rest >= 1 << 2 {
        rest >>= 2;
        order += 2;
    }
    order + (rest >> 1)
}
