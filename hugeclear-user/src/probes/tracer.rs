//! A running trace: attached probes and the maps they fill.

use std::{collections::BTreeMap, fmt, sync::Arc};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData},
};
use hugeclear_ebpf::{
    config::{ClearConfig, Config, ModelFrom, Pair},
    key::{OTHER, Site},
    maps::{Block, SKIP, Slot, Start},
};
use serde::{Deserialize, Serialize};

use super::{
    attach::{self, Attachment},
    keys::{self, Layout},
    maps::MappedArray,
    select::{Allocator, Method, Probe, ProbeSet, Refusal},
};
use crate::{
    facts::{Facts, PreemptModel, kernel_memory::KernelMemory},
    notes::Note,
    window::{Aggregate, Losses, PairCounts, Snapshot},
};

/// The eBPF object, built by `build.rs`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("HUGECLEAR_EBPF_OBJECT"));

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

/// How one function came to be traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedProbe {
    /// Site whose clears it records; `None` for a function that is traced for another's sake.
    pub site: Option<Site>,
    /// The kernel's function.
    pub function: String,
    /// `fentry` or `kprobe`.
    pub method: String,
    /// Whether its duration includes more than the clear.
    pub derived: bool,
}

/// Why nothing could be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The process may not load programs.
    #[error(
        "cannot trace: loading eBPF programs needs CAP_BPF and CAP_PERFMON, and this process has \
         {held}; run it with sudo"
    )]
    NotPermitted {
        /// What it has, in words.
        held: String,
    },
    /// No site could be attached.
    #[error(
        "cannot trace huge-page clearing on this kernel ({release}): {}; see `hugeclear-trace doctor`",
        sentence(refusals)
    )]
    NoSite {
        /// Kernel release.
        release: String,
        /// What was tried.
        refusals: Vec<Refusal>,
    },
    /// The kernel refused the object as a whole, or its maps.
    #[error("cannot load the eBPF object: {0}")]
    Load(String),
}

/// The refusals worth a line: a function that is not in this kernel is no obstacle where another is.
fn sentence(refusals: &[Refusal]) -> String {
    let tried: Vec<String> = refusals
        .iter()
        .filter(|refusal| refusal.method.is_some())
        .map(Refusal::to_string)
        .collect();
    let all = || refusals.iter().map(Refusal::to_string).collect::<Vec<_>>();
    if tried.is_empty() {
        all().join("; ")
    } else {
        tried.join("; ")
    }
}

/// A running trace. Everything is detached and freed when it is dropped.
pub struct Tracer {
    // In the order in which they must be dropped: links before programs.
    attachments: Vec<(Pair, [Attachment; 2])>,
    preempt_switch: Option<Attachment>,
    ebpf: Ebpf,
    slots: MappedArray<Slot>,
    blocks: MappedArray<Block>,
    starts: HashMap<MapData, u64, Start>,
    layout: Layout,
    /// What was read last, so that only what changed is copied again.
    last: Snapshot,
    /// Exits that were seen while probes were being attached: those of calls that began before.
    exits_at_attach: u64,
    /// How each function is traced.
    pub probes: Vec<AttachedProbe>,
    /// Every method that was refused, and why.
    pub refusals: Vec<Refusal>,
    /// What the user should know of how it is traced.
    pub notes: Vec<Note>,
}

/// The result of a trace that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// All that was recorded.
    pub total: Snapshot,
    /// All that was not.
    pub losses: Losses,
}

