//! What a fault consists of: compaction where memory is fragmented, reclaim where it is used up, neither
//! where it is free. In a guest with little memory.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Expected,
    ftrace::Graph,
    trace::{MIB2, Traced, huge_pages_on_request, sum, trace_loads},
};

/// How far the time of compaction and reclaim may be from what ftrace says of the same calls, beside the
/// waiting for a CPU, which is not part of ours. Whichever sits outside also times the other's probes, in a
/// guest whose clock counts instructions.
const TOLERANCE: f64 = 0.05;

pub(crate) fn run(expected: &Expected) -> Result<()> {
    huge_pages_on_request(expected)?;
    let free = traced("flood --threads 1 --rounds 1 --pages 24")?;
    let part = |traced: &Traced, part: &str| sum(traced.faults(), part, &json!({}));
    ensure!(
        part(&free, "compaction_ns") == 0 && part(&free, "reclaim_ns") == 0,
        "memory is free: {}",
        free.total
    );

    // On 5.10 function_graph loses a function while fentry holds it.
    let can_compare = !fs::read_to_string("/proc/sys/kernel/osrelease")?.starts_with("5.");
    let graph = |functions: &[&str]| can_compare.then(|| Graph::start(functions)).transpose();

    let functions = ["try_to_compact_pages", "try_to_free_pages"];
    let theirs = graph(&functions)?;
    let fragmented = traced("fragmented --count 32")?;
    let counters = &fragmented.load(0)?["vmstat"];
    ensure!(
        counters["compact_stall"].as_u64() > Some(0) && part(&fragmented, "compaction_ns") > 0,
        "memory is fragmented: {} {counters}",
        fragmented.total
    );
    ensure!(
        part(&fragmented, "reclaim_ns") == 0 || grown(counters, "allocstall_") > 0,
        "nothing was reclaimed: {} {counters}",
        fragmented.total
    );
    if let Some(theirs) = theirs {
        let calls = theirs.stop()?;
        compare(&fragmented, "compaction", &calls[0])?;
    }

    // Nobody may compact: the page is not to be had, and at once.
    let refused = traced("fragmented --count 16 --defrag never")?;
    ensure!(
        part(&refused, "compaction_ns") == 0,
        "without defrag: {}",
        refused.total
    );
    let fallbacks = sum(
        refused.faults(),
        "count",
        &json!({"outcome": "fallback-alloc"}),
    );
    ensure!(fallbacks > 0, "no page was refused: {}", refused.total);

    let theirs = graph(&functions)?;
    let reclaimed = traced("reclaim --count 32")?;
    let counters = &reclaimed.load(0)?["vmstat"];
    ensure!(
        grown(counters, "allocstall_") > 0 && part(&reclaimed, "reclaim_ns") > 0,
        "memory is used up: {} {counters}",
        reclaimed.total
    );
    if let Some(theirs) = theirs {
        let calls = theirs.stop()?;
        compare(&reclaimed, "compaction", &calls[0])?;
        compare(&reclaimed, "reclaim", &calls[1])?;
    }
    Ok(())
}

/// Traces a load of THP faults, and checks what holds of each.
fn traced(load: &str) -> Result<Traced> {
    let traced = trace_loads(&["--faults"], &[load])?;
    check_totals(&traced)
        .with_context(|| format!("{load}: {}: {:?}", traced.total, traced.workloads))?;
    Ok(traced)
}

fn check_totals(traced: &Traced) -> Result<()> {
    // The clears of the faults are those of the rows.
    let clears = json!({"operation": "clear", "cause": "thp-fault", "page_size_bytes": MIB2});
    let (clear_ns, on_cpu_ns) = (
        sum(traced.faults(), "clear_ns", &json!({"cause": "thp-fault"})),
        sum(traced.rows(), "on_cpu_ns", &clears),
    );
    ensure!(
        clear_ns == on_cpu_ns,
        "clears take {on_cpu_ns} ns, and {clear_ns} of the faults"
    );

    // Faults by outcome are what the kernel counts.
    let of = |outcome: &str| {
        let like = json!({"cause": "thp-fault", "outcome": outcome, "page_size_bytes": MIB2});
        sum(traced.faults(), "count", &like)
    };
    let (mapped, unknown) = (of("mapped"), of("fallback-unknown"));
    let refused = of("fallback-alloc") + unknown;
    let counters = &traced.load(0)?["vmstat"];
    let theirs = |name: &str| counters[name].as_u64().unwrap_or(0);
    ensure!(
        mapped == theirs("thp_fault_alloc") && mapped == sum(traced.rows(), "count", &clears),
        "{mapped} mapped"
    );
    ensure!(refused == theirs("thp_fault_fallback"), "{refused} refused");
    let all = sum(traced.faults(), "count", &json!({}));
    ensure!(
        all == mapped + refused,
        "{all} faults, {mapped} mapped, {refused} refused"
    );

    let kernel = &traced.total["fault_counts"];
    let kernel = kernel.as_array().map_or(&[][..], Vec::as_slice);
    let pmd = json!({"page_size_bytes": MIB2});
    ensure!(
        sum(kernel, "mapped", &pmd) == mapped && sum(kernel, "fallback", &pmd) == refused,
        "fault_counts"
    );
    Ok(())
}

/// The sum of all counters that begin so.
fn grown(counters: &Value, prefix: &str) -> u64 {
    let counters = counters.as_object().into_iter().flatten();
    counters
        .filter(|(name, _)| name.starts_with(prefix))
        .filter_map(|(_, grown)| grown.as_u64())
        .sum()
}

#[expect(
    clippy::print_stdout,
    reason = "the host shows how close the parts are"
)]
fn compare(traced: &Traced, part: &str, calls_us: &[f64]) -> Result<()> {
    let us = |field: &str| sum(traced.faults(), field, &json!({})) as f64 / 1e3;
    let (ours, waiting) = (us(&format!("{part}_ns")), us("preempted_ns"));
    let theirs: f64 = calls_us.iter().sum();
    println!(
        "{part}, {} calls: ours {ours:.0} µs, and at most {waiting:.0} µs of waiting; function_graph \
         {theirs:.0} µs: {:+.2} %",
        calls_us.len(),
        (ours / theirs - 1.0) * 100.0
    );
    ensure!(
        ours < theirs * (1.0 + TOLERANCE) && ours + waiting > theirs * (1.0 - TOLERANCE),
        "{part} differs"
    );
    Ok(())
}
