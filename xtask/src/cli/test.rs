//! `cargo xtask test`

use std::{
    env,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use xtask::{
    matrix::{self, Matrix, Refresh},
    setup,
};

/// Run every test, those on real kernels included
///
/// Installs what is missing, runs the tests that need no kernel, then boots each kernel of
/// tests/kernels.toml for each scenario of tests/matrix.rs, two guests at a time. A kernel that cannot be had is skipped by name; the run fails if the
/// oldest, the newest, or more than two are missing.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo xtask test                  everything
  cargo xtask test 6.12             every scenario on 6.12, and nothing else
  cargo xtask test ::lifecycle      one scenario on every kernel")]
pub(crate) struct Arguments {
    /// Run only the tests on kernels whose name, such as 6.12::counts, contains this
    filter: Option<String>,
}

/// Guests at a time. What compares durations counts instructions, so company does not matter to it.
const GUESTS: &str = "2";

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    // Fetched before anything takes long, so that a missing kernel is known at once.
    let resolved = Matrix::load()?.resolve(Refresh::WhenStale)?;
    matrix::check(&resolved)?;

    if arguments.filter.is_none() {
        cargo(&["test", "--workspace", "--exclude", "tests"])?;
    }
    let matrix = ["test", "--package", "tests", "--", "--test-threads", GUESTS];
    // `6.12` is not to match `6.12-rt`.
    let filter = arguments
        .filter
        .as_ref()
        .map(|filter| match filter.contains("::") {
            true => filter.clone(),
            false => format!("{filter}::"),
        });
    let filter: Vec<&str> = filter.as_deref().into_iter().collect();
    cargo(&[&matrix[..], &filter].concat())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(xtask::workspace())
        .args(arguments)
        .stdin(Stdio::null())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}