impl Tracer {
    /// Attaches `set`, the probe set of this machine's `facts`, and begins to record.
    ///
    /// # Errors
    /// If nothing can be traced. That a probe was refused while another serves is no error: see
    /// [`Tracer::refusals`].
    pub fn attach(
        facts: &Facts,
        set: &ProbeSet,
        filter: &Filter,
        verbose: bool,
    ) -> Result<Self, TraceError> {
        check_privileges(facts)?;
        let no_site = |refusals| TraceError::NoSite {
            release: facts.release.clone(),
            refusals,
        };
        let mut refusals = set.refusals.clone();
        if set.clears.is_empty() && set.allocator == Allocator::Untraced {
            return Err(no_site(refusals));
        }
        let btf = facts
            .btf
            .present
            .then(Btf::from_sys_fs)
            .and_then(Result::ok);
        let layout = Layout::new(facts, set);

        let mut model_from = model_from(facts, set);
        let (mut ebpf, preempt_switch) = loop {
            let config = config(facts, set, filter, &layout, model_from);
            let mut ebpf = load(&config, &layout, verbose)?;
            if model_from != ModelFrom::Watched {
                break (ebpf, None);
            }
            match watch_preempt_model(&mut ebpf, btf.as_ref(), facts, set, &mut refusals)? {
                Some(attachment) => break (ebpf, Some(attachment)),
                // The configuration is frozen at load.
                None => model_from = ModelFrom::EachClear,
            }
        };

        let mut attachments = Vec::new();
        let mut probes = Vec::new();
        let allocator = match &set.allocator {
            Allocator::Probe { probe, .. } => Some(probe),
            Allocator::Untraced | Allocator::BeforeClear => None,
        };
        // What is around a clear first, so that no clear is found without it.
        for probe in set.faults.iter().chain(allocator).chain(&set.clears) {
            let attached = try_methods(probe, facts, &mut refusals, |method| {
                attach::attach_pair(&mut ebpf, btf.as_ref(), probe, method)
            });
            if let Some((method, pair)) = attached {
                attachments.push((probe.pair, pair));
                // Where the allocator's clears are derived from the faults, those are its probes.
                let from_fault = set.allocator == Allocator::BeforeClear && probe.clear.is_none();
                probes.push(AttachedProbe {
                    site: match probe.clear {
                        Some(clear) => Some(clear.site),
                        None => from_fault.then_some(Site::Allocator),
                    },
                    function: probe.function.clone(),
                    method: method.to_string(),
                    derived: from_fault || probe.clear.is_some_and(|clear| clear.derived),
                });
            }
        }
        if !attachments.iter().any(|(pair, _)| pair.clears()) {
            return Err(no_site(refusals));
        }
        let mut notes = set.notes.clone();
        if layout.without_block > 0 {
            notes.push(Note::new(
                "keys_without_block",
                format!(
                    "{} combinations of site, page size and preemption model share one row, to keep \
                     the maps within {} MiB on {} possible CPUs",
                    layout.without_block,
                    keys::MEMORY_LIMIT_BYTES >> 20,
                    layout.cpus
                ),
            ));
        }

        let map = |error: anyhow::Error| TraceError::Load(format!("{error:#}"));
        let slots = array(&mut ebpf, "SLOTS", layout.cpus * Pair::COUNT).map_err(map)?;
        let blocks = array(&mut ebpf, "BLOCKS", layout.cpus * layout.blocks()).map_err(map)?;
        let starts = take_map(&mut ebpf, "STARTS");
        let starts = HashMap::try_from(starts).map_err(|error| map(error.into()))?;
        let mut tracer = Self {
            attachments,
            preempt_switch,
            ebpf,
            slots,
            blocks,
            starts,
            layout,
            last: Snapshot::default(),
            exits_at_attach: 0,
            probes,
            refusals,
            notes,
        };
        tracer.exits_at_attach = tracer.losses(&Snapshot::default()).exits_without_entry;
        Ok(tracer)
    }

