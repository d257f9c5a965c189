//! What a workload did, for people and as JSON.

use std::fmt;

use hdrhistogram::Histogram;
use hugeclear_ebpf::key::Cause;
use serde::{Deserialize, Serialize};

use super::{
    Kind, Plan,
    plan::{Origin, ZeroBench},
    run::Pass,
};
use crate::{
    counters::{self, Counts},
    grid::{Column, grid},
    settings::Change,
    stats::{OUTLIER_DEVIATIONS, Spread, outliers},
    units::{format_bytes, format_ns},
    window::Operation,
};

/// Significant decimal digits of the latencies' percentiles: within 0.1 %.
const DIGITS: u8 = 3;
/// Longest latency that percentiles tell apart, ns: an hour. It bounds the histogram to 270 KB.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The ground truth of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What it did.
    pub kind: Kind,
    /// Bytes of one page.
    pub page_size_bytes: u64,
    /// Bytes of memory that a pass maps.
    pub size_bytes: u64,
    /// Threads that shared it.
    pub threads: u32,
    /// CPUs that they were pinned to, in turn; those of the node with `--node`; empty: not pinned.
    pub cpus: Vec<u32>,
    /// Node that memory had to come from, if any.
    pub mem_node: Option<u32>,
    /// Where pages were touched first.
    pub touch: String,
    /// Runs asked for.
    pub repeat: u32,
    /// Pages touched (by fallocate, collapsed, ... as the workload says), over all runs: the faults it
    /// caused on purpose.
    pub faults: u64,
    /// Pages of this size that it got, over all runs, by the kernel's account; `None` if the kernel has
    /// none.
    pub pages: Option<u64>,
    /// Where the kernel accounts for them, in words.
    pub pages_source: String,
    /// What a trace of all runs must show.
    pub expected: Vec<Expected>,
    /// Clears among those.
    pub expected_clears: u64,
    /// Bytes of memory it got, over all runs.
    pub bytes: u64,
    /// Time of all runs, ns.
    pub elapsed_ns: u64,
    /// Time of a fault, over all runs; `None` if there was none.
    pub latency: Option<Latency>,
    /// What the two clock readings around a fault cost, ns; it is part of each latency.
    pub timer_overhead_ns: u64,
    /// How the runs spread; `None` if there was none.
    pub summary: Option<Summary>,
    /// Each run.
    pub runs: Vec<Run>,
    /// Settings that were changed for the runs and put back.
    pub configured: Vec<Change>,
    /// What to know about the numbers.
    pub notes: Vec<String>,
    /// Number of the signal that ended it early, if one did; exit status 128 + this number.
    pub interrupted_by: Option<i32>,
}

/// Clears or copies that a trace must show, at each site where this kernel makes them: up to 6.12 with
/// `init_on_alloc` an anonymous page is cleared twice, by the allocator and by the clear function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// `clear` or `copy`.
    pub operation: Operation,
    /// The cause, as a trace names it.
    pub cause: String,
    /// Bytes of each page.
    pub page_size_bytes: u64,
    /// How many.
    pub count: u64,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Pages touched.
    pub faults: u64,
    /// Pages of the size asked for that it got, by the kernel's account.
    pub pages: Option<u64>,
    /// Pages that a parent had filled before its child wrote (`fork-cow`).
    pub filled: u64,
    /// Passes over fresh memory: more than one with `--duration` only.
    pub passes: u32,
    /// Bytes of memory it got; none where it is only read.
    pub bytes: u64,
    /// Time of its slowest thread, ns; of what is timed alone: memory is mapped before and unmapped after.
    pub elapsed_ns: u64,
    /// Bytes per ns: 1e9 bytes per second. `None` where memory is only read.
    pub gb_per_s: Option<f64>,
    /// 2^30 bytes per second.
    pub gib_per_s: Option<f64>,
    /// Minor faults of the threads meanwhile; equals `faults` if nothing else was touched for the first
    /// time.
    pub minor_faults: u64,
    /// Growth of `thp_fault_alloc` in `/proc/vmstat`: PMD-sized faults of the whole system.
    pub thp_fault_alloc: Option<u64>,
    /// Time of a fault; `None` if there was none.
    pub latency: Option<Latency>,
    /// Time of reading and writing the memory again, with `--retouch`; of the slowest thread.
    pub retouch: Option<Rewrite>,
    /// Time of the iterations of `zero-page`, ns.
    pub bench_ns: Option<u64>,
    /// What the threads of `--saturate` wrote meanwhile, 1e9 bytes per second.
    pub saturated_gb_per_s: Option<f64>,
    /// What perf counted.
    pub counted: Counted,
}

