//! Configures and loads the kernel side.

use std::{ops::RangeInclusive, time::Duration};

use anyhow::{Context as _, Result};
use aya::{Ebpf, EbpfLoader, programs::ProgramType};
use aya_obj::generated::bpf_func_id;
use hugeclear_ebpf::{
    config::{
        ClearConfig, Config, FallbackCounters, MAX_SLOT_CPUS, ModelFrom, Pair, TaskOffsets, wanted,
    },
    key::MAX_ORDER,
};

use super::{
    keys::{self, Layout},
    select::{Allocator, ProbeSet},
};
use crate::facts::{Facts, cgroup::Cgroup};

/// The eBPF object, built by `build.rs`.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("HUGECLEAR_EBPF_OBJECT"));

/// Which clears the kernel side is to record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this process (thread group), as the host numbers it.
    pub tgid: Option<u32>,
    /// Only tasks of this name, at most 15 bytes.
    pub comm: Option<String>,
    /// Only tasks in this cgroup (v2), or below it.
    pub cgroup: Option<Cgroup>,
    /// Only pages of at least this many bytes.
    pub min_bytes: Option<u64>,
    /// Only pages of at most this many bytes.
    pub max_bytes: Option<u64>,
}

/// What is told apart beside site, page size, preemption model and CPU. Costs a look-up in a hash map
/// for each clear, and some precision of the percentiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Why; needs the faults to be traced.
    pub cause: bool,
    /// Where in the page the fault was.
    pub fault_offset: bool,
    /// On which node the page's memory is.
    pub memory_node: bool,
    /// Which process.
    pub pid: bool,
    /// The name of the thread.
    pub comm: bool,
    /// The cgroup.
    pub cgroup: bool,
}

impl Details {
    /// Whether anything is.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// That each clear, copy and fault is to be reported on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRequest {
    /// Only those that took at least this.
    pub slower: Duration,
    /// With the kernel's stack.
    pub stacks: bool,
    /// Size of the ring buffer, in bytes: a power of two, and of whole pages.
    pub buffer_bytes: u32,
}

/// What a trace is to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Of which tasks and pages.
    pub filter: Filter,
    /// What to tell apart.
    pub details: Details,
    /// The longest time between two clears of a run.
    pub run_gap: Duration,
    /// Whether to report each on its own.
    pub events: Option<EventRequest>,
    /// Whether to record how long tasks that wake on a CPU wait for the clear that it is in.
    pub sched_impact: bool,
    /// Whether the kernel side is to log what it does.
    pub verbose: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            filter: Filter::default(),
            details: Details::default(),
            run_gap: Duration::from_micros(100),
            events: None,
            sched_impact: false,
            verbose: false,
        }
    }
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
    request: &Request,
    layout: &Layout,
    model_from: ModelFrom,
) -> Config {
    let filter = &request.filter;
    let offsets = &facts.btf.offsets;
    let thp = facts.thp.as_ref();
    let mut config = Config {
        preempt_mode_address: facts.preempt.mode_symbol_address.unwrap_or(0),
        comm: filter.comm.as_deref().map_or([0; 2], comm_words),
        cgroup: filter.cgroup.as_ref().map_or(0, |cgroup| cgroup.id),
        cgroup_level: filter.cgroup.as_ref().map_or(0, |cgroup| cgroup.level),
        fallback_counters: fallback_counters(facts),
        huge_zero_page: set.huge_zero_page.as_ref().map_or(0, |page| page.pointer),
        run_gap_ns: nanoseconds(request.run_gap),
        slower_ns: request
            .events
            .map_or(0, |events| nanoseconds(events.slower)),
        // In another pid namespace our number may be somebody else's on the host.
        own_tgid: match facts.privileges.initial_pid_namespace {
            Some(true) => std::process::id(),
            Some(false) | None => 0,
        },
        tgid: filter.tgid.unwrap_or(0),
        slot_cpus: slot_cpus(layout.cpus, set),
        blocks: layout.blocks(),
        model_from: model_from as u32,
        model: facts.preempt.model as u32,
        folio_order_offset: offsets.folio_flags_1.unwrap_or(0),
        task: task_offsets(facts),
        page_shift: facts.page_size_bytes.ilog2(),
        pmd_order: thp
            .and_then(|thp| keys::order(thp.pmd_size_bytes?, facts.page_size_bytes))
            .unwrap_or(0),
        allocator_before_clear: u32::from(set.allocator == Allocator::BeforeClear),
        allocator_in_fault: u32::from(matches!(
            set.allocator,
            Allocator::Probe { in_fault: true, .. }
        )),
        enclosing: (set.faults.iter()).fold(0, |bits, probe| bits | probe.pair.bit()),
        faults: u32::from(set.records_faults),
        cells: u32::from(request.details.any()),
        wanted: wanted_bits(request.details),
        // Every bit of the node above the shift; with one node there is none.
        node_shift: (facts.btf.constants.node_shift)
            .filter(|shift| *shift < u64::BITS)
            .unwrap_or(0),
        fault_address_offset: offsets.fault_address.unwrap_or(0),
        fault_flags_offset: match thp.and_then(|thp| thp.use_zero_page) {
            Some(false) => 0,
            Some(true) | None => offsets.fault_flags.unwrap_or(0),
        },
        events: match request.events {
            None => 0,
            Some(EventRequest { stacks: false, .. }) => 1,
            Some(EventRequest { stacks: true, .. }) => 2,
        },
        sched_impact: u32::from(request.sched_impact),
        ..Config::default()
    };
    for probe in set.probes() {
        if let Some(clear) = probe.clear {
            config.clears[probe.pair as usize] = ClearConfig {
                site: clear.site as u32,
                size_from: clear.size_from as u32,
                only_function: clear.only_function.unwrap_or(0),
                address_from: clear.address_from as u32,
                page_is_arg1: u32::from(clear.page_is_arg1),
                derived: u32::from(clear.derived),
                padding: 0,
            };
        }
    }
    config
}

