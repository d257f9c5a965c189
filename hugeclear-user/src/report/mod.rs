//! What a trace found, ready to be shown, and the forms it is shown in. Pure.

mod event;
mod table;
mod trace;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use event::{EVENT_TITLES, event_json, event_text};
pub(crate) use table::probes_line;
pub use table::table;
pub use trace::{Recorded, Trace, terms};

use crate::{
    facts::{Facts, HugeFaults, PreemptModel, ThpEnabled},
    notes::Note,
    probes::tracer::AttachedProbe,
    window::{By, FaultRow, ImpactRow, Losses, Row},
};

/// What a report is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One interval.
    Window,
    /// The whole trace.
    Total,
}

/// A report: the JSON that programs read, and all that the table shows.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What it is of.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// When it begins, in ns of CLOCK_MONOTONIC, the clock of the durations.
    pub start_ns: u64,
    /// When it ends, likewise.
    pub end_ns: u64,
    /// The machine.
    pub facts: Summary,
    /// How the sites are traced.
    pub probes: Vec<AttachedProbe>,
    /// What the rows are told apart by.
    #[serde(skip)]
    pub by: BTreeSet<By>,
    /// The clears and copies. Rows never overlap.
    pub rows: Vec<Row>,
    /// The sums of `rows` over the CPUs, where those are of single CPUs: a table shows them, a
    /// program can add.
    #[serde(skip)]
    pub totals: Vec<Row>,
    /// The same clears by node, where a table shows the matrix of the nodes.
    #[serde(skip)]
    pub by_node: Vec<Row>,
    /// The faults around clears, if they are traced.
    pub faults: Vec<FaultRow>,
    /// What the kernel itself counted of anonymous huge-page faults between `start_ns` and `end_ns`, on the
    /// whole machine, by page size.
    pub fault_counts: Vec<FaultCount>,
    /// The tasks that waited for a clear to end, if they are traced.
    pub sched_impact: Vec<ImpactRow>,
    /// What the rows do not hold; cumulative since the trace began.
    pub losses: Losses,
    /// What one should know.
    pub notes: Vec<Note>,
}

/// The kernel's own count of the anonymous faults of one page size. Source: `/proc/vmstat`
/// (`thp_fault_alloc`, `thp_fault_fallback`, `thp_fault_fallback_charge`), and for sizes below a PMD's
/// `hugepages-<n>kB/stats` (`anon_fault_alloc`, `anon_fault_fallback`, `anon_fault_fallback_charge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FaultCount {
    /// Bytes of the page.
    pub page_size_bytes: u64,
    /// Faults that got such a page.
    pub mapped: u64,
    /// Faults that could not, and fell back to a smaller size. A fault whose mapping has no room for
    /// the page is not counted.
    pub fallback: u64,
    /// Part of `fallback` for the memory cgroup's limit.
    pub fallback_charge: u64,
}

impl FaultCount {
    /// What was added between two states of the kernel's counters, by page size; without the sizes of which
    /// there was none.
    #[must_use]
    pub fn between(
        before: &BTreeMap<u64, HugeFaults>,
        now: &BTreeMap<u64, HugeFaults>,
    ) -> Vec<Self> {
        let counts = now.iter().map(|(&page_size_bytes, now)| {
            let before = before.get(&page_size_bytes).copied();
            let HugeFaults {
                mapped,
                fallback,
                fallback_charge,
            } = now.since(before.unwrap_or_default());
            Self {
                page_size_bytes,
                mapped,
                fallback,
                fallback_charge,
            }
        });
        counts
            .filter(|count| count.mapped > 0 || count.fallback > 0)
            .collect()
    }
}

/// The facts that a result depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Kernel release.
    pub release: String,
    /// Kernel build string.
    pub version: String,
    /// Architecture.
    pub machine: String,
    /// Processor model.
    pub cpu_model: Option<String>,
    /// Possible CPUs.
    pub cpus_possible: Option<u32>,
    /// Online memory nodes.
    pub nodes: usize,
    /// Preemption model when the trace began; each row has the one of its clears.
    pub preempt_model: PreemptModel,
    /// Whence that is known.
    pub preempt_source: String,
    /// Under `rt`: full or lazy.
    pub preempt_dynamic: Option<PreemptModel>,
    /// How this kernel clears, if the facts tell.
    pub strategy: Option<String>,
    /// Setting of anonymous THP; `None`: not built in.
    pub thp_enabled: Option<ThpEnabled>,
    /// Setting of THP defragmentation; `None`: not built in.
    pub thp_defrag: Option<String>,
    /// Whether the page allocator zeroes what it hands out; `None`: not known.
    pub init_on_alloc: Option<bool>,
    /// Whether the page allocator zeroes what it takes back; `None`: not known.
    pub init_on_free: Option<bool>,
    /// Bytes of a base page.
    pub page_size_bytes: u64,
}

