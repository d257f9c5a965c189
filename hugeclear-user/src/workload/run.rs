//! The runs themselves.

use std::{
    io,
    num::NonZeroUsize,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::{
    Bench, Error, Kind, Plan, Retouch, Touch,
    account::{Account, counter, minor_faults, thp_fault_alloc},
    area::{Area, Pages},
    child,
    memory::{Mapping, too_large},
    place,
    plan::{Origin, STRIDE_BYTES, Step, ZeroBench},
    pressure::{Fragments, Neighbours, Pace},
    report::{self, Latencies, Report, Rewrite, Run},
    signals::Signals,
};
use crate::{
    counters::{Counters, Event},
    facts::source::Source,
    settings::{self, Applied, current},
    term,
};

/// Stack of a thread of the workload: small, so that no huge page fits into it.
const STACK_BYTES: usize = 256 << 10;

/// Changes the settings the plan asks for, does its runs and puts the settings back.
///
/// SIGINT, SIGTERM, SIGHUP and SIGQUIT end it between two touches: the report then says which, and
/// holds what was done until then.
///
/// With the report comes whether every setting was put back.
///
/// # Errors
/// A setting could not be changed, or the kernel refused memory or the CPU.
pub fn run(plan: &Plan) -> Result<(Report, Result<(), settings::Error>), Error> {
    let signals = Signals::catch().map_err(Error::Signals)?;
    let applied = Applied::apply(&plan.changes)?;
    let report = all_runs(plan, &signals)?;
    Ok((report, applied.put_back()))
}

fn all_runs(plan: &Plan, signals: &Signals) -> Result<Report, Error> {
    check_pool(plan)?;
    let fragments = fragment(plan, signals)?;
    let neighbours = Neighbours::start(plan)?;
    place::run_on(&plan.node_cpus)?;
    plan.mem_node.map(place::take_memory_from).transpose()?;
    let account = Account::of(plan);
    let mut buffer = Mapping::shared(length(plan.latency_bytes())?)?;
    // Faulted in now, not between two touches.
    buffer.as_u64s().fill(0);
    let timer_overhead_ns = timer_overhead_ns();

    let progress = term::progress(u64::from(plan.repeat), plan.kind.as_str());
    let mut runs = Vec::with_capacity(plan.repeat as usize);
    let mut latencies = Latencies::default();
    while runs.len() < plan.repeat as usize && signals.seen().is_none() {
        let (run, of_run) = one_run(plan, &account, buffer.as_u64s(), &neighbours, signals)?;
        latencies.add(&of_run);
        runs.push(run);
        progress.inc(1);
    }
    progress.finish_and_clear();
    drop((neighbours, fragments));
    Ok(Report::new(
        plan,
        runs,
        &latencies,
        timer_overhead_ns,
        account.source(),
        signals.seen(),
    ))
}

/// What one pass over fresh memory gave.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Pass {
    /// Pages touched, filled or collapsed.
    pub(super) faults: u64,
    /// How many times were taken for that, by thread, from the start of its part of the buffer.
    pub(super) timed: Vec<u64>,
    /// Of the slowest thread, ns, without what is below.
    pub(super) elapsed_ns: u64,
    pub(super) minor_faults: u64,
    /// Pages of the size that was asked for, by what the kernel says of the memory.
    pub(super) pages: Option<u64>,
    /// Pages that a parent had filled before its child wrote.
    pub(super) filled: u64,
    pub(super) rewrite: Rewrite,
    /// Of the microbenchmark.
    pub(super) bench_ns: u64,
}

