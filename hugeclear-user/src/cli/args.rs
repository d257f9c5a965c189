//! The command line: definitions only. Doc comments are the help text.

use std::{collections::BTreeSet, ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};

use hugeclear_ebpf::key::{Cause, Outcome, Site};

use crate::{
    facts::{PreemptModel, cgroup::Cgroup},
    lab,
    probes::{
        config::{Details, EventRequest, Filter, Request},
        select::{AllocatorMode, Method},
    },
    strategy::Touch,
    sweep,
    units::{self, Numbers, numbers, seconds},
    window::{By, Grouping, Only},
    workload,
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
  sudo hugeclear-trace --faults              why pages are cleared, and what the faults wait for
  sudo hugeclear-trace --by comm,page-size   who has what cleared
  sudo hugeclear-trace --sched-impact        how long other tasks wait for a clear to end
  sudo hugeclear-trace --per-node            local and remote clearing
  sudo hugeclear-trace --events --slower 5   each clear of more than 5 ms, as it ends
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
    /// Measure in user space what the order and the instructions of clearing cost, without root
    Lab(lab::Args),
    /// Run a workload under every combination of preemption models and other settings, and compare
    Sweep(sweep::Args),
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
    /// What to tell apart, instead of site,page-size,preempt
    #[arg(long, value_name = "KEY,...", value_delimiter = ',', help_heading = KEYS)]
    pub by: Vec<By>,
    /// Also tell apart the CPU on which it ended
    #[arg(long, help_heading = KEYS)]
    pub per_cpu: bool,
    /// Also tell apart the node of that CPU and the node of the memory, and show the matrix of the two
    #[arg(long, help_heading = KEYS)]
    pub per_node: bool,
    /// Also tell apart the names of the threads
    #[arg(long, help_heading = KEYS)]
    pub per_comm: bool,
    /// Also tell apart the processes
    #[arg(long, help_heading = KEYS)]
    pub per_pid: bool,
    /// Also tell apart the cgroups (v2)
    #[arg(long, help_heading = KEYS)]
    pub per_cgroup: bool,
    /// With comm, pid or cgroup: show so many rows, by the time they took, and the sum of the others
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive, help_heading = KEYS)]
    pub top: usize,

    /// Also trace the faults around clears: why each page was cleared, and what the faults waited for
    ///
    /// Adds probes on the fault functions, on direct compaction and on direct reclaim, and the keys cause
    /// and outcome. While an mTHP size is enabled, one of the probes costs every anonymous page fault a
    /// few hundred instructions.
    #[arg(long)]
    pub faults: bool,

    /// Also show how long tasks that woke on a CPU waited there while a clear went on
    ///
    /// Adds probes on every wake-up and every context switch of the machine, whatever is cleared: some 300
    /// instructions for the two together (counted on 6.12). Needs the kernel's BTF.
    #[arg(long, conflicts_with_all = ["site", "cause", "outcome", "mem_node", "fault_offset"])]
    pub sched_impact: bool,

    /// Only this process (all its threads), as the host numbers it
    #[arg(short = 'p', long, value_name = "TGID", value_parser = clap::value_parser!(u32).range(1..), help_heading = FILTERS)]
    pub pid: Option<u32>,
    /// Only threads of this name, of which the kernel keeps 15 bytes
    #[arg(short = 'c', long, value_name = "COMM", value_parser = clap::builder::NonEmptyStringValueParser::new(), help_heading = FILTERS)]
    pub comm: Option<String>,
    /// Only tasks in this cgroup (v2) or below it, such as /system.slice/db.service
    #[arg(long, value_name = "PATH", help_heading = FILTERS)]
    pub cgroup: Option<String>,
    /// Only pages of at least this size, such as 64K, 2M or 1G
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes, help_heading = FILTERS)]
    pub min_size: Option<u64>,
    /// Only pages of at most this size
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes, help_heading = FILTERS)]
    pub max_size: Option<u64>,
    /// Only pages of these sizes
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = units::parse_bytes, help_heading = FILTERS)]
    pub page_size: Vec<u64>,
    /// Only at these sites; leaves out all faults
    #[arg(long, value_name = "SITE,...", value_delimiter = ',', value_parser = site, help_heading = FILTERS)]
    pub site: Vec<Site>,
    /// Only for these causes: thp-fault, mthp-fault, hugetlb-fault, huge-zero-page, fallocate, memfd, other
    #[arg(long, value_name = "CAUSE,...", value_delimiter = ',', value_parser = cause, help_heading = FILTERS)]
    pub cause: Vec<Cause>,
    /// Only faults that ended so, and no clears: mapped, zero-page, copied, fallback-alloc, fallback-charge, fallback-vma,
    /// fallback-unknown, failed
    #[arg(long, value_name = "OUTCOME,...", value_delimiter = ',', value_parser = outcome, help_heading = FILTERS)]
    pub outcome: Vec<Outcome>,
    /// Only what ended on these CPUs, such as 0-3,8
    #[arg(long, value_name = "LIST", value_parser = numbers, help_heading = FILTERS)]
    pub cpu: Option<Numbers>,
    /// Only what ended on CPUs of these nodes
    #[arg(long, value_name = "LIST", value_parser = numbers, help_heading = FILTERS)]
    pub node: Option<Numbers>,
    /// Only pages in the memory of these nodes; leaves out all faults
    #[arg(long, value_name = "LIST", value_parser = numbers, help_heading = FILTERS)]
    pub mem_node: Option<Numbers>,
    /// Only under these preemption models: none, voluntary, full, lazy, rt, none-or-voluntary
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',', value_parser = preempt_model, help_heading = FILTERS)]
    pub preempt: Vec<PreemptModel>,
    /// Only faults in these sixteenths of the page, 0-15
    #[arg(long, value_name = "LIST", value_parser = sixteenths, help_heading = FILTERS)]
    pub fault_offset: Option<Numbers>,

    /// Print each clear, copy and (with --faults) fault as it ends, on a line of its own, then the total
    ///
    /// The time is that of its end, since the trace began; nodes are those of the CPU and of the memory; 16th
    /// is where in the page the fault was. What the ring buffer has no room for is counted under LOST. Filters
    /// hold for events too.
    #[arg(long, help_heading = EVENTS)]
    pub events: bool,
    /// Print only those that took at least so many milliseconds, such as 5 or 0.25; the total holds all
    #[arg(long, value_name = "MS", value_parser = milliseconds, requires = "events", help_heading = EVENTS)]
    pub slower: Option<Duration>,
    /// With the kernel's stack, innermost function first
    #[arg(long, requires = "events", help_heading = EVENTS)]
    pub stack: bool,
    /// Size of the ring buffer, a power of two
    #[arg(long, value_name = "BYTES", value_parser = buffer_bytes, default_value = "4M", hide = true)]
    pub events_buffer: u32,

    /// Longest time between two clears of a run of back-to-back clears by one thread, in microseconds
    #[arg(long, value_name = "US", default_value_t = 100)]
    pub run_gap: u64,
    /// Stop after this many seconds, and ask a COMMAND that still runs to end
    #[arg(short = 'd', long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Print what each interval of this many seconds held, then the total
    #[arg(short = 'i', long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// Use only this way to attach, instead of fentry and, where that is refused, kprobe
    #[arg(long, value_name = "METHOD")]
    pub method: Option<Method>,
    /// How clears in the page allocator are traced, where the kernel makes them there
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub allocator: AllocatorMode,
    /// Print JSON: one object; with -i or --events one object per line, the last of type `total`
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