impl Summary {
    /// The facts that a result depends on.
    #[must_use]
    pub fn new(facts: &Facts) -> Self {
        let thp = facts.thp.as_ref();
        Self {
            release: facts.release.clone(),
            version: facts.version.clone(),
            machine: facts.machine.clone(),
            cpu_model: facts.cpu.model.clone(),
            cpus_possible: facts.cpu.possible,
            nodes: facts.numa.nodes.len(),
            preempt_model: facts.preempt.model,
            preempt_source: facts.preempt.source.clone(),
            preempt_dynamic: facts.preempt.dynamic,
            strategy: facts.strategies().map(|strategies| strategies.to_string()),
            thp_enabled: thp.and_then(|thp| thp.enabled),
            thp_defrag: thp.and_then(|thp| thp.defrag.clone()),
            init_on_alloc: facts.init_on_alloc.on,
            init_on_free: facts.init_on_free.on,
            page_size_bytes: facts.page_size_bytes,
        }
    }
}

/// The report as one line of JSON, with its end of line.
///
/// # Panics
/// Never: every part of a report can be JSON.
#[must_use]
pub fn json(report: &Report) -> String {
    serde_json::to_string(report).expect("no maps with other keys than strings") + "\n"
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hugeclear_ebpf::{
        bucket,
        key::{Cause, Outcome, Site},
        maps::Run,
    };

    use super::*;
    use crate::{
        facts::recorded::facts,
        probes::keys::{Comm, Key, Subject},
        window::{Aggregate, Grouping, Parts, Snapshot, Terms, rows},
    };

    fn aggregate(durations: &[u64]) -> Arc<Aggregate> {
        let mut aggregate = Aggregate::default();
        for &ns in durations {
            aggregate.merge(&Aggregate {
                count: 1,
                sum_ns: ns.into(),
                sum_squares: u128::from(ns).pow(2),
                min_ns: ns,
                max_ns: ns,
                preempted_ns: ns / 8,
                switches: 1,
                longest_run: Run { ns, clears: 1 },
                histogram: BTreeMap::from([(bucket::index(ns) as u16, 1)]),
                ..Aggregate::default()
            });
        }
        Arc::new(aggregate)
    }

    /// A report of some clears and faults, told apart by `by` too.
    fn report(kind: Kind, by: &[By]) -> Report {
        let key = |site, order| Key::of_block(site, order, PreemptModel::Voluntary);
        let cell = |cpu, key, durations: &[u64]| ((cpu, Some(key)), aggregate(durations));
        let remote = Key {
            memory_node: Some(1),
            comm: Some(Comm(*b"postgres\0\0\0\0\0\0\0\0")),
            ..key(Site::FolioZeroUser, 9)
        };
        let fault = |outcome, durations: &[u64]| {
            let key = Key {
                subject: Subject::Fault,
                cause: Some(Cause::ThpFault),
                outcome: Some(outcome),
                ..key(Site::FolioZeroUser, 9)
            };
            let mut aggregate = Arc::unwrap_or_clone(aggregate(durations));
            aggregate.parts = Parts {
                clear_ns: aggregate.sum_ns as u64 / 2,
                compaction_ns: aggregate.sum_ns as u64 / 4,
                reclaim_ns: 0,
            };
            ((0, Some(key)), Arc::new(aggregate))
        };
        let waiting = Key {
            subject: Subject::Impact,
            comm: Some(Comm(*b"postgres\0\0\0\0\0\0\0\0")),
            ..key(Site::FolioZeroUser, 9)
        };
        let snapshot = Snapshot {
            cells: BTreeMap::from([
                cell(
                    0,
                    key(Site::FolioZeroUser, 9),
                    &[118_000, 121_500, 119_250, 640_000],
                ),
                cell(11, key(Site::FolioZeroUser, 9), &[131_000, 129_000]),
                cell(11, remote, &[190_000, 188_000]),
                cell(11, key(Site::FolioZeroUser, 18), &[92_100_000]),
                cell(11, key(Site::Allocator, 9), &[180_000, 175_000]),
                cell(11, key(Site::CopyUserLargeFolio, 9), &[230_000]),
                ((11, None), aggregate(&[9_100])),
                fault(Outcome::Mapped, &[400_000, 380_000]),
                fault(Outcome::FallbackCharge, &[9_000]),
                cell(11, waiting, &[3_100, 2_900, 2_987_000]),
            ]),
        };
        let terms = Terms {
            base_page_bytes: 4096,
            derived: vec![Site::Allocator],
            counts_waiting: true,
            node_of_cpu: BTreeMap::from([(0, 0), (11, 0)]),
            cgroups: BTreeMap::new(),
        };
        let grouping = Grouping {
            by: By::DEFAULT.iter().chain(by).copied().collect(),
            ..Grouping::default()
        };
        let without_cpu = Grouping {
            by: (grouping.by.iter().copied())
                .filter(|key| *key != By::Cpu)
                .collect(),
            ..grouping.clone()
        };
        let all = rows(&snapshot, &grouping, &terms);
        let all_by_node = rows(&snapshot, &grouping.by_node(), &terms);
        let probe = |site, function: &str, derived| AttachedProbe {
            site,
            function: function.to_owned(),
            method: "fentry".to_owned(),
            derived,
        };
        Report {
            kind,
            start_ns: 1_000_000_000,
            end_ns: 3_500_000_000,
            facts: Summary::new(&facts("6.12")),
            probes: vec![
                probe(Some(Site::Allocator), "do_huge_pmd_anonymous_page", true),
                probe(Some(Site::FolioZeroUser), "folio_zero_user", false),
            ],
            rows: all.clears,
            totals: if by.contains(&By::Cpu) {
                rows(&snapshot, &without_cpu, &terms).clears
            } else {
                Vec::new()
            },
            by_node: if by.contains(&By::MemNode) {
                all_by_node.clears
            } else {
                Vec::new()
            },
            by: grouping.by,
            faults: all.faults,
            fault_counts: vec![FaultCount {
                page_size_bytes: 2 << 20,
                mapped: 2,
                fallback: 1,
                fallback_charge: 1,
            }],
            sched_impact: all.impact,
            losses: Losses {
                migrated: 1,
                other_keys: 1,
                open_at_detach: 1,
                programs_skipped: Some(0),
                ..Losses::default()
            },
            notes: vec![Note::new("zeroed_twice", "this kernel zeroes twice")],
        }
    }

    #[test]
    fn table_of_the_machine() {
        insta::assert_snapshot!(table(&report(Kind::Total, &[])));
    }

    #[test]
    fn table_per_cpu() {
        insta::assert_snapshot!(table(&report(Kind::Total, &[By::Cpu])));
    }

    #[test]
    fn table_of_a_window() {
        insta::assert_snapshot!(table(&report(Kind::Window, &[])));
    }

    #[test]
    fn table_of_faults() {
        let by = [By::Cause, By::Outcome];
        insta::assert_snapshot!(table(&report(Kind::Total, &by)));
    }

    #[test]
    fn table_per_node() {
        let by = [By::Node, By::MemNode];
        insta::assert_snapshot!(table(&report(Kind::Total, &by)));
    }

    #[test]
    fn table_per_comm() {
        insta::assert_snapshot!(table(&report(Kind::Total, &[By::Comm])));
    }

    #[test]
    fn table_without_clears() {
        let nothing = Report {
            rows: Vec::new(),
            faults: Vec::new(),
            fault_counts: Vec::new(),
            losses: Losses::default(),
            notes: vec![Note::new("no_clears", "no huge page was faulted")],
            ..report(Kind::Total, &[])
        };
        insta::assert_snapshot!(table(&nothing));
    }

    #[test]
    fn json_is_one_line_and_has_the_promised_fields() {
        let line = json(&report(Kind::Total, &[By::Cpu]));
        assert_eq!(line.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        insta::assert_snapshot!(serde_json::to_string_pretty(&value).unwrap());
    }
}
