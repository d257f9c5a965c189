//! The command line: definitions only. Doc comments are the help text.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};

use crate::{
    probes::{
        config::Filter,
        select::{AllocatorMode, Method},
    },
    strategy::Touch,
    units, workload,
};

/// How long the kernel takes to clear huge pages: live, per site, page size and CPU
///
/// Without a subcommand: attaches to the functions with which this kernel clears huge pages, and
/// shows how often they ran, for how long, and at what rate. Ctrl-C detaches and prints the total.
#[derive(Debug, Parser)]
#[command(
    name = "hugeclear-trace",
    version,
    args_conflicts_with_subcommands = true,
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub struct Cli {
    /// What to do instead of a live trace
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of the live trace
    #[command(flatten)]
    pub trace: TraceArgs,
}

const EXAMPLES: &str = "\
Examples:
  sudo hugeclear-trace                       all clears, refreshed every second, until Ctrl-C
  sudo hugeclear-trace --per-cpu             one row per CPU, and their total
  sudo hugeclear-trace -d 60 --json          one minute, as JSON
  sudo hugeclear-trace -i 1                  a table every second, then the total
  sudo hugeclear-trace -p 4242 --min-size 2M clears of 2 MiB and more by process 4242
  sudo hugeclear-trace --per-cpu -- ./server what a command causes on the machine while it runs
  hugeclear-trace doctor                     what can be traced here, and what is missing

Units: GB/s is 1e9 bytes per second of summed wall time; page sizes are powers of 1024.
Exit status: 0 also after Ctrl-C, SIGTERM or SIGHUP; 1 if tracing failed; 2 for bad usage; with a
COMMAND its own status, or 128 + the number of the signal that ended it. A COMMAND that still runs
when the trace ends otherwise gets SIGTERM, and five seconds to end; the status is then 0.";

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what can be traced on this machine, what is missing, and what to do about it
    Doctor(DoctorArgs),
    /// Cause huge-page faults, and report how many
    Workload(workload::Args),
}

/// Options of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeclear-trace doctor             what an ordinary user can learn
  sudo hugeclear-trace doctor        also attaches each probe for a moment, as proof
  sudo hugeclear-trace doctor --strategy
                                     draws how this kernel clears a huge page
  hugeclear-trace doctor --json | jq .facts.preempt")]
pub struct DoctorArgs {
    /// Print everything that was learnt as JSON
    #[arg(long)]
    pub json: bool,
    /// Use only this way to attach
    #[arg(long, value_name = "METHOD")]
    pub method: Option<Method>,
    /// How clears in the page allocator are traced, where the kernel makes them there
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub allocator: AllocatorMode,
    /// Also fault one huge page, and show in which order it is cleared, in pieces of what size
    ///
    /// Follows that one page with probes that fire at every piece, 512 times for 2 MiB on kernels before
    /// 7.0, so the times shown are longer than those of a clear that is not followed.
    #[arg(long)]
    pub strategy: bool,
    /// Where to touch that page: first, middle, last, or the number of a sub-page from 0
    #[arg(long, value_name = "PAGE", default_value = "middle", value_parser = Touch::parse, requires = "strategy")]
    pub touch: Touch,
    /// Take that page from the hugetlb pool of this page size, such as 2M, instead of an anonymous one
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes, requires = "strategy")]
    pub hugetlb: Option<u64>,
}

/// Options of the live trace.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// One row per CPU on which clears ended, and a total line
    #[arg(long)]
    pub per_cpu: bool,
    /// Stop after this many seconds, and ask a COMMAND that still runs to end
    #[arg(short = 'd', long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Print what each interval of this many seconds held, then the total
    #[arg(short = 'i', long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// Only clears by this process (all its threads), as the host numbers it
    #[arg(short = 'p', long, value_name = "TGID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// Only clears by threads of this name, of which the kernel keeps 15 bytes
    #[arg(short = 'c', long, value_name = "COMM", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub comm: Option<String>,
    /// Only pages of at least this size, such as 64K, 2M or 1G
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub min_size: Option<u64>,
    /// Only pages of at most this size
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub max_size: Option<u64>,
    /// Use only this way to attach, instead of fentry and, where that is refused, kprobe
    #[arg(long, value_name = "METHOD")]
    pub method: Option<Method>,
    /// How clears in the page allocator are traced, where the kernel makes them there
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub allocator: AllocatorMode,
    /// Print JSON: one object, or with -i one object per line, the last of type `total`
    #[arg(long)]
    pub json: bool,
    /// Write to this file instead of stdout
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Say on stderr which probes were refused and why, which are attached, and what the kernel side
    /// logs; -vv with the verifier's log
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Trace the machine while this command runs. Its stdout goes to stderr, unless -o is given
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl TraceArgs {
    /// The clears that are asked for.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter {
            tgid: self.pid,
            comm: self.comm.clone(),
            min_bytes: self.min_size,
            max_bytes: self.max_size,
        }
    }
}

/// Ends the process as clap does on bad usage, with status 2.
pub fn usage(what: &str) -> ! {
    Cli::command()
        .error(ErrorKind::ArgumentConflict, what)
        .exit()
}

/// A positive number of seconds, fractions allowed.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    if seconds < 0.01 {
        return Err("at least 0.01 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "nan", "inf", "1e300", "1s", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
