//! Rows: aggregates grouped as the user asked, with their statistics.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use clap::ValueEnum;
use hugeclear_ebpf::key::{Cause, Outcome, Site};
use serde::{Deserialize, Serialize};

use super::{Aggregate, Snapshot};
use crate::{
    facts::PreemptModel,
    probes::keys::{Key, Subject},
};

/// Something that clears, copies and faults can be told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum By {
    /// Where the kernel clears or copies
    Site,
    /// What the clear was for: the function around it
    Cause,
    /// Size of the page
    PageSize,
    /// CPU on which it ended
    Cpu,
    /// Node of that CPU
    Node,
    /// Node of the page's memory
    MemNode,
    /// Name of the thread
    Comm,
    /// Process (thread group)
    Pid,
    /// Path of the cgroup (v2)
    Cgroup,
    /// Preemption model in force
    Preempt,
    /// What became of the fault
    Outcome,
    /// Sixteenth of the page in which the fault was
    FaultOffset,
}

impl By {
    /// What is told apart unless the user says otherwise.
    pub const DEFAULT: [Self; 3] = [Self::Site, Self::PageSize, Self::Preempt];

    /// Whether there may be any number of them.
    #[must_use]
    pub const fn is_who(self) -> bool {
        matches!(self, Self::Comm | Self::Pid | Self::Cgroup)
    }
}

/// What the clears, copies or faults of a row have in common. `None` is what they were not told apart
/// by, or what is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group {
    /// CPU on which they ended.
    pub cpu: Option<u32>,
    /// Node of that CPU.
    pub node: Option<u32>,
    /// Node of the page's memory.
    pub mem_node: Option<u32>,
    /// Process (thread group), as the host numbers it.
    pub pid: Option<u32>,
    /// Name of the thread.
    pub comm: Option<String>,
    /// Path of the cgroup (v2).
    pub cgroup: Option<String>,
    /// Where they were made; never of a fault.
    pub site: Option<Site>,
    /// What they were for.
    pub cause: Option<Cause>,
    /// What became of the fault; never of a clear.
    pub outcome: Option<Outcome>,
    /// Bytes of the page.
    pub page_size_bytes: Option<u64>,
    /// The sixteenth of the page in which the fault was, 0 to 15.
    pub fault_offset: Option<u8>,
    /// Preemption model in force when they began; of a fault, when it ended.
    pub preempt_model: Option<PreemptModel>,
}

impl Group {
    /// All that is known of an aggregate, or of an event.
    pub(super) fn of(cpu: u32, key: Option<&Key>, terms: &Terms) -> Self {
        let node = terms.node_of_cpu.get(&cpu).copied();
        let Some(key) = key else {
            return Self {
                cpu: Some(cpu),
                node,
                ..Self::default()
            };
        };
        Self {
            cpu: Some(cpu),
            node,
            mem_node: key.memory_node,
            pid: key.pid,
            comm: key.comm.map(|comm| comm.to_string()),
            cgroup: key.cgroup.map(|id| terms.cgroup(id)),
            site: match key.subject {
                Subject::Site(site) => Some(site),
                Subject::Fault | Subject::Impact => None,
            },
            cause: key.cause,
            outcome: key.outcome,
            page_size_bytes: terms.page_size_bytes(key.order),
            fault_offset: key.fault_offset,
            preempt_model: Some(key.model),
        }
    }

    /// Only what `by` tells apart.
    fn reduced(self, by: &BTreeSet<By>) -> Self {
        let has = |key| by.contains(&key);
        Self {
            cpu: self.cpu.filter(|_| has(By::Cpu)),
            node: self.node.filter(|_| has(By::Node)),
            mem_node: self.mem_node.filter(|_| has(By::MemNode)),
            pid: self.pid.filter(|_| has(By::Pid)),
            comm: self.comm.filter(|_| has(By::Comm)),
            cgroup: self.cgroup.filter(|_| has(By::Cgroup)),
            site: self.site.filter(|_| has(By::Site)),
            cause: self.cause.filter(|_| has(By::Cause)),
            outcome: self.outcome.filter(|_| has(By::Outcome)),
            page_size_bytes: self.page_size_bytes.filter(|_| has(By::PageSize)),
            fault_offset: self.fault_offset.filter(|_| has(By::FaultOffset)),
            preempt_model: self.preempt_model.filter(|_| has(By::Preempt)),
        }
    }
}

