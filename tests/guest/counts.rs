//! Clears are counted exactly, against the workload's own count and the kernel's.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    Expected,
    trace::{MIB2, Traced, trace, trace_workload},
};

const GIB: u64 = 1 << 30;
const KIB64: u64 = 64 << 10;

pub(crate) fn run(expected: &Expected) -> Result<()> {
    for method in ["fentry", "kprobe"] {
        let options = ["--per-cpu", "--method", method];
        if expected.no_thp {
            let traced = trace(&options, &["true"])?;
            ensure!(
                traced.has_note("no_thp"),
                "no note on THP: {}",
                traced.total
            );
        } else {
            thp(expected, &options).with_context(|| format!("THP by {method}"))?;
        }
        let hugetlb_2m = [
            "hugetlb",
            "--page-size",
            "2M",
            "--size",
            "64M",
            "--cpu",
            "1",
            "--configure",
        ];
        hugetlb(expected, &options, &hugetlb_2m, MIB2, 32)
            .with_context(|| format!("hugetlb 2M by {method}"))?;
        let hugetlb_1g = ["hugetlb", "--page-size", "1G", "--size", "1G", "--cpu", "1"];
        hugetlb(expected, &options, &hugetlb_1g, GIB, 1)
            .with_context(|| format!("hugetlb 1G by {method}"))?;
        if has_mthp() {
            mthp(expected, &options).with_context(|| format!("mTHP by {method}"))?;
        }
    }
    if !expected.init_on_alloc {
        nothing()?;
    } else if !expected.no_thp {
        exact_allocator(expected)?;
    }
    Ok(())
}

/// As many possible CPUs as a large server has, most of them never there.
pub(crate) fn many_cpus(expected: &Expected, cpus: u32) -> Result<()> {
    let doctor = Command::new("hugeclear-trace")
        .args(["doctor", "--json"])
        .output()?;
    let diagnosis: Value = serde_json::from_slice(&doctor.stdout).context("doctor --json")?;
    ensure!(
        diagnosis["facts"]["cpu"]["possible"] == cpus,
        "{}",
        diagnosis["facts"]["cpu"]
    );
    let map_bytes = diagnosis["map_memory_bytes"]
        .as_u64()
        .context("map_memory_bytes")?;
    ensure!(map_bytes <= 64 << 20, "{map_bytes} bytes of maps");
    for method in ["fentry", "kprobe"] {
        thp(expected, &["--per-cpu", "--method", method])?;
    }
    // The more functions are around clears, the longer is the search that the verifier follows.
    let traced = trace_workload(&["--faults"], &["thp", "--size", "64M", "--cpu", "1"])?;
    traced.check_sound()?;
    ensure!(
        traced.rows().len() == 1
            && traced.rows()[0]["count"] == 32
            && !traced.has_note("not_traced"),
        "{}",
        traced.total
    );
    Ok(())
}

/// Sites at which an anonymous huge page is cleared.
pub(crate) fn anonymous_sites(expected: &Expected) -> Vec<&str> {
    match (expected.init_on_alloc, expected.allocator_instead) {
        (false, _) => vec![&expected.site],
        (true, true) => vec!["allocator"],
        (true, false) => vec![&expected.site, "allocator"],
    }
}

fn thp(expected: &Expected, options: &[&str]) -> Result<()> {
    let traced = trace_workload(options, &["thp", "--size", "64M", "--cpu", "1"])?;
    check_anonymous(&traced, expected, options, MIB2, 1, 32)?;
    // The kernel's own count of the same faults.
    let run = &traced.workloads[0]["runs"][0];
    ensure!(
        run["thp_fault_alloc"] == 32,
        "thp_fault_alloc during the workload: {run}"
    );
    ensure!(
        traced.has_note("zeroed_twice") == (expected.init_on_alloc && !expected.allocator_instead),
        "the note on zeroing twice: {}",
        traced.total
    );
    Ok(())
}

fn mthp(expected: &Expected, options: &[&str]) -> Result<()> {
    let directory = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    std::fs::write(directory, "madvise").context(directory)?;
    let workload = [
        "thp",
        "--page-size",
        "64K",
        "--size",
        "4M",
        "--cpu",
        "1",
        "--configure",
    ];
    let traced = trace_workload(options, &workload);
    std::fs::write(directory, "never").context(directory)?;
    check_anonymous(&traced?, expected, options, KIB64, 1, 64)
}

