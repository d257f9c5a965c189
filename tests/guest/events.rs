//! Every clear is printed as it ends, or counted as lost.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Expected,
    counts::anonymous_sites,
    trace::{MIB2, PARTS, Traced, huge_pages_on_request, sum, trace_loads, trace_loads_unchecked},
};

/// A ring buffer of one page.
const BUFFER: [&str; 2] = ["--events-buffer", "4096"];

pub(crate) fn run(expected: &Expected) -> Result<()> {
    if expected.no_thp {
        return Ok(());
    }
    huge_pages_on_request(expected)?;
    complete(expected)?;
    slow_ones()?;
    flood(expected)
}

fn events<'a>(traced: &'a Traced, kind: &str) -> Vec<&'a Value> {
    let of_kind = |line: &&Value| line["type"] == "event" && line["kind"] == kind;
    traced.windows.iter().filter(of_kind).collect()
}

/// The events are the total, one by one.
fn complete(expected: &Expected) -> Result<()> {
    let options = ["--events", "--faults", "--stack"];
    let traced = trace_loads(&options, &["flood --threads 1 --rounds 2 --pages 12"])?;
    let clears = events(&traced, "clear");
    let faults = events(&traced, "fault");
    let sites = anonymous_sites(expected).len();
    ensure!(
        clears.len() == 24 * sites && faults.len() == 24,
        "{} clears and {} faults of 24: {:?}",
        clears.len(),
        faults.len(),
        traced.windows
    );
    for (events, rows) in [(clears, traced.rows()), (faults, traced.faults())] {
        let durations: u64 = events
            .iter()
            .filter_map(|event| event["duration_ns"].as_u64())
            .sum();
        ensure!(
            durations == sum(rows, "sum_ns", &json!({})),
            "the events are not the total: {}",
            traced.total
        );
        let mut last = 0;
        for event in events {
            let ns = |field: &str| {
                event[field]
                    .as_u64()
                    .with_context(|| format!("{field} of {event}"))
            };
            ensure!(
                event["page_size_bytes"] == MIB2 && event["cause"] == "thp-fault",
                "{event}"
            );
            // A thread clears one page after the other.
            ensure!(ns("start_ns")? >= last, "out of order: {event}");
            if event["kind"] == "fault" {
                last = ns("start_ns")? + ns("duration_ns")?;
                let parts: u64 = PARTS.into_iter().map(ns).sum::<Result<u64>>()?;
                ensure!(parts == ns("duration_ns")?, "the parts: {event}");
            }
            let stack = event["stack"].as_array().context("stack")?;
            let has_fault = stack.iter().any(|frame| {
                let name = frame.as_str().unwrap_or_default();
                name.contains("handle_mm_fault")
            });
            ensure!(has_fault, "no fault in the stack of {event}");
        }
    }
    Ok(())
}

/// `--slower` leaves events out, and nothing of the total.
fn slow_ones() -> Result<()> {
    for (slower, are_shown) in [("0.000001", true), ("1000000", false)] {
        let options = ["--events", "--slower", slower];
        let traced = trace_loads(&options, &["flood --threads 1 --rounds 1 --pages 6"])?;
        let printed = events(&traced, "clear").len();
        let counted = sum(traced.rows(), "count", &json!({}));
        ensure!(
            counted >= 6 && printed as u64 == if are_shown { counted } else { 0 },
            "--slower {slower}: {printed} of {counted}: {}",
            traced.total
        );
    }
    Ok(())
}

/// The reader is stopped while the buffer, which is small, runs over.
fn flood(expected: &Expected) -> Result<()> {
    let options = [&["--events"][..], &BUFFER].concat();
    let load = "flood --threads 2 --rounds 4 --pages 24 --stop-parent";
    let traced = trace_loads_unchecked(&options, &[load])?;
    let caused = 2 * 4 * 24 * anonymous_sites(expected).len() as u64;
    let printed = events(&traced, "clear").len() as u64;
    let dropped = traced.total["losses"]["events_dropped"]
        .as_u64()
        .context("events_dropped")?;
    ensure!(
        printed + dropped == caused,
        "{printed} printed, {dropped} lost, {caused} caused: {}",
        traced.total["losses"]
    );
    ensure!(
        printed > 0 && dropped > 0,
        "{printed} printed, {dropped} lost: there was no flood"
    );
    // What is aggregated does not go through the buffer.
    let counted = sum(traced.rows(), "count", &json!({}));
    ensure!(counted == caused, "{counted} in the total, {caused} caused");
    Ok(())
}
