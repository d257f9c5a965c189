//! A running trace: attached probes and the maps they fill.

use std::{fmt, time::Duration};

use aya::{Btf, Ebpf, maps::Array};
use hugeclear_ebpf::{
    config::{ModelFrom, Pair, Role},
    key::Site,
};
use serde::{Deserialize, Serialize};

use super::{
    attach::{self, Attachment, SCHED_IMPACT},
    config::{self, Request},
    events::Events,
    keys::Layout,
    reader::{Reader, Reading, take_map},
    select::{Allocator, AllocatorReach, Method, Probe, ProbeSet, Refusal},
};
use crate::{
    facts::{Facts, PreemptModel, kernel_memory::KernelMemory},
    notes::Note,
};

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
    /// Those at the scheduler's tracepoints, in the order of their attachment.
    sched_impact: Vec<Attachment>,
    ebpf: Ebpf,
    reader: Reader,
    /// Exits without entry when recording was stopped.
    exits_without_entry: Option<u64>,
    events: Option<Events>,
    /// How each function is traced.
    pub probes: Vec<AttachedProbe>,
    /// Every method that was refused, and why.
    pub refusals: Vec<Refusal>,
    /// What the user should know of how it is traced.
    pub notes: Vec<Note>,
    /// Which clears in the allocator are seen.
    pub allocator_reach: AllocatorReach,
    /// Whether the faults around clears are recorded.
    pub records_faults: bool,
}

impl Tracer {
    /// Attaches `set`, the probe set of this machine's `facts`, and begins to record what `request`
    /// says.
    ///
    /// # Errors
    /// If nothing can be traced. That a probe was refused while another serves is no error: see
    /// [`Tracer::refusals`].
    pub fn attach(facts: &Facts, set: &ProbeSet, request: &Request) -> Result<Self, TraceError> {
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
        let layout = Layout::new(facts, set, request);

        let load = |model_from| {
            let config = config::config(facts, set, request, &layout, model_from);
            config::load(&config, &layout, request, facts.page_size_bytes)
                .map_err(|error| TraceError::Load(format!("{error:#}")))
        };
        let model_from = config::model_from(facts, set);
        let mut ebpf = load(model_from)?;
        let mut preempt_switch = None;
        if model_from == ModelFrom::Watched {
            preempt_switch =
                watch_preempt_model(&mut ebpf, btf.as_ref(), facts, set, &mut refusals)?;
            if preempt_switch.is_none() {
                // The configuration is frozen at load.
                ebpf = load(ModelFrom::EachClear)?;
            }
        }

        let mut attachments = Vec::new();
        let mut probes = Vec::new();
        let mut notes_of_refusal = Vec::new();
        for probe in set.probes() {
            // Without the faults, all it sees would seem to be outside of them.
            let lacks_faults = matches!(set.allocator, Allocator::Probe { in_fault: true, .. })
                && probe.pair == Pair::Allocator
                && !is_attached(&attachments, Pair::ThpFault);
            if lacks_faults {
                continue;
            }
            let attached = try_methods(probe, facts, &mut refusals, |method| {
                attach::attach_pair(&mut ebpf, btf.as_ref(), probe, method)
            });
            if let Some((method, pair)) = attached {
                attachments.push((probe.pair, pair));
                // Where the allocator's clears are derived from the faults, those are its probes.
                let of_allocator = match probe.pair {
                    Pair::ThpFault | Pair::AnonFault => set.allocator == Allocator::BeforeClear,
                    Pair::HugeZeroPage => true,
                    _ => false,
                };
                probes.push(AttachedProbe {
                    site: match probe.clear {
                        Some(clear) => Some(clear.site),
                        None => of_allocator.then_some(Site::Allocator),
                    },
                    function: probe.function.clone(),
                    method: method.to_string(),
                    derived: of_allocator || probe.clear.is_some_and(|clear| clear.derived),
                });
            } else {
                notes_of_refusal.push(note_of_refusal(probe, &refusals));
            }
        }
        let clears = |pair: Pair| pair.role() == Role::Clears && pair != Pair::Copy;
        if !attachments.iter().any(|(pair, _)| clears(*pair)) {
            return Err(no_site(refusals));
        }
        let allocator_reach = set.allocator_reach(|pair| is_attached(&attachments, pair));
        let mut notes = set.notes.clone();
        if allocator_reach == AllocatorReach::Nothing {
            // They explain figures that will not be there.
            notes.retain(|note| !["zeroed_twice", "allocator_derived"].contains(&&*note.code));
        }
        notes.extend(notes_of_refusal);
        notes.extend(layout.note());
        let mut sched_impact = Vec::new();
        if request.sched_impact {
            match attach_sched_impact(&mut ebpf, btf.as_ref(), facts) {
                Ok(attached) => {
                    probes.extend(SCHED_IMPACT.map(|(tracepoint, _)| AttachedProbe {
                        site: None,
                        function: tracepoint.to_owned(),
                        method: "tp_btf".to_owned(),
                        derived: false,
                    }));
                    sched_impact = attached;
                }
                Err(refusal) => {
                    notes.push(Note::new(
                        "not_traced",
                        format!("how long tasks waited for clears is not shown: {refusal}"),
                    ));
                    refusals.push(refusal);
                }
            }
        }
        let mut reader = Reader::new(&mut ebpf, layout)
            .map_err(|error| TraceError::Load(format!("{error:#}")))?;
        let events = (request.events)
            .map(|_| Events::new(take_map(&mut ebpf, "EVENTS")))
            .transpose()
            .map_err(|error| TraceError::Load(error.to_string()))?;
        // All are attached: from now on all see the same.
        pause(&mut ebpf, false)?;
        reader.forgive_earlier_calls();
        Ok(Self {
            attachments,
            preempt_switch,
            sched_impact,
            ebpf,
            reader,
            exits_without_entry: None,
            events,
            probes,
            refusals,
            notes,
            allocator_reach,
            records_faults: set.records_faults,
        })
    }

