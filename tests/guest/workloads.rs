//! Each workload causes what it says: its own count, that of the kernel and that of the tracer are the
//! same. And its options do what they say, by the tracer's columns.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Expected,
    trace::{MIB2, Traced, huge_pages_on_request, sum, trace_exactly, trace_workload},
};

/// What is cleared or copied where it can be traced.
const CLEARING: [&str; 11] = [
    "thp --size 8M",
    "thp --size 16M --threads 2 --cpu 0-1 --touch random --retouch",
    "thp --size 16M --no-madvise --configure --stride 4M",
    "mthp --page-size 64K --size 1M --configure",
    "mthp --page-size 16K --size 1M --configure --stride 4K",
    "hugetlb --size 8M --repeat 3 --configure",
    "memfd-hugetlb --size 6M --configure",
    "fallocate-hugetlb --size 10M --configure --retouch=page",
    "fork-cow --size 12M --configure",
    "fork-cow --thp --size 14M",
    "populate --size 8M",
];
/// The same where one call faults everything in.
const POPULATED: &str = "populate --populate-by mmap --size 16M --threads 2 --configure";
/// What reaches no clear site.
const NOT_CLEARING: [&str; 6] = [
    "shmem --size 8M --configure",
    "collapse --size 8M",
    "base --size 4M --threads 2",
    "zero-page --bench stride --mapping huge --size 64M --iterations 3",
    "zero-page --bench compare --mapping huge --size 64M --iterations 2 --repeat 2",
    "zero-page --bench compare --mapping small --size 8M --iterations 2",
];

pub(crate) fn run(expected: &Expected) -> Result<()> {
    huge_pages_on_request(expected)?;
    // Their faults are traced only if they can happen when the trace begins.
    let mthp = "/sys/kernel/mm/transparent_hugepage/hugepages-16kB/enabled";
    if fs::exists(mthp)? {
        fs::write(mthp, "madvise").context(mthp)?;
    }
    let clearing: Vec<&str> = CLEARING.into_iter().chain([POPULATED]).collect();
    let traced = traced(&clearing)?;
    let mut counts: BTreeMap<(String, String, u64), u64> = BTreeMap::new();
    for report in &traced.workloads {
        check_own_count(report)?;
        for row in report["expected"].as_array().context("expected")? {
            let word = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
            let key = (
                word("operation"),
                word("cause"),
                row["page_size_bytes"].as_u64().unwrap_or(0),
            );
            *counts.entry(key).or_default() += row["count"].as_u64().unwrap_or(0);
        }
    }
    ensure!(counts.len() >= 4, "too few kinds of clears: {counts:?}");
    for ((operation, cause, bytes), count) in &counts {
        let like = json!({"operation": operation, "cause": cause, "page_size_bytes": bytes});
        let seen = sum(traced.rows(), "count", &like);
        ensure!(
            seen == *count,
            "{count} to be seen of {like}, not {seen}: {}",
            traced.total
        );
    }
    let all: u64 = counts.values().sum();
    let seen = sum(traced.rows(), "count", &json!({}));
    ensure!(seen == all, "{seen} seen, not {all}: {}", traced.total);

    let traced = self::traced(&NOT_CLEARING)?;
    for report in &traced.workloads {
        check_own_count(report)?;
        ensure!(report["expected"] == json!([]), "{report}");
    }
    // Made once and kept as long as someone uses it.
    let zero = sum(traced.rows(), "count", &json!({"cause": "huge-zero-page"}));
    let seen = sum(traced.rows(), "count", &json!({}));
    ensure!(
        seen == zero && zero <= 3,
        "nothing was to be cleared: {}",
        traced.total
    );
    options(expected)
}

/// Traces workloads one after the other, those that this kernel has; it says why it has not the others.
fn traced(workloads: &[&str]) -> Result<Traced> {
    let mut commands = Vec::new();
    for workload in workloads {
        let lacks = lacking(workload);
        if lacks.is_empty() {
            commands.push(format!("hugeclear-trace workload {workload} --json"));
            continue;
        }
        let refused = Command::new("hugeclear-trace")
            .arg("workload")
            .args(workload.split_whitespace())
            .output()?;
        let said = String::from_utf8_lossy(&refused.stderr);
        ensure!(
            refused.status.code() == Some(1) && said.lines().count() == 1 && said.contains(lacks),
            "{workload}: {}: {said}",
            refused.status
        );
    }
    let traced = trace_exactly(&["--faults"], &["sh", "-c", &commands.join(" && ")])?;
    traced.check_sound()?;
    traced.check_faults()?;
    ensure!(
        traced.workloads.len() == commands.len(),
        "{} reports of {commands:?}",
        traced.workloads.len()
    );
    Ok(traced)
}

/// What of a workload this kernel does not have; empty if it has it.
fn lacking(workload: &str) -> &'static str {
    let is_5_10 = fs::read_to_string("/proc/sys/kernel/osrelease")
        .is_ok_and(|release| release.starts_with("5.10."));
    match workload {
        _ if !is_5_10 => "",
        _ if workload.starts_with("mthp") => "mTHP",
        _ if workload.starts_with("collapse") => "MADV_COLLAPSE",
        "populate --size 8M" => "MADV_POPULATE_WRITE",
        _ => "",
    }
}

