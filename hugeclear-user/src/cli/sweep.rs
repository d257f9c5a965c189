//! The sweep: runs what is planned, one after the other, and sees to it that nothing stays changed.

use std::{
    future::ready,
    io::{self, Write as _},
    path::Path,
    pin::pin,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use crate::{
    facts::Facts,
    notes::{self, Note},
    probes::{
        config::{Details, Filter, Request},
        select::{self, Wanted},
        tracer::{TraceError, Tracer},
    },
    report::{Summary, terms},
    settings::{Applied, Change, current},
    sweep::{
        Args, Child, Error, Offer, Outcome, Plan, Planned, Report, Run, Trace, Traced, Tracing,
        name_of_run,
    },
    window::{Grouping, Row, Snapshot, Terms, rows},
    workload,
};

/// Exit status of bad usage, as clap has it.
const USAGE: u8 = 2;
/// How long a workload may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// How much later than the workload a signal to all of us may reach this process.
const MOMENT: Duration = Duration::from_millis(200);

/// Runs every combination and prints what was measured.
///
/// # Errors
/// If nothing can be run, a run fails, or a setting cannot be switched or put back.
pub fn main(args: &Args) -> Result<ExitCode> {
    super::repair_settings();
    let facts = Facts::read(Path::new("/"));
    let plan = match Plan::new(args, &Offer::read(Path::new("/"), &facts)) {
        Ok(plan) => plan,
        // Or the help of the workload.
        Err(Error::Words(error)) => error.exit(),
        Err(error) if error.usage() => {
            eprintln!("hugeclear-trace: {error}");
            return Ok(ExitCode::from(USAGE));
        }
        Err(error) => return Err(error.into()),
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?
        .block_on(sweep(args, &facts, &plan))
}

async fn sweep(args: &Args, facts: &Facts, plan: &Plan) -> Result<ExitCode> {
    // Signals first: from here on, none ends us with settings changed.
    let mut signals = Signals::catch()?;
    for refused in &plan.refused {
        eprintln!("skipped {refused}");
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u32(..).into());
    let order = plan.order(args.repeat, seed);
    let bar = progress_bar(order.len());
    bar.set_message("attaching probes");
    let mut notes = Vec::new();
    let mut trace = match args.trace {
        Tracing::Off => None,
        Tracing::On => Some(LiveTrace::attach(facts)?),
        Tracing::Auto => LiveTrace::attach(facts)
            .map_err(|error| notes.push(Note::new("not_traced", error.to_string())))
            .ok(),
    };
    if let Some(trace) = &trace {
        notes.extend(trace.tracer.notes.clone());
    }
    let before = values_before(plan)?;
    let mut applied = Applied::apply(&[])?;

    let Measured {
        runs,
        interrupted_by,
        failed,
    } = all_runs(
        plan,
        &order,
        &mut applied,
        &mut signals,
        trace.as_mut(),
        &bar,
    )
    .await;
    bar.finish_and_clear();

    let restored = applied
        .put_back()
        .map_err(anyhow::Error::from)
        .and_then(|()| verified(before));
    let trace = trace.map(|trace| {
        let probes = trace.tracer.probes.clone();
        let losses = trace.tracer.end().losses;
        notes.extend(notes::of_losses(&losses, &probes));
        Trace { probes, losses }
    });
    let mut report = Report {
        facts: Summary::new(facts),
        workload: args.workload.clone(),
        combinations: (plan.combinations.iter())
            .map(|planned| planned.combination.clone())
            .collect(),
        rounds: args.repeat,
        seed,
        refused: plan.refused.clone(),
        trace,
        runs,
        rows: Vec::new(),
        restored: restored.as_ref().cloned().unwrap_or_default(),
        notes,
        interrupted_by,
        failed: failed.clone(),
    };
    report.add_up();
    let printed = print(&report, args.json);
    // What is worse comes first.
    restored?;
    if let Some(failed) = failed {
        return Err(anyhow!(failed));
    }
    printed?;
    Ok(interrupted_by
        .and_then(|signal| u8::try_from(128 + signal).ok())
        .map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn print(report: &Report, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(())
}

/// What was measured until it ended, of itself or early.
#[derive(Default)]
struct Measured {
    runs: Vec<Run>,
    interrupted_by: Option<i32>,
    failed: Option<String>,
}

async fn all_runs(
    plan: &Plan,
    order: &[usize],
    applied: &mut Applied,
    signals: &mut Signals,
    mut trace: Option<&mut LiveTrace>,
    bar: &ProgressBar,
) -> Measured {
    let mut measured = Measured::default();
    for (round, places) in (1..).zip(order.chunks(plan.combinations.len())) {
        for &place in places {
            let planned = &plan.combinations[place];
            let combination = planned.combination.clone();
            bar.set_message(combination.to_string());
            match one_run(planned, applied, signals, trace.as_deref_mut()).await {
                Ok(End::Run(workload, traced)) => measured.runs.push(Run {
                    round,
                    combination,
                    workload: *workload,
                    traced,
                }),
                Ok(End::Signal(signal)) => {
                    measured.interrupted_by = Some(signal);
                    return measured;
                }
                Err(error) => {
                    let name = name_of_run(round, &combination);
                    measured.failed = Some(format!("{name}: {error:#}"));
                    return measured;
                }
            }
            bar.inc(1);
        }
    }
    measured
}

/// How a run ended.
enum End {
    Run(Box<workload::Report>, Option<Traced>),
    Signal(i32),
}

async fn one_run(
    planned: &Planned,
    applied: &mut Applied,
    signals: &mut Signals,
    mut trace: Option<&mut LiveTrace>,
) -> Result<End> {
    if let Some(signal) = signals.came().await {
        return Ok(End::Signal(signal));
    }
    applied.switch(&planned.changes)?;
    for Change { path, value } in &planned.changes {
        let is = current(path)?;
        ensure!(
            is == *value,
            "{} is `{is}` after `{value}` was written to it",
            path.display()
        );
    }
    if let Some(trace) = &mut trace {
        // What was cleared between the runs is in none of them.
        trace.rows_since_last();
    }
    let child = Child::start(&planned.words)?;
    let id = child.id();
    let mut outcome = pin!(child.outcome());
    let outcome = tokio::select! {
        outcome = &mut outcome => outcome?,
        signal = signals.next() => {
            Child::stop(id);
            // If it does not end, it is killed when it is dropped.
            let _ = timeout(GRACE, outcome).await;
            return Ok(End::Signal(signal));
        }
    };
    let rows = trace.map(LiveTrace::rows_since_last);
    let why = match outcome {
        Outcome::Done(report) => match report.interrupted_by {
            None => {
                let traced = rows.map(|rows| Traced::new(rows, report.page_size_bytes));
                return Ok(End::Run(report, traced));
            }
            Some(signal) => format!("the workload was ended by signal {signal}"),
        },
        Outcome::Failed(why) => why,
    };
    // A Ctrl-C goes to both of us, and may have reached the workload first.
    match timeout(MOMENT, signals.next()).await {
        Ok(signal) => Ok(End::Signal(signal)),
        Err(_) => Err(anyhow!(why)),
    }
}

/// Probes that stay attached over all runs.
struct LiveTrace {
    tracer: Tracer,
    terms: Terms,
    last: Snapshot,
}

impl LiveTrace {
    /// Attaches them; only the workload's threads are recorded.
    fn attach(facts: &Facts) -> Result<Self, TraceError> {
        let set = select::select(facts, &Wanted::default());
        let request = Request {
            filter: Filter {
                comm: Some(Child::COMM.to_owned()),
                ..Filter::default()
            },
            details: Details::default(),
            run_gap: Duration::ZERO,
            events: None,
            sched_impact: false,
            verbose: false,
        };
        let tracer = Tracer::attach(facts, &set, &request)?;
        Ok(Self {
            terms: terms(facts, &tracer.probes),
            tracer,
            last: Snapshot::default(),
        })
    }

    /// The clears and copies since this was asked last.
    fn rows_since_last(&mut self) -> Vec<Row> {
        let now = self.tracer.read().snapshot;
        let since = now.since(&self.last);
        self.last = now;
        rows(&since, &Grouping::default(), &self.terms).clears
    }
}

/// The values that the settings to be switched have now.
fn values_before(plan: &Plan) -> Result<Vec<Change>> {
    let mut paths: Vec<&Path> = (plan.combinations.iter())
        .flat_map(|planned| planned.changes.iter().map(|change| &*change.path))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    let value = |path: &Path| {
        Ok(Change {
            path: path.to_owned(),
            value: current(path)?,
        })
    };
    paths.into_iter().map(value).collect()
}

/// The same settings, if they have those values again.
fn verified(before: Vec<Change>) -> Result<Vec<Change>> {
    for Change { path, value } in &before {
        let is = current(path)?;
        ensure!(
            is == *value,
            "{} is `{is}` after the sweep and was `{value}` before; write it yourself",
            path.display()
        );
    }
    Ok(before)
}

fn progress_bar(runs: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} to go  {msg}")
        .expect("the template is well-formed");
    // Drawn between runs only: a thread that draws would disturb them.
    ProgressBar::new(u64::try_from(runs).unwrap_or(u64::MAX)).with_style(style)
}

/// The signals that end a sweep.
struct Signals([(SignalKind, Signal); 4]);

impl Signals {
    fn catch() -> Result<Self> {
        let catch = |kind: SignalKind| {
            let signal = signal(kind).context("cannot catch signals")?;
            anyhow::Ok((kind, signal))
        };
        Ok(Self([
            catch(SignalKind::interrupt())?,
            catch(SignalKind::terminate())?,
            catch(SignalKind::hangup())?,
            catch(SignalKind::quit())?,
        ]))
    }

    /// Waits for one; its number.
    async fn next(&mut self) -> i32 {
        let Self([(a, first), (b, second), (c, third), (d, fourth)]) = self;
        let kind = tokio::select! {
            _ = first.recv() => a,
            _ = second.recv() => b,
            _ = third.recv() => c,
            _ = fourth.recv() => d,
        };
        kind.as_raw_value()
    }

    /// The number of one that has come already.
    async fn came(&mut self) -> Option<i32> {
        tokio::select! {
            biased;
            signal = self.next() => Some(signal),
            () = ready(()) => None,
        }
    }
}
