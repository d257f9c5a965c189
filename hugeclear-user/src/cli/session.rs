//! What a live trace has read so far, and the reports of it.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

use crate::{
    facts::{Facts, HugeFaults, cgroup, kallsyms::Kallsyms},
    notes::{self, Note},
    probes::{
        config::{Filter, Request},
        events::RawEvent,
        reader::Reading,
        tracer::Tracer,
    },
    report::{FaultCount, Kind, Recorded, Report, Summary, Trace, terms},
    window::{By, Event, Grouping, Losses, Snapshot},
};

/// All that was recorded, and all that the kernel has counted, up to one moment.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    /// In ns of CLOCK_MONOTONIC.
    ns: u64,
    snapshot: Snapshot,
    losses: Losses,
    /// Huge-page faults of the machine since boot, as the kernel counts them.
    faults: BTreeMap<u64, HugeFaults>,
}

impl Moment {
    /// What was recorded since `earlier`.
    fn since(&self, earlier: &Self) -> Recorded {
        Recorded {
            start_ns: earlier.ns,
            end_ns: self.ns,
            snapshot: self.snapshot.since(&earlier.snapshot),
            losses: self.losses,
            fault_counts: FaultCount::between(&earlier.faults, &self.faults),
        }
    }
}

/// The state from which reports are made.
pub(super) struct Session<'a> {
    facts: &'a Facts,
    trace: Trace,
    grouping: Grouping,
    start: Moment,
    /// Start of the current window.
    window_start: Moment,
    /// When recording was stopped, and the huge-page faults until then: what the kernel counts from then
    /// on is not part of a report.
    stopped: Option<(u64, BTreeMap<u64, HugeFaults>)>,
    /// Names for the stacks of events, if those were asked for.
    symbols: Kallsyms,
    /// Events that this program cannot decode.
    unknown_events: u64,
    /// Whether the paths of events' cgroups are asked for, and when they were looked up last.
    names_cgroups: bool,
    /// Whether a path decides if an event is shown at all: then it must be known.
    filters_cgroups: bool,
    cgroups_read: Option<Instant>,
}

/// The shortest time between two walks over the cgroups for events.
const CGROUPS_EVERY: Duration = Duration::from_secs(1);

impl<'a> Session<'a> {
    pub(super) fn new(
        facts: &'a Facts,
        tracer: &Tracer,
        request: &Request,
        grouping: Grouping,
        json: bool,
    ) -> Self {
        let filters_cgroups = grouping.only.cgroup.is_some();
        let stacks = request.events.is_some_and(|events| events.stacks);
        let mut notes = [notes::of_machine(facts), tracer.notes.clone()].concat();
        let symbols = if stacks {
            // Not sooner: our own programs have names now.
            Kallsyms::read(Path::new("/")).unwrap_or_default()
        } else {
            Kallsyms::default()
        };
        if stacks && symbols.is_empty() {
            notes.push(Note::new(
                "symbols_hidden",
                "stacks are bare addresses: /proc/kallsyms shows no addresses to this process \
                 (kernel.kptr_restrict, CAP_SYSLOG)",
            ));
        }
        let start = Moment {
            ns: now_ns(),
            snapshot: Snapshot::default(),
            losses: Losses::default(),
            faults: huge_faults(facts),
        };
        Self {
            facts,
            trace: Trace {
                facts: Summary::new(facts),
                pmd_bytes: facts.pmd_bytes(),
                probes: tracer.probes.clone(),
                terms: terms(facts, &tracer.probes),
                filtered: request.filter != Filter::default(),
                records_faults: tracer.records_faults,
                allocator: tracer.allocator_reach,
                notes,
            },
            grouping,
            window_start: start.clone(),
            start,
            stopped: None,
            symbols,
            unknown_events: 0,
            names_cgroups: request.events.is_some() && (json || filters_cgroups),
            filters_cgroups,
            cgroups_read: None,
        }
    }

    /// Recording has been stopped: what the kernel counts from now on is not part of the report.
    pub(super) fn stop(&mut self) {
        self.stopped = Some((now_ns(), huge_faults(self.facts)));
    }

    /// What was read just now, or, once recording was stopped, up to then.
    pub(super) fn moment(&self, Reading { snapshot, losses }: Reading) -> Moment {
        let (ns, faults) = self
            .stopped
            .clone()
            .unwrap_or_else(|| (now_ns(), huge_faults(self.facts)));
        Moment {
            ns,
            snapshot,
            losses,
            faults,
        }
    }

    /// When the trace began, in ns of CLOCK_MONOTONIC.
    pub(super) const fn start_ns(&self) -> u64 {
        self.start.ns
    }

    /// The event to print; `None` if it was not asked for, or, counted, if it cannot be decoded.
    pub(super) fn event(&mut self, raw: Option<RawEvent>) -> Option<Event> {
        if let Some(raw) = &raw {
            self.look_up_cgroup(raw.event.cgroup);
        }
        let decoded =
            raw.and_then(|raw| Some((Event::of(&raw.event, &self.trace.terms)?, raw.stack)));
        let Some((mut event, stack)) = decoded else {
            self.unknown_events += 1;
            return None;
        };
        if !self.grouping.only.admits(&event.group) {
            return None;
        }
        event.stack = stack.map(|stack| self.symbols.frames(&stack));
        Some(event)
    }

    /// Walks the cgroups again if `id` is not among them, unless that was done just now.
    fn look_up_cgroup(&mut self, id: u64) {
        let is_recent = |read: Instant| read.elapsed() < CGROUPS_EVERY;
        if !self.names_cgroups
            || self.trace.terms.cgroups.contains_key(&id)
            || !self.filters_cgroups && self.cgroups_read.is_some_and(is_recent)
        {
            return;
        }
        self.read_cgroups();
        self.cgroups_read = Some(Instant::now());
    }

    /// The report of what was recorded since the last window, or the start.
    pub(super) fn window(&mut self, now: &Moment) -> Report {
        let recorded = now.since(&self.window_start);
        self.window_start = now.clone();
        self.report(Kind::Window, &recorded)
    }

    /// The report of all that was recorded.
    pub(super) fn total(&mut self, now: &Moment) -> Report {
        let recorded = now.since(&self.start);
        self.report(Kind::Total, &recorded)
    }

    fn report(&mut self, kind: Kind, recorded: &Recorded) -> Report {
        let shows_cgroups = self.grouping.by.contains(&By::Cgroup);
        if shows_cgroups || self.grouping.only.cgroup.is_some() {
            self.read_cgroups();
        }
        let mut report = self.trace.report(kind, recorded, &self.grouping);
        if kind == Kind::Total && self.unknown_events > 0 {
            report.notes.push(Note::new(
                "events_unknown",
                format!(
                    "{} events are not printed: this program does not know their numbers",
                    self.unknown_events
                ),
            ));
        }
        report
    }

    /// Learns the paths of the cgroups that there are now.
    fn read_cgroups(&mut self) {
        if let Some(mount) = &self.facts.cgroup2 {
            // One that has gone since keeps its name.
            self.trace.terms.cgroups.extend(cgroup::paths(mount));
        }
    }
}

fn huge_faults(facts: &Facts) -> BTreeMap<u64, HugeFaults> {
    HugeFaults::read(Path::new("/"), facts.pmd_bytes())
}

/// CLOCK_MONOTONIC, in ns: the clock of `bpf_ktime_get_ns`.
fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        Duration::from(time)
            .as_nanos()
            .try_into()
            .unwrap_or(u64::MAX)
    })
}
