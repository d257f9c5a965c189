//! The command line and what its subcommands do.

pub mod args;
pub mod doctor;
pub mod lab;
mod output;
mod session;
pub mod sweep;
pub mod trace;
pub mod workload;

use std::process::ExitCode;

use anyhow::Result;

use args::{Cli, Command};

use crate::settings;

/// Does what the command line asks.
///
/// # Errors
/// What stopped it, in one line.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        None => trace::run(&cli.trace),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Workload(args)) => workload::main(&args),
        Some(Command::Lab(args)) => lab::main(&args),
        Some(Command::Sweep(args)) => sweep::main(&args),
    }
}

/// Puts back what a killed run has left changed, and says so.
fn repair_settings() {
    for outcome in settings::repair() {
        match outcome {
            Ok(repaired) => eprintln!("hugeclear-trace: {repaired}"),
            Err(error) => eprintln!("hugeclear-trace: {error}"),
        }
    }
}
