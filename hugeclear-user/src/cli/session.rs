//! Makes reports of what a trace has read.

use std::{path::Path, time::Duration};

use nix::time::{ClockId, clock_gettime};

use super::args::TraceArgs;
use crate::{
    facts::{Facts, HugeFaults},
    notes::{self, Note, Seen},
    probes::{
        config::Filter,
        reader::Reading,
        select::AllocatorReach,
        tracer::{AttachedProbe, Tracer},
    },
    report::{Kind, Report, Summary},
    window::{Grouping, Losses, Snapshot, Terms, rows},
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
    allocator: AllocatorReach,
    start_ns: u64,
    /// Huge-page faults of the machine before the start, as the kernel counts them.
    faults_before: Option<HugeFaults>,
    /// Start of the current window, and what had been recorded until then.
    window_start_ns: u64,
    window_base: Snapshot,
}

impl<'a> Session<'a> {
    pub(super) fn new(facts: &'a Facts, tracer: &Tracer, args: &TraceArgs) -> Self {
        let start_ns = now_ns();
        Self {
            facts,
            summary: Summary::new(facts),
            probes: tracer.probes.clone(),
            notes: [notes::of_machine(facts), tracer.notes.clone()].concat(),
            grouping: if args.per_cpu {
                Grouping::PerCpu
            } else {
                Grouping::Machine
            },
            terms: Terms {
                base_page_bytes: facts.page_size_bytes,
                derived: tracer
                    .probes
                    .iter()
                    .filter(|probe| probe.derived)
                    .filter_map(|probe| probe.site)
                    .collect(),
                counts_waiting: facts.btf.offsets.task_run_delay.is_some(),
            },
            filtered: args.filter() != Filter::default(),
            allocator: tracer.allocator_reach,
            start_ns,
            faults_before: huge_faults(facts),
            window_start_ns: start_ns,
            window_base: Snapshot::default(),
        }
    }

    /// The report of what was recorded since the last window, or the start.
    pub(super) fn window(&mut self, reading: &Reading) -> Report {
        let difference = reading.snapshot.since(&self.window_base);
        let end_ns = now_ns();
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
    pub(super) fn total(&self, reading: &Reading, end_ns: u64) -> Report {
        self.report(
            Kind::Total,
            &reading.snapshot,
            reading.losses,
            (self.start_ns, end_ns),
        )
    }

    fn report(
        &self,
        kind: Kind,
        snapshot: &Snapshot,
        losses: Losses,
        (start_ns, end_ns): (u64, u64),
    ) -> Report {
        let group = |grouping| rows(snapshot, grouping, &self.terms);
        let mut notes = self.notes.clone();
        if kind == Kind::Total {
            let faults = self.faults_before.zip(huge_faults(self.facts));
            let seen = Seen {
                clears: snapshot.count(),
                faults: faults
                    .map(|(before, after)| after.since(before))
                    .unwrap_or_default(),
                own_clears: losses.own_process,
                filtered: self.filtered,
                allocator: self.allocator,
            };
            notes.extend(notes::of_unseen(self.facts, &seen));
            notes.extend(notes::of_losses(&losses, &self.probes));
        }
        Report {
            kind,
            start_ns,
            end_ns,
            facts: self.summary.clone(),
            probes: self.probes.clone(),
            rows: group(self.grouping),
            totals: match self.grouping {
                Grouping::Machine => Vec::new(),
                Grouping::PerCpu => group(Grouping::Machine),
            },
            losses,
            notes,
        }
    }
}

fn huge_faults(facts: &Facts) -> Option<HugeFaults> {
    let pmd_bytes = facts.thp.as_ref().and_then(|thp| thp.pmd_size_bytes);
    HugeFaults::read(Path::new("/"), pmd_bytes)
}

/// CLOCK_MONOTONIC, in ns: the clock of `bpf_ktime_get_ns`.
pub(super) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        Duration::from(time)
            .as_nanos()
            .try_into()
            .unwrap_or(u64::MAX)
    })
}
