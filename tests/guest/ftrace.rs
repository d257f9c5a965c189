//! Durations agree with ftrace's function_graph of the same function, in the same run.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use crate::{
    Expected,
    trace::{huge_pages_on_request, trace_workload},
};

const TRACEFS: &str = "/sys/kernel/tracing";

/// How far the two sums may be apart. Both time the same calls from just outside or just inside each
/// other, so they differ by the instructions of the inner one's probes: some 1,300 against the
/// two million of a clear, in a guest whose clock counts instructions.
const TOLERANCE: f64 = 0.002;

#[expect(
    clippy::print_stdout,
    reason = "the host shows how close the durations are"
)]
pub(crate) fn run(expected: &Expected, method: &str) -> Result<()> {
    huge_pages_on_request(expected)?;
    let graph = Graph::start(&[&expected.site])?;

    let hugetlb = [
        "hugetlb",
        "--page-size",
        "2M",
        "--size",
        "64M",
        "--configure",
    ];
    let thp = ["thp", "--size", "64M"];
    let workload = if expected.no_thp {
        &hugetlb[..]
    } else {
        &thp[..]
    };
    let traced = trace_workload(&["--method", method], workload)?;
    traced.check_sound()?;

    let theirs = graph.stop()?.remove(0);

    let row = &traced.rows()[0];
    ensure!(row["site"] == expected.site.as_str(), "site of {row}");
    let (count, sum_us) = (
        row["count"].as_u64(),
        row["sum_ns"].as_f64().context("sum_ns")? / 1e3,
    );
    ensure!(
        count == Some(theirs.len() as u64),
        "{} calls in ftrace: {row}",
        theirs.len()
    );
    let their_sum_us: f64 = theirs.iter().sum();
    let difference = sum_us / their_sum_us - 1.0;
    println!(
        "{} clears: ours {sum_us:.0} µs, function_graph {their_sum_us:.0} µs: {:+.4} %",
        theirs.len(),
        difference * 100.0
    );
    ensure!(
        difference.abs() < TOLERANCE,
        "the sums differ by {difference:+.4}"
    );
    Ok(())
}

/// ftrace's function_graph of some functions, of which none calls another.
pub(crate) struct Graph {
    functions: Vec<String>,
}

impl Graph {
    pub(crate) fn start(functions: &[&str]) -> Result<Self> {
        set("trace_clock", "mono")?;
        set("set_ftrace_filter", &functions.join(" "))?;
        set("max_graph_depth", "1")?;
        set("current_tracer", "function_graph")?;
        set("trace", "")?;
        set("tracing_on", "1")?;
        Ok(Self {
            functions: functions.iter().map(|&name| name.to_owned()).collect(),
        })
    }

    /// The durations in µs of the calls of each function.
    pub(crate) fn stop(self) -> Result<Vec<Vec<f64>>> {
        set("tracing_on", "0")?;
        let text =
            fs::read_to_string(Path::new(TRACEFS).join("trace")).context("reading the trace")?;
        set("current_tracer", "nop")?;
        self.functions
            .iter()
            .map(|function| durations_us(&text, function))
            .collect()
    }
}

fn set(file: &str, value: &str) -> Result<()> {
    fs::write(Path::new(TRACEFS).join(file), value).with_context(|| format!("{file} = {value}"))
}

/// The durations of the calls of `function`, from lines such as ` 0)  ! 473.802 us  |  f();`.
fn durations_us(trace: &str, function: &str) -> Result<Vec<f64>> {
    let call = format!("{function}();");
    trace
        .lines()
        // Newer kernels add what it returned, or its arguments, behind.
        .filter(|line| line.contains(&call) || line.contains(&format!("{function}() {{")))
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let unit = words
                .iter()
                .position(|word| *word == "us")
                .context("no duration")?;
            words[unit - 1]
                .parse()
                .with_context(|| format!("duration of {line}"))
        })
        .collect()
}