/// What was counted of the threads and processes of a run: of what is timed, and of what comes after it
/// (`--retouch`, the iterations of `zero-page`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Time in which it was counted, ns.
    pub ns: u64,
    /// The counts.
    pub counts: Counts,
}

/// Times of going over memory that is there.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewrite {
    /// Reading every word, ns.
    pub read_ns: u64,
    /// Writing every word, ns.
    pub write_ns: u64,
}

impl Rewrite {
    pub(super) fn add(&mut self, other: Self) {
        self.read_ns += other.read_ns;
        self.write_ns += other.write_ns;
    }
}

/// How runs spread: the unit of repetition is the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// `elapsed_ns` of the runs.
    pub elapsed_ns: Spread,
    /// `gb_per_s` of the runs.
    pub gb_per_s: Option<Spread>,
    /// `gib_per_s` of the runs.
    pub gib_per_s: Option<Spread>,
    /// Medians of the runs' latencies, ns.
    pub latency_p50_ns: Option<Spread>,
    /// 90th percentiles, ns.
    pub latency_p90_ns: Option<Spread>,
    /// 99th percentiles, ns.
    pub latency_p99_ns: Option<Spread>,
    /// Longest, ns.
    pub latency_max_ns: Option<Spread>,
    /// Reading the memory again, ns.
    pub retouch_read_ns: Option<Spread>,
    /// Writing the memory again, ns.
    pub retouch_write_ns: Option<Spread>,
    /// One iteration of `zero-page`, ns.
    pub iteration_ns: Option<Spread>,
    /// What the threads of `--saturate` wrote, 1e9 bytes per second.
    pub saturated_gb_per_s: Option<Spread>,
    /// What perf counted.
    pub counters: counters::Summary,
}

/// Time of a fault with its clear, as the program feels it, and two clock readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Least, ns.
    pub min_ns: u64,
    /// Mean, ns, rounded down.
    pub mean_ns: u64,
    /// Median, ns, within 0.1 %, as the other percentiles.
    pub p50_ns: u64,
    /// 90th percentile, ns.
    pub p90_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
    /// Most, ns.
    pub max_ns: u64,
}

