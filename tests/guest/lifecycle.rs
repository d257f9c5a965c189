//! Signals, exit statuses, two tracers at once, and nothing left behind.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStderr, Command, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    Expected,
    trace::{huge_pages_on_request, parse_lines, sum, trace_workload},
};

/// SIGKILL last: the one that the tracer does not see.
const SIGNALS: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGKILL,
];

/// How long the kernel may take to free what was detached.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(expected: &Expected) -> Result<()> {
    huge_pages_on_request(expected)?;
    let before = Left::now()?;
    for (method, signals) in [("fentry", &SIGNALS[..]), ("kprobe", &SIGNALS[2..])] {
        for &signal in signals {
            interrupted(expected, method, signal)
                .with_context(|| format!("{signal} under {method}"))?;
            before
                .await_again()
                .with_context(|| format!("after {signal} under {method}"))?;
        }
    }
    two_at_once(expected)?;
    before.await_again().context("after two tracers")?;
    windows(expected)?;
    terminal()?;
    exit_statuses()?;
    unwritable()?;
    before.await_again().context("at the end")
}

fn workload() -> [&'static str; 6] {
    [
        "hugetlb",
        "--page-size",
        "2M",
        "--size",
        "64M",
        "--configure",
    ]
}

/// What our kind of tracer could leave in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    programs: usize,
    maps: usize,
    kprobes: String,
    traced_functions: String,
}

impl Left {
    fn now() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| path.to_owned());
        Ok(Self {
            programs: aya::programs::loaded_programs().count(),
            maps: aya::maps::loaded_maps().count(),
            kprobes: read("/sys/kernel/debug/kprobes/list")?,
            traced_functions: read("/sys/kernel/tracing/enabled_functions")?,
        })
    }

    /// Waits until all is as it was: the kernel frees after a grace period.
    fn await_again(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Self::now()?;
            if now == *self {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("left behind: {now:?}, before: {self:?}");
            }
            sleep(Duration::from_millis(50));
        }
    }
}

/// A tracer that has attached, and its stderr, to be kept open while it runs.
struct Running {
    child: Child,
    _stderr: BufReader<ChildStderr>,
}

fn start(method: &str) -> Result<Running> {
    let mut child = Command::new("hugeclear-trace")
        .args(["-v", "--json", "--method", method])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stderr = BufReader::new(child.stderr.take().context("no stderr")?);
    let mut line = String::new();
    while !line.starts_with("attached: ") {
        line.clear();
        ensure!(
            stderr.read_line(&mut line)? > 0,
            "the tracer did not attach"
        );
    }
    Ok(Running {
        child,
        _stderr: stderr,
    })
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(child.id().cast_signed()), signal)?)
}

/// Stdout of a child that ends.
fn output(child: &mut Child) -> Result<String> {
    let mut text = String::new();
    child
        .stdout
        .take()
        .context("no stdout")?
        .read_to_string(&mut text)?;
    Ok(text)
}

fn cause_clears() -> Result<()> {
    let status = Command::new("hugeclear-trace")
        .arg("workload")
        .args(workload())
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "the workload: {status}");
    Ok(())
}

fn check_total(text: &str, expected: &Expected) -> Result<()> {
    let lines = parse_lines(text)?;
    ensure!(lines.len() == 1, "{} lines: {text}", lines.len());
    let row = &lines[0]["rows"][0];
    ensure!(
        row["site"] == expected.site.as_str() && row["count"] == 32,
        "{text}"
    );
    Ok(())
}

fn interrupted(expected: &Expected, method: &str, with: Signal) -> Result<()> {
    let Running { mut child, _stderr } = start(method)?;
    cause_clears()?;
    signal(&child, with)?;
    let text = output(&mut child)?;
    let status = child.wait()?;
    if with == Signal::SIGKILL {
        ensure!(text.is_empty(), "{text}");
    } else {
        ensure!(status.success(), "{status}");
        check_total(&text, expected)?;
    }
    Ok(())
}

fn two_at_once(expected: &Expected) -> Result<()> {
    for method in ["fentry", "kprobe"] {
        let mut tracers = [start(method)?, start(method)?];
        cause_clears()?;
        for Running { child, .. } in &mut tracers {
            signal(child, Signal::SIGINT)?;
            let text = output(child)?;
            ensure!(child.wait()?.success());
            check_total(&text, expected).with_context(|| format!("two at once, {method}"))?;
        }
    }
    Ok(())
}