fn check_anonymous(
    traced: &Traced,
    expected: &Expected,
    options: &[&str],
    bytes: u64,
    cpu: u64,
    count: u64,
) -> Result<()> {
    let sites = anonymous_sites(expected);
    ensure!(
        traced.rows().len() == sites.len(),
        "rows beside {sites:?}: {}",
        traced.total
    );
    for site in sites {
        let row = traced.check_row(site, bytes, cpu, count)?;
        ensure!(
            row["derived"] == (site == "allocator"),
            "whether it is derived: {row}"
        );
    }
    check_against_workload(traced, options, count)
}

fn hugetlb(
    expected: &Expected,
    options: &[&str],
    workload: &[&str],
    bytes: u64,
    count: u64,
) -> Result<()> {
    // The pool is cleared on the fault, whatever the allocator does.
    let traced = trace_workload(options, workload)?;
    ensure!(traced.rows().len() == 1, "rows: {}", traced.total);
    traced.check_row(&expected.site, bytes, 1, count)?;
    check_against_workload(&traced, options, count)
}

fn check_against_workload(traced: &Traced, options: &[&str], count: u64) -> Result<()> {
    traced.check_sound()?;
    let workload = &traced.workloads[0];
    ensure!(
        workload["expected_clears"] == count,
        "the workload expects otherwise: {workload}"
    );
    // All clears lie within the touches of the workload.
    let elapsed = workload["elapsed_ns"].as_u64().context("elapsed_ns")?;
    let cleared: u64 = traced
        .rows()
        .iter()
        .filter_map(|row| row["sum_ns"].as_u64())
        .sum();
    ensure!(
        cleared < elapsed,
        "cleared for {cleared} ns in {elapsed} ns"
    );
    let method = options[options.len() - 1];
    let probes = traced.total["probes"].as_array().context("probes")?;
    ensure!(
        !probes.is_empty() && probes.iter().all(|probe| probe["method"] == method),
        "{probes:?}"
    );
    Ok(())
}

/// No clear: no row, and the reason.
fn nothing() -> Result<()> {
    let traced = trace(&[], &["true"])?;
    ensure!(
        traced.rows().is_empty() && traced.has_note("no_clears"),
        "{}",
        traced.total
    );
    Ok(())
}

/// Filters leave out what they should, and lose nothing.
pub(crate) fn filters(expected: &Expected) -> Result<()> {
    let workload = [
        "hugetlb",
        "--page-size",
        "2M",
        "--size",
        "8M",
        "--cpu",
        "1",
        "--configure",
    ];
    let all = [
        (["--min-size", "2M"], 4),
        (["--min-size", "4M"], 0),
        (["--max-size", "2M"], 4),
        (["--max-size", "1M"], 0),
        (["--comm", "hugeclear-trace"], 4),
        (["--comm", "hugeclear-trac"], 0),
        (["--pid", "1"], 0),
    ];
    // A kretprobe sees no arguments: what a size filter leaves out must be tracked to its exit.
    let by_kprobe = [(["--max-size", "1M"], 0), (["--pid", "1"], 0)];
    for (method, filters) in [("fentry", &all[..]), ("kprobe", &by_kprobe)] {
        for (filter, count) in filters {
            let options = [&["--per-cpu", "--method", method][..], filter].concat();
            let traced = trace_workload(&options, &workload)?;
            traced.check_sound()?;
            if *count == 0 {
                ensure!(traced.rows().is_empty(), "{filter:?}: {}", traced.total);
            } else {
                traced.check_row(&expected.site, MIB2, 1, *count)?;
            }
        }
    }
    Ok(())
}

/// `--allocator exact` sees the same clears, by whichever function this kernel has.
fn exact_allocator(expected: &Expected) -> Result<()> {
    for method in ["fentry", "kprobe"] {
        let options = ["--per-cpu", "--allocator", "exact", "--method", method];
        let traced = trace_workload(&options, &["thp", "--size", "64M", "--cpu", "1"])?;
        traced.check_row("allocator", MIB2, 1, 32)?;
        let rows = anonymous_sites(expected).len();
        ensure!(traced.rows().len() == rows, "rows: {}", traced.total);
        traced.check_sound()?;
        ensure!(
            traced.has_note("every_allocation"),
            "its cost is not noted: {}",
            traced.total
        );
    }
    Ok(())
}

fn has_mthp() -> bool {
    std::fs::exists("/sys/kernel/mm/transparent_hugepage/hugepages-64kB").unwrap_or(false)
}