    /// Takes the log of the kernel side, for a verbose run.
    #[must_use]
    pub fn take_log(&mut self) -> Option<aya_log::EbpfLogger<&'static dyn log::Log>> {
        aya_log::EbpfLogger::init(&mut self.ebpf).ok()
    }

    /// What has been recorded so far.
    pub fn snapshot(&mut self) -> Snapshot {
        for cpu in 0..self.layout.cpus {
            for block in 0..self.layout.blocks() {
                let element = self
                    .blocks
                    .element((cpu * self.layout.blocks() + block) as usize);
                let key = (block != u32::from(OTHER)).then(|| self.layout.keys[block as usize - 1]);
                // SAFETY: a field of a valid element; volatile, since the kernel writes it.
                let count = unsafe { (&raw const (*element).count).read_volatile() };
                let known = self
                    .last
                    .cells
                    .get(&(cpu, key))
                    .map_or(0, |known| known.count);
                if count != known {
                    self.last.cells.insert((cpu, key), Arc::new(read(element)));
                }
            }
        }
        self.last.clone()
    }

    /// Detaches all probes and reads what they recorded.
    #[must_use]
    pub fn end(mut self) -> Ended {
        // Entries first: what begins from now on is not ours to end.
        for (_, [entry, _]) in &mut self.attachments {
            entry.detach();
        }
        for (_, [_, exit]) in &mut self.attachments {
            exit.detach();
        }
        if let Some(preempt_switch) = &mut self.preempt_switch {
            preempt_switch.detach();
        }
        wait_for_running_programs();
        let total = self.snapshot();
        Ended {
            losses: self.losses(&total),
            total,
        }
    }

    /// What has not been recorded, beside `snapshot`, which was.
    #[must_use]
    pub fn losses(&self, snapshot: &Snapshot) -> Losses {
        let mut pairs: BTreeMap<Pair, PairCounts> = BTreeMap::new();
        for (pair, programs) in &self.attachments {
            // A fault that is open or unknown is no clear lost.
            if !pair.clears() {
                continue;
            }
            let counts = pairs.entry(*pair).or_default();
            counts.programs_skipped = programs
                .iter()
                .map(|program| program.skipped(&self.ebpf))
                .sum();
            for cpu in 0..self.layout.cpus {
                let slot = self
                    .slots
                    .element((cpu * Pair::COUNT + *pair as u32) as usize);
                // SAFETY: a valid element; volatile, since the kernel may write it.
                let slot = unsafe { slot.read_volatile() };
                let Slot { owner, key, .. } = slot;
                counts.open += u64::from(owner != 0 && key != SKIP);
                counts.entries += slot.entries;
                counts.own_process += slot.own_process;
                counts.overwritten += slot.overwritten;
                counts.map_full += slot.map_full;
                counts.outside_faults += slot.outside_faults;
                counts.exits_without_entry += slot.exits_without_entry;
                counts.end_before_start += slot.end_before_start;
                counts.migrated += slot.migrated;
            }
            counts.open += self
                .starts
                .iter()
                .filter_map(Result::ok)
                .filter(|(key, start)| key >> 32 == *pair as u64 && start.key != SKIP)
                .count() as u64;
        }
        // Derived clears of BeforeClear have no pair of their own, and none can be missed apart from
        // the clear that they precede.
        let recorded = |sites: &[Site]| {
            snapshot
                .cells
                .iter()
                .filter(|((_, key), _)| key.is_some_and(|key| sites.contains(&key.site)))
                .map(|(_, aggregate)| aggregate.count)
                .sum::<u64>()
        };
        let other_keys = snapshot
            .cells
            .iter()
            .filter(|((_, key), _)| key.is_none())
            .map(|(_, aggregate)| aggregate.count)
            .sum();
        for (pair, counts) in &mut pairs {
            counts.recorded = match pair {
                // All clears of unknown key are put down to the main pair.
                Pair::Clear => {
                    other_keys
                        + recorded(&[
                            Site::FolioZeroUser,
                            Site::ClearHugePage,
                            Site::ProcessHugePage,
                        ])
                }
                Pair::ClearGigantic => recorded(&[Site::ClearGiganticPage]),
                Pair::Allocator => recorded(&[Site::Allocator]),
                Pair::ThpFault | Pair::AnonFault => 0,
            };
        }
        let counts_skips = aya::util::KernelVersion::current()
            .is_ok_and(|version| version >= aya::util::KernelVersion::new(5, 12, 0));
        Losses::new(
            &pairs.into_values().collect::<Vec<_>>(),
            other_keys,
            counts_skips,
        )
    }

    /// Whether the durations of this site include more than the clear.
    #[must_use]
    pub fn is_derived(&self, site: Site) -> bool {
        self.probes
            .iter()
            .any(|probe| probe.site == Some(site) && probe.derived)
    }

    /// Memory that the maps take, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.layout.memory_bytes()
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer")
            .field("probes", &self.probes)
            .finish_non_exhaustive()
    }
}

/// Copies a block that the kernel may be writing: again if a clear was added meanwhile.
fn read(element: *const Block) -> Aggregate {
    /// Under constant load a copy that is off by one clear in some field must do.
    const ATTEMPTS: u32 = 4;
    let mut copy = Block::EMPTY;
    for _ in 0..ATTEMPTS {
        // SAFETY: a valid element; volatile, since the kernel writes it.
        let after = unsafe {
            copy = element.read_volatile();
            (&raw const (*element).count).read_volatile()
        };
        if after == copy.count {
            break;
        }
    }
    Aggregate::from(&copy)
}