/// With -i: windows that join without gap, and add up to the total.
fn windows(expected: &Expected) -> Result<()> {
    let hugetlb = workload();
    let load = if expected.no_thp {
        &hugetlb[..]
    } else {
        &["thp", "--size", "64M"]
    };
    let traced = trace_workload(&["-i", "0.2"], &[load, &["--repeat", "3"]].concat())?;
    ensure!(traced.windows.len() > 1, "{} windows", traced.windows.len());
    let sum_of = |report: &Value, list: &str, field: &str| {
        let rows = report[list].as_array().map_or(&[][..], Vec::as_slice);
        sum(rows, field, &json!({}))
    };
    let count = |report: &Value| sum_of(report, "rows", "count");
    let counted: u64 = traced.windows.iter().map(count).sum();
    ensure!(
        counted == 96 && count(&traced.total) == 96,
        "{counted} in windows; {}",
        traced.total
    );
    // Of the kernel's own counts too a window has what was added in it.
    let of_kernel = |report: &Value| sum_of(report, "fault_counts", "mapped");
    let counted: u64 = traced.windows.iter().map(of_kernel).sum();
    ensure!(
        counted == of_kernel(&traced.total) && (counted == 96 || expected.no_thp),
        "{counted} faults counted in windows; {}",
        traced.total
    );
    for pair in traced.windows.windows(2) {
        ensure!(pair[0]["type"] == "window", "{}", pair[0]);
        ensure!(
            pair[0]["end_ns"] == pair[1]["start_ns"],
            "a gap: {} {}",
            pair[0],
            pair[1]
        );
    }
    Ok(())
}

/// On a terminal the table is renewed in place and cut to its size; the last one stays whole.
fn terminal() -> Result<()> {
    let size = Winsize {
        ws_row: 8,
        ws_col: 60,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let OpenptyResult { master, slave } = openpty(Some(&size), None)?;
    let mut child = Command::new("hugeclear-trace")
        .args(["--per-cpu", "-d", "4"])
        .stdout(slave)
        .stderr(Stdio::null())
        .spawn()?;
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        // Reading a terminal whose other side is closed is an error; what came before is there.
        let _ = fs::File::from(master).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    sleep(Duration::from_secs(2));
    cause_clears()?;
    ensure!(child.wait()?.success());
    let seen = reader.join().ok().context("reading the terminal")?;

    // Each table but the first erases the one before.
    let mut tables: Vec<&str> = seen.split("\x1b[J").collect();
    let last = tables.pop().context("no table")?;
    ensure!(tables.len() > 1, "never renewed: {seen:?}");
    for table in tables {
        let table = table.split("\x1b[").next().unwrap_or(table);
        ensure!(
            table.lines().count() < 8,
            "taller than the terminal: {table:?}"
        );
        ensure!(
            table.lines().all(|line| line.chars().count() <= 60),
            "wider: {table:?}"
        );
    }
    ensure!(
        last.contains("total of") && last.contains("lost: nothing"),
        "{last:?}"
    );
    Ok(())
}

/// What cannot be written is no silent loss, and never abandons the command.
fn unwritable() -> Result<()> {
    let seconds = "sleep 2; exit 5";
    let full = Command::new("hugeclear-trace")
        .args(["-i", "0.2", "-o", "/dev/full", "--", "sh", "-c", seconds])
        .output()?;
    let said = String::from_utf8_lossy(&full.stderr);
    ensure!(
        full.status.code() == Some(1) && said.contains("/dev/full"),
        "{}: {said}",
        full.status
    );

    // A reader that leaves: the command goes on, and its status is ours.
    let mut child = Command::new("hugeclear-trace")
        .args(["-i", "0.2", "--json", "--", "sh", "-c", seconds])
        .stdout(Stdio::piped())
        .spawn()?;
    drop(child.stdout.take());
    let status = child.wait()?;
    ensure!(status.code() == Some(5), "with no reader: {status}");
    Ok(())
}

/// The exit status is the command's.
fn exit_statuses() -> Result<()> {
    for (command, wanted) in [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)] {
        let status = Command::new("hugeclear-trace")
            .args(["-o", "/dev/null", "--", "sh", "-c", command])
            .status()?;
        ensure!(status.code() == Some(wanted), "`{command}` gave {status}");
    }
    let output = Command::new("hugeclear-trace")
        .args(["--", "/no/such/command"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}", output.status);
    ensure!(
        said.lines().count() == 1 && said.contains("/no/such/command"),
        "{said}"
    );
    Ok(())
}
