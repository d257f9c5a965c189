//! The binary as its users meet it, on this machine, whatever it can do.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Command, Output, Stdio},
};

use assert_cmd::cargo::cargo_bin;
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
    ] {
        let (status, stdout, _) = output(hugeclear_trace().args(arguments).env("COLUMNS", "100"));
        assert_eq!(status, Some(0));
        insta::assert_snapshot!(name, stdout);
    }
}
