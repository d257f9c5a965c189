//! The lab as its users meet it, on this machine, whatever it has. No time is asserted.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Output, Stdio},
};

use assert_cmd::cargo::cargo_bin;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin!("hugeclear-trace"));
    command
        .arg("lab")
        .args(arguments)
        .env("COLUMNS", "100")
        .stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = lab(arguments).output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn every_cell_is_measured() {
    let (status, stdout, stderr) = output(&["--json", "--size", "256K,2M", "--repeat", "3"]);
    assert_eq!((status, &*stderr), (Some(0), ""));
    let report: Value = serde_json::from_str(&stdout).expect("it prints JSON");
    let regions = report["regions"].as_array().expect("one for each size");
    assert_eq!(regions.len(), 2);
    for region in regions {
        let size_bytes = region["size_bytes"].as_f64().expect("a size");
        let cells = region["cells"].as_array().expect("cells");
        for cell in cells {
            let times = cell["clear_ns"].as_array().expect("times");
            assert_eq!(times.len(), 3, "{cell}");
            // The distances are read in turn.
            for heat in cell["heat"].as_array().expect("heat") {
                assert_eq!(heat["ns"]["n"], 1, "{cell}");
            }
            let rates = times
                .iter()
                .map(|ns| size_bytes / ns.as_f64().expect("a time"));
            let mean = rates.sum::<f64>() / 3.0;
            let said = cell["gb_per_s"]["mean"].as_f64().expect("a mean");
            assert!((mean - said).abs() < 1e-9 * mean, "{cell}");
        }
        let best = cells.iter().filter(|cell| cell["standing"] == "best");
        assert_eq!(best.count(), 1);
    }
}

#[test]
fn one_primitive_and_small_pages() {
    let (status, stdout, stderr) = output(&[
        "--backing=base",
        "--primitive=memset",
        "--strategy=one-shot,converging",
        "--repeat=3",
        "--touch=last",
        "--evict",
    ]);
    assert_eq!((status, &*stderr), (Some(0), ""));
    for part in [
        "2M of base pages, fault in 4K sub-page 511 of 512",
        "with memset",
        "\nconverging ",
    ] {
        assert!(stdout.contains(part), "{stdout}");
    }
    assert!(!stdout.contains("forward"), "{stdout}");
}

#[test]
fn bad_input_is_refused_in_one_line() {
    for (arguments, expected_status, expected) in [
        (&["--size", "0"][..], 2, "--size is 0"),
        (&["--size", "1000"], 2, "not a multiple of `4K`"),
        (&["--size", "1000000G"], 1, "use a smaller --size"),
        (&["--cpu", "60000"], 2, "--cpu 60000 is not online"),
        (&["--touch", "512"], 2, "there is no sub-page 512"),
    ] {
        let (status, stdout, stderr) = output(arguments);
        assert_eq!((status, &*stdout), (Some(expected_status), ""), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.starts_with("hugeclear-trace: "), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    for arguments in [["--size", "x"], ["--primitive", "rep"], ["--repeat", "0"]] {
        let (status, stdout, _) = output(&arguments);
        assert_eq!((status, &*stdout), (Some(2), ""), "{arguments:?}");
    }
}

#[test]
fn a_signal_ends_it_with_what_was_measured() {
    let mut child = lab(&["--json", "--repeat", "100000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let id = child.id();
    wait_until_caught(id);
    let id = Pid::from_raw(id.try_into().expect("a process number"));
    kill(id, Signal::SIGINT).expect("it still runs");
    let mut stdout = String::new();
    let mut pipe = child.stdout.take().expect("piped");
    pipe.read_to_string(&mut stdout).expect("UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let report: Value = serde_json::from_str(&stdout).expect("it prints JSON");
    assert_eq!(report["interrupted_by"], 2);
    let cells = report["regions"][0]["cells"].as_array().expect("cells");
    assert!(!cells.is_empty());
}

/// Waits until a process catches SIGINT, by the mask of signals in its status.
fn wait_until_caught(id: u32) {
    loop {
        let status = std::fs::File::open(format!("/proc/{id}/status")).expect("it runs");
        let caught = BufReader::new(status)
            .lines()
            .map_while(Result::ok)
            .find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok())
            .expect("a mask");
        if caught & 1 << (Signal::SIGINT as u64 - 1) != 0 {
            return;
        }
        std::thread::yield_now();
    }
}

/// On x86_64, for which instructions there are depends on the architecture.
#[cfg(target_arch = "x86_64")]
#[test]
fn help() {
    let (status, stdout, _) = output(&["--help"]);
    assert_eq!(status, Some(0));
    insta::assert_snapshot!("help_lab", stdout);
}
