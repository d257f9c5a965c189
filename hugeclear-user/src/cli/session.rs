//! Makes reports of what a trace has read.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use hugeclear_ebpf::key::Site;
use nix::time::{ClockId, clock_gettime};

use crate::{
    facts::{Facts, HugeFaults, cgroup, kallsyms::Kallsyms},
    notes::{self, Note, Seen},
    probes::{
        config::{Filter, Request},
        events::RawEvent,
        reader::Reading,
        select::AllocatorReach,
        tracer::{AttachedProbe, Tracer},
    },
    report::{FaultCount, Kind, Report, Summary},
    window::{By, Event, Grouping, Losses, Row, Snapshot, Terms, rows},
};

/// The state from which reports are made.
pub(super) struct Session<'a> {
    facts: &'a Facts,
    summary: Summary,
    probes: Vec<AttachedProbe>,
    notes: Vec<Note>,
    grouping: Grouping,
    terms: Terms,
    filtered: bool,
    records_faults: bool,
    allocator: AllocatorReach,
    start_ns: u64,
    /// Huge-page faults of the machine before the start, as the kernel counts them.
    faults_before: BTreeMap<u64, HugeFaults>,
    /// When recording was stopped, and the huge-page faults until then.
    stopped: Option<(u64, BTreeMap<u64, HugeFaults>)>,
    /// Start of the current window, and what had been recorded until then.
    window_start_ns: u64,
    window_base: Snapshot,
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
        let start_ns = now_ns();
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
        Self {
            facts,
            summary: Summary::new(facts),
            probes: tracer.probes.clone(),
            notes,
            terms: terms(facts, tracer),
            filtered: request.filter != Filter::default() || !grouping.only.is_everything(),
            grouping,
            records_faults: tracer.records_faults,
            allocator: tracer.allocator_reach,
            start_ns,
            faults_before: huge_faults(facts),
            stopped: None,
            window_start_ns: start_ns,
            window_base: Snapshot::default(),
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

    /// The end of what is reported: now, unless recording was stopped before.
    fn end_ns(&self) -> u64 {
        self.stopped.as_ref().map_or_else(now_ns, |(ns, _)| *ns)
    }

    /// When the trace began, in ns of CLOCK_MONOTONIC.
    pub(super) const fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// The event to print; `None` if it was not asked for, or, counted, if it cannot be decoded.
    pub(super) fn event(&mut self, raw: Option<RawEvent>) -> Option<Event> {
        if let Some(raw) = &raw {
            self.look_up_cgroup(raw.event.cgroup);
        }
        let decoded = raw.and_then(|raw| Some((Event::of(&raw.event, &self.terms)?, raw.stack)));
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
            || self.terms.cgroups.contains_key(&id)
            || !self.filters_cgroups && self.cgroups_read.is_some_and(is_recent)
        {
            return;
        }
        if let Some(mount) = &self.facts.cgroup2 {
            // One that has gone since keeps its name.
            self.terms.cgroups.extend(cgroup::paths(mount));
        }
        self.cgroups_read = Some(Instant::now());
    }

    /// The report of what was recorded since the last window, or the start.
    pub(super) fn window(&mut self, reading: &Reading) -> Report {
        let difference = reading.snapshot.since(&self.window_base);
        let end_ns = self.end_ns();
        let report = self.report(
            Kind::Window,
            &difference,
            reading.losses,
            (self.window_start_ns, end_ns),
        );
        self.window_start_ns = end_ns;
        self.window_base = reading.snapshot.clone();
        report
    }

    /// The report of all that was recorded.
    pub(super) fn total(&mut self, reading: &Reading) -> Report {
        self.report(
            Kind::Total,
            &reading.snapshot,
            reading.losses,
            (self.start_ns, self.end_ns()),
        )
    }

    fn report(
        &mut self,
        kind: Kind,
        snapshot: &Snapshot,
        losses: Losses,
        (start_ns, end_ns): (u64, u64),
    ) -> Report {
        let shows_cgroups = self.grouping.by.contains(&By::Cgroup);
        if (shows_cgroups || self.grouping.only.cgroup.is_some())
            && let Some(mount) = &self.facts.cgroup2
        {
            // One that has gone since keeps its name.
            self.terms.cgroups.extend(cgroup::paths(mount));
        }
        let fault_counts = self.fault_counts();
        let mut notes = self.notes.clone();
        if kind == Kind::Total {
            let pmd_bytes = pmd_bytes(self.facts);
            let faults = |of_pmd: bool| -> u64 {
                fault_counts
                    .iter()
                    .filter(|count| (Some(count.page_size_bytes) == pmd_bytes) == of_pmd)
                    .map(|count| count.mapped)
                    .sum()
            };
            let seen = Seen {
                clears: snapshot.count(),
                thp_faults: faults(true),
                mthp_faults: faults(false),
                own_clears: losses.own_process,
                filtered: self.filtered,
                allocator: self.allocator,
            };
            notes.extend(notes::of_unseen(self.facts, &seen));
            notes.extend(notes::of_unseen_faults(
                self.records_faults,
                seen.mthp_faults,
                &self.probes,
            ));
            notes.extend(notes::of_losses(&losses, &self.probes));
            if self.unknown_events > 0 {
                notes.push(Note::new(
                    "events_unknown",
                    format!(
                        "{} events are not printed: this program does not know their numbers",
                        self.unknown_events
                    ),
                ));
            }
        }
        let all = rows(snapshot, &self.grouping, &self.terms);
        Report {
            kind,
            start_ns,
            end_ns,
            facts: self.summary.clone(),
            probes: self.probes.clone(),
            by: self.grouping.by.clone(),
            rows: all.clears,
            totals: self.totals(snapshot),
            by_node: self.by_node(snapshot),
            faults: all.faults,
            fault_counts,
            sched_impact: all.impact,
            losses,
            notes,
        }
    }

    /// The rows summed over the CPUs, where they are of single CPUs.
    fn totals(&self, snapshot: &Snapshot) -> Vec<Row> {
        let mut grouping = self.grouping.clone();
        if !grouping.by.remove(&By::Cpu) {
            return Vec::new();
        }
        rows(snapshot, &grouping, &self.terms).clears
    }

    /// The rows by node, if nodes are told apart.
    fn by_node(&self, snapshot: &Snapshot) -> Vec<Row> {
        let by = &self.grouping.by;
        if !(by.contains(&By::Node) && by.contains(&By::MemNode)) {
            return Vec::new();
        }
        rows(snapshot, &self.grouping.by_node(), &self.terms).clears
    }

    /// What the kernel has counted since the start.
    fn fault_counts(&self) -> Vec<FaultCount> {
        let now = match &self.stopped {
            Some((_, counts)) => counts.clone(),
            None => huge_faults(self.facts),
        };
        let counts = now.into_iter().map(|(page_size_bytes, now)| {
            let before = self.faults_before.get(&page_size_bytes);
            let HugeFaults {
                mapped,
                fallback,
                fallback_charge,
            } = now.since(before.copied().unwrap_or_default());
            FaultCount {
                page_size_bytes,
                mapped,
                fallback,
                fallback_charge,
            }
        });
        counts
            .filter(|count| count.mapped + count.fallback > 0)
            .collect()
    }
}

