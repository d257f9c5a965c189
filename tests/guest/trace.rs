//! Runs hugeclear-trace and reads what it says.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::Expected;

/// Bytes in 2 MiB.
pub(crate) const MIB2: u64 = 2 << 20;

/// The parts of a fault: together they are its duration.
pub(crate) const PARTS: [&str; 5] = [
    "clear_ns",
    "compaction_ns",
    "reclaim_ns",
    "preempted_ns",
    "rest_ns",
];

/// The reports of a trace, and the JSON of the workload that ran meanwhile.
#[derive(Debug)]
pub(crate) struct Traced {
    /// The last line of JSON.
    pub(crate) total: Value,
    /// The lines before.
    pub(crate) windows: Vec<Value>,
    /// What the workload reported, run by run.
    pub(crate) workloads: Vec<Value>,
}

/// Lets only memory that asks for it have huge pages. With `always`, a tracer has some itself: it leaves
/// them out, but ftrace and other tracers see them.
pub(crate) fn huge_pages_on_request(expected: &Expected) -> Result<()> {
    if expected.no_thp {
        return Ok(());
    }
    let setting = "/sys/kernel/mm/transparent_hugepage/enabled";
    fs::write(setting, "madvise").context(setting)
}

/// Traces `command` with `options` and `--json`.
pub(crate) fn trace(options: &[&str], command: &[&str]) -> Result<Traced> {
    let output = Command::new("hugeclear-trace")
        .args(options)
        .args(["--json", "--"])
        .args(command)
        .output()
        .context("cannot start hugeclear-trace")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{options:?} {command:?}: {}: {stderr}",
        output.status
    );
    let mut lines = parse_lines(&String::from_utf8_lossy(&output.stdout))?;
    let total = lines.pop().context("hugeclear-trace printed nothing")?;
    ensure!(
        total["type"] == "total",
        "the last line is no total: {total}"
    );
    // The stdout of the command goes to stderr.
    let workloads = stderr
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    Ok(Traced {
        total,
        windows: lines,
        workloads,
    })
}

/// As [`trace`], again if the kernel skipped an fentry program because one was preempted in the middle of a
/// run: what it skips is counted, and nothing can be said to be exact beside it. Nothing of the kind
/// excuses a kprobe, or a kernel that preempts no program.
#[expect(clippy::print_stdout, reason = "the host shows how often it happens")]
pub(crate) fn trace_exactly(options: &[&str], command: &[&str]) -> Result<Traced> {
    const ATTEMPTS: u32 = 4;
    for _ in 1..ATTEMPTS {
        let traced = trace(options, command)?;
        // The model can be switched while it is traced.
        let preempts = (traced.rows().iter())
            .chain([&traced.total["facts"]])
            .any(|of| matches!(of["preempt_model"].as_str(), Some("full" | "lazy" | "rt")));
        if !(preempts && traced.has_note("programs_skipped")) {
            return Ok(traced);
        }
        println!("{options:?}: the kernel skipped a program: once more");
    }
    trace(options, command)
}

/// Traces a workload; `workload` are its arguments.
pub(crate) fn trace_workload(options: &[&str], workload: &[&str]) -> Result<Traced> {
    let command = [&["hugeclear-trace", "workload"], workload, &["--json"]].concat();
    trace_exactly(options, &command)
}

/// Traces loads one after the other; each is its name and options. Nothing may be lost.
pub(crate) fn trace_loads(options: &[&str], loads: &[&str]) -> Result<Traced> {
    let traced = trace_exactly(options, &["sh", "-c", &script(loads)?])?;
    traced.check_sound()?;
    traced.check_faults()?;
    Ok(traced)
}

/// As [`trace_loads`], and something may be lost.
pub(crate) fn trace_loads_unchecked(options: &[&str], loads: &[&str]) -> Result<Traced> {
    trace(options, &["sh", "-c", &script(loads)?])
}

/// Runs loads one after the other.
fn script(loads: &[&str]) -> Result<String> {
    let me = std::env::current_exe()?;
    let commands: Vec<String> = loads
        .iter()
        .map(|load| format!("{} load {load}", me.display()))
        .collect();
    Ok(commands.join(" && "))
}

/// The sum of `field` of all rows that have the fields of `like`.
pub(crate) fn sum(rows: &[Value], field: &str, like: &Value) -> u64 {
    let like = like.as_object();
    rows.iter()
        .filter(|row| {
            like.is_none_or(|like| like.iter().all(|(field, value)| row[field] == *value))
        })
        .filter_map(|row| row[field].as_u64())
        .sum()
}

