//! What a workload did, for people and as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Kind, Plan};
use crate::{settings::Change, units::format_bytes};

/// The ground truth of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where the huge pages came from.
    pub kind: Kind,
    /// Bytes of one huge page.
    pub page_size_bytes: u64,
    /// CPU it was pinned to, if any.
    pub cpu: Option<u32>,
    /// Runs asked for.
    pub repeat: u32,
    /// Pages touched, over all runs: the faults it caused on purpose.
    pub faults: u64,
    /// Huge pages it got, over all runs, by the kernel's account; `None` if the kernel has none.
    pub huge_pages: Option<u64>,
    /// Where the kernel accounts for them, in words.
    pub huge_pages_source: String,
    /// Clears of this page size that a trace must show: the huge pages it got, or the touches where
    /// the kernel does not account for them.
    pub expected_clears: u64,
    /// Bytes of those clears.
    pub bytes: u64,
    /// Time of all touch loops, ns.
    pub elapsed_ns: u64,
    /// Time of a touch, over all runs; `None` if nothing was touched.
    pub latency: Option<Latency>,
    /// What the two clock readings around a touch cost, ns; it is part of each latency.
    pub timer_overhead_ns: u64,
    /// Each run.
    pub runs: Vec<Run>,
    /// Settings that were changed for the runs and put back.
    pub configured: Vec<Change>,
    /// What to know about the numbers.
    pub notes: Vec<String>,
    /// Number of the signal that ended it early, if one did; exit status 128 + this number.
    pub interrupted_by: Option<i32>,
}

/// One run on fresh memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Pages touched.
    pub faults: u64,
    /// Huge pages it got, by the kernel's account.
    pub huge_pages: Option<u64>,
    /// Time of the touch loop, ns.
    pub elapsed_ns: u64,
    /// Minor faults of the thread during the touch loop; equals `faults` if nothing else was touched
    /// for the first time.
    pub minor_faults: u64,
    /// Growth of `thp_fault_alloc` in `/proc/vmstat`: PMD-sized faults of the whole system.
    pub thp_fault_alloc: Option<u64>,
    /// Time of a touch; `None` if nothing was touched.
    pub latency: Option<Latency>,
}

/// Time of a touch: the fault with its clear, and two clock readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Least, ns.
    pub min_ns: u64,
    /// Mean, ns, rounded down.
    pub mean_ns: u64,
    /// Median, ns; of an even number of touches the mean of the middle two, rounded down.
    pub median_ns: u64,
    /// Most, ns.
    pub max_ns: u64,
}

impl Latency {
    /// Of these times, which are sorted in place (no memory is taken between runs); `None` of none.
    pub(super) fn of(times_ns: &mut [u64]) -> Option<Self> {
        times_ns.sort_unstable();
        let (min_ns, max_ns) = (*times_ns.first()?, *times_ns.last()?);
        let count = times_ns.len();
        let (low, high) = (times_ns[(count - 1) / 2], times_ns[count / 2]);
        let sum: u128 = times_ns.iter().map(|ns| u128::from(*ns)).sum();
        let mean_ns = sum / count as u128;
        Some(Self {
            min_ns,
            mean_ns: u64::try_from(mean_ns).expect("a mean is at most the largest"),
            median_ns: low.midpoint(high),
            max_ns,
        })
    }
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        runs: Vec<Run>,
        latency: Option<Latency>,
        timer_overhead_ns: u64,
        huge_pages_source: String,
        interrupted_by: Option<i32>,
    ) -> Self {
        let faults = runs.iter().map(|run| run.faults).sum();
        let huge_pages: Option<u64> = runs.iter().map(|run| run.huge_pages).sum();
        let expected_clears = huge_pages.unwrap_or(faults);
        let mut notes = plan.notes.clone();
        if let Some(huge_pages) = huge_pages
            && huge_pages != faults
        {
            notes.push(format!(
                "{faults} touches got {huge_pages} huge pages of {}: the kernel fell back to another size where it found no free page of this one",
                format_bytes(plan.page_size_bytes)
            ));
        }
        Self {
            kind: plan.kind,
            page_size_bytes: plan.page_size_bytes,
            cpu: plan.cpu,
            repeat: plan.repeat,
            faults,
            huge_pages,
            huge_pages_source,
            expected_clears,
            bytes: expected_clears.saturating_mul(plan.page_size_bytes),
            elapsed_ns: runs.iter().map(|run| run.elapsed_ns).sum(),
            latency,
            timer_overhead_ns,
            runs,
            configured: plan.changes.clone(),
            notes,
            interrupted_by,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = format_bytes(self.page_size_bytes);
        write!(
            f,
            "{}: touched {} x {page}",
            self.kind.as_str(),
            self.faults
        )?;
        if let Some(cpu) = self.cpu {
            write!(f, " on CPU {cpu}")?;
        }
        writeln!(f, ", {} of {} runs", self.runs.len(), self.repeat)?;
        writeln!(
            f,
            "clears to expect in a trace: {} x {page} ({})",
            self.expected_clears, self.huge_pages_source
        )?;
        for (number, run) in self.runs.iter().enumerate() {
            writeln!(
                f,
                "run {}: {} in {}{}",
                number + 1,
                format_bytes(run.faults.saturating_mul(self.page_size_bytes)),
                time(run.elapsed_ns),
                per_touch(run.latency)
            )?;
        }
        if self.runs.len() > 1 {
            writeln!(
                f,
                "all: {} in {}{}",
                format_bytes(self.faults.saturating_mul(self.page_size_bytes)),
                time(self.elapsed_ns),
                per_touch(self.latency)
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

fn per_touch(latency: Option<Latency>) -> String {
    latency.map_or_else(
        String::new,
        |Latency {
             min_ns,
             mean_ns,
             median_ns,
             max_ns,
         }| {
            format!(
                "; per fault min {}, mean {}, median {}, max {}",
                time(min_ns),
                time(mean_ns),
                time(median_ns),
                time(max_ns)
            )
        },
    )
}

/// Nanoseconds in the unit that leaves one to three digits before the point.
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_known_numbers() {
        let of = |times: &[u64]| Latency::of(&mut times.to_vec());
        assert_eq!(of(&[]), None);
        assert_eq!(
            of(&[7]),
            Some(Latency {
                min_ns: 7,
                mean_ns: 7,
                median_ns: 7,
                max_ns: 7
            })
        );
        assert_eq!(
            of(&[9, 1, 2, 4]),
            Some(Latency {
                min_ns: 1,
                mean_ns: 4,
                median_ns: 3,
                max_ns: 9
            })
        );
        let most = Some(Latency {
            min_ns: u64::MAX,
            mean_ns: u64::MAX,
            median_ns: u64::MAX,
            max_ns: u64::MAX,
        });
        assert_eq!(of(&[u64::MAX; 3]), most);
    }
}
