//! Configures and loads the kernel side.

use std::ops::RangeInclusive;

use anyhow::{Context as _, Result};
use aya::{Ebpf, EbpfLoader, programs::ProgramType};
use aya_obj::generated::bpf_func_id;
use hugeclear_ebpf::{
    config::{ClearConfig, Config, MAX_SLOT_CPUS, ModelFrom, Pair, TaskOffsets},
    key::MAX_ORDER,
};

use super::{
    keys::{self, Layout},
    select::{Allocator, ProbeSet},
};
use crate::facts::Facts;

/// The eBPF object, built by `build.rs`.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("HUGECLEAR_EBPF_OBJECT"));

/// Which clears to record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this process (thread group), as the host numbers it.
    pub tgid: Option<u32>,
    /// Only tasks of this name, at most 15 bytes.
    pub comm: Option<String>,
    /// Only pages of at least this many bytes.
    pub min_bytes: Option<u64>,
    /// Only pages of at most this many bytes.
    pub max_bytes: Option<u64>,
}

/// When the model of a clear is to be read.
pub(super) fn model_from(facts: &Facts, set: &ProbeSet) -> ModelFrom {
    let may_change = facts
        .preempt
        .modes
        .iter()
        .any(|mode| mode.model != facts.preempt.model);
    match (
        may_change,
        facts.preempt.mode_symbol_address,
        &set.preempt_switch,
    ) {
        (true, Some(_), Some(_)) => ModelFrom::Watched,
        (true, Some(_), None) => ModelFrom::EachClear,
        (false, _, _) | (true, None, _) => ModelFrom::Fixed,
    }
}

/// The configuration of the kernel side.
pub(super) fn config(
    facts: &Facts,
    set: &ProbeSet,
    filter: &Filter,
    layout: &Layout,
    model_from: ModelFrom,
) -> Config {
    let base = facts.page_size_bytes;
    let mut config = Config {
        preempt_mode_address: facts.preempt.mode_symbol_address.unwrap_or(0),
        comm: [0; 2],
        clears: [ClearConfig::default(); 3],
        // In another pid namespace our number may be somebody else's on the host.
        own_tgid: match facts.privileges.initial_pid_namespace {
            Some(true) => std::process::id(),
            Some(false) | None => 0,
        },
        tgid: filter.tgid.unwrap_or(0),
        slot_cpus: if layout.cpus <= MAX_SLOT_CPUS {
            layout.cpus
        } else {
            0
        },
        blocks: layout.blocks(),
        model_from: model_from as u32,
        model: facts.preempt.model as u32,
        folio_order_offset: facts.btf.offsets.folio_flags_1.unwrap_or(0),
        task: task_offsets(facts),
        pmd_order: facts
            .thp
            .as_ref()
            .and_then(|thp| keys::order(thp.pmd_size_bytes?, base))
            .unwrap_or(0),
        allocator_before_clear: u32::from(set.allocator == Allocator::BeforeClear),
        allocator_in_fault: u32::from(matches!(
            set.allocator,
            Allocator::Probe { in_fault: true, .. }
        )),
    };
    if let Some(comm) = &filter.comm {
        let mut bytes = [0; 16];
        // The kernel keeps 15 bytes of a name and a zero.
        let length = comm.len().min(15);
        bytes[..length].copy_from_slice(&comm.as_bytes()[..length]);
        let (low, high) = bytes.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
        config.comm = [word(low), word(high)];
    }
    let allocator = match &set.allocator {
        Allocator::Probe { probe, .. } => Some(probe),
        Allocator::Untraced | Allocator::BeforeClear => None,
    };
    for probe in set.clears.iter().chain(allocator) {
        if let Some(clear) = probe.clear {
            config.clears[probe.pair as usize] = ClearConfig {
                site: clear.site as u32,
                size_from: clear.size_from as u32,
                only_function: clear.only_function.unwrap_or(0),
            };
        }
    }
    config
}

/// Where a task's counters are; all 0 if not all of them are known.
fn task_offsets(facts: &Facts) -> TaskOffsets {
    let offsets = &facts.btf.offsets;
    let all = (
        offsets.task_run_delay,
        offsets.task_nvcsw,
        offsets.task_nivcsw,
    );
    let (Some(run_delay), Some(voluntary_switches), Some(involuntary_switches)) = all else {
        return TaskOffsets::default();
    };
    let helper = bpf_func_id::BPF_FUNC_get_current_task_btf;
    let trusted = aya::sys::is_helper_supported(ProgramType::KProbe, helper).unwrap_or(false);
    TaskOffsets {
        run_delay,
        voluntary_switches,
        involuntary_switches,
        trusted: u32::from(trusted),
    }
}

/// The orders that `filter` selects. Order 0 is an ordinary page, and never selected.
fn selected_orders(filter: &Filter, base_page_bytes: u64) -> RangeInclusive<u32> {
    let pages = |bytes: u64| bytes as f64 / base_page_bytes as f64;
    let min = filter
        .min_bytes
        .map_or(1, |bytes| pages(bytes).log2().ceil().max(1.0) as u32);
    let max = filter.max_bytes.map_or(MAX_ORDER, |bytes| {
        pages(bytes).log2().floor().max(0.0) as u32
    });
    min..=max
}

/// Loads the object and makes its maps; no program yet.
pub(super) fn load(
    config: &Config,
    layout: &Layout,
    filter: &Filter,
    base_page_bytes: u64,
    verbose: bool,
) -> Result<Ebpf> {
    let table = layout.table(&selected_orders(filter, base_page_bytes));
    let log_level = if verbose { log::Level::Info as u8 } else { 0 };
    EbpfLoader::new()
        // Only CO-RE relocations would need it, and Rust emits none: saves parsing it again.
        .btf(None)
        .override_global("CONFIG", config, true)
        .override_global("BLOCK_OF", &table[..], true)
        .override_global(aya_log::LEVEL, &log_level, false)
        .map_max_entries("SLOTS", layout.cpus * Pair::COUNT)
        .map_max_entries("BLOCKS", layout.cpus * layout.blocks())
        .load(OBJECT)
        .context("the kernel refuses the object or its maps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_between_two_orders_select_the_orders_within() {
        let orders = |min_bytes, max_bytes| {
            let filter = Filter {
                min_bytes,
                max_bytes,
                ..Filter::default()
            };
            selected_orders(&filter, 4096)
        };
        assert_eq!(orders(None, None), 1..=MAX_ORDER);
        assert_eq!(orders(Some(2 << 20), Some(2 << 20)), 9..=9);
        assert_eq!(orders(Some((2 << 20) + 1), Some((1 << 30) - 1)), 10..=17);
        assert!(orders(Some(0), Some(0)).is_empty());
        assert!(orders(Some(u64::MAX), None).is_empty());
    }
}
