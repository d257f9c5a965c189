//! A sweep runs under each model that the kernel has, names those that it lacks, and leaves all settings
//! as they were, however it ends.

use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{Expected, models::SETTING};

const MODELS: [&str; 4] = ["none", "voluntary", "full", "lazy"];
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// How long a sweep may take to switch, a process to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// `models` are those that the kernel has.
pub(crate) fn run(expected: &Expected, models: &[String]) -> Result<()> {
    let before = settings()?;
    every_model(expected, models).context("every model")?;
    ensure!(settings()? == before, "changed by a sweep that ended");
    huge_page_settings().context("settings of huge pages")?;
    ensure!(settings()? == before, "changed by a sweep that ended");
    let (in_force, other) = in_force_and_other(models)?;
    terminated(&other).context("SIGTERM")?;
    ensure!(
        settings()? == before,
        "changed by a sweep that was asked to end"
    );
    killed(&in_force, &other).context("SIGKILL")?;
    ensure!(settings()? == before, "changed by a sweep that was killed");
    bad_input()
}

/// All that a sweep may change.
fn settings() -> Result<Vec<String>> {
    let read = |path: String| fs::read_to_string(&path).context(path);
    [
        SETTING.to_owned(),
        format!("{THP}/enabled"),
        format!("{THP}/defrag"),
    ]
    .into_iter()
    .chain(["64", "2048"].map(|kib| format!("{THP}/hugepages-{kib}kB/enabled")))
    .map(read)
    .collect()
}

fn sweep(words: &str) -> Command {
    let mut command = Command::new("hugeclear-trace");
    command.arg("sweep").args(words.split_whitespace());
    command
}

/// What a sweep with `--json` printed, and what it said.
fn measured(words: &str) -> Result<(Value, String)> {
    let Output {
        status,
        stdout,
        stderr,
    } = sweep(words).output()?;
    let said = String::from_utf8_lossy(&stderr).into_owned();
    ensure!(status.success(), "{words}: {status}: {said}");
    Ok((serde_json::from_slice(&stdout)?, said))
}

fn list<'a>(report: &'a Value, field: &str) -> &'a [Value] {
    report[field].as_array().map_or(&[], Vec::as_slice)
}

fn every_model(expected: &Expected, models: &[String]) -> Result<()> {
    let words = format!(
        "--json --trace on --repeat 2 --preempt {} thp --size 8M --cpu 0",
        MODELS.join(",")
    );
    let (report, said) = measured(&words)?;
    for model in MODELS {
        let refused = list(&report, "refused")
            .iter()
            .any(|refused| refused["combination"]["preempt"] == model);
        let has = models.iter().any(|has| has == model);
        ensure!(refused != has, "{model}: {report}");
        ensure!(
            said.contains(&format!("skipped preempt {model}: this kernel has only")) != has,
            "{model}: {said}"
        );
    }
    let runs = list(&report, "runs");
    ensure!(runs.len() == 2 * models.len(), "{report}");
    for round in runs.chunks(models.len()) {
        let ran: BTreeSet<&str> = (round.iter())
            .filter_map(|run| run["combination"]["preempt"].as_str())
            .collect();
        ensure!(
            ran.len() == models.len(),
            "not every model in a round: {report}"
        );
    }
    for run in runs {
        ensure!(
            run["workload"]["expected_clears"] == 4 && run["traced"]["clears"] == 4,
            "{run}"
        );
        let rows = list(&run["traced"], "rows");
        let is_right = |row: &Value| {
            row["preempt_model"] == run["combination"]["preempt"]
                && row["site"] == expected.site.as_str()
        };
        ensure!(rows.len() == 1 && is_right(&rows[0]), "{run}");
    }
    let differ = list(&report, "notes").iter().any(|note| {
        ["counts_differ", "model_differs"]
            .iter()
            .any(|code| note["code"] == *code)
    });
    ensure!(!differ, "{report}");
    ensure!(list(&report, "rows").len() == models.len(), "{report}");
    let restored = json!([{"path": SETTING, "value": in_force()?}]);
    ensure!(report["restored"] == restored, "{report}");
    Ok(())
}

