//! What a sweep measured: every run, and what they add up to. Pure.

use std::{collections::BTreeMap, fmt::Write as _};

use hugeclear_ebpf::key::Site;
use serde::Serialize;

use super::{Combination, Factor, Refused};
use crate::{
    facts::PreemptModel,
    notes::Note,
    probes::tracer::AttachedProbe,
    report::Summary,
    settings::Change,
    stats::Spread,
    window::{self, Losses, Operation},
    workload,
};

/// The result of a sweep: the JSON that programs read, and all that the table shows.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename = "sweep")]
pub struct Report {
    /// The machine, before anything was switched.
    pub facts: Summary,
    /// The words after `hugeclear-trace workload`, without what is varied.
    pub workload: Vec<String>,
    /// Rounds asked for.
    pub rounds: u32,
    /// What the order was drawn with.
    pub seed: u64,
    /// What was run, in the order asked for.
    pub combinations: Vec<Combination>,
    /// What could not be run here.
    pub refused: Vec<Refused>,
    /// How clears were traced; `None`: they were not.
    pub trace: Option<Trace>,
    /// Every run, in the order in which they ran.
    pub runs: Vec<Run>,
    /// What the runs of each combination add up to, in the order of `combinations`.
    pub rows: Vec<Row>,
    /// The settings that were switched, with the values that they have again.
    pub restored: Vec<Change>,
    /// What to know about the numbers.
    pub notes: Vec<Note>,
    /// Number of the signal that ended it early, if one did; exit status 128 + this number.
    pub interrupted_by: Option<i32>,
    /// The run that failed and ended it early, if one did, and why.
    pub failed: Option<String>,
}

/// How clears were traced.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    /// The functions, and how each was traced.
    pub probes: Vec<AttachedProbe>,
    /// What the trace does not hold, over all runs.
    pub losses: Losses,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Its round, from 1.
    pub round: u32,
    /// What it ran under.
    pub combination: Combination,
    /// What the workload said.
    pub workload: workload::Report,
    /// What was traced meanwhile; `None` without a trace.
    pub traced: Option<Traced>,
}

/// The clears and copies that were traced during a run, of the workload's threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Traced {
    /// Pages of the workload's size that were cleared.
    pub clears: u64,
    /// Time that the kernel took to clear one of them, ns. A page that is cleared at two sites has the time
    /// of both. `None` without any.
    pub mean_ns: Option<f64>,
    /// Bytes cleared per nanosecond of that time, which is 1e9 bytes per second.
    pub gb_per_s: Option<f64>,
    /// Everything, told apart by site, page size and preemption model.
    pub rows: Vec<window::Row>,
}

impl Traced {
    /// Of the rows of a run on pages of this size.
    pub fn new(rows: Vec<window::Row>, page_size_bytes: u64) -> Self {
        let by_site = by_site(&rows, Operation::Clear, page_size_bytes);
        let clears = by_site.values().map(|(count, _)| *count).max().unwrap_or(0);
        let sum_ns: u64 = by_site.values().map(|(_, ns)| ns).sum();
        let is_any = clears > 0 && sum_ns > 0;
        Self {
            clears,
            mean_ns: is_any.then(|| sum_ns as f64 / clears as f64),
            gb_per_s: is_any.then(|| clears.saturating_mul(page_size_bytes) as f64 / sum_ns as f64),
            rows,
        }
    }
}

/// Clears or copies of pages of this size and their duration in ns, by site.
fn by_site(
    rows: &[window::Row],
    operation: Operation,
    page_size_bytes: u64,
) -> BTreeMap<Option<Site>, (u64, u64)> {
    let mut by_site = BTreeMap::new();
    let rows = rows.iter().filter(|row| {
        row.operation == operation && row.group.page_size_bytes == Some(page_size_bytes)
    });
    for row in rows {
        let (count, ns) = by_site.entry(row.group.site).or_default();
        *count += row.times.count;
        *ns += row.times.sum_ns;
    }
    by_site
}

