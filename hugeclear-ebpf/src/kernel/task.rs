//! Counters of the current task.

use aya_ebpf::helpers::{
    bpf_get_current_task, bpf_probe_read_kernel, generated::bpf_get_current_task_btf,
};
use hugeclear_ebpf::maps::Waited;

use super::state::config;

/// How long and how often the current task has waited for a CPU so far; zeros if that is not to be read.
///
/// The kernel keeps the books itself (`sched_info_arrive`, kernel/sched/stats.h): two readings replace a
/// probe on every context switch.
#[inline(always)]
pub(crate) fn waited() -> Waited {
    let run_delay = config!(task.run_delay);
    if run_delay == 0 {
        return Waited::default();
    }
    let trusted = config!(task.trusted) != 0;
    // SAFETY: no conditions. The helper that a kernel does not know is in a branch that the verifier
    // drops.
    let task: *const u8 = unsafe {
        if trusted {
            bpf_get_current_task_btf().cast_const().cast()
        } else {
            bpf_get_current_task() as *const u8
        }
    };
    let word = |offset: u32| -> u64 {
        let word: *const u64 = task.wrapping_add(offset as usize).cast();
        // SAFETY: the verifier checks the offset against the structure's BTF; the helper checks the
        // address.
        unsafe {
            if trusted {
                word.read_volatile()
            } else {
                bpf_probe_read_kernel(word).unwrap_or(0)
            }
        }
    };
    Waited {
        run_delay_ns: word(run_delay),
        switches: word(config!(task.voluntary_switches))
            .wrapping_add(word(config!(task.involuntary_switches))),
    }
}
