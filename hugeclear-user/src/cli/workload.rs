//! The workload driver.

use std::{
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use anyhow::Result;

use crate::workload::{Args, Machine, Plan, run};

/// Exit status of bad usage, as clap has it.
const USAGE: u8 = 2;

/// Runs a workload and prints its report.
///
/// # Errors
/// If it cannot be run; what cannot be run as asked is an exit status.
pub fn main(args: &Args) -> Result<ExitCode> {
    super::repair_settings();
    let planned = Plan::check(args, &Machine::read(Path::new("/")));
    let (report, put_back) = match planned.and_then(|plan| run(&plan)) {
        Ok(done) => done,
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
        write!(out, "{report}")?;
    }
    put_back?;
    Ok(report
        .interrupted_by
        .and_then(|signal| u8::try_from(128 + signal).ok())
        .map_or(ExitCode::SUCCESS, ExitCode::from))
}