/// The runs of one combination. Each spread is over runs: a figure of many faults or clears is first
/// made one figure of its run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub combination: Combination,
    /// Time of the touches of a run, ns.
    pub elapsed_ns: Spread,
    /// Bytes touched per nanosecond of that time, which is 1e9 bytes per second.
    pub gb_per_s: Option<Spread>,
    /// Median of the times of a run's faults, as the program feels them, ns.
    pub fault_p50_ns: Option<Spread>,
    /// Their 99th percentile, ns.
    pub fault_p99_ns: Option<Spread>,
    /// Mean time of a traced clear in a run, ns.
    pub clear_ns: Option<Spread>,
    /// Bytes cleared per nanosecond of traced clears.
    pub clear_gb_per_s: Option<Spread>,
}

/// `None` without a run.
fn row(combination: &Combination, runs: &[&Run]) -> Option<Row> {
    let spread = |figure: &dyn Fn(&Run) -> Option<f64>| {
        Spread::of(runs.iter().filter_map(|run| figure(run)))
    };
    Some(Row {
        combination: combination.clone(),
        elapsed_ns: spread(&|run| Some(run.workload.elapsed_ns as f64))?,
        gb_per_s: spread(&|run| {
            let workload::Report {
                bytes, elapsed_ns, ..
            } = run.workload;
            (bytes > 0 && elapsed_ns > 0).then(|| bytes as f64 / elapsed_ns as f64)
        }),
        fault_p50_ns: spread(&|run| Some(run.workload.latency?.p50_ns as f64)),
        fault_p99_ns: spread(&|run| Some(run.workload.latency?.p99_ns as f64)),
        clear_ns: spread(&|run| run.traced.as_ref()?.mean_ns),
        clear_gb_per_s: spread(&|run| run.traced.as_ref()?.gb_per_s),
    })
}

/// A run, in words.
pub fn name_of_run(round: u32, combination: &Combination) -> String {
    let mut name = format!("round {round}");
    if !combination.0.is_empty() {
        let _ = write!(name, ", {combination}");
    }
    name
}

/// Where the trace disagrees with the workload, or with the model asked for.
fn disagreements(run: &Run, facts: &Summary) -> Vec<Note> {
    let Some(Traced { rows, .. }) = &run.traced else {
        return Vec::new();
    };
    let named = name_of_run(run.round, &run.combination);
    let mut notes = Vec::new();
    for (operation, what) in [(Operation::Clear, "clears"), (Operation::Copy, "copies")] {
        let workload = &run.workload;
        let expected: u64 = (workload.expected.iter())
            .filter(|expected| expected.operation == operation)
            .map(|expected| expected.count)
            .sum();
        // Each page is cleared at each site that this kernel makes use of.
        let by_site = by_site(rows, operation, workload.page_size_bytes);
        let differs = by_site.values().find(|(count, _)| *count != expected);
        let seen = match differs {
            Some((seen, _)) => *seen,
            None if by_site.is_empty() && expected > 0 => 0,
            None => continue,
        };
        notes.push(Note::new(
            "counts_differ",
            format!("{named}: the workload caused {expected} {what}, {seen} were traced"),
        ));
    }
    let asked = run.combination.0.get(&Factor::Preempt);
    let other = rows.iter().find_map(|row| {
        let seen = row.group.preempt_model?;
        let is_asked = asked.is_none_or(|asked| is_model(seen, asked, facts));
        (!is_asked).then_some(seen)
    });
    if let Some(seen) = other {
        notes.push(Note::new(
            "model_differs",
            format!("{named}: clears were traced under the preemption model {seen}"),
        ));
    }
    notes
}

/// Whether a model that was traced is the one asked for; on a PREEMPT_RT kernel it is always `rt`.
fn is_model(seen: PreemptModel, asked: &str, facts: &Summary) -> bool {
    seen.name() == asked || seen == PreemptModel::Rt && facts.preempt_model == PreemptModel::Rt
}

impl Report {
    /// Adds up the runs, and notes where the trace disagrees.
    pub fn add_up(&mut self) {
        let of = |combination: &Combination| -> Vec<&Run> {
            let runs = self.runs.iter();
            runs.filter(|run| run.combination == *combination).collect()
        };
        self.rows = (self.combinations.iter())
            .filter_map(|combination| row(combination, &of(combination)))
            .collect();
        let disagreements = self
            .runs
            .iter()
            .flat_map(|run| disagreements(run, &self.facts));
        self.notes.extend(disagreements);
    }
}
