//! `cargo xtask vm`

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Args, Subcommand, value_parser};
use tabled::{builder::Builder, settings::Style};
use xtask::{
    initramfs::{Added, Base},
    matrix::{self, Matrix, Refresh, Resolved},
    vm::{DEFAULT_CPUS, DEFAULT_MEMORY_MIB, DEFAULT_TIMEOUT, Guest, Status, Stream},
};

/// The exit status for trouble of the guest, as opposed to that of the command in it: EX_UNAVAILABLE
/// of sysexits.h.
const TROUBLE: u8 = 69;

/// Run commands on real kernels, emulated by QEMU
///
/// The kernels are those of tests/kernels.toml: Debian's, fetched with apt from the mirror that this
/// machine uses, and kept in ~/.cache/hugeclear-trace (HUGECLEAR_CACHE names another place).
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// List the kernels of the matrix and which of them are in the cache
    List,
    /// Fetch the newest version of every kernel of the matrix
    ///
    /// Fails if the oldest, the newest, or more than two kernels cannot be had.
    Fetch,
    Run(Run),
}

/// Boot a kernel, run a command in it as root, and return its output and exit status
///
/// The guest has hugeclear-trace of this workspace, built first, and the tools of busybox on its
/// PATH, and the usual file systems mounted (proc, sysfs, debugfs, tracefs, cgroup2, bpf). The
/// command's stdout and stderr are ours; its stdin is empty. It starts in /.
///
/// The exit status is that of the command, 128 + N if signal N killed it, 127 if there is no such
/// command, and 69 if the guest went wrong: it did not boot, broke down, or took too long.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct Run {
    /// Name of a kernel in the matrix, or path of a kernel image
    #[arg(long, value_name = "NAME|VMLINUZ")]
    kernel: String,
    /// Add to the kernel's command line; may be repeated
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    append: Vec<String>,
    /// Number of CPUs
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CPUS,
        value_parser = value_parser!(u32).range(1..=64))]
    smp: u32,
    /// Memory, such as 2G or 1536M; 1G is the least with which kernels use huge pages
    #[arg(long, value_name = "SIZE", default_value_t = Memory { mib: DEFAULT_MEMORY_MIB },
        value_parser = parse_memory)]
    memory: Memory,
    /// Split memory and CPUs over N NUMA nodes
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = value_parser!(u32).range(1..=16))]
    numa: u32,
    /// Count instructions as nanoseconds, on one CPU, so that durations repeat
    #[arg(long, conflicts_with = "smp")]
    icount: bool,
    /// Put a file into the guest, with its shared libraries; may be repeated
    ///
    /// Without GUEST, a program goes to /usr/local/bin, which is on the PATH, and any other file
    /// to /. A shell of busybox prefers its own tools: name the path of one that you add again.
    #[arg(long, value_name = "HOST[:GUEST]", value_parser = parse_added)]
    add: Vec<Added>,
    /// How long the guest may take, boot included
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT.as_secs())]
    timeout: u64,
    /// Take this hugeclear-trace instead of building it
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask vm run --kernel 6.12 -- hugeclear-trace doctor
  cargo xtask vm run --kernel 7.3 --append init_on_alloc=0 -- sh -c 'uname -a; free -m'
  cargo xtask vm run --kernel 6.18 --icount --append 'preempt=full init_on_alloc=0' -- \\
      hugeclear-trace -- hugeclear-trace workload thp
  cargo xtask vm run --kernel 6.1 --numa 2 --memory 4G --add /usr/bin/strace -- strace -c true
  cargo xtask vm run --kernel /boot/vmlinuz-6.1.0 -- uname -r";

/// Runs the task.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let Arguments { task } = arguments;
    match task {
        Task::List => super::report(list(Refresh::Never).map(drop)),
        Task::Fetch => {
            super::report(list(Refresh::Always).and_then(|resolved| matrix::check(&resolved)))
        }
        Task::Run(run) => match run.run() {
            Ok(status) => status.code().into(),
            // As for any program whose reader has left.
            Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                TROUBLE.into()
            }
        },
    }
}