const KEYS: &str = "What to tell apart";
const FILTERS: &str = "What to leave out";
const EVENTS: &str = "One by one";

impl TraceArgs {
    /// How what was recorded is to be shown.
    #[must_use]
    pub fn grouping(&self) -> Grouping {
        let mut by: BTreeSet<By> = if self.by.is_empty() {
            By::DEFAULT.into()
        } else {
            self.by.iter().copied().collect()
        };
        let asked = [
            (self.per_cpu, &[By::Cpu][..]),
            (self.per_node, &[By::Node, By::MemNode]),
            (self.per_comm, &[By::Comm]),
            (self.per_pid, &[By::Pid]),
            (self.per_cgroup, &[By::Cgroup]),
            (self.faults && self.by.is_empty(), &[By::Cause, By::Outcome]),
        ];
        by.extend(
            asked
                .iter()
                .filter(|(is, _)| *is)
                .flat_map(|(_, keys)| *keys),
        );
        let list = |numbers: &Option<Numbers>| numbers.clone().unwrap_or_default().0;
        Grouping {
            by,
            only: Only {
                sites: self.site.clone(),
                causes: self.cause.clone(),
                outcomes: self.outcome.clone(),
                page_sizes: self.page_size.clone(),
                cpus: list(&self.cpu),
                nodes: list(&self.node),
                mem_nodes: list(&self.mem_node),
                preempt_models: self.preempt.clone(),
                fault_offsets: list(&self.fault_offset)
                    .into_iter()
                    .filter_map(|sixteenth| u8::try_from(sixteenth).ok())
                    .collect(),
                // Where it can be, it is filtered in the kernel.
                cgroup: None,
            },
            top: self.top,
        }
    }

