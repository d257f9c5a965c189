//! What a trace is, and the reports of what it recorded.

use std::collections::BTreeMap;

use hugeclear_ebpf::key::Site;

use super::{FaultCount, Kind, Report, Summary};
use crate::{
    facts::Facts,
    notes::{self, Note, Seen},
    probes::{select::AllocatorReach, tracer::AttachedProbe},
    window::{By, Grouping, Losses, Row, Snapshot, Terms, rows},
};

/// What stays the same from the beginning of a trace to its end. With what was recorded, it is all that a
/// report is made of.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The machine.
    pub facts: Summary,
    /// Bytes of a PMD-sized page; `None`: no THP.
    pub pmd_bytes: Option<u64>,
    /// How the sites are traced.
    pub probes: Vec<AttachedProbe>,
    /// What the aggregates alone do not say.
    pub terms: Terms,
    /// Whether the kernel side was asked for some clears only.
    pub filtered: bool,
    /// Whether the faults around clears are traced.
    pub records_faults: bool,
    /// Which clears in the page allocator are traced.
    pub allocator: AllocatorReach,
    /// What one should know of the machine and the probes.
    pub notes: Vec<Note>,
}

/// What was recorded between two moments.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The first moment, in ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// The second, likewise.
    pub end_ns: u64,
    /// What ended between the two.
    pub snapshot: Snapshot,
    /// What was lost; since the trace began.
    pub losses: Losses,
    /// What the kernel itself counted between the two.
    pub fault_counts: Vec<FaultCount>,
}

impl Trace {
    /// The report of what was recorded, grouped as asked.
    #[must_use]
    pub fn report(&self, kind: Kind, recorded: &Recorded, grouping: &Grouping) -> Report {
        let Recorded {
            start_ns,
            end_ns,
            snapshot,
            losses,
            fault_counts,
        } = recorded;
        let mut notes = self.notes.clone();
        if kind == Kind::Total {
            notes.extend(self.notes_of(recorded, grouping));
        }
        let all = rows(snapshot, grouping, &self.terms);
        Report {
            kind,
            start_ns: *start_ns,
            end_ns: *end_ns,
            facts: self.facts.clone(),
            probes: self.probes.clone(),
            by: grouping.by.clone(),
            rows: all.clears,
            totals: self.totals(snapshot, grouping),
            by_node: self.by_node(snapshot, grouping),
            faults: all.faults,
            fault_counts: fault_counts.clone(),
            sched_impact: all.impact,
            losses: *losses,
            notes,
        }
    }

    /// What one should know of all that was recorded.
    fn notes_of(&self, recorded: &Recorded, grouping: &Grouping) -> impl Iterator<Item = Note> {
        let faults = |of_pmd: bool| -> u64 {
            let counts = recorded.fault_counts.iter();
            counts
                .filter(|count| (Some(count.page_size_bytes) == self.pmd_bytes) == of_pmd)
                .map(|count| count.mapped)
                .fold(0, u64::saturating_add)
        };
        let seen = Seen {
            clears: recorded.snapshot.count(),
            thp_faults: faults(true),
            mthp_faults: faults(false),
            own_clears: recorded.losses.own_process,
            filtered: self.filtered || !grouping.only.is_everything(),
            allocator: self.allocator,
            init_on_alloc: self.facts.init_on_alloc,
            thp_enabled: self.facts.thp_enabled,
        };
        [
            notes::of_unseen(&seen),
            notes::of_unseen_faults(self.records_faults, seen.mthp_faults, &self.probes),
            notes::of_losses(&recorded.losses, &self.probes),
        ]
        .into_iter()
        .flatten()
    }

    /// The rows summed over the CPUs, where they are of single CPUs.
    fn totals(&self, snapshot: &Snapshot, grouping: &Grouping) -> Vec<Row> {
        let mut grouping = grouping.clone();
        if !grouping.by.remove(&By::Cpu) {
            return Vec::new();
        }
        rows(snapshot, &grouping, &self.terms).clears
    }

    /// The rows by node, if nodes are told apart.
    fn by_node(&self, snapshot: &Snapshot, grouping: &Grouping) -> Vec<Row> {
        if !(grouping.by.contains(&By::Node) && grouping.by.contains(&By::MemNode)) {
            return Vec::new();
        }
        rows(snapshot, &grouping.by_node(), &self.terms).clears
    }
}

/// What the aggregates of a trace with these probes do not say.
#[must_use]
pub fn terms(facts: &Facts, probes: &[AttachedProbe]) -> Terms {
    let nodes = facts.numa.nodes.iter();
    Terms {
        base_page_bytes: facts.page_size_bytes,
        derived: derived_sites(probes),
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
