//! The lab.

use std::{
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use anyhow::Result;

use crate::{
    lab::{Args, Machine, Plan, run, table},
    term,
};

/// Exit status of bad usage, as clap has it.
const USAGE: u8 = 2;

/// Measures, and prints the report.
///
/// # Errors
/// If it cannot be measured; what cannot be measured as asked is an exit status.
pub fn main(args: &Args) -> Result<ExitCode> {
    let machine = Machine::read(Path::new("/"));
    let report = match Plan::check(args, &machine).and_then(|plan| run(&plan, &machine)) {
        Ok(report) => report,
        Err(error) if error.usage() => {
            eprintln!("hugeclear-trace: {error}");
            return Ok(ExitCode::from(USAGE));
        }
        Err(error) => return Err(error.into()),
    };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        out.write_all(table(&report, term::columns()).as_bytes())?;
    }
    Ok(report
        .interrupted_by
        .and_then(|signal| u8::try_from(128 + signal).ok())
        .map_or(ExitCode::SUCCESS, ExitCode::from))
}
