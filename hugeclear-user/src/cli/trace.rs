//! The live trace.

use std::{
    io::{self, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya_log::EbpfLogger;
use log::{LevelFilter, Log};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    task::yield_now,
    time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout},
};

use super::{
    args::{self, TraceArgs},
    output::Output,
    session::Session,
};
use crate::{
    facts::{Facts, cgroup},
    probes::{
        config,
        events::Events,
        select::{self, Wanted},
        tracer::Tracer,
    },
    term,
};

/// How often the live table is renewed.
const REFRESH: Duration = Duration::from_secs(1);
/// How much text of events is written at once.
const BATCH_BYTES: usize = 64 << 10;
/// How long what is printed last may still take once somebody asks again to end.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a command may take to end after SIGTERM before it is left to itself.
const GRACE: Duration = Duration::from_secs(5);

/// Traces until a signal, the end of the duration or the end of the command.
///
/// # Errors
/// If nothing can be traced, the command cannot be started, or the output cannot be written.
pub fn run(args: &TraceArgs) -> Result<ExitCode> {
    if let (Some(min), Some(max)) = (args.min_size, args.max_size)
        && min > max
    {
        args::usage("--min-size is larger than --max-size: no page would be recorded");
    }
    if let Some(level) = log_level(args.verbose) {
        env_logger::Builder::new()
            .filter_level(level)
            .format(|out, record| writeln!(out, "{}", record.args()))
            .init();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let status = runtime.block_on(trace(args));
    // Without waiting for a reader who does not read.
    runtime.shutdown_background();
    status
}

async fn trace(args: &TraceArgs) -> Result<ExitCode> {
    // Signals first: from here on, none ends us without a detach.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
    let mut output = Output::open(args)?;

    let facts = Facts::read(Path::new("/"));
    check_pid(args.pid, &facts)?;
    let mut cgroup = args
        .cgroup
        .as_deref()
        .map(|path| cgroup::find(facts.cgroup2.as_deref(), path))
        .transpose()?;
    let mut grouping = args.grouping();
    if !config::filters_cgroups() {
        grouping.only.cgroup = cgroup.take().map(|cgroup| cgroup.path);
    }
    let request = args.request(&grouping, cgroup);
    let wanted = Wanted {
        method: args.method,
        allocator: args.allocator,
        faults: args.needs_faults(),
    };
    let set = select::select(&facts, &wanted);
    let mut tracer = Tracer::attach(&facts, &set, &request)?;
    for refusal in &tracer.refusals {
        log::info!("refused: {refusal}");
    }
    for probe in &tracer.probes {
        log::info!("attached: {} by {}", probe.function, probe.method);
    }
    let mut session = Session::new(&facts, &tracer, &request, grouping, args.json);
    let mut log = (args.verbose > 0)
        .then(|| kernel_log(&mut tracer))
        .flatten();
    let mut events = tracer.take_events().map(watch).transpose()?;
    if events.is_some() {
        output.print_event_titles().await;
    }

    let mut command = match &args.command[..] {
        [] => None,
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).stdout(output.for_command()?);
            Some(command.spawn().with_context(|| {
                format!(
                    "cannot run `{}` (the command after `--`)",
                    program.display()
                )
            })?)
        }
    };
    if args.command.is_empty() && !output.refreshes && term::stderr_is_terminal() {
        eprintln!("tracing; Ctrl-C detaches and prints");
    }

    let start = Instant::now();
    let period = args.interval.unwrap_or(REFRESH);
    let mut ticks = interval_at(start + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = args.duration.map(|duration| start + duration);
    let needs_ticks = args.interval.is_some() || output.refreshes;

    let end = loop {
        tokio::select! {
            _ = interrupt.recv() => break End::Asked,
            _ = terminate.recv() => break End::Asked,
            _ = hangup.recv() => break End::Asked,
            status = finished(&mut command) => break End::Command(status?),
            () = passed(deadline) => break End::Asked,
            () = output.failed() => break End::Unwritable,
            // While nobody reads what is printed, windows grow longer, and events wait where they are.
            () = async { output.room().await; ticks.tick().await; }, if needs_ticks => {
                let now = session.moment(tracer.read());
                match args.interval {
                    Some(_) => output.print(&session.window(&now)).await,
                    None => output.refresh(&session.total(&now)).await,
                }
            }
            (text, is_all) = next_events(&mut events, &mut session, &output) => {
                output.write(text.into_bytes()).await;
                if !is_all {
                    // A flood must not hide the signals.
                    yield_now().await;
                }
            }
            () = flush(&mut log) => {}
        }
    };

    // What ends the trace ends it before the command is asked to stop: its exit may clear no more,
    // and takes time.
    tracer.stop();
    session.stop();
    let end_of_record = session.moment(tracer.end());
    let name = output.name.clone();
    let rest = async {
        if let Some(events) = &mut events {
            let mut is_all = false;
            while !is_all {
                let text;
                (text, is_all) = take_events(events.get_mut(), &mut session, &output);
                output.write(text.into_bytes()).await;
            }
        }
        if args.interval.is_some() {
            output.print(&session.window(&end_of_record)).await;
        }
        output.print(&session.total(&end_of_record)).await;
        output.finish().await
    };
    let written = tokio::select! {
        written = rest => written.map_err(anyhow::Error::from),
        () = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            // Somebody who is only impatient gets it all.
            sleep(PATIENCE).await;
        } => Err(anyhow!("interrupted while its reader did not read")),
    };
    match written {
        // A reader may leave when it has seen enough; the command goes on.
        Err(error) if !is_broken_pipe(&error) => {
            stop(command).await;
            Err(error).with_context(|| format!("cannot write {name}"))
        }
        Ok(()) | Err(_) => match end {
            End::Command(status) => Ok(exit_code(status)),
            End::Asked => {
                stop(command).await;
                Ok(ExitCode::SUCCESS)
            }
            End::Unwritable if command.is_none() => Ok(ExitCode::SUCCESS),
            End::Unwritable => Ok(exit_code(finished(&mut command).await?)),
        },
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    (error.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Refuses a process that does not exist: its trace would wait in vain.
fn check_pid(pid: Option<u32>, facts: &Facts) -> Result<()> {
    match pid {
        // In another pid namespace the host's numbers mean nothing here.
        Some(pid) if facts.privileges.initial_pid_namespace == Some(true) => {
            let exists = Path::new("/proc").join(pid.to_string()).exists();
            ensure!(
                exists,
                "cannot trace process {pid}: there is none of this number"
            );
            Ok(())
        }
        Some(_) | None => Ok(()),
    }
}

/// The level of our own log for so many `-v`.
fn log_level(verbose: u8) -> Option<LevelFilter> {
    match verbose {
        0 => None,
        1 => Some(LevelFilter::Info),
        2.. => Some(LevelFilter::Debug),
    }
}

/// Why a trace ends.
enum End {
    /// A signal, or the end of the duration.
    Asked,
    /// The command has ended.
    Command(ExitStatus),
    /// Nothing can be written any more.
    Unwritable,
}

/// The end of the command; never, without one.
async fn finished(command: &mut Option<Child>) -> Result<ExitStatus> {
    match command {
        Some(child) => child.wait().await.context("cannot wait for the command"),
        None => std::future::pending().await,
    }
}

/// The end of the duration; never, without one.
async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Asks a command that still runs to end, and waits for it a little.
async fn stop(command: Option<Child>) {
    let Some(mut child) = command else { return };
    let Some(id) = child.id() else { return };
    // It may have ended just now, or by the same Ctrl-C.
    let _ = kill(Pid::from_raw(id.cast_signed()), Signal::SIGTERM);
    if timeout(GRACE, child.wait()).await.is_err() {
        eprintln!("the command (pid {id}) did not end on SIGTERM and still runs");
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

type KernelLog = AsyncFd<EbpfLogger<&'static dyn Log>>;

fn kernel_log(tracer: &mut Tracer) -> Option<KernelLog> {
    let log = tracer.take_log()?;
    // SAFETY: the logger owns its ring buffer and its descriptor, and keeps both until it is dropped.
    unsafe { AsyncFd::register_with_interest(log, Interest::READABLE) }.ok()
}

/// Prints what the kernel side has logged, once there is something; never, without a log.
async fn flush(log: &mut Option<KernelLog>) {
    let Some(log) = log else {
        return std::future::pending().await;
    };
    if let Ok(mut ready) = log.readable_mut().await {
        ready.get_inner_mut().flush();
        ready.clear_ready();
    }
}

fn watch(events: Events) -> Result<AsyncFd<Events>> {
    // SAFETY: the events own their ring buffer and its descriptor, and keep both until they are dropped.
    unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) }
        .context("cannot wait for events")
}

/// Takes events as soon as there are any and there is room to print them: see [`take_events`]. Never,
/// without events.
async fn next_events(
    events: &mut Option<AsyncFd<Events>>,
    session: &mut Session<'_>,
    output: &Output,
) -> (String, bool) {
    let Some(events) = events else {
        return std::future::pending().await;
    };
    output.room().await;
    loop {
        // An error says that the event loop has ended, and we with it.
        let Ok(mut ready) = events.readable_mut().await else {
            return std::future::pending().await;
        };
        let (text, is_all) = take_events(ready.get_inner_mut(), session, output);
        if is_all {
            ready.clear_ready();
        }
        if !text.is_empty() || !is_all {
            return (text, is_all);
        }
    }
}

/// The text of the oldest events in the buffer, and whether those are all. Not all come at once, because
/// there may be no end of them.
fn take_events(events: &mut Events, session: &mut Session<'_>, output: &Output) -> (String, bool) {
    /// Events that are left out take time too.
    const MOST: usize = 4096;
    let origin_ns = session.start_ns();
    let mut text = String::new();
    for _ in 0..MOST {
        let Some(raw) = events.take() else {
            return (text, true);
        };
        if let Some(event) = session.event(raw) {
            output.add_event(&event, origin_ns, &mut text);
        }
        if text.len() >= BATCH_BYTES {
            break;
        }
    }
    (text, false)
}
