//! The subcommands: their arguments, and what they print. The work is done in the library.

pub(crate) mod demo;
pub(crate) mod setup;
pub(crate) mod test;
pub(crate) mod vm;

use std::process::ExitCode;

/// The exit status of a task; tells its error, if any, on stderr.
pub(crate) fn report(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
