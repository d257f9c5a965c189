//! The preemption model in force is the one reported, also when it is switched at run time.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{Expected, trace::trace_exactly};

/// The model in force, and the way to switch it.
pub(crate) const SETTING: &str = "/sys/kernel/debug/sched/preempt";

pub(crate) fn run(
    expected: &Expected,
    model: &str,
    switch: &[String],
    methods: &[String],
) -> Result<()> {
    let doctor = Command::new("hugeclear-trace")
        .args(["doctor", "--json"])
        .output()?;
    let diagnosis: Value = serde_json::from_slice(&doctor.stdout).context("doctor --json")?;
    let preempt = &diagnosis["facts"]["preempt"];
    let is_rt = expected.no_thp;
    let reported = if is_rt {
        &preempt["dynamic"]
    } else {
        &preempt["model"]
    };
    ensure!(reported == model, "expected {model}: {preempt}");
    ensure!(!is_rt || preempt["model"] == "rt", "{preempt}");

    for method in methods {
        switched(expected, model, switch, method, is_rt).with_context(|| format!("by {method}"))?;
    }
    Ok(())
}

/// Clears under the model of the boot, then under each other model, all in one trace.
fn switched(
    expected: &Expected,
    boot: &str,
    switch: &[String],
    method: &str,
    is_rt: bool,
) -> Result<()> {
    let workload = if is_rt {
        "hugeclear-trace workload hugetlb --page-size 2M --size 8M --configure"
    } else {
        "hugeclear-trace workload thp --size 8M"
    };
    let others: Vec<&String> = switch.iter().filter(|model| *model != boot).collect();
    let mut script = format!("set -e; {workload}; ");
    for model in &others {
        script += &format!("echo {model} > {SETTING}; {workload}; ");
    }
    if !others.is_empty() {
        script += &format!("echo {boot} > {SETTING}");
    }
    let traced = trace_exactly(&["--method", method], &["sh", "-c", &script])?;
    traced.check_sound()?;

    let mut wanted: Vec<(&str, u64)> = std::iter::once(boot)
        .chain(others.iter().map(|model| &***model))
        .map(|model| (model, 4))
        .collect();
    if is_rt {
        // One model, whatever the mode.
        wanted = vec![("rt", 4 * wanted.len() as u64)];
    }
    ensure!(
        traced.rows().len() == wanted.len(),
        "rows: {}",
        traced.total
    );
    for (model, count) in wanted {
        let row = traced
            .rows()
            .iter()
            .find(|row| row["preempt_model"] == model)
            .with_context(|| format!("no row of {model}: {}", traced.total))?;
        ensure!(
            row["count"] == count && row["site"] == expected.site.as_str(),
            "{model}: {row}"
        );
    }
    Ok(())
}
