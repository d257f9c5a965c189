//! What a person sees of made-up runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::{
    facts::recorded::facts,
    notes::Note,
    probes::tracer::AttachedProbe,
    sweep::{Refused, Run, Trace, Traced},
    window::{self, Losses},
    workload,
};

fn combination(values: &[(Factor, &str)]) -> Combination {
    let values = values
        .iter()
        .map(|(factor, value)| (*factor, (*value).to_owned()));
    Combination(values.collect())
}

/// What a workload of 32 pages says.
fn workload(elapsed_ns: u64) -> workload::Report {
    let fault_ns = elapsed_ns / 32;
    let mut report: Value = json!({
        "kind": "thp", "page_size_bytes": 2 << 20, "size_bytes": 64 << 20, "threads": 1, "cpus": [1],
        "touch": "first", "repeat": 1, "faults": 32, "pages": 32, "pages_source": "smaps",
        "expected": [{"operation": "clear", "cause": "thp-fault", "page_size_bytes": 2 << 20, "count": 32}],
        "expected_clears": 32, "bytes": 64 << 20, "elapsed_ns": elapsed_ns, "timer_overhead_ns": 20,
        "runs": [], "configured": [], "notes": [],
    });
    report["latency"] = json!({
        "count": 32, "min_ns": fault_ns - 10, "mean_ns": fault_ns, "p50_ns": fault_ns, "p90_ns": fault_ns + 10,
        "p99_ns": 2 * fault_ns, "p999_ns": 2 * fault_ns, "max_ns": 2 * fault_ns,
    });
    serde_json::from_value(report).unwrap()
}

/// What was traced of it.
fn traced(count: u64, mean_ns: u64, model: &str) -> Traced {
    let row: window::Row = serde_json::from_value(json!({
        "operation": "clear", "site": "folio_zero_user", "page_size_bytes": 2 << 20, "preempt_model": model,
        "other": false, "derived": false, "count": count, "migrated": 0, "sum_ns": count * mean_ns,
        "mean_ns": mean_ns as f64, "min_ns": mean_ns, "p50_ns": mean_ns, "p90_ns": mean_ns, "p99_ns": mean_ns,
        "max_ns": mean_ns, "quantile_error": 0.015,
    }))
    .unwrap();
    Traced::new(vec![row], 2 << 20)
}

fn run(round: u32, combination: &Combination, elapsed_ns: u64, traced: Option<Traced>) -> Run {
    Run {
        round,
        combination: combination.clone(),
        workload: workload(elapsed_ns),
        traced,
    }
}

fn report(combinations: &[Combination], runs: Vec<Run>) -> Report {
    let mut report = Report {
        facts: Summary::new(&facts("6.18")),
        workload: ["thp", "--cpu", "1"].map(str::to_owned).to_vec(),
        rounds: 3,
        seed: 7,
        combinations: combinations.to_vec(),
        refused: Vec::new(),
        trace: None,
        runs,
        rows: Vec::new(),
        restored: Vec::new(),
        notes: Vec::new(),
        interrupted_by: None,
        failed: None,
    };
    report.add_up();
    report
}

#[test]
fn models_compared_at_two_touches() {
    let models = ["none", "full", "lazy"];
    let combinations: Vec<Combination> = ["first", "middle"]
        .into_iter()
        .flat_map(|touch| {
            models.map(|model| combination(&[(Factor::Touch, touch), (Factor::Preempt, model)]))
        })
        .collect();
    let runs = (1..=3)
        .flat_map(|round| {
            combinations
                .iter()
                .enumerate()
                .map(move |(place, combination)| (round, place, combination))
        })
        .map(|(round, place, combination)| {
            // lazy is within noise of none, full is not.
            let elapsed_ns =
                [5_000_000, 6_500_000, 5_020_000][place % 3] + 40_000 * u64::from(round);
            let traced = traced(32, elapsed_ns / 40, &combination.0[&Factor::Preempt]);
            run(round, combination, elapsed_ns, Some(traced))
        })
        .collect();
    let mut report = report(&combinations, runs);
    report.trace = Some(Trace {
        probes: vec![AttachedProbe {
            site: None,
            function: "folio_zero_user".to_owned(),
            method: "fentry".to_owned(),
            derived: false,
        }],
        losses: Losses::default(),
    });
    report.refused = vec![Refused {
        combination: combination(&[(Factor::Preempt, "voluntary")]),
        why: "this kernel has only none, full, lazy".to_owned(),
    }];
    report.restored = vec![Change {
        path: "/sys/kernel/debug/sched/preempt".into(),
        value: "lazy".to_owned(),
    }];
    assert_eq!(report.notes, []);
    insta::assert_snapshot!(report);
}

#[test]
fn one_run_that_was_interrupted_and_not_traced() {
    let only = combination(&[(Factor::PageSize, "2M")]);
    let mut report = report(
        std::slice::from_ref(&only),
        vec![run(1, &only, 5_000_000, None)],
    );
    report.interrupted_by = Some(2);
    insta::assert_snapshot!(report);
}

#[test]
fn nothing_measured_is_no_table() {
    let report = report(&[combination(&[(Factor::Preempt, "full")])], Vec::new());
    assert!(!report.to_string().contains("elapsed"), "{report}");
}

#[test]
fn a_trace_that_disagrees_is_named() {
    let full = combination(&[(Factor::Preempt, "full")]);
    let notes = |traced: Traced| -> Vec<Note> {
        report(
            std::slice::from_ref(&full),
            vec![run(2, &full, 5_000_000, Some(traced))],
        )
        .notes
    };
    let texts = |traced: Traced| -> BTreeMap<String, String> {
        notes(traced)
            .into_iter()
            .map(|note| (note.code, note.text))
            .collect()
    };
    assert_eq!(notes(traced(32, 100, "full")), []);
    assert_eq!(
        texts(traced(31, 100, "none")),
        BTreeMap::from([
            (
                "counts_differ".to_owned(),
                "round 2, preempt full: the workload caused 32 clears, 31 were traced".to_owned()
            ),
            (
                "model_differs".to_owned(),
                "round 2, preempt full: clears were traced under the preemption model none"
                    .to_owned()
            ),
        ])
    );
    let nothing = Traced::new(Vec::new(), 2 << 20);
    assert_eq!(
        (nothing.clears, nothing.mean_ns, nothing.gb_per_s),
        (0, None, None)
    );
    assert!(texts(nothing)["counts_differ"].ends_with("0 were traced"));
}
