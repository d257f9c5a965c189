//! Time that a clear waits for a CPU is told apart from time that it runs.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{Expected, models::SETTING, trace::trace_workload};

/// How far the time on the CPU may be apart with and without company. The guest's clock counts
/// instructions, so what differs is the work of the scheduler and the timer.
const TOLERANCE: f64 = 0.1;

/// A busy neighbour on the only CPU. Ended when dropped.
struct Spinner(Child);

impl Spinner {
    fn start() -> Result<Self> {
        let mut spinner = Command::new("sh");
        spinner
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null());
        Ok(Self(spinner.spawn()?))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(expected: &Expected, models: &[String]) -> Result<()> {
    let alone = clear(expected)?;
    if models.is_empty() {
        return beside_spinner(expected, &alone);
    }
    for model in models {
        fs::write(SETTING, model).with_context(|| format!("{SETTING} = {model}"))?;
        beside_spinner(expected, &alone).with_context(|| format!("under {model}"))?;
    }
    Ok(())
}

fn beside_spinner(expected: &Expected, alone: &Value) -> Result<()> {
    let spinner = Spinner::start()?;
    let beside = clear(expected)?;
    drop(spinner);

    let ns = |row: &Value, field: &str| {
        row[field]
            .as_f64()
            .with_context(|| format!("{field}: {row}"))
    };
    ensure!(
        ns(alone, "preempted_ns")? < 0.1 * ns(alone, "sum_ns")?,
        "alone: {alone}"
    );
    ensure!(
        ns(&beside, "sum_ns")? > 1.5 * ns(&beside, "on_cpu_ns")?,
        "beside a spinner: {beside}"
    );
    ensure!(
        ns(&beside, "switches")? >= 1.0,
        "beside a spinner: {beside}"
    );
    for row in [alone, &beside] {
        let whole = ns(row, "on_cpu_ns")? + ns(row, "preempted_ns")?;
        ensure!(
            whole == ns(row, "sum_ns")?,
            "the parts are not the whole: {row}"
        );
    }
    let difference = ns(&beside, "on_cpu_ns")? / ns(alone, "on_cpu_ns")? - 1.0;
    ensure!(
        difference.abs() < TOLERANCE,
        "on the CPU {difference:+.3} apart: {alone} {beside}"
    );
    Ok(())
}

/// The row of a clear of 1 GiB: so long that every preemption model lets the neighbour in.
fn clear(expected: &Expected) -> Result<Value> {
    let workload = ["hugetlb", "--page-size", "1G", "--size", "1G"];
    let traced = trace_workload(&[], &workload)?;
    traced.check_sound()?;
    let row = &traced.rows()[0];
    ensure!(
        row["site"] == expected.site.as_str() && row["count"] == 1,
        "{row}"
    );
    Ok(row.clone())
}