/// Each line as JSON.
pub(crate) fn parse_lines(text: &str) -> Result<Vec<Value>> {
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}")))
        .collect()
}

impl Traced {
    /// The rows of the total.
    pub(crate) fn rows(&self) -> &[Value] {
        self.total["rows"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Checks that nothing was lost, and that the figures of each row fit each other.
    pub(crate) fn check_sound(&self) -> Result<()> {
        let losses = &self.total["losses"];
        for loss in [
            "entries_without_exit",
            "exits_without_entry",
            "starts_overwritten",
            "end_before_start",
            "map_full",
            "open_at_detach",
            "other_keys",
        ] {
            ensure!(losses[loss] == 0, "{loss}: {losses}");
        }
        ensure!(
            losses["programs_skipped"].as_u64().unwrap_or(0) == 0,
            "{losses}"
        );
        for row in self.rows() {
            let number = |field: &str| {
                row[field]
                    .as_f64()
                    .with_context(|| format!("{field} of {row}"))
            };
            let order = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns"];
            for pair in order.windows(2) {
                ensure!(number(pair[0])? <= number(pair[1])?, "{pair:?} of {row}");
            }
            let mean = number("sum_ns")? / number("count")?;
            ensure!((number("mean_ns")? - mean).abs() < 1.0, "mean of {row}");
            ensure!(
                number("min_ns")? <= mean && mean <= number("max_ns")?,
                "mean of {row}"
            );
            let bytes = number("count")? * number("page_size_bytes")?;
            ensure!(number("bytes")? == bytes, "bytes of {row}");
            let rate = bytes / number("sum_ns")?;
            ensure!(
                (number("gb_per_s")? / rate - 1.0).abs() < 1e-6,
                "gb_per_s of {row}"
            );
            let is_single = row["count"] == 1;
            ensure!(row["stddev_ns"].is_null() == is_single, "stddev of {row}");
        }
        Ok(())
    }

    /// The rows of faults of the total.
    pub(crate) fn faults(&self) -> &[Value] {
        self.total["faults"].as_array().map_or(&[], Vec::as_slice)
    }

    /// What the load that was run as number `index` says it caused.
    pub(crate) fn load(&self, index: usize) -> Result<&Value> {
        self.workloads
            .get(index)
            .with_context(|| format!("no report of load {index}: {:?}", self.workloads))
    }

    /// Checks that nothing was lost of the faults, and that the parts of each row are the whole.
    pub(crate) fn check_faults(&self) -> Result<()> {
        let losses = &self.total["losses"];
        for loss in ["negative_rest", "cells_full", "events_dropped"] {
            ensure!(losses[loss].as_u64().unwrap_or(0) == 0, "{loss}: {losses}");
        }
        self.check_parts()
    }

    /// Checks that the parts of each row of faults are the whole.
    pub(crate) fn check_parts(&self) -> Result<()> {
        for row in self.faults() {
            let ns = |field: &str| {
                row[field]
                    .as_u64()
                    .with_context(|| format!("{field} of {row}"))
            };
            let parts: Vec<u64> = PARTS.into_iter().map(ns).collect::<Result<_>>()?;
            ensure!(
                parts.iter().sum::<u64>() == ns("sum_ns")?,
                "the parts are not the whole: {row}"
            );
            ensure!(ns("count")? > 0, "a row of nothing: {row}");
            let order = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns"];
            for pair in order.windows(2) {
                ensure!(ns(pair[0])? <= ns(pair[1])?, "{pair:?} of {row}");
            }
        }
        Ok(())
    }

    /// Checks that there is exactly one row of `site` and that it has `count` clears of `bytes` on
    /// `cpu`; returns it.
    pub(crate) fn check_row(&self, site: &str, bytes: u64, cpu: u64, count: u64) -> Result<&Value> {
        let rows: Vec<&Value> = self
            .rows()
            .iter()
            .filter(|row| row["site"] == site)
            .collect();
        ensure!(
            rows.len() == 1,
            "{} rows of {site}: {}",
            rows.len(),
            self.total
        );
        let row = rows[0];
        ensure!(row["page_size_bytes"] == bytes, "page size of {row}");
        ensure!(row["cpu"] == cpu, "CPU of {row}");
        ensure!(
            row["count"] == count,
            "expected {count} clears: {}",
            self.total
        );
        Ok(row)
    }

    /// Whether a note of this code is there.
    pub(crate) fn has_note(&self, code: &str) -> bool {
        let notes = self.total["notes"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        notes.iter().any(|note| note["code"] == code)
    }
}
