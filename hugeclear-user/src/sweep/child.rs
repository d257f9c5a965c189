//! One run: the workload in a process of its own.

use std::{
    io,
    process::{ExitStatus, Output, Stdio},
};

use anyhow::{Context as _, Result};
use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use tokio::process::{Child as Process, Command};

use crate::workload;

/// This very program, also if its file has been replaced or removed since.
const SELF: &str = "/proc/self/exe";

/// A workload that runs.
#[derive(Debug)]
pub struct Child(Process);

/// How a workload ended.
#[derive(Debug)]
pub enum Outcome {
    /// With a report, which may be of a part only: see its `interrupted_by`.
    Done(Box<workload::Report>),
    /// With what it said of the reason.
    Failed(String),
}

impl Child {
    /// The name of the process and of its threads, as the kernel has it: the last part of the path that
    /// was executed.
    pub const COMM: &str = "exe";

    /// Starts `hugeclear-trace workload` with these words. Only within the event loop.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(words: &[String]) -> Result<Self> {
        let mut command = Command::new(SELF);
        command
            .arg("workload")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Should this process end without waiting.
            .kill_on_drop(true);
        // And should it be killed: nobody would read what the workload did.
        let end_with_us = || set_pdeathsig(Signal::SIGTERM).map_err(io::Error::from);
        // SAFETY: between fork and exec only a system call is made, and nothing is allocated.
        unsafe { command.pre_exec(end_with_us) };
        command
            .spawn()
            .map(Self)
            .context("cannot start the workload")
    }

    /// Asks it to end, by the signal that it takes for such.
    pub fn stop(id: Option<u32>) {
        if let Some(id) = id {
            // It may have ended just now, or by the same Ctrl-C.
            let _ = kill(Pid::from_raw(id.cast_signed()), Signal::SIGTERM);
        }
    }

    /// Its process number, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.0.id()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If what it says cannot be read.
    pub async fn outcome(self) -> Result<Outcome> {
        let output = self.0.wait_with_output().await;
        Ok(outcome(&output.context("cannot wait for the workload")?))
    }
}

fn outcome(output: &Output) -> Outcome {
    match serde_json::from_slice(&output.stdout) {
        Ok(report) => Outcome::Done(Box::new(report)),
        Err(_) => Outcome::Failed(last_words(output.status, &output.stderr)),
    }
}

/// The last line of what a process said before it failed, or else how it ended.
fn last_words(status: ExitStatus, stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    match said.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => line.trim_start_matches("hugeclear-trace: ").to_owned(),
        None => format!("it said nothing ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_failure_is_what_was_said_last() {
        let said = |stderr: &str| last_words(ExitStatus::from_raw(9), stderr.as_bytes());
        assert_eq!(
            said("note\nhugeclear-trace: the pool is empty\n\n"),
            "the pool is empty"
        );
        assert_eq!(said(""), "it said nothing (signal: 9 (SIGKILL))");
    }
}