/// The values that are asked for; an empty list asks for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Sites; leaves out all faults.
    pub sites: Vec<Site>,
    /// Causes.
    pub causes: Vec<Cause>,
    /// Outcomes; leaves out all clears and copies.
    pub outcomes: Vec<Outcome>,
    /// Page sizes, in bytes.
    pub page_sizes: Vec<u64>,
    /// CPUs on which they ended.
    pub cpus: Vec<u32>,
    /// Nodes of those CPUs.
    pub nodes: Vec<u32>,
    /// Nodes of the page's memory.
    pub mem_nodes: Vec<u32>,
    /// Preemption models.
    pub preempt_models: Vec<PreemptModel>,
    /// Sixteenths of the page.
    pub fault_offsets: Vec<u8>,
    /// This cgroup (v2), with all below it.
    pub cgroup: Option<String>,
}

impl Only {
    /// Whether anything is left out.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether an aggregate or event of which all this is known is asked for.
    #[must_use]
    pub fn admits(&self, group: &Group) -> bool {
        fn one_of<T: PartialEq>(asked: &[T], value: Option<T>) -> bool {
            asked.is_empty() || value.is_some_and(|value| asked.contains(&value))
        }
        let Self {
            sites,
            causes,
            outcomes,
            page_sizes,
            cpus,
            nodes,
            mem_nodes,
            preempt_models,
            fault_offsets,
            cgroup,
        } = self;
        let is_below = |wanted: &str| {
            let rest = group
                .cgroup
                .as_deref()
                .and_then(|path| path.strip_prefix(wanted));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || wanted == "/")
        };
        one_of(sites, group.site)
            && one_of(causes, group.cause)
            && one_of(outcomes, group.outcome)
            && one_of(page_sizes, group.page_size_bytes)
            && one_of(cpus, group.cpu)
            && one_of(nodes, group.node)
            && one_of(mem_nodes, group.mem_node)
            && one_of(preempt_models, group.preempt_model)
            && one_of(fault_offsets, group.fault_offset)
            && cgroup.as_deref().is_none_or(is_below)
    }
}

/// How the aggregates are to be grouped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// What to tell apart.
    pub by: BTreeSet<By>,
    /// What to show at all.
    pub only: Only,
    /// How many rows to show where there may be any number; the rest is summed.
    pub top: usize,
}

impl Grouping {
    /// The same by nothing but page size and the two nodes, whoever it was.
    #[must_use]
    pub fn by_node(&self) -> Self {
        Self {
            by: BTreeSet::from([By::PageSize, By::Node, By::MemNode]),
            ..self.clone()
        }
    }
}

impl Default for Grouping {
    fn default() -> Self {
        Self {
            by: By::DEFAULT.into(),
            only: Only::default(),
            top: usize::MAX,
        }
    }
}

/// Whether pages were cleared or copied: the two are never summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Cleared.
    Clear,
    /// Copied.
    Copy,
}

/// How many there were and how long they took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Of them, how many ended on another CPU than they began on.
    pub migrated: u64,
    /// Sum of the durations: wall time.
    pub sum_ns: u64,
    /// Mean duration.
    pub mean_ns: f64,
    /// Sample standard deviation (n - 1); `None` for a single one.
    pub stddev_ns: Option<f64>,
    /// Shortest duration.
    pub min_ns: u64,
    /// Median, within `quantile_error`.
    pub p50_ns: u64,
    /// 90th percentile, within `quantile_error`.
    pub p90_ns: u64,
    /// 99th percentile, within `quantile_error`.
    pub p99_ns: u64,
    /// Longest duration.
    pub max_ns: u64,
    /// How far the percentiles may be from the truth, as a part of it.
    pub quantile_error: f64,
}

/// The longest run of back-to-back clears by one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongestRun {
    /// How many.
    pub clears: u64,
    /// Sum of their durations, in ns.
    pub ns: u64,
}