fn one_run(
    plan: &Plan,
    account: &Account,
    buffer: &mut [u64],
    neighbours: &Neighbours,
    signals: &Signals,
) -> Result<(Run, Latencies), Error> {
    let deadline = plan.duration.map(|duration| Instant::now() + duration);
    let (thp_before, written_before) = (thp_fault_alloc(), neighbours.written_bytes());
    let start = Instant::now();
    let mut run = Pass {
        pages: Some(0),
        ..Pass::default()
    };
    let mut latencies = Latencies::default();
    let mut passes = 0;
    // Here, so that the neighbours are not counted.
    let mut counted = Counted::open(&plan.counters);
    loop {
        let pass = if plan.kind == Kind::ForkCow {
            child::pass(plan, account, buffer, deadline, signals, &mut counted)?
        } else {
            let mut area = Area::new(plan)?;
            counted.during(|| pass(plan, account, &mut area, buffer, deadline, signals))?
        };
        for (share, timed) in plan.shares().iter().zip(&pass.timed) {
            let first = share.start as usize;
            latencies.record(&buffer[first..first + *timed as usize]);
        }
        run.add(&pass);
        passes += 1;
        let is_over = deadline.is_none_or(|deadline| Instant::now() >= deadline);
        if is_over || signals.seen().is_some() {
            break;
        }
    }
    let wall_ns = nanoseconds(start);
    let written_bytes = neighbours.written_bytes() - written_before;
    let thp_grown = difference(thp_fault_alloc(), thp_before);
    let run = Run::new(
        plan,
        &run,
        passes,
        thp_grown,
        latencies.summary(),
        (plan.saturate > 0).then(|| written_bytes as f64 / wall_ns.max(1) as f64),
        counted.read(),
    );
    Ok((run, latencies))
}

/// Counters of what is timed, over the passes of a run.
pub(super) struct Counted {
    counters: Counters,
    ns: u64,
}

impl Counted {
    fn open(events: &[Event]) -> Self {
        Self {
            counters: Counters::open(events),
            ns: 0,
        }
    }

    /// Counts what threads and processes do that `work` creates.
    pub(super) fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        self.counters.enable();
        let done = work();
        self.counters.disable();
        self.ns += nanoseconds(start);
        done
    }

    fn read(mut self) -> report::Counted {
        report::Counted {
            ns: self.ns,
            counts: self.counters.read(),
        }
    }
}

impl Pass {
    fn add(&mut self, other: &Self) {
        let Self {
            faults,
            timed: _,
            elapsed_ns,
            minor_faults,
            pages,
            filled,
            rewrite,
            bench_ns,
        } = other;
        self.faults += faults;
        self.elapsed_ns += elapsed_ns;
        self.minor_faults += minor_faults;
        self.pages = self.pages.zip(*pages).map(|(sum, pages)| sum + pages);
        self.filled += filled;
        self.rewrite.read_ns += rewrite.read_ns;
        self.rewrite.write_ns += rewrite.write_ns;
        self.bench_ns += bench_ns;
    }
}

/// Goes over the memory once, in as many threads as planned.
pub(super) fn pass(
    plan: &Plan,
    account: &Account,
    area: &mut Area,
    buffer: &mut [u64],
    deadline: Option<Instant>,
    signals: &Signals,
) -> Result<Pass, Error> {
    let line = StartLine::default();
    let before = counter(account)?;
    let worked: Vec<Worked> = thread::scope(|scope| {
        let mut rest = buffer;
        let mut threads = Vec::new();
        let shares = plan.shares();
        for (number, (share, pages)) in shares.iter().zip(area.split(plan)).enumerate() {
            let (latencies, others) = rest.split_at_mut((share.end - share.start) as usize);
            rest = others;
            let worker = Worker {
                plan,
                number,
                pages,
                latencies,
                line: &line,
                deadline,
                signals,
            };
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            match thread.spawn_scoped(scope, move || worker.work()) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    line.called_off.store(true, Ordering::Relaxed);
                    return Err(spawn_failed(error));
                }
            }
        }
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a worker does not panic"))
            .collect()
    })?;
    let minor_faults = worked.iter().map(|worked| worked.minor_faults).sum();
    let pages = match account {
        Account::Smaps(_) | Account::Blocks => area.pages(plan, account)?,
        Account::Counter(_) => difference(counter(account)?, before),
        Account::Pool(_) => difference(before, counter(account)?),
        Account::MinorFaults => Some(minor_faults),
        Account::Nowhere => None,
    };
    let bench_ns = bench(plan, area, signals);
    let most = |of: fn(&Worked) -> u64| worked.iter().map(of).max().unwrap_or(0);
    Ok(Pass {
        faults: worked.iter().map(|worked| worked.faults).sum(),
        timed: worked.iter().map(|worked| worked.timed).collect(),
        elapsed_ns: most(|worked| worked.elapsed_ns),
        minor_faults,
        pages,
        filled: 0,
        rewrite: Rewrite {
            read_ns: most(|worked| worked.rewrite.read_ns),
            write_ns: most(|worked| worked.rewrite.write_ns),
        },
        bench_ns,
    })
}

