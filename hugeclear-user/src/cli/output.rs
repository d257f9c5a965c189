//! Where reports go, and in what form.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd as _, OwnedFd},
    process::Stdio,
};

use anyhow::{Context as _, Result};

use super::args::TraceArgs;
use crate::{
    report::{self, Report},
    term::{self, Refresh},
};

/// Where reports go, and in what form.
pub(super) struct Output {
    to: Box<dyn Write>,
    /// What it is, for messages.
    pub(super) name: String,
    is_file: bool,
    json: bool,
    /// Whether a table is renewed in place until the end.
    pub(super) refreshes: bool,
    refresh: Refresh,
}

impl Output {
    pub(super) fn open(args: &TraceArgs) -> Result<Self> {
        let to: Box<dyn Write> = match &args.output {
            Some(path) => Box::new(
                File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?,
            ),
            None => Box::new(io::stdout()),
        };
        let is_file = args.output.is_some();
        // A table that is renewed in place would wipe out what a command prints to the same terminal.
        let is_shared = !args.command.is_empty() && term::stderr_is_terminal();
        let refreshes = !is_file
            && !args.json
            && args.interval.is_none()
            && !is_shared
            && term::stdout_is_terminal();
        Ok(Self {
            to,
            name: args.output.as_ref().map_or_else(
                || "to stdout".to_owned(),
                |path| format!("`{}`", path.display()),
            ),
            is_file,
            json: args.json,
            refreshes,
            refresh: Refresh::default(),
        })
    }

    /// Stdout of the traced command: ours carries only our data.
    pub(super) fn for_command(&self) -> Result<Stdio> {
        if self.is_file {
            return Ok(Stdio::inherit());
        }
        let stderr: OwnedFd = io::stderr()
            .as_fd()
            .try_clone_to_owned()
            .context("cannot duplicate stderr")?;
        Ok(stderr.into())
    }

    /// Renews the table on the terminal.
    pub(super) fn refresh(&mut self, report: &Report) -> io::Result<()> {
        self.refresh.show(&mut self.to, &report::table(report))
    }

    /// Prints a report to stay.
    pub(super) fn print(&mut self, report: &Report) -> io::Result<()> {
        self.refresh.clear(&mut self.to)?;
        let text = if self.json {
            report::json(report)
        } else {
            report::table(report)
        };
        self.to.write_all(text.as_bytes())?;
        self.to.flush()
    }
}