    /// Whether the faults around clears are to be traced: asked for, or needed for what is.
    #[must_use]
    pub fn needs_faults(&self) -> bool {
        let grouping = self.grouping();
        self.faults
            || [By::Cause, By::Outcome]
                .iter()
                .any(|key| grouping.by.contains(key))
            || !self.cause.is_empty()
            || !self.outcome.is_empty()
    }

    /// What the kernel side is to record, to be shown by `grouping`; `cgroup` is that of `--cgroup`, to be
    /// filtered in the kernel.
    #[must_use]
    pub fn request(&self, grouping: &Grouping, cgroup: Option<Cgroup>) -> Request {
        let Grouping { by, only, .. } = grouping;
        let has = |key| by.contains(&key);
        Request {
            filter: Filter {
                tgid: self.pid,
                comm: self.comm.clone(),
                cgroup,
                min_bytes: self.min_size.max(self.page_size.iter().min().copied()),
                max_bytes: match (self.max_size, self.page_size.iter().max().copied()) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                },
            },
            details: Details {
                cause: has(By::Cause) || !only.causes.is_empty(),
                fault_offset: has(By::FaultOffset) || !only.fault_offsets.is_empty(),
                memory_node: has(By::MemNode) || !only.mem_nodes.is_empty(),
                pid: has(By::Pid),
                comm: has(By::Comm),
                cgroup: has(By::Cgroup) || only.cgroup.is_some(),
            },
            run_gap: Duration::from_micros(self.run_gap),
            events: self.events.then_some(EventRequest {
                slower: self.slower.unwrap_or_default(),
                stacks: self.stack,
                buffer_bytes: self.events_buffer,
            }),
            sched_impact: self.sched_impact,
            verbose: self.verbose > 0,
        }
    }
}

fn sixteenths(text: &str) -> Result<Numbers, String> {
    numbers(text).and_then(|Numbers(list)| {
        if list.iter().all(|number| *number < 16) {
            Ok(Numbers(list))
        } else {
            Err("the sixteenths of a page are 0 to 15".to_owned())
        }
    })
}

fn site(text: &str) -> Result<Site, String> {
    named(&Site::ALL, Site::name, text)
}

fn cause(text: &str) -> Result<Cause, String> {
    named(&Cause::ALL, Cause::name, text)
}

fn outcome(text: &str) -> Result<Outcome, String> {
    named(&Outcome::ALL, Outcome::name, text)
}

fn preempt_model(text: &str) -> Result<PreemptModel, String> {
    named(&PreemptModel::ALL, PreemptModel::name, text)
}

/// The one of `all` that has this name.
fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, text: &str) -> Result<T, String> {
    let found = all.iter().copied().find(|value| name(*value) == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|value| name(*value)).collect();
        format!("one of {}", names.join(", "))
    })
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number from 1 on".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// A positive number of milliseconds, fractions allowed.
fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds: f64 = text
        .parse()
        .map_err(|_| "not a number of milliseconds".to_owned())?;
    Duration::try_from_secs_f64(milliseconds / 1e3).map_err(|error| error.to_string())
}

/// A size that a ring buffer can have.
fn buffer_bytes(text: &str) -> Result<u32, String> {
    let bytes = units::parse_bytes(text).map_err(|error| error.to_string())?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && (4096..=16 << 20).contains(&bytes) => Ok(bytes),
        Ok(_) | Err(_) => Err("a power of two from 4K to 16M".to_owned()),
    }
}

/// Ends the process as clap does on bad usage, with status 2.
pub fn usage(what: &str) -> ! {
    Cli::command()
        .error(ErrorKind::ArgumentConflict, what)
        .exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