fn difference(more: Option<u64>, less: Option<u64>) -> Option<u64> {
    more.zip(less).map(|(more, less)| more.saturating_sub(less))
}

/// Where threads wait for one another before they begin.
#[derive(Debug, Default)]
struct StartLine {
    arrived: AtomicUsize,
    /// One could not be created.
    called_off: AtomicBool,
}

impl StartLine {
    fn wait_for(&self, threads: usize) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        while self.arrived.load(Ordering::Relaxed) < threads
            && !self.called_off.load(Ordering::Relaxed)
        {
            thread::yield_now();
        }
    }
}

/// One thread of a pass.
struct Worker<'a> {
    plan: &'a Plan,
    number: usize,
    pages: Pages<'a>,
    latencies: &'a mut [u64],
    line: &'a StartLine,
    deadline: Option<Instant>,
    signals: &'a Signals,
}

/// What it did.
struct Worked {
    faults: u64,
    timed: u64,
    elapsed_ns: u64,
    minor_faults: u64,
    rewrite: Rewrite,
}

impl Worker<'_> {
    fn work(mut self) -> Result<Worked, Error> {
        let plan = self.plan;
        let placed = match plan.cpus.len() {
            0 => Ok(()),
            cpus => place::run_on(&plan.cpus[self.number % cpus..][..1]),
        };
        let minor_faults_before = minor_faults();
        self.line.wait_for(plan.threads as usize);
        placed?;
        if plan.step == Step::PopulateAll {
            return self.populate(minor_faults_before);
        }
        let mut random = fastrand::Rng::with_seed(plan.seed.wrapping_add(self.number as u64));
        let pace = plan
            .rate
            .map(|rate| Pace::new(rate / f64::from(plan.threads)));
        let (page, pitch) = (plan.page_size_bytes as usize, plan.pitch_bytes() as usize);
        let (stride, is_dense) = (
            plan.stride_bytes as usize,
            plan.stride_bytes < plan.page_size_bytes,
        );
        let mut done = 0_u32;
        let mut rewrite = Rewrite::default();
        let start = Instant::now();
        for index in 0..self.latencies.len() {
            if let Some(pace) = &pace {
                pace.wait(done, || self.is_over());
            }
            if self.is_over() {
                break;
            }
            let first = index * pitch;
            let touched = first + offset(plan, &mut random) as usize;
            let touch = Instant::now();
            self.pages.step(plan.step, first, touched)?;
            self.latencies[index] = nanoseconds(touch);
            done += 1;
            if is_dense {
                for offset in (first..first + page).step_by(stride) {
                    self.pages.part.write(offset);
                }
            }
            if plan.retouch == Some(Retouch::Page) {
                rewrite.add(self.rewrite_from(first..first + page));
            }
        }
        let elapsed_ns = nanoseconds(start).saturating_sub(rewrite.read_ns + rewrite.write_ns);
        let minor_faults = minor_faults() - minor_faults_before;
        if plan.retouch == Some(Retouch::Run) {
            let touched = (done as usize * pitch).min(self.pages.part.bytes());
            rewrite = self.rewrite_from(0..touched);
        }
        Ok(Worked {
            faults: u64::from(done),
            timed: u64::from(done),
            elapsed_ns,
            minor_faults,
            rewrite,
        })
    }

    /// Whether its time is up, or a signal came.
    fn is_over(&self) -> bool {
        let is_late = self
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline);
        is_late || self.signals.seen().is_some()
    }

    /// All pages by one call.
    fn populate(&mut self, minor_faults_before: u64) -> Result<Worked, Error> {
        let start = Instant::now();
        self.pages.step(Step::PopulateAll, 0, 0)?;
        let elapsed_ns = nanoseconds(start);
        self.latencies[0] = elapsed_ns;
        let minor_faults = minor_faults() - minor_faults_before;
        let rewrite = match self.plan.retouch {
            Some(Retouch::Run | Retouch::Page) => self.rewrite_from(0..self.pages.part.bytes()),
            None => Rewrite::default(),
        };
        Ok(Worked {
            faults: self.latencies.len() as u64,
            timed: 1,
            elapsed_ns,
            minor_faults,
            rewrite,
        })
    }

    fn rewrite_from(&mut self, range: std::ops::Range<usize>) -> Rewrite {
        let start = Instant::now();
        self.pages.part.read_all(range.clone());
        let read_ns = nanoseconds(start);
        let start = Instant::now();
        self.pages.part.write_all(range);
        Rewrite {
            read_ns,
            write_ns: nanoseconds(start),
        }
    }
}