    /// Takes the log of the kernel side, for a verbose run.
    #[must_use]
    pub fn take_log(&mut self) -> Option<aya_log::EbpfLogger<&'static dyn log::Log>> {
        aya_log::EbpfLogger::init(&mut self.ebpf).ok()
    }

    /// Takes the events, if they were asked for.
    #[must_use]
    pub fn take_events(&mut self) -> Option<Events> {
        self.events.take()
    }

    /// What has been recorded so far, and what has not.
    pub fn read(&mut self) -> Reading {
        let pairs = self.skipped();
        let impact_skipped = self.impact_skipped();
        let mut reading = self.reader.read(&pairs, impact_skipped);
        // A clear that runs while the probes are attached is not lost, and one that moved while it was
        // looked for may seem to be: it will not twice.
        reading.losses.open_at_detach = 0;
        reading.losses.impact_open = 0;
        if reading.losses.entries_without_exit > 0 {
            let again = self
                .reader
                .read(&pairs, impact_skipped)
                .losses
                .entries_without_exit;
            let seen = &mut reading.losses.entries_without_exit;
            *seen = again.min(*seen);
        }
        reading
    }

    /// Stops recording what begins from now on; what has begun may still end.
    pub fn stop(&mut self) {
        // One that cannot be paused is stopped by what follows, only not all probes at once.
        let _ = pause(&mut self.ebpf, true);
        // From here on an exit without entry is that of a call that is not ours.
        self.exits_without_entry = Some(self.reader.exits_without_entry());
        // No new waits, then no ends of waits: while their clears can still be seen to end.
        for attachment in self.sched_impact.iter_mut().rev() {
            attachment.detach();
        }
        // What is around a clear last, so that no clear is found without it.
        for (_, [entry, _]) in self.attachments.iter_mut().rev() {
            entry.detach();
        }
    }

    /// Detaches all probes and reads what they recorded.
    #[must_use]
    pub fn end(mut self) -> Reading {
        if self.exits_without_entry.is_none() {
            self.stop();
        }
        for (_, [_, exit]) in &mut self.attachments {
            exit.detach();
        }
        if let Some(preempt_switch) = &mut self.preempt_switch {
            preempt_switch.detach();
        }
        wait_for_running_programs();
        let pairs = self.skipped();
        let impact_skipped = self.impact_skipped();
        let mut reading = self.reader.read(&pairs, impact_skipped);
        let seen = &mut reading.losses.exits_without_entry;
        *seen = (*seen).min(self.exits_without_entry.unwrap_or(u64::MAX));
        reading
    }

    /// Runs of the programs at the scheduler's tracepoints that the kernel skipped.
    fn impact_skipped(&self) -> Option<u64> {
        let programs = self.sched_impact.iter();
        programs.map(|program| program.skipped(&self.ebpf)).sum()
    }

    /// The attached pairs, each with the runs of its programs that the kernel skipped.
    fn skipped(&self) -> Vec<(Pair, Option<u64>)> {
        self.attachments
            .iter()
            .map(|(pair, programs)| {
                (
                    *pair,
                    programs
                        .iter()
                        .map(|program| program.skipped(&self.ebpf))
                        .sum(),
                )
            })
            .collect()
    }
}