fn check_privileges(facts: &Facts) -> Result<(), TraceError> {
    let privileges = &facts.privileges;
    let has_all = privileges.has("CAP_SYS_ADMIN")
        || privileges.has("CAP_BPF") && privileges.has("CAP_PERFMON");
    if has_all {
        return Ok(());
    }
    let held: Vec<&str> = ["CAP_BPF", "CAP_PERFMON"]
        .into_iter()
        .filter(|name| privileges.has(name))
        .collect();
    Err(TraceError::NotPermitted {
        held: if held.is_empty() {
            "neither".to_owned()
        } else {
            format!("only {}", held.join(", "))
        },
    })
}

fn model_from(facts: &Facts, set: &ProbeSet) -> ModelFrom {
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

fn config(
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
        // Clears are of huge pages; an order of 0 is an ordinary page.
        min_order: filter.min_bytes.map_or(1, |bytes| {
            bytes.div_ceil(base).next_power_of_two().ilog2().max(1)
        }),
        max_order: filter
            .max_bytes
            .map_or(hugeclear_ebpf::key::MAX_ORDER, |bytes| {
                (bytes / base).max(1).ilog2()
            }),
        cpus: layout.cpus,
        blocks: layout.blocks(),
        model_from: model_from as u32,
        model: facts.preempt.model as u32,
        folio_order_offset: facts.btf.offsets.folio_flags_1.unwrap_or(0),
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

fn load(config: &Config, layout: &Layout, verbose: bool) -> Result<Ebpf, TraceError> {
    let table = layout.table();
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
        .map_err(|error| TraceError::Load(format!("{:#}", anyhow::Error::from(error))))
}

/// Attaches the probe on the switch of the model and stores the model in force. `None`: refused.
fn watch_preempt_model(
    ebpf: &mut Ebpf,
    btf: Option<&Btf>,
    facts: &Facts,
    set: &ProbeSet,
    refusals: &mut Vec<Refusal>,
) -> Result<Option<Attachment>, TraceError> {
    let Some(probe) = &set.preempt_switch else {
        return Ok(None);
    };
    let attached = try_methods(probe, facts, refusals, |method| {
        attach::attach_preempt_switch(ebpf, btf, probe, method)
    });
    let Some((_, attachment)) = attached else {
        return Ok(None);
    };
    let Some(map) = ebpf.map_mut("PREEMPT_MODEL") else {
        return Ok(None);
    };
    let mut kept: Array<_, u32> =
        Array::try_from(map).map_err(|error| TraceError::Load(error.to_string()))?;
    // The facts are older than the probe: read the model again, and once more after storing it, in
    // case it was switched between the two.
    let memory = KernelMemory::open(std::path::Path::new("/")).ok();
    let now = || -> PreemptModel {
        memory
            .as_ref()
            .zip(facts.preempt.mode_symbol_address)
            .and_then(|(memory, address)| memory.read_u32(address).ok())
            .map_or(facts.preempt.model, |mode| {
                facts.preempt.model_of(mode.cast_signed())
            })
    };
    loop {
        let model = now();
        kept.set(0, model as u32, 0)
            .map_err(|error| TraceError::Load(error.to_string()))?;
        if now() == model {
            return Ok(Some(attachment));
        }
    }
}

/// Tries a probe's methods in order; keeps why each was refused.
fn try_methods<T>(
    probe: &Probe,
    facts: &Facts,
    refusals: &mut Vec<Refusal>,
    mut attach: impl FnMut(Method) -> Result<T, aya::programs::ProgramError>,
) -> Option<(Method, T)> {
    for &method in &probe.methods {
        match attach(method) {
            Ok(attached) => return Some((method, attached)),
            Err(error) => {
                log::info!("{} by {method}: {error:?}", probe.function);
                refusals.push(Refusal {
                    function: probe.function.clone(),
                    method: Some(method),
                    reason: attach::reason(&error, method, facts),
                });
            }
        }
    }
    None
}

fn array<T: Copy>(ebpf: &mut Ebpf, name: &str, entries: u32) -> anyhow::Result<MappedArray<T>> {
    match take_map(ebpf, name) {
        Map::Array(data) => MappedArray::new(&data, entries),
        other => anyhow::bail!("map {name} is {other:?}"),
    }
}

fn take_map(ebpf: &mut Ebpf, name: &str) -> Map {
    ebpf.take_map(name)
        .expect("the object is built from the same source tree")
}

/// Waits until every program that was running when its link was closed has ended: a grace period of
/// RCU, which is what a global memory barrier waits for (kernel/sched/membarrier.c). Where it is
/// refused (nohz_full), the programs, a microsecond long, have ended by the next line all the same.
fn wait_for_running_programs() {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