/// The CPUs whose slots keep starts: all, or none. A program searches for the start of its own call, and for
/// that of each function that may be around it.
fn slot_cpus(cpus: u32, set: &ProbeSet) -> u32 {
    let searches = 1 + u32::try_from(set.faults.len()).unwrap_or(u32::MAX);
    // Twice the limit of one search is what the verifier was seen to accept.
    let steps = cpus.saturating_mul(searches);
    if cpus <= MAX_SLOT_CPUS && steps <= 2 * MAX_SLOT_CPUS {
        cpus
    } else {
        0
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A thread's name as the kernel keeps it: 15 bytes and a zero, as two words in memory order.
fn comm_words(comm: &str) -> [u64; 2] {
    let mut bytes = [0; 16];
    let length = comm.len().min(15);
    bytes[..length].copy_from_slice(&comm.as_bytes()[..length]);
    let (low, high) = bytes.split_at(8);
    [low, high].map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")))
}

fn wanted_bits(details: Details) -> u32 {
    let Details {
        cause: _,
        fault_offset,
        memory_node,
        pid,
        comm,
        cgroup,
    } = details;
    [
        (fault_offset, wanted::SIXTEENTH),
        (memory_node, wanted::MEMORY_NODE),
        (pid, wanted::PID),
        (comm, wanted::COMM),
        (cgroup, wanted::CGROUP),
    ]
    .into_iter()
    .filter(|(asked, _)| *asked)
    .fold(0, |bits, (_, bit)| bits | bit)
}

/// Where the kernel counts the THP faults that fall back; all 0 where that is not known, or not as we
/// know it.
fn fallback_counters(facts: &Facts) -> FallbackCounters {
    let constants = &facts.btf.constants;
    let known = || {
        let index = constants.thp_fault_fallback?;
        // Both are read at once.
        (constants.thp_fault_fallback_charge? == index + 1).then_some(())?;
        let counters = facts.symbols.address("vm_event_states")?;
        Some(FallbackCounters {
            address: counters + u64::from(index) * size_of::<u64>() as u64,
            per_cpu_offset: facts.symbols.address("__per_cpu_offset")?,
        })
    };
    known().unwrap_or_default()
}

/// Whether the kernel side can tell that a task is below a cgroup: since 5.13.
#[must_use]
pub fn filters_cgroups() -> bool {
    let helper = bpf_func_id::BPF_FUNC_get_current_ancestor_cgroup_id;
    aya::sys::is_helper_supported(ProgramType::KProbe, helper).unwrap_or(false)
}

/// Whether it is known where a task's number, CPU, name and flags are.
pub(super) fn knows_tasks(facts: &Facts) -> bool {
    let offsets = &facts.btf.offsets;
    let all = [
        offsets.task_pid,
        offsets.task_cpu,
        offsets.task_comm,
        offsets.task_flags,
    ];
    all.iter().all(Option::is_some)
}

/// Where a task's members are; the counters all 0 if not all of them are known.
fn task_offsets(facts: &Facts) -> TaskOffsets {
    let offsets = &facts.btf.offsets;
    let identity = TaskOffsets {
        pid: offsets.task_pid.unwrap_or(0),
        cpu: offsets.task_cpu.unwrap_or(0),
        comm: offsets.task_comm.unwrap_or(0),
        flags: offsets.task_flags.unwrap_or(0),
        ..TaskOffsets::default()
    };
    let all = (
        offsets.task_run_delay,
        offsets.task_nvcsw,
        offsets.task_nivcsw,
    );
    let (Some(run_delay), Some(voluntary_switches), Some(involuntary_switches)) = all else {
        return identity;
    };
    let helper = bpf_func_id::BPF_FUNC_get_current_task_btf;
    let trusted = aya::sys::is_helper_supported(ProgramType::KProbe, helper).unwrap_or(false);
    TaskOffsets {
        run_delay,
        voluntary_switches,
        involuntary_switches,
        trusted: u32::from(trusted),
        ..identity
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
    request: &Request,
    base_page_bytes: u64,
) -> Result<Ebpf> {
    let table = layout.table(&selected_orders(&request.filter, base_page_bytes));
    let log_level = if request.verbose {
        log::Level::Info as u8
    } else {
        0
    };
    EbpfLoader::new()
        // Only CO-RE relocations would need it, and Rust emits none: saves parsing it again.
        .btf(None)
        .override_global("CONFIG", config, true)
        .override_global("BLOCK_OF", &table[..], true)
        .override_global(aya_log::LEVEL, &log_level, false)
        .map_max_entries("SLOTS", layout.cpus * Pair::COUNT)
        .map_max_entries("BLOCKS", layout.cpus * layout.blocks())
        .map_max_entries("CELLS", layout.cells)
        .map_max_entries("EVENTS", layout.events_bytes)
        .map_max_entries("CPU_CLEARS", layout.cpus)
        .map_max_entries("TASKS", layout.tasks)
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