/// Prints the matrix, one kernel a line.
fn list(refresh: Refresh) -> Result<Vec<Resolved>> {
    let resolved = Matrix::load()?.resolve(refresh)?;
    let mut table = Builder::new();
    table.push_record(["NAME", "RELEASE", "PACKAGE", "VERSION"]);
    for Resolved { entry, kernel } in &resolved {
        match kernel {
            Ok(kernel) => table.push_record([
                &entry.name,
                &kernel.release,
                &kernel.package,
                &kernel.version,
            ]),
            Err(why) => table.push_record([&entry.name, "missing", why, ""]),
        }
    }
    let table = table.build().with(Style::blank()).to_string();
    for line in table.lines() {
        writeln!(io::stdout(), "{}", line.trim_end())?;
    }
    Ok(resolved)
}

impl Run {
    fn run(self) -> Result<Status> {
        let Self {
            kernel,
            append,
            smp,
            memory,
            numa,
            icount,
            add,
            timeout,
            binary,
            command,
        } = self;
        let vmlinuz = find_kernel(&kernel)?;
        let base = match binary {
            Some(binary) => Base::with_binary(&binary)?,
            None => Base::build()?,
        };
        let mut guest = Guest::new(&base, vmlinuz)
            .smp(smp)
            .memory_mib(memory.mib)
            .numa(numa)
            .timeout(Duration::from_secs(timeout));
        if icount {
            guest = guest.icount();
        }
        guest = append.into_iter().fold(guest, Guest::append);
        guest = add.into_iter().fold(guest, Guest::add_file);

        let ended = guest.run_streaming(&command, |stream, bytes| {
            match stream {
                Stream::Stdout => {
                    let mut stdout = io::stdout();
                    stdout.write_all(bytes)?;
                    stdout.flush()?;
                }
                Stream::Stderr => io::stderr().write_all(bytes)?,
            }
            Ok(())
        })?;
        Ok(ended.status)
    }
}

/// The image for a name in the matrix or a path.
fn find_kernel(kernel: &str) -> Result<PathBuf> {
    let path = Path::new(kernel);
    if kernel.contains('/') || path.is_file() {
        return Ok(path.to_owned());
    }
    let kernel = Matrix::load()?.resolve_one(kernel, Refresh::WhenStale)?;
    Ok(kernel.vmlinuz)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    mib: u32,
}

impl std::fmt::Display for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.mib {
            mib if mib.is_multiple_of(1024) => write!(formatter, "{}G", mib / 1024),
            mib => write!(formatter, "{mib}M"),
        }
    }
}

fn parse_memory(text: &str) -> Result<Memory> {
    let wanted = || anyhow!("expected a number of MiB or GiB, such as 1536M or 2G");
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .with_context(wanted)?;
    let number: u32 = number.parse().map_err(|_| wanted())?;
    let mib = match unit {
        "M" => Some(number),
        "G" => number.checked_mul(1024),
        _ => return Err(wanted()),
    };
    mib.map(|mib| Memory { mib }).with_context(wanted)
}

fn parse_added(text: &str) -> Result<Added> {
    let (host, guest) = match text.split_once(':') {
        Some((host, guest)) => (host, Some(guest.to_owned())),
        None => (text, None),
    };
    ensure!(!host.is_empty(), "expected the path of a file");
    Ok(Added {
        host: host.into(),
        guest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_with_its_unit() {
        assert_eq!(parse_memory("2G").unwrap(), Memory { mib: 2048 });
        assert_eq!(parse_memory("1536M").unwrap(), Memory { mib: 1536 });
        for text in ["", "2", "G", "-1G", "2T", "2048K", "5000000G", "2é"] {
            assert!(parse_memory(text).is_err(), "{text}");
        }
        assert_eq!(Memory { mib: 2048 }.to_string(), "2G");
        assert_eq!(Memory { mib: 1536 }.to_string(), "1536M");
    }

    #[test]
    fn an_added_file_may_have_a_place() {
        let added = |host: &str, guest: Option<&str>| Added {
            host: host.into(),
            guest: guest.map(String::from),
        };
        assert_eq!(parse_added("a/b").unwrap(), added("a/b", None));
        assert_eq!(parse_added("a:/bin/b").unwrap(), added("a", Some("/bin/b")));
        assert!(parse_added(":/bin/b").is_err());
    }
}