/// Clears, or copies. Rows never overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which of the two.
    pub operation: Operation,
    /// What they have in common.
    #[serde(flatten)]
    pub group: Group,
    /// Whether it is a mixture, whose keys found no room in the maps: nothing but the CPU is known.
    pub other: bool,
    /// If it is the sum of the rows beyond those asked for: how many.
    pub rest_of: Option<u64>,
    /// Whether the durations include more than the clear.
    pub derived: bool,
    /// Their number and durations.
    #[serde(flatten)]
    pub times: Times,
    /// Part of `sum_ns` in which the threads ran, interrupts and stolen time included; `None` if the
    /// kernel does not tell, or what it tells is more than the whole.
    pub on_cpu_ns: Option<u64>,
    /// Part of `sum_ns` in which the threads were runnable and did not run; `None` with `on_cpu_ns`.
    /// Source: `task_struct.sched_info.run_delay`.
    pub preempted_ns: Option<u64>,
    /// Context switches away from the threads inside; `None` with `on_cpu_ns`.
    pub switches: Option<u64>,
    /// The longest run of back-to-back clears that ended in this row; `None`: in a window, none that
    /// was longer than all before.
    pub longest_run: Option<LongestRun>,
    /// Bytes cleared or copied; `None` if the page sizes are not known.
    pub bytes: Option<u64>,
    /// Bytes per nanosecond of summed duration, which is 1e9 bytes per second.
    pub gb_per_s: Option<f64>,
    /// Bytes per nanosecond in which the threads ran.
    pub gb_per_s_on_cpu: Option<f64>,
}

/// Whole faults. Rows never overlap. The five parts are exclusive and add up to `sum_ns`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultRow {
    /// What they have in common.
    #[serde(flatten)]
    pub group: Group,
    /// If it is the sum of the rows beyond those asked for: how many.
    pub rest_of: Option<u64>,
    /// Whether `clear_ns` holds the allocation too, because the clear alone cannot be traced.
    pub derived: bool,
    /// Their number and durations.
    #[serde(flatten)]
    pub times: Times,
    /// Clearing, without waiting for a CPU.
    pub clear_ns: u64,
    /// Direct compaction, without waiting for a CPU.
    pub compaction_ns: u64,
    /// Direct reclaim, without waiting for a CPU.
    pub reclaim_ns: u64,
    /// Runnable and not running; 0 if the kernel does not tell.
    pub preempted_ns: u64,
    /// All else: page tables, locks, allocation, copying, blocking. Negative only if
    /// `losses.negative_rest` counts some.
    pub rest_ns: i64,
    /// Context switches away from the threads.
    pub switches: u64,
}

/// How long tasks that became runnable on a CPU while it cleared waited for that clear.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImpactRow {
    /// Page size and preemption model of the clear; CPU and name of the task that waited.
    #[serde(flatten)]
    pub group: Group,
    /// If it is the sum of the rows beyond those asked for: how many.
    pub rest_of: Option<u64>,
    /// Their number and the time that they waited while the clear ran.
    #[serde(flatten)]
    pub times: Times,
}

/// What the aggregates alone do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Bytes of an order-0 page.
    pub base_page_bytes: u64,
    /// Sites whose durations include more than the clear; of the huge zero page they always do.
    pub derived: Vec<Site>,
    /// Whether the kernel tells how long a task waited for a CPU.
    pub counts_waiting: bool,
    /// The node of each CPU.
    pub node_of_cpu: BTreeMap<u32, u32>,
    /// Path of each cgroup (v2) by its id.
    pub cgroups: BTreeMap<u64, String>,
}

impl Terms {
    /// Bytes of a page of `order`; `None` for order 0, which stands for a size that is not known.
    #[must_use]
    pub fn page_size_bytes(&self, order: u32) -> Option<u64> {
        (order > 0).then(|| self.base_page_bytes << order)
    }

    /// The path of a cgroup, or its number if it is gone.
    #[must_use]
    pub fn cgroup(&self, id: u64) -> String {
        let path = self.cgroups.get(&id).cloned();
        path.unwrap_or_else(|| format!("(gone: id {id})"))
    }
}

/// All rows of what a snapshot, or a difference of two, holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Clears and copies.
    pub clears: Vec<Row>,
    /// Faults.
    pub faults: Vec<FaultRow>,
    /// Tasks that waited for a clear.
    pub impact: Vec<ImpactRow>,
}

/// What a group adds up to.
#[derive(Clone, Debug, Default)]
struct Sum {
    aggregate: Aggregate,
    /// `None`: not all page sizes are known.
    bytes: Option<u64>,
    derived: bool,
    rest_of: Option<u64>,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        let is_first = self.aggregate.count == 0;
        self.bytes = match (is_first, self.bytes, other.bytes) {
            (true, _, bytes) => bytes,
            (false, Some(a), Some(b)) => Some(a.saturating_add(b)),
            (false, _, _) => None,
        };
        self.derived |= other.derived;
        self.aggregate.merge(&other.aggregate);
    }
}

