//! The preemption model in force.

use aya_ebpf::{EbpfContext, helpers::bpf_probe_read_kernel};
use aya_log_ebpf::info;
use hugeclear_ebpf::{config::ModelFrom, preempt::PreemptModel};

use super::state::{PREEMPT_MODEL, config};

/// The model now, as a [`PreemptModel`].
#[inline(always)]
pub(crate) fn model() -> u32 {
    let from = config!(model_from);
    if from == ModelFrom::Watched as u32 {
        PREEMPT_MODEL.get()
    } else if from == ModelFrom::EachClear as u32 {
        read()
    } else {
        config!(model)
    }
}

/// The kernel has switched its model: read the new one.
#[inline(always)]
pub(crate) fn switched(ctx: &impl EbpfContext) {
    let model = read();
    PREEMPT_MODEL.set(model);
    info!(ctx, "the preemption model is now number {}", model);
}

#[inline(always)]
fn read() -> u32 {
    let address = config!(preempt_mode_address) as *const i32;
    // SAFETY: the helper checks the address.
    match unsafe { bpf_probe_read_kernel(address) } {
        Ok(mode) => PreemptModel::from_dynamic_mode(mode) as u32,
        Err(_) => PreemptModel::Unknown as u32,
    }
}