/// Latencies as they come, in bounded memory.
#[derive(Debug)]
pub(super) struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
                .expect("the bounds and the digits are in range"),
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl Latencies {
    pub(super) fn record(&mut self, times_ns: &[u64]) {
        for &ns in times_ns {
            self.histogram.saturating_record(ns);
            self.sum_ns += u128::from(ns);
            self.min_ns = self.min_ns.min(ns);
            self.max_ns = self.max_ns.max(ns);
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        let added = self.histogram.add(&other.histogram);
        added.expect("both histograms have the same bounds");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub(super) fn summary(&self) -> Option<Latency> {
        let count = self.histogram.len();
        if count == 0 {
            return None;
        }
        let mean_ns = self.sum_ns / u128::from(count);
        let quantile = |quantile| {
            let ns = self.histogram.value_at_quantile(quantile);
            ns.clamp(self.min_ns, self.max_ns)
        };
        Some(Latency {
            count,
            min_ns: self.min_ns,
            mean_ns: u64::try_from(mean_ns).expect("a mean is at most the largest"),
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: self.max_ns,
        })
    }
}

impl Run {
    pub(super) fn new(
        plan: &Plan,
        pass: &Pass,
        passes: u32,
        thp_fault_alloc: Option<u64>,
        latency: Option<Latency>,
        saturated_gb_per_s: Option<f64>,
        counted: Counted,
    ) -> Self {
        let got = pass.pages.unwrap_or(pass.faults).min(pass.faults);
        let small_bytes = (pass.faults - got).saturating_mul(plan.small_bytes());
        let bytes = got
            .saturating_mul(plan.page_size_bytes)
            .saturating_add(small_bytes);
        let bytes = if plan.origin == Origin::Zero {
            0
        } else {
            bytes
        };
        let gb_per_s = (bytes > 0).then(|| bytes as f64 / pass.elapsed_ns.max(1) as f64);
        Self {
            faults: pass.faults,
            pages: pass.pages,
            filled: pass.filled,
            passes,
            bytes,
            elapsed_ns: pass.elapsed_ns,
            gb_per_s,
            gib_per_s: gb_per_s.map(|rate| rate * 1e9 / (1_u64 << 30) as f64),
            minor_faults: pass.minor_faults,
            thp_fault_alloc,
            latency,
            retouch: plan.retouch.map(|_| pass.rewrite),
            bench_ns: plan.zero_bench.map(|_| pass.bench_ns),
            saturated_gb_per_s,
            counted,
        }
    }
}

impl Summary {
    fn of(plan: &Plan, runs: &[Run]) -> Option<Self> {
        let spread = |of: &dyn Fn(&Run) -> Option<f64>| Spread::of(runs.iter().filter_map(of));
        let latency = |of: fn(&Latency) -> u64| {
            spread(&|run: &Run| run.latency.as_ref().map(|latency| of(latency) as f64))
        };
        let retouch = |of: fn(&Rewrite) -> u64| {
            spread(&|run: &Run| run.retouch.as_ref().map(|rewrite| of(rewrite) as f64))
        };
        let iterations = plan
            .zero_bench
            .map(|ZeroBench { iterations, .. }| iterations);
        Some(Self {
            elapsed_ns: spread(&|run| Some(run.elapsed_ns as f64))?,
            gb_per_s: spread(&|run| run.gb_per_s),
            gib_per_s: spread(&|run| run.gib_per_s),
            latency_p50_ns: latency(|latency| latency.p50_ns),
            latency_p90_ns: latency(|latency| latency.p90_ns),
            latency_p99_ns: latency(|latency| latency.p99_ns),
            latency_max_ns: latency(|latency| latency.max_ns),
            retouch_read_ns: retouch(|rewrite| rewrite.read_ns),
            retouch_write_ns: retouch(|rewrite| rewrite.write_ns),
            iteration_ns: spread(&|run| Some(run.bench_ns? as f64 / f64::from(iterations?))),
            saturated_gb_per_s: spread(&|run| run.saturated_gb_per_s),
            counters: counters::Summary::of(
                runs.iter().map(|run| (run.counted.ns, &run.counted.counts)),
            ),
        })
    }
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        runs: Vec<Run>,
        latencies: &Latencies,
        timer_overhead_ns: u64,
        pages_source: String,
        interrupted_by: Option<i32>,
    ) -> Self {
        let faults = runs.iter().map(|run| run.faults).sum();
        let pages: Option<u64> = runs.iter().map(|run| run.pages).sum();
        let expected = expected(plan, &runs);
        let mut notes = plan.notes.clone();
        notes.extend(note_of_pages(plan, faults, pages));
        notes.extend(note_of_outliers(&runs));
        Self {
            kind: plan.kind,
            page_size_bytes: plan.page_size_bytes,
            size_bytes: plan.size_bytes(),
            threads: plan.threads,
            cpus: [&plan.cpus[..], &plan.node_cpus].concat(),
            mem_node: plan.mem_node,
            touch: plan.touch.to_string(),
            repeat: plan.repeat,
            faults,
            pages,
            pages_source,
            expected_clears: expected
                .iter()
                .filter(|expected| expected.operation == Operation::Clear)
                .map(|expected| expected.count)
                .sum(),
            expected,
            bytes: runs.iter().map(|run| run.bytes).sum(),
            elapsed_ns: runs.iter().map(|run| run.elapsed_ns).sum(),
            latency: latencies.summary(),
            timer_overhead_ns,
            summary: Summary::of(plan, &runs),
            runs,
            configured: plan.changes.clone(),
            notes,
            interrupted_by,
        }
    }
}

/// Clears and copies of all runs.
fn expected(plan: &Plan, runs: &[Run]) -> Vec<Expected> {
    let row = |operation, cause: Cause, count| Expected {
        operation,
        cause: cause.name().to_owned(),
        page_size_bytes: plan.page_size_bytes,
        count,
    };
    let cleared = runs.iter().map(|run| match plan.kind {
        Kind::ForkCow => run.filled,
        Kind::Thp
        | Kind::Mthp
        | Kind::Hugetlb
        | Kind::Shmem
        | Kind::MemfdHugetlb
        | Kind::FallocateHugetlb
        | Kind::Collapse
        | Kind::ZeroPage
        | Kind::Populate
        | Kind::Base => run.pages.unwrap_or(run.faults),
    });
    let clears = plan
        .clear_cause()
        .map(|cause| row(Operation::Clear, cause, cleared.sum()));
    let copied = runs.iter().map(|run| run.faults).sum();
    let copies = plan
        .copies()
        .then(|| row(Operation::Copy, Cause::HugetlbFault, copied));
    clears.into_iter().chain(copies).collect()
}

/// What it means that pages are not what was touched.
fn note_of_pages(plan: &Plan, faults: u64, pages: Option<u64>) -> Option<String> {
    let pages = pages.filter(|pages| *pages != faults)?;
    let size = format_bytes(plan.page_size_bytes);
    Some(match plan.kind {
        Kind::ForkCow => format!(
            "{faults} huge pages of {size} were written to by the child, which then had {pages} of its own{}",
            if plan.copies() {
                ""
            } else {
                ": the kernel splits them and copies base pages"
            }
        ),
        Kind::ZeroPage => format!(
            "{faults} touches made {pages} faults: the memory is not mapped by zero pages of {size} alone"
        ),
        Kind::Thp
        | Kind::Mthp
        | Kind::Hugetlb
        | Kind::Shmem
        | Kind::MemfdHugetlb
        | Kind::FallocateHugetlb
        | Kind::Collapse
        | Kind::Populate
        | Kind::Base => format!(
            "{faults} touches got {pages} pages of {size}: the kernel fell back to another size where it found no free page of this one"
        ),
    })
}

/// Which runs are far from the others. By the time of a page: with `--duration` all take as long.
fn note_of_outliers(runs: &[Run]) -> Option<String> {
    let times_ns: Vec<u64> = runs
        .iter()
        .map(|run| run.elapsed_ns / run.faults.max(1))
        .collect();
    let listed: Vec<String> = outliers(&times_ns)
        .into_iter()
        .map(|index| format!("{} ({})", index + 1, format_ns(times_ns[index] as f64)))
        .collect();
    let median_ns = Spread::of(times_ns.iter().map(|ns| *ns as f64))?.median;
    (!listed.is_empty()).then(|| {
        format!(
            "the time of a page is an outlier in run {}, more than {OUTLIER_DEVIATIONS} robust sd from the median of the runs ({}), and is in mean and sd; first runs are slow where a hypervisor makes memory present at the first touch: then run again",
            listed.join(", "),
            format_ns(median_ns)
        )
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = format_bytes(self.page_size_bytes);
        write!(
            f,
            "{}: {} of {} runs of {} in pages of {page}",
            self.kind.as_str(),
            self.runs.len(),
            self.repeat,
            format_bytes(self.size_bytes),
        )?;
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        match self.cpus[..] {
            [] => {}
            [cpu] => write!(f, ", CPU {cpu}")?,
            _ => write!(f, ", CPUs {}", crate::units::format_numbers(&self.cpus))?,
        }
        if let Some(node) = self.mem_node {
            write!(f, ", memory of node {node}")?;
        }
        writeln!(f)?;
        if let Some(summary) = &self.summary {
            writeln!(f, "{}", summary.table(self.kind))?;
            if !summary.counters.rows.is_empty() {
                write!(f, "{}", summary.counters)?;
            }
        }
        let touched = self.kind.verb();
        match self.pages {
            Some(pages) => writeln!(
                f,
                "{touched} {} pages; got {pages} of {page} ({})",
                self.faults, self.pages_source
            )?,
            None => writeln!(
                f,
                "{touched} {} pages; got: {}",
                self.faults, self.pages_source
            )?,
        }
        if self.expected.is_empty() {
            writeln!(f, "a trace must show no clear of it")?;
        }
        for expected in &self.expected {
            writeln!(
                f,
                "a trace must show {} {} of {}, cause {}, at each site that makes them",
                expected.count,
                match expected.operation {
                    Operation::Clear => "clears",
                    Operation::Copy => "copies",
                },
                format_bytes(expected.page_size_bytes),
                expected.cause
            )?;
        }
        for Change { path, value } in &self.configured {
            writeln!(
                f,
                "set {} to {value} for the runs, and put it back",
                path.display()
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        if let Some(signal) = self.interrupted_by {
            writeln!(f, "ended early by signal {signal}")?;
        }
        Ok(())
    }
}

impl Kind {
    /// What it does to a page, in the past tense.
    fn verb(self) -> &'static str {
        match self {
            Self::Thp | Self::Mthp | Self::Hugetlb | Self::Shmem | Self::MemfdHugetlb => "touched",
            Self::FallocateHugetlb => "allocated",
            Self::ForkCow => "wrote from a child to",
            Self::Collapse => "collapsed",
            Self::ZeroPage => "read",
            Self::Populate => "populated",
            Self::Base => "touched",
        }
    }
}

impl Summary {
    fn table(&self, kind: Kind) -> String {
        let columns: [Column; 7] = [
            ("", true),
            (
                if self.elapsed_ns.n == 1 {
                    "one run"
                } else {
                    "mean"
                },
                false,
            ),
            ("sd", false),
            ("SE", false),
            ("min", false),
            ("max", false),
            ("n", false),
        ];
        let time = |ns: f64| format_ns(ns);
        let rate = |rate: f64| format!("{rate:.3}");
        type Format = fn(f64) -> String;
        let (time, rate): (Format, Format) = (time, rate);
        let each = match kind {
            Kind::FallocateHugetlb | Kind::Collapse | Kind::Populate => "per call",
            Kind::Thp
            | Kind::Mthp
            | Kind::Hugetlb
            | Kind::Shmem
            | Kind::MemfdHugetlb
            | Kind::ForkCow
            | Kind::ZeroPage
            | Kind::Base => "per fault",
        };
        let rows = [
            ("elapsed".to_owned(), Some(self.elapsed_ns), time),
            ("GB/s".to_owned(), self.gb_per_s, rate),
            ("GiB/s".to_owned(), self.gib_per_s, rate),
            (format!("{each}, p50"), self.latency_p50_ns, time),
            (format!("{each}, p90"), self.latency_p90_ns, time),
            (format!("{each}, p99"), self.latency_p99_ns, time),
            (format!("{each}, max"), self.latency_max_ns, time),
            ("read again".to_owned(), self.retouch_read_ns, time),
            ("written again".to_owned(), self.retouch_write_ns, time),
            ("one iteration".to_owned(), self.iteration_ns, time),
            (
                "GB/s of saturating threads".to_owned(),
                self.saturated_gb_per_s,
                rate,
            ),
        ];
        let rows: Vec<(String, Spread, Format)> = rows
            .into_iter()
            .filter_map(|(name, spread, format)| Some((name, spread?, format)))
            .collect();
        // Of one run there is no spread.
        let columns = if self.elapsed_ns.n == 1 {
            &columns[..2]
        } else {
            &columns[..]
        };
        let records = rows.into_iter().map(|(name, spread, format)| {
            let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), format);
            let mut record = vec![
                name,
                format(spread.mean),
                or_dash(spread.sd),
                or_dash(spread.se),
                format(spread.min),
                format(spread.max),
                spread.n.to_string(),
            ];
            record.truncate(columns.len());
            record
        });
        grid(columns, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_known_numbers() {
        let of = |times: &[u64]| {
            let mut latencies = Latencies::default();
            latencies.record(times);
            latencies.summary()
        };
        assert_eq!(of(&[]), None);
        let one = of(&[7]).unwrap();
        assert_eq!(
            (one.min_ns, one.mean_ns, one.p50_ns, one.max_ns),
            (7, 7, 7, 7)
        );
        let four = of(&[9, 1, 2, 4]).unwrap();
        assert_eq!((four.count, four.min_ns, four.mean_ns), (4, 1, 4));
        assert_eq!((four.p50_ns, four.p99_ns, four.max_ns), (2, 9, 9));
        let most = of(&[u64::MAX; 3]).unwrap();
        assert_eq!((most.mean_ns, most.max_ns), (u64::MAX, u64::MAX));

        let thousand: Vec<u64> = (1..=1000).map(|ms| ms * 1_000_000).collect();
        let spread = of(&thousand).unwrap();
        for (quantile_ns, exact_ms) in [
            (spread.p50_ns, 500.0),
            (spread.p90_ns, 900.0),
            (spread.p99_ns, 990.0),
            (spread.p999_ns, 999.0),
        ] {
            let error = quantile_ns as f64 / 1e6 / exact_ms - 1.0;
            assert!(error.abs() < 1e-3, "{quantile_ns} ns for {exact_ms} ms");
        }
    }

    #[test]
    fn runs_far_from_the_others_are_noted() {
        let run = |elapsed_ns, faults| Run {
            faults,
            pages: Some(faults),
            filled: 0,
            passes: 1,
            bytes: 0,
            elapsed_ns,
            gb_per_s: None,
            gib_per_s: None,
            minor_faults: faults,
            thp_fault_alloc: None,
            latency: None,
            retouch: None,
            bench_ns: None,
            saturated_gb_per_s: None,
            counted: Counted {
                ns: 0,
                counts: Counts::default(),
            },
        };
        let usual = [run(1000, 10), run(2020, 20), run(980, 10), run(0, 0)];
        assert_eq!(note_of_outliers(&[]), None);
        assert_eq!(note_of_outliers(&usual[..3]), None);
        let mut runs = vec![run(50_000, 10)];
        runs.extend_from_slice(&usual[..3]);
        runs.push(run(990, 10));
        let note = note_of_outliers(&runs).unwrap();
        assert!(
            note.contains("in run 1 (5.00 µs), more than 10 robust sd"),
            "{note}"
        );
        assert!(note.contains("of the runs (100 ns)"), "{note}");
        // One that was over before it touched anything.
        let note = note_of_outliers(&usual).unwrap();
        assert!(note.contains("in run 4 (0.00 ns)"), "{note}");
    }

    #[test]
    fn sums_of_latencies_are_those_of_all() {
        let (mut first, mut second, mut both) = (
            Latencies::default(),
            Latencies::default(),
            Latencies::default(),
        );
        first.record(&[3, 1_000_000]);
        second.record(&[2, 5_000]);
        both.record(&[3, 1_000_000, 2, 5_000]);
        first.add(&second);
        assert_eq!(first.summary(), both.summary());
    }
}
