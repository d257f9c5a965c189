//! `cargo xtask`: see `cargo xtask --help`.

mod cli;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of hugeclear-trace.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Demo(cli::demo::Arguments),
    Setup(cli::setup::Arguments),
    Test(cli::test::Arguments),
    Vm(cli::vm::Arguments),
}

fn main() -> ExitCode {
    let Arguments { task } = Arguments::parse();
    match task {
        Task::Demo(arguments) => cli::report(cli::demo::run(&arguments)),
        Task::Setup(arguments) => cli::report(cli::setup::run(&arguments)),
        Task::Test(arguments) => cli::report(cli::test::run(&arguments)),
        Task::Vm(arguments) => cli::vm::run(arguments),
    }
}