/// Each value is in force in its runs, as the memory that they got shows.
fn huge_page_settings() -> Result<()> {
    let words = "--json --repeat 1 --thp always,madvise,never --defrag never,always --touch first,last \
                 thp --size 4M --no-madvise";
    let (report, _) = measured(words)?;
    ensure!(list(&report, "runs").len() == 12, "{report}");
    for run in list(&report, "runs") {
        // Without madvise.
        let pages = if run["combination"]["thp"] == "always" {
            2
        } else {
            0
        };
        ensure!(
            run["workload"]["pages"] == pages && run["traced"]["clears"] == pages,
            "{run}"
        );
        ensure!(
            run["workload"]["touch"] == run["combination"]["touch"],
            "{run}"
        );
    }
    let words = "--json --repeat 1 --page-size 64K,2M thp --size 4M --configure";
    let (report, _) = measured(words)?;
    for run in list(&report, "runs") {
        let pages = if run["combination"]["page-size"] == "2M" {
            2
        } else {
            64
        };
        ensure!(run["traced"]["clears"] == pages, "{run}");
    }
    ensure!(list(&report, "runs").len() == 2, "{report}");
    Ok(())
}

/// The model in force.
fn in_force() -> Result<String> {
    let text = fs::read_to_string(SETTING)?;
    let marked = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix('(')?.strip_suffix(')'));
    marked
        .map(str::to_owned)
        .with_context(|| format!("{SETTING}: {text}"))
}

fn in_force_and_other(models: &[String]) -> Result<(String, String)> {
    let in_force = in_force()?;
    let other = models.iter().find(|model| **model != in_force);
    Ok((in_force.clone(), other.context("one model only")?.clone()))
}

/// A sweep in the middle of its second round, under `model`.
fn start_under(model: &str) -> Result<Child> {
    let words =
        format!("--json --trace off --repeat 2 --preempt {model} thp --size 8M --duration 3");
    let child = sweep(&words).stdout(Stdio::piped()).spawn()?;
    wait_until("switched", || Ok(in_force()? == model))?;
    // The first run takes three seconds.
    sleep(Duration::from_millis(4500));
    Ok(child)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            bail!("never {what}");
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn send(child: &Child, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(child.id().cast_signed()), signal)?)
}

/// What was measured so far is printed.
fn terminated(other: &str) -> Result<()> {
    let child = start_under(other)?;
    send(&child, Signal::SIGTERM)?;
    let Output { status, stdout, .. } = child.wait_with_output()?;
    ensure!(
        status.code() == Some(128 + Signal::SIGTERM as i32),
        "{status}"
    );
    let report: Value = serde_json::from_slice(&stdout)?;
    ensure!(
        report["interrupted_by"] == Signal::SIGTERM as i32 && list(&report, "runs").len() == 1,
        "{report}"
    );
    ensure!(workloads()? == 0, "the workload still runs");
    Ok(())
}

/// The next start puts back what was left, and says so.
fn killed(in_force_before: &str, other: &str) -> Result<()> {
    let mut child = start_under(other)?;
    ensure!(workloads()? == 1, "no workload runs");
    send(&child, Signal::SIGKILL)?;
    child.wait()?;
    wait_until("did the workload of a killed sweep end", || {
        Ok(workloads()? == 0)
    })?;
    ensure!(in_force()? == other, "SIGKILL put something back");
    let Output { status, stderr, .. } = sweep("--trace off --repeat 1 thp --size 2M").output()?;
    let said = String::from_utf8_lossy(&stderr);
    ensure!(status.success(), "{status}: {said}");
    let says = format!("put back {SETTING} to `{in_force_before}`");
    ensure!(said.contains(&says), "{said}");
    Ok(())
}

/// Processes that a sweep has started.
fn workloads() -> Result<usize> {
    let is_workload = |entry: &fs::DirEntry| {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        words.starts_with(b"/proc/self/exe\0workload\0")
    };
    let processes = fs::read_dir("/proc")?.filter_map(Result::ok);
    Ok(processes.filter(is_workload).count())
}

/// One line, and nothing is changed.
fn bad_input() -> Result<()> {
    let before = settings()?;
    for (words, status) in [
        ("--preempt full thp --size 3M", 2),
        ("--preempt full thp --cpu 4096", 2),
        ("--preempt full thp --size 1T", 1),
        ("--preempt full hugetlb --page-size 2M --size 64M", 1),
        ("--preempt full thp --json", 2),
    ] {
        let output = sweep(words).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(status)
                && said.lines().count() == 1
                && output.stdout.is_empty(),
            "{words}: {}: {said}",
            output.status
        );
        ensure!(settings()? == before, "{words} changed a setting");
    }
    Ok(())
}
