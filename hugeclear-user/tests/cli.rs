//! The binary as its users meet it, on this machine, whatever it can do.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use assert_cmd::cargo::cargo_bin;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// The user `nobody` of every distribution.
const NOBODY: u32 = 65534;

fn hugeclear_trace() -> Command {
    Command::new(cargo_bin!("hugeclear-trace"))
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// One line on stderr, nothing on stdout, exit status 1.
fn assert_one_line(command: &mut Command) -> String {
    let (status, stdout, stderr) = output(command);
    assert_eq!(status, Some(1), "{stdout}{stderr}");
    assert_eq!(stdout, "");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("hugeclear-trace: "), "{stderr}");
    stderr
}

#[test]
fn without_privileges_one_line_says_what_to_do() {
    // The target directory may be closed to others: the copy is not.
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let binary = directory.path().join("hugeclear-trace");
    fs::copy(cargo_bin!("hugeclear-trace"), &binary).expect("the binary can be copied");
    let mut command = Command::new(&binary);
    if nix::unistd::Uid::effective().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let said = assert_one_line(command.args(["-d", "1"]));
    assert!(
        said.contains("CAP_BPF and CAP_PERFMON") && said.contains("sudo"),
        "{said}"
    );
}

#[test]
fn a_host_that_cannot_be_traced_says_why_in_one_line() {
    let (status, stdout, _) = output(hugeclear_trace().args(["doctor", "--json"]));
    let diagnosis: Value = serde_json::from_str(&stdout).expect("doctor prints JSON");
    if diagnosis["obstacle"].is_null() {
        eprintln!("skipped: this host can be traced");
        return;
    }
    assert_eq!(status, Some(1));
    if diagnosis["obstacle_is_privilege"] == true {
        eprintln!("skipped: this user may not find out; another test covers it");
        return;
    }
    let said = assert_one_line(hugeclear_trace().args(["-d", "1"]));
    assert!(
        said.contains("cannot trace") && said.contains("hugeclear-trace doctor"),
        "{said}"
    );
}

#[test]
fn doctor_needs_no_privileges() {
    let (_, stdout, stderr) = output(hugeclear_trace().arg("doctor"));
    assert_eq!(stderr, "");
    for label in [
        "kernel",
        "preemption",
        "THP",
        "init_on_alloc",
        "maps",
        "verdict",
    ] {
        assert!(
            stdout.lines().any(|line| line.starts_with(label)),
            "no {label}:\n{stdout}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_anything_is_attached() {
    let said = assert_one_line(hugeclear_trace().args(["-o", "/no/such/directory/file"]));
    assert!(said.contains("/no/such/directory/file"), "{said}");
}

#[test]
fn bad_usage_is_status_2() {
    for arguments in [
        &["--min-size", "two"][..],
        &["-d", "0"],
        &["-i", "-1"],
        &["-p", "0"],
        &["-c", ""],
        &["--method", "magic"],
        &["workload", "thp", "--size", "0"],
        &["workload", "thp", "--size", "3M"],
        &["workload", "thp", "--cpu", "100000"],
        &["--per-cpu", "doctor"],
        &["sweep"],
        &["sweep", "--preempt", "real", "base"],
        &["sweep", "base", "--size", "3"],
        &["sweep", "base", "--repeat", "2"],
        &["sweep", "--touch", "last", "base", "--wrong"],
        &["--min-size", "4M", "--max-size", "2M"],
    ] {
        let (status, stdout, stderr) = output(hugeclear_trace().args(arguments));
        assert_eq!(status, Some(2), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = hugeclear_trace()
        .arg("doctor")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

/// Every `--help`, as a terminal of 100 columns shows it.
#[test]
fn help() {
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help_doctor", &["doctor", "--help"]),
        ("help_workload", &["workload", "--help"]),
        ("help_sweep", &["sweep", "--help"]),
    ] {
        let (status, stdout, _) = output(hugeclear_trace().args(arguments).env("COLUMNS", "100"));
        assert_eq!(status, Some(0));
        insta::assert_snapshot!(name, stdout);
    }
}

/// A sweep that changes no setting of this host.
fn sweep(options: &[&str]) -> Command {
    let mut command = hugeclear_trace();
    command.args(["sweep", "--trace", "off", "--json", "--touch", "first,last"]);
    command.args(options);
    command
}

/// Starts a sweep of runs that take ten seconds.
fn long_sweep() -> Child {
    sweep(&["base", "--size", "1M", "--duration", "10"])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

/// The first workload that a sweep has started, once there is one.
fn first_workload(sweep: &Child) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", sweep.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    // Before that it is a copy of the sweep.
    let is_workload = |pid: &&str| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(b"/proc/self/exe\0workload\0")
    };
    loop {
        let started = fs::read_to_string(&children).expect("the sweep runs");
        if let Some(pid) = started.split_whitespace().find(is_workload) {
            return Pid::from_raw(pid.parse().expect("a process number"));
        }
        assert!(Instant::now() < deadline, "no run was started");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_sweep_runs_every_combination_once_a_round() {
    let options = ["--repeat", "3", "--seed", "7", "base", "--size", "1M"];
    let (status, stdout, stderr) = output(&mut sweep(&options));
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!(stderr, "");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    let touches: Vec<&str> = (report["runs"].as_array().expect("runs").iter())
        .map(|run| {
            assert_eq!(run["workload"]["faults"], 256);
            assert_eq!(run["workload"]["touch"], run["combination"]["touch"]);
            run["combination"]["touch"].as_str().expect("a factor")
        })
        .collect();
    assert_eq!(touches.len(), 6);
    for round in touches.chunks(2) {
        assert_ne!(round[0], round[1], "{touches:?}");
    }
    assert_eq!(report["rows"][1]["elapsed_ns"]["n"], 3);
    assert_eq!(report["seed"], 7);
    assert_eq!(report["restored"], serde_json::json!([]));
}

#[test]
fn a_sweep_that_is_interrupted_prints_what_it_has() {
    let child = long_sweep();
    first_workload(&child);
    // As a terminal does on Ctrl-C: to all of the group.
    let group = Pid::from_raw(-child.id().cast_signed());
    kill(group, Signal::SIGINT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["interrupted_by"], 2);
    assert_eq!(report["runs"], serde_json::json!([]));
}

#[test]
fn a_run_that_fails_is_named_and_ends_the_sweep() {
    let child = long_sweep();
    kill(first_workload(&child), Signal::SIGKILL).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("round 1, touch ") && said.contains("SIGKILL"),
        "{said}"
    );
}
