//! `cargo xtask demo`

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use xtask::{
    binaries,
    initramfs::Base,
    matrix::{Matrix, Refresh},
    setup,
    vm::Guest,
};

/// Show what hugeclear-trace shows, on a real kernel in QEMU
///
/// Installs what is missing, boots a Debian kernel (this machine's own is left alone, and KVM is not
/// needed), causes huge-page faults there under the trace, and prints the table and what it means.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Name of a kernel in the matrix
    #[arg(long, value_name = "NAME", default_value = "6.12")]
    kernel: String,
    /// Also put the output into README.md
    #[arg(long)]
    readme: bool,
}

/// Two CPUs take THP faults, one of them a gigantic page as well.
const LOAD: &str = "\
hugeclear-trace workload thp --size 128M --cpu 0 >/dev/null
hugeclear-trace workload thp --size 64M --cpu 1 >/dev/null
hugeclear-trace workload hugetlb --page-size 1G --size 1G --cpu 1 >/dev/null";

const APPEND: &str = "init_on_alloc=0 hugepagesz=1G hugepages=1";

const MEANING: &str = "
What it means: one row per CPU, site (the kernel function that cleared), page size and preemption model,
and below the rows of all CPUs. `count` clears took `mean` with a sample standard deviation of `stddev`;
half took no longer than `p50`, 99 % no longer than `p99` (within 1.6 %). GB/s is 1e9 bytes per second of
summed wall time; `preempted` is the part of that in which the thread had to wait for a CPU, and the last
column the rate in the rest. The workload caused 64 + 32 THP faults and one hugetlb fault of 1 GiB, so 97
clears must be there. The durations are those of an emulator.";

#[expect(clippy::print_stdout, reason = "the table is what the task is for")]
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    let kernel = Matrix::load()?.resolve_one(&arguments.kernel, Refresh::WhenStale)?;
    let binary = binaries::build_hugeclear_trace()?;
    let base = Base::with_binary(&binary)?;
    eprintln!("booting Linux {} in QEMU", kernel.release);
    let command = ["hugeclear-trace", "--per-cpu", "--", "sh", "-ec", LOAD];
    let outcome = Guest::new(&base, kernel.vmlinuz)
        .append(APPEND)
        .memory_mib(3072)
        .run(&command)?;
    if !outcome.status.success() {
        bail!("{outcome}");
    }
    let table = String::from_utf8(outcome.stdout).context("the output is not UTF-8")?;
    println!("{table}{MEANING}");
    if arguments.readme {
        write_readme(&table)?;
    }
    if can_be_traced(&binary)? {
        println!(
            "\nThis machine itself can be traced:\n  sudo {} --per-cpu",
            binary.display()
        );
    }
    Ok(())
}

/// What stands before and behind the table in README.md.
const BEGIN: &str = "<!-- made by `cargo xtask demo --readme` -->\n";
const END: &str = "<!-- end -->";

/// Puts `table` between the markers of README.md.
fn write_readme(table: &str) -> Result<()> {
    let path = xtask::workspace().join("README.md");
    let readme = fs::read_to_string(&path).context("reading README.md")?;
    let (head, rest) = readme
        .split_once(BEGIN)
        .context("README.md has no marker for the demo")?;
    let (_, tail) = rest
        .split_once(END)
        .context("README.md has no end marker")?;
    let block = format!(
        "{head}{BEGIN}```\n$ sudo hugeclear-trace --per-cpu -- ./load\n{table}```\n{END}{tail}"
    );
    fs::write(&path, block).context("writing README.md")
}

/// Whether a trace of this machine would work, or lacks nothing but privileges.
fn can_be_traced(binary: &Path) -> Result<bool> {
    let doctor = Command::new(binary).args(["doctor", "--json"]).output()?;
    let diagnosis: serde_json::Value =
        serde_json::from_slice(&doctor.stdout).context("doctor --json printed no JSON")?;
    let lacks_only_privileges = diagnosis["obstacle_is_privilege"] == true
        && diagnosis["candidates"]
            .as_array()
            .is_some_and(|candidates| !candidates.is_empty());
    Ok(diagnosis["obstacle"].is_null() || lacks_only_privileges)
}

#[cfg(test)]
mod tests {
    /// A README without a real run would promise what nobody has seen.
    #[test]
    fn the_readme_shows_a_run() {
        let readme = std::fs::read_to_string(xtask::workspace().join("README.md")).unwrap();
        let (_, rest) = readme.split_once(super::BEGIN).unwrap();
        let (block, _) = rest.split_once(super::END).unwrap();
        for part in [
            "kernel ",
            "traced: folio_zero_user",
            "GB/s",
            "lost: nothing",
        ] {
            assert!(
                block.contains(part),
                "no `{part}`: run `cargo xtask demo --readme`"
            );
        }
    }
}