/// What the aggregates of this trace alone do not say.
pub(super) fn terms(facts: &Facts, tracer: &Tracer) -> Terms {
    let nodes = facts.numa.nodes.iter();
    Terms {
        base_page_bytes: facts.page_size_bytes,
        derived: derived_sites(&tracer.probes),
        counts_waiting: facts.btf.offsets.task_run_delay.is_some(),
        node_of_cpu: nodes
            .flat_map(|node| node.cpus.iter().map(|cpu| (*cpu, node.id)))
            .collect(),
        cgroups: BTreeMap::new(),
    }
}

/// The sites of which nothing but derived durations is seen.
fn derived_sites(probes: &[AttachedProbe]) -> Vec<Site> {
    let sites = |derived: bool| {
        let of_kind = probes.iter().filter(move |probe| probe.derived == derived);
        of_kind.filter_map(|probe| probe.site)
    };
    sites(true)
        .filter(|site| sites(false).all(|exact| exact != *site))
        .collect()
}

fn pmd_bytes(facts: &Facts) -> Option<u64> {
    facts.thp.as_ref().and_then(|thp| thp.pmd_size_bytes)
}

fn huge_faults(facts: &Facts) -> BTreeMap<u64, HugeFaults> {
    HugeFaults::read(Path::new("/"), pmd_bytes(facts))
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
