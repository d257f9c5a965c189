//! Rows: aggregates grouped as the user asked, with their statistics.

use std::collections::BTreeMap;

use hugeclear_ebpf::key::Site;
use serde::{Deserialize, Serialize};

use super::{Aggregate, Snapshot};
use crate::{facts::PreemptModel, probes::keys::Key};

/// What a row stands for beside site, page size and preemption model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// All CPUs together.
    #[default]
    Machine,
    /// Each CPU on which clears ended.
    PerCpu,
}

/// The clears of one site, page size, preemption model and, if grouped so, CPU. Rows never overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Where the clears were made; `None`: a mixture, since their keys had no block of their own.
    pub site: Option<Site>,
    /// Whether the durations include more than the clear.
    pub derived: bool,
    /// Bytes of the cleared page; `None` with the site.
    pub page_size_bytes: Option<u64>,
    /// CPU on which the clears ended; `None`: any.
    pub cpu: Option<u32>,
    /// Preemption model in force when the clears began; `None` with the site.
    pub preempt_model: Option<PreemptModel>,
    /// Number of clears.
    pub count: u64,
    /// Sum of the durations: wall time.
    pub sum_ns: u64,
    /// Part of `sum_ns` in which the threads ran, interrupts and stolen time included; `None` if the
    /// kernel does not tell, or what it tells is more than the whole.
    pub on_cpu_ns: Option<u64>,
    /// Part of `sum_ns` in which the threads were runnable and did not run; `None` with `on_cpu_ns`.
    /// Source: `task_struct.sched_info.run_delay`.
    pub preempted_ns: Option<u64>,
    /// Context switches away from the threads inside the clears; `None` with `on_cpu_ns`.
    pub switches: Option<u64>,
    /// Mean duration.
    pub mean_ns: f64,
    /// Sample standard deviation (n - 1); `None` for a single clear.
    pub stddev_ns: Option<f64>,
    /// Shortest duration.
    pub min_ns: u64,
    /// Median, within 1.6 %.
    pub p50_ns: u64,
    /// 90th percentile, within 1.6 %.
    pub p90_ns: u64,
    /// 99th percentile, within 1.6 %.
    pub p99_ns: u64,
    /// Longest duration.
    pub max_ns: u64,
    /// Bytes cleared; `None` with the page size.
    pub bytes: Option<u64>,
    /// Bytes per nanosecond of summed duration, which is 1e9 bytes per second.
    pub gb_per_s: Option<f64>,
    /// Bytes per nanosecond in which the threads ran.
    pub gb_per_s_on_cpu: Option<f64>,
}

/// What the aggregates alone do not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Bytes of an order-0 page.
    pub base_page_bytes: u64,
    /// Sites whose durations include more than the clear.
    pub derived: Vec<Site>,
    /// Whether the kernel tells how long a task waited for a CPU.
    pub counts_waiting: bool,
}

/// The rows of what a snapshot, or a difference of two, holds, in the order of CPU, site, page size
/// and model.
#[must_use]
pub fn rows(snapshot: &Snapshot, grouping: Grouping, terms: &Terms) -> Vec<Row> {
    let mut groups: BTreeMap<(Option<u32>, Option<Key>), Aggregate> = BTreeMap::new();
    for (&(cpu, key), aggregate) in &snapshot.cells {
        let cpu = match grouping {
            Grouping::Machine => None,
            Grouping::PerCpu => Some(cpu),
        };
        groups.entry((cpu, key)).or_default().merge(aggregate);
    }
    groups
        .iter()
        .filter_map(|(&(cpu, key), aggregate)| row(cpu, key, aggregate, terms))
        .collect()
}

/// A row; `None` without a clear.
fn row(cpu: Option<u32>, key: Option<Key>, aggregate: &Aggregate, terms: &Terms) -> Option<Row> {
    let page_size_bytes = key.map(|key| terms.base_page_bytes << key.order);
    let bytes = page_size_bytes.map(|size| size.saturating_mul(aggregate.count));
    let sum_ns = u64::try_from(aggregate.sum_ns).unwrap_or(u64::MAX);
    let on_cpu_ns = sum_ns
        .checked_sub(aggregate.preempted_ns)
        .filter(|_| terms.counts_waiting);
    let rate = |ns: u64| {
        bytes
            .filter(|_| ns > 0)
            .map(|bytes| bytes as f64 / ns as f64)
    };
    let quantile = |quantile| aggregate.quantile_ns(quantile).unwrap_or(aggregate.max_ns);
    Some(Row {
        site: key.map(|key| key.site),
        derived: key.is_some_and(|key| terms.derived.contains(&key.site)),
        page_size_bytes,
        cpu,
        preempt_model: key.map(|key| key.model),
        count: aggregate.count,
        sum_ns,
        on_cpu_ns,
        preempted_ns: on_cpu_ns.map(|_| aggregate.preempted_ns),
        switches: on_cpu_ns.map(|_| aggregate.switches),
        mean_ns: aggregate.mean_ns()?,
        stddev_ns: aggregate.stddev_ns(),
        min_ns: aggregate.min_ns,
        p50_ns: quantile(0.50),
        p90_ns: quantile(0.90),
        p99_ns: quantile(0.99),
        max_ns: aggregate.max_ns,
        bytes,
        gb_per_s: rate(sum_ns),
        gb_per_s_on_cpu: on_cpu_ns.and_then(rate),
    })
}
