//! `hugeclear-trace`: see `hugeclear-trace --help`.

use std::{io, process::ExitCode};

use clap::Parser as _;
use hugeclear_user::cli::{self, args::Cli};

fn main() -> ExitCode {
    match cli::run(Cli::parse()) {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hugeclear-trace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output has gone, which is its right.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