/// Groups of one kind: their key, and whether it is the row `other`.
type Groups<K> = BTreeMap<K, Sum>;

/// Groups what a snapshot holds.
///
/// Rows come in the order of their groups; where there may be any number, by the time they took.
#[must_use]
pub fn rows(snapshot: &Snapshot, grouping: &Grouping, terms: &Terms) -> Rows {
    let Grouping { by, only, top } = grouping;
    // Who waits is not who clears.
    let only_of_impact = Only {
        cgroup: None,
        ..only.clone()
    };
    let mut clears: Groups<(Operation, bool, Group)> = BTreeMap::new();
    let mut faults: Groups<Group> = BTreeMap::new();
    let mut impact: Groups<Group> = BTreeMap::new();
    for ((cpu, key), aggregate) in &snapshot.cells {
        if aggregate.count == 0 {
            continue;
        }
        let group = Group::of(*cpu, key.as_ref(), terms);
        let is_impact = key.is_some_and(|key| key.subject == Subject::Impact);
        if !if is_impact { &only_of_impact } else { only }.admits(&group) {
            continue;
        }
        let size = group.page_size_bytes;
        let derived = |site| terms.derived.contains(&site);
        let part = Sum {
            aggregate: Aggregate::clone(aggregate),
            bytes: size.map(|size| size.saturating_mul(aggregate.count)),
            derived: match (group.site, group.cause) {
                (_, Some(Cause::HugeZeroPage)) => true,
                (Some(site), _) => derived(site),
                (None, Some(Cause::ThpFault | Cause::MthpFault)) => derived(Site::Allocator),
                (None, _) => false,
            },
            rest_of: None,
        };
        match key.as_ref().map(|key| key.subject) {
            Some(Subject::Fault) => faults.entry(group.reduced(by)).or_default().add(&part),
            Some(Subject::Impact) => impact.entry(group.reduced(by)).or_default().add(&part),
            subject => {
                let operation = match subject {
                    Some(Subject::Site(site)) if site.copies() => Operation::Copy,
                    _ => Operation::Clear,
                };
                let key = (operation, subject.is_none(), group.reduced(by));
                clears.entry(key).or_default().add(&part);
            }
        }
    }
    let top = if by.iter().any(|key| key.is_who()) {
        Some(*top)
    } else {
        None
    };
    Rows {
        clears: ranked(clears, top, |(operation, ..)| {
            (*operation, false, Group::default())
        })
        .into_iter()
        .filter_map(|((operation, other, group), sum)| row(operation, other, group, &sum, terms))
        .collect(),
        faults: ranked(faults, top, |_| Group::default())
            .into_iter()
            .filter_map(|(group, sum)| fault_row(group, &sum))
            .collect(),
        impact: ranked(impact, top, |_| Group::default())
            .into_iter()
            .filter_map(|(group, sum)| {
                Some(ImpactRow {
                    group,
                    rest_of: sum.rest_of,
                    times: times(&sum.aggregate)?,
                })
            })
            .collect(),
    }
}

/// In the order of the groups; with `top`, by the time they took, and what comes after that many
/// summed, by what `rest` makes of its key.
fn ranked<K: Ord + Clone>(
    groups: Groups<K>,
    top: Option<usize>,
    rest: impl Fn(&K) -> K,
) -> Vec<(K, Sum)> {
    let mut ranked: Vec<(K, Sum)> = groups.into_iter().collect();
    let Some(top) = top else {
        return ranked;
    };
    ranked.sort_by_key(|(_, sum)| Reverse(sum.aggregate.sum_ns));
    if ranked.len() <= top {
        return ranked;
    }
    let mut sums: Groups<K> = BTreeMap::new();
    for (key, sum) in ranked.split_off(top) {
        let all = sums.entry(rest(&key)).or_default();
        all.add(&sum);
        all.rest_of = Some(all.rest_of.unwrap_or(0) + 1);
    }
    ranked.extend(sums);
    ranked
}

/// `None` without any.
fn times(aggregate: &Aggregate) -> Option<Times> {
    let quantile = |quantile| aggregate.quantile_ns(quantile).unwrap_or(aggregate.max_ns);
    Some(Times {
        count: aggregate.count,
        migrated: aggregate.migrated,
        sum_ns: u64::try_from(aggregate.sum_ns).unwrap_or(u64::MAX),
        mean_ns: aggregate.mean_ns()?,
        stddev_ns: aggregate.stddev_ns(),
        min_ns: aggregate.min_ns,
        p50_ns: quantile(0.50),
        p90_ns: quantile(0.90),
        p99_ns: quantile(0.99),
        max_ns: aggregate.max_ns,
        quantile_error: aggregate.quantile_error(),
    })
}