/// Bytes from the start of a page to where it is touched first.
fn offset(plan: &Plan, random: &mut fastrand::Rng) -> u64 {
    match plan.touch {
        Touch::First => 0,
        Touch::Middle => plan.page_size_bytes / 2,
        Touch::Last => plan.page_size_bytes - plan.base_page_bytes,
        Touch::Random => random.u64(0..plan.page_size_bytes),
        Touch::Offset(bytes) => bytes,
    }
}

/// The microbenchmarks of the huge zero page, ns. Both halves read as zero.
fn bench(plan: &Plan, area: &mut Area, signals: &Signals) -> u64 {
    let Some(ZeroBench { bench, iterations }) = plan.zero_bench else {
        return 0;
    };
    let whole = area.whole();
    let half = whole.bytes() / 2;
    let start = Instant::now();
    for _ in 0..iterations {
        if signals.seen().is_some() {
            break;
        }
        let are_equal = match bench {
            Bench::Compare => whole.halves_are_equal(),
            Bench::Stride => (0..half)
                .step_by(STRIDE_BYTES as usize)
                .all(|offset| whole.read(offset) == whole.read(half + offset)),
        };
        assert!(are_equal, "memory that was never written reads as zero");
    }
    nanoseconds(start)
}

/// Fragments memory as planned, with a progress bar.
fn fragment(plan: &Plan, signals: &Signals) -> Result<Option<Fragments>, Error> {
    let Some(percent) = plan.fragment_percent else {
        return Ok(None);
    };
    // As much as there is now, with the settings changed.
    let available_bytes = super::machine::available_bytes(&mut Source::new(Path::new("/")));
    let bytes = available_bytes.unwrap_or(0) / 100 * u64::from(percent);
    let progress = term::progress(bytes, "fragmenting memory");
    let fragments = Fragments::make(bytes, plan.base_page_bytes, |filled| {
        progress.set_position(filled);
        signals.seen().is_none()
    });
    progress.finish_and_clear();
    fragments.map(Some)
}

/// Whether the kernel grew the pool as far as asked: it grows it as far as it can and says nothing.
fn check_pool(plan: &Plan) -> Result<(), Error> {
    if plan.origin != Origin::Pool {
        return Ok(());
    }
    for change in &plan.changes {
        let got = current(&change.path)?;
        if got != change.value {
            return Err(Error::PoolDidNotGrow {
                page_size_bytes: plan.page_size_bytes,
                got,
                wanted: change.value.clone(),
            });
        }
    }
    Ok(())
}

/// What reading the clock twice costs, ns: the least of many pairs. It is inside every latency.
fn timer_overhead_ns() -> u64 {
    const PAIRS: u32 = 1000;
    (0..PAIRS)
        .map(|_| nanoseconds(Instant::now()))
        .min()
        .unwrap_or_default()
}

/// Nanoseconds since then. `Instant` is `CLOCK_MONOTONIC`, read without a system call.
fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn length(bytes: u64) -> Result<NonZeroUsize, Error> {
    usize::try_from(bytes)
        .ok()
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| too_large(bytes))
}

pub(super) fn spawn_failed(error: io::Error) -> Error {
    Error::SystemCall {
        call: "clone",
        what: "a thread".to_owned(),
        error: nix::Error::from_raw(error.raw_os_error().unwrap_or(0)),
        hint: "; is there a limit on threads (ulimit -u, pids.max)?",
    }
}
