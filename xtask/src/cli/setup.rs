//! `cargo xtask setup`

use anyhow::Result;
use clap::Args;

/// Install what building and testing need and is missing here
///
/// A compiler for eBPF, bpf-linker built with the same LLVM, QEMU and busybox. Uses apt and cargo
/// as they are set up, and changes nothing where nothing is missing. Where it cannot install (not
/// root, or not Debian), it prints the commands to run.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  cargo xtask setup")]
pub(crate) struct Arguments {}

/// Runs the task.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {} = arguments;
    if xtask::setup::run()? {
        eprintln!("everything is installed now");
    } else {
        eprintln!("nothing is missing");
    }
    Ok(())
}