/// Attaches to the scheduler's tracepoints: all, or none.
fn attach_sched_impact(
    ebpf: &mut Ebpf,
    btf: Option<&Btf>,
    facts: &Facts,
) -> Result<Vec<Attachment>, Refusal> {
    let refusal = |tracepoint: &str, reason| Refusal {
        function: tracepoint.to_owned(),
        method: None,
        reason,
    };
    if !config::knows_tasks(facts) {
        let reason = "the kernel's BTF, which tells where a task's CPU is, cannot be read";
        return Err(refusal("the scheduler", reason.to_owned()));
    }
    SCHED_IMPACT
        .iter()
        .map(|&(tracepoint, program)| {
            attach::attach_tracepoint(ebpf, btf, tracepoint, program).map_err(|error| {
                log::debug!("{tracepoint}: {error:?}");
                refusal(tracepoint, attach::reason(&error, Method::Fentry, facts))
            })
        })
        .collect()
}

/// Says whether calls are only tracked, or recorded too.
fn pause(ebpf: &mut Ebpf, paused: bool) -> Result<(), TraceError> {
    let load =
        |error: String| TraceError::Load(format!("starting and stopping the record: {error}"));
    let map = ebpf
        .map_mut(".data")
        .ok_or_else(|| load("the object has no such variable".to_owned()))?;
    let mut word: Array<_, u32> = Array::try_from(map).map_err(|error| load(error.to_string()))?;
    word.set(0, u32::from(paused), 0)
        .map_err(|error| load(error.to_string()))
}

fn is_attached(attachments: &[(Pair, [Attachment; 2])], pair: Pair) -> bool {
    attachments.iter().any(|(attached, _)| *attached == pair)
}

/// That a function of the probe set is not traced, and why.
fn note_of_refusal(probe: &Probe, refusals: &[Refusal]) -> Note {
    let of_probe = refusals
        .iter()
        .filter(|refusal| refusal.function == probe.function);
    let reasons: Vec<String> = of_probe.map(Refusal::to_string).collect();
    Note::new(
        "not_traced",
        format!(
            "what depends on {} is not shown: {}",
            probe.function,
            reasons.join("; ")
        ),
    )
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer")
            .field("probes", &self.probes)
            .finish_non_exhaustive()
    }
}

/// Whether this process may load programs.
///
/// # Errors
/// [`TraceError::NotPermitted`], if not.
pub fn check_privileges(facts: &Facts) -> Result<(), TraceError> {
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
    let Some(map) = ebpf.map_mut(".bss") else {
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
                // All of it, the verifier's log included; `Refusal` holds the gist.
                log::debug!("{} by {method}: {error:?}", probe.function);
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

/// Waits until every program that was running when its link was closed has ended: a grace period of
/// RCU, which is what a global memory barrier waits for (kernel/sched/membarrier.c). It waits for nothing
/// on a single CPU, and is refused under nohz_full: there, a moment of sleep lets a program, a microsecond
/// long, come to its end.
fn wait_for_running_programs() {
    std::thread::sleep(Duration::from_millis(10));
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