/// What the workload did is what the kernel counted.
fn check_own_count(report: &Value) -> Result<()> {
    let splits = report["kind"] == "fork-cow" && report["expected"][1].is_null();
    for run in report["runs"].as_array().context("runs")? {
        let pages = if splits {
            json!(0)
        } else {
            run["faults"].clone()
        };
        ensure!(
            run["pages"] == pages && run["faults"].as_u64() > Some(0),
            "the kernel counted otherwise: {report}"
        );
    }
    Ok(())
}

/// What the options do, as far as a trace shows it.
fn options(expected: &Expected) -> Result<()> {
    let site = &*expected.site;
    // Where a page is touched.
    for (touch, sixteenths) in [
        ("first", &[0][..]),
        ("middle", &[8]),
        ("last", &[15]),
        ("1M", &[8]),
        ("300K", &[2]),
    ] {
        let traced = trace_workload(
            &["--by", "site,fault-offset"],
            &["thp", "--size", "8M", "--touch", touch],
        )?;
        let offsets: Vec<u64> = traced
            .rows()
            .iter()
            .filter_map(|row| row["fault_offset"].as_u64())
            .collect();
        ensure!(offsets == sixteenths, "--touch {touch}: {}", traced.total);
    }
    let traced = trace_workload(
        &["--by", "site,fault-offset"],
        &["thp", "--size", "64M", "--touch", "random"],
    )?;
    ensure!(
        traced.rows().len() > 4 && sum(traced.rows(), "count", &json!({"site": site})) == 32,
        "--touch random: {}",
        traced.total
    );

    // Clears follow one another at once, unless each page is used in between.
    let longest_run = |retouch: &[&str]| -> Result<u64> {
        let workload = [&["thp", "--size", "64M", "--cpu", "1"], retouch].concat();
        let traced = trace_workload(&["--run-gap", "400"], &workload)?;
        let row = traced.rows().first().context("no row")?;
        row["longest_run"]["clears"].as_u64().context("longest_run")
    };
    let (plain, page) = (longest_run(&[])?, longest_run(&["--retouch=page"])?);
    ensure!(
        page < plain,
        "clears in the longest run: {plain}, with --retouch=page {page}"
    );

    // A competitor on the CPU; without one the guest has nothing else to do.
    let preempted = |more: &[&str]| -> Result<f64> {
        let workload = [&["thp", "--size", "256M", "--cpu", "1"], more].concat();
        let traced = trace_workload(&[], &workload)?;
        let ns = |field| sum(traced.rows(), field, &json!({})) as f64;
        Ok(ns("preempted_ns") / ns("sum_ns"))
    };
    let (alone, beside) = (preempted(&[])?, preempted(&["--compete", "1"])?);
    ensure!(
        beside > 0.2 && beside > 2.0 * alone,
        "preempted: {alone} alone, {beside} beside a competitor"
    );

    // A rate, and a time, which together make a number of faults.
    let traced = trace_workload(
        &["--by", "site,cpu"],
        &[
            "thp",
            "--rate",
            "40",
            "--duration",
            "2",
            "--threads",
            "2",
            "--cpu",
            "0,1",
        ],
    )?;
    let report = traced.load(0)?;
    let clears = sum(traced.rows(), "count", &json!({"site": site}));
    ensure!(
        report["faults"] == clears && (20..=84).contains(&clears) && traced.rows().len() == 2,
        "--rate 40 --duration 2 by two threads: {report} {}",
        traced.total
    );
    Ok(())
}

/// Fragmented memory makes faults compact. In a guest with little memory.
pub(crate) fn fragment(expected: &Expected) -> Result<()> {
    huge_pages_on_request(expected)?;
    let compaction_ns = |more: &[&str]| -> Result<u64> {
        let workload = [&["thp", "--size", "96M", "--configure"], more].concat();
        let traced = trace_workload(&["--faults"], &workload)?;
        let mapped = sum(traced.faults(), "count", &json!({"outcome": "mapped"}));
        let report = traced.load(0)?;
        ensure!(
            report["pages"] == mapped && mapped * MIB2 <= 96 << 20,
            "{report} {}",
            traced.total
        );
        Ok(sum(traced.faults(), "compaction_ns", &json!({})))
    };
    let (free, fragmented) = (compaction_ns(&[])?, compaction_ns(&["--fragment", "95"])?);
    ensure!(
        free == 0 && fragmented > 0,
        "compaction: {free} ns, in fragmented memory {fragmented} ns"
    );
    Ok(())
}

/// CPUs and memory of the nodes that were asked for. In a guest with two nodes.
pub(crate) fn nodes(expected: &Expected) -> Result<()> {
    huge_pages_on_request(expected)?;
    for (node, mem_node) in [(0, 0), (0, 1), (1, 0)] {
        for kind in [&["thp"][..], &["hugetlb", "--configure"]] {
            let (cpus, memory) = (node.to_string(), mem_node.to_string());
            let places = ["--size", "8M", "--node", &cpus, "--mem-node", &memory];
            let traced = trace_workload(&["--per-node"], &[kind, &places].concat())?;
            let like = json!({"site": expected.site, "node": node, "mem_node": mem_node});
            ensure!(
                sum(traced.rows(), "count", &like) == 4
                    && sum(traced.rows(), "count", &json!({})) == 4,
                "{kind:?} on node {node} with memory of {mem_node}: {}",
                traced.total
            );
        }
    }
    Ok(())
}