/// A row; `None` without a clear.
fn row(operation: Operation, other: bool, group: Group, sum: &Sum, terms: &Terms) -> Option<Row> {
    let aggregate = &sum.aggregate;
    let times = times(aggregate)?;
    let on_cpu_ns = times
        .sum_ns
        .checked_sub(aggregate.preempted_ns)
        .filter(|_| terms.counts_waiting);
    let rate = |ns: u64| {
        sum.bytes
            .filter(|_| ns > 0)
            .map(|bytes| bytes as f64 / ns as f64)
    };
    let run = aggregate.longest_run;
    Some(Row {
        operation,
        group,
        other,
        rest_of: sum.rest_of,
        derived: sum.derived,
        on_cpu_ns,
        preempted_ns: on_cpu_ns.map(|_| aggregate.preempted_ns),
        switches: on_cpu_ns.map(|_| aggregate.switches),
        longest_run: (run.clears > 0).then_some(LongestRun {
            clears: run.clears,
            ns: run.ns,
        }),
        bytes: sum.bytes,
        gb_per_s: rate(times.sum_ns),
        gb_per_s_on_cpu: on_cpu_ns.and_then(rate),
        times,
    })
}

/// A row; `None` without a fault.
fn fault_row(group: Group, sum: &Sum) -> Option<FaultRow> {
    let aggregate = &sum.aggregate;
    let times = times(aggregate)?;
    let parts = aggregate.parts;
    let preempted_ns = aggregate.preempted_ns;
    // Modulo 2^64, as the kernel sums: exact, and negative where the parts are too long.
    let rest_ns = times
        .sum_ns
        .wrapping_sub(parts.clear_ns)
        .wrapping_sub(parts.compaction_ns)
        .wrapping_sub(parts.reclaim_ns)
        .wrapping_sub(preempted_ns)
        .cast_signed();
    Some(FaultRow {
        group,
        rest_of: sum.rest_of,
        derived: sum.derived,
        clear_ns: parts.clear_ns,
        compaction_ns: parts.compaction_ns,
        reclaim_ns: parts.reclaim_ns,
        preempted_ns,
        rest_ns,
        switches: aggregate.switches,
        times,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hugeclear_ebpf::bucket;
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::window::Parts;

    fn aggregate(ns: u64) -> Arc<Aggregate> {
        Arc::new(Aggregate {
            count: 1,
            sum_ns: ns.into(),
            sum_squares: u128::from(ns).pow(2),
            min_ns: ns,
            max_ns: ns,
            parts: Parts {
                clear_ns: ns / 2,
                compaction_ns: ns / 8,
                reclaim_ns: ns / 16,
            },
            preempted_ns: ns / 4,
            histogram: BTreeMap::from([(bucket::index(ns) as u16, 1)]),
            ..Aggregate::default()
        })
    }

    fn terms() -> Terms {
        Terms {
            base_page_bytes: 4096,
            counts_waiting: true,
            node_of_cpu: (0..8).map(|cpu| (cpu, cpu / 4)).collect(),
            ..Terms::default()
        }
    }

    fn key() -> impl Strategy<Value = Key> {
        let subjects = [
            Subject::Site(Site::FolioZeroUser),
            Subject::Site(Site::Allocator),
            Subject::Site(Site::CopyUserLargeFolio),
            Subject::Fault,
            Subject::Impact,
        ];
        (
            prop::sample::select(subjects.to_vec()),
            prop::sample::select(vec![9_u32, 18]),
            prop::option::of(0_u32..2),
            prop::option::of(1_u32..30),
            prop::option::of(0_u8..16),
        )
            .prop_map(|(subject, order, memory_node, pid, fault_offset)| Key {
                subject,
                memory_node,
                pid,
                fault_offset,
                ..Key::of_block(Site::FolioZeroUser, order, PreemptModel::Lazy)
            })
    }

    fn by() -> impl Strategy<Value = BTreeSet<By>> {
        prop::sample::subsequence(By::value_variants().to_vec(), 0..By::value_variants().len())
            .prop_map(BTreeSet::from_iter)
    }

    proptest! {
        /// However they are grouped, and however few are shown, nothing is lost and nothing counted
        /// twice; clears and copies are never summed; the parts of the faults add up.
        #[test]
        fn every_grouping_has_the_same_sums(
            cells in vec((0_u32..8, key(), 1_u64..1 << 40), 1..60),
            by in by(),
            top in 1_usize..5,
        ) {
            let mut snapshot = Snapshot::default();
            for (cpu, key, ns) in cells {
                snapshot.cells.insert((cpu, Some(key)), aggregate(ns));
            }
            let grouping = Grouping { by, top, ..Grouping::default() };
            let rows = rows(&snapshot, &grouping, &terms());
            let sum_of = |takes: fn(Subject) -> bool| -> (u64, u128) {
                snapshot
                    .cells
                    .iter()
                    .filter(|((_, key), _)| takes(key.unwrap().subject))
                    .map(|(_, aggregate)| (aggregate.count, aggregate.sum_ns))
                    .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
            };
            let of_rows = |operation| -> (u64, u128) {
                rows.clears
                    .iter()
                    .filter(|row| row.operation == operation)
                    .map(|row| (row.times.count, u128::from(row.times.sum_ns)))
                    .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
            };
            let copies = |subject| matches!(subject, Subject::Site(site) if site.copies());
            let clears = |subject| matches!(subject, Subject::Site(site) if !site.copies());
            prop_assert_eq!(of_rows(Operation::Clear), sum_of(clears));
            prop_assert_eq!(of_rows(Operation::Copy), sum_of(copies));
            let faults: u64 = rows.faults.iter().map(|row| row.times.count).sum();
            prop_assert_eq!(faults, sum_of(|subject| subject == Subject::Fault).0);
            let impact: u64 = rows.impact.iter().map(|row| row.times.count).sum();
            prop_assert_eq!(impact, sum_of(|subject| subject == Subject::Impact).0);
            for row in &rows.faults {
                let parts = row.clear_ns + row.compaction_ns + row.reclaim_ns + row.preempted_ns;
                prop_assert_eq!(parts.cast_signed() + row.rest_ns, row.times.sum_ns.cast_signed());
                prop_assert!(row.rest_ns >= 0);
            }
            if grouping.by.iter().any(|key| key.is_who()) {
                prop_assert!(rows.clears.len() <= top + 2);
                prop_assert!(rows.faults.len() <= top + 1);
                prop_assert!(rows.impact.len() <= top + 1);
            }
        }
    }

    #[test]
    fn filters_leave_the_rest_out() {
        let key = |site, memory_node| {
            Some(Key {
                memory_node: Some(memory_node),
                ..Key::of_block(site, 9, PreemptModel::Full)
            })
        };
        let snapshot = Snapshot {
            cells: BTreeMap::from([
                ((0, key(Site::FolioZeroUser, 0)), aggregate(100)),
                ((5, key(Site::FolioZeroUser, 0)), aggregate(200)),
                ((5, key(Site::Allocator, 1)), aggregate(400)),
                ((5, None), aggregate(800)),
            ]),
        };
        let sum = |only: Only| -> u64 {
            let grouping = Grouping {
                only,
                ..Grouping::default()
            };
            let rows = rows(&snapshot, &grouping, &terms());
            rows.clears.iter().map(|row| row.times.sum_ns).sum()
        };
        let everything = Only::default();
        assert_eq!(sum(everything.clone()), 1500);
        let only = Only {
            nodes: vec![1],
            ..everything.clone()
        };
        assert_eq!(sum(only), 1400);
        let only = Only {
            nodes: vec![1],
            mem_nodes: vec![0],
            ..everything.clone()
        };
        assert_eq!(sum(only), 200);
        let only = Only {
            sites: vec![Site::Allocator],
            ..everything.clone()
        };
        assert_eq!(sum(only), 400);
        let only = Only {
            page_sizes: vec![1 << 30],
            ..everything
        };
        assert_eq!(sum(only), 0);
    }

    #[test]
    fn a_cgroup_contains_those_below_it() {
        let admits = |wanted: &str, path: &str| {
            let only = Only {
                cgroup: Some(wanted.to_owned()),
                ..Only::default()
            };
            only.admits(&Group {
                cgroup: Some(path.to_owned()),
                ..Group::default()
            })
        };
        assert!(admits("/a", "/a") && admits("/a", "/a/b") && admits("/", "/a"));
        assert!(!admits("/a", "/ab") && !admits("/a/b", "/a"));
    }
}
