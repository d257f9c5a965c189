//! The runs themselves.

use std::{num::NonZeroUsize, time::Instant};

use nix::errno::Errno;

use super::{
    Error, Kind, Plan,
    account::{Counters, HugePages, smaps_bytes},
    memory::Mapping,
    report::{Latency, Report, Run},
    signals::Signals,
};
use crate::settings::{Applied, current};

/// Changes the settings the plan asks for, does its runs and puts the settings back.
///
/// SIGINT, SIGTERM, SIGHUP and SIGQUIT end it between two touches: the report then says which, and
/// holds what was done until then.
///
/// # Errors
/// A setting could not be changed or put back, or the kernel refused memory or the CPU.
pub fn run(plan: &Plan) -> Result<Report, Error> {
    let signals = Signals::catch().map_err(Error::Signals)?;
    let applied = Applied::apply(&plan.changes)?;
    let report = all_runs(plan, &signals)?;
    applied.put_back()?;
    Ok(report)
}

fn all_runs(plan: &Plan, signals: &Signals) -> Result<Report, Error> {
    check_pool(plan)?;
    plan.cpu.map(pin_to).transpose()?;
    let from = HugePages::of(plan);
    let timer_overhead_ns = timer_overhead_ns();
    let mut buffer = Mapping::plain(length(plan.latency_bytes())?)?;
    let latencies = buffer.as_u64s();
    // Faulted in now, not between two touches.
    latencies.fill(0);

    let pages = usize::try_from(plan.pages).map_err(|_| too_large(plan.pages))?;
    let mut runs = Vec::with_capacity(plan.repeat as usize);
    let mut touched = 0;
    for latencies in latencies.chunks_exact_mut(pages) {
        if signals.seen().is_some() {
            break;
        }
        let run = one_run(plan, &from, latencies, signals)?;
        touched += run.faults as usize;
        runs.push(run);
    }
    // Only the last run can be short, so that what was measured is at the front.
    let latency = Latency::of(&mut latencies[..touched]);
    Ok(Report::new(
        plan,
        runs,
        latency,
        timer_overhead_ns,
        from.source(),
        signals.seen(),
    ))
}

fn one_run(
    plan: &Plan,
    from: &HugePages,
    latencies: &mut [u64],
    signals: &Signals,
) -> Result<Run, Error> {
    let page_size =
        usize::try_from(plan.page_size_bytes).map_err(|_| too_large(plan.page_size_bytes))?;
    let bytes = length(plan.pages.saturating_mul(plan.page_size_bytes))?;
    let mut mapping = match plan.kind {
        Kind::Thp => Mapping::transparent(bytes, page_size)?,
        Kind::Hugetlb => Mapping::hugetlb(bytes, plan.page_size_bytes)?,
    };
    let before = Counters::read(from)?;
    let mut touched = 0;
    let start = Instant::now();
    for latency in latencies.iter_mut() {
        if signals.seen().is_some() {
            break;
        }
        let touch = Instant::now();
        mapping.touch(touched * page_size);
        *latency = nanoseconds(touch);
        touched += 1;
    }
    let elapsed_ns = nanoseconds(start);
    let growth = Counters::read(from)?.since(before);
    let huge_pages = match from {
        HugePages::Smaps(fields) => {
            smaps_bytes(mapping.address(), fields)?.map(|bytes| bytes / plan.page_size_bytes)
        }
        HugePages::Counter(_) => growth.pages,
        HugePages::Nowhere => None,
    };
    Ok(Run {
        faults: touched as u64,
        huge_pages,
        elapsed_ns,
        minor_faults: growth.minor_faults,
        thp_fault_alloc: growth.thp_fault_alloc,
        latency: Latency::of(&mut latencies[..touched]),
    })
}

/// Whether the kernel grew the pool as far as asked: it grows it as far as it can and says nothing.
fn check_pool(plan: &Plan) -> Result<(), Error> {
    if plan.kind != Kind::Hugetlb {
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

/// Pins this thread to `cpu` for the rest of its life.
///
/// By libc: `nix::sched::CpuSet` ends at CPU 1023, and with more possible CPUs the kernel refuses to
/// fill one.
fn pin_to(cpu: u32) -> Result<(), Error> {
    const WORD_BITS: usize = u64::BITS as usize;
    let cpu_index = cpu as usize;
    let mut mask = vec![0_u64; cpu_index / WORD_BITS + 1];
    mask[cpu_index / WORD_BITS] = 1 << (cpu_index % WORD_BITS);
    let bytes = size_of_val(&mask[..]);
    // SAFETY: the mask is valid for reads of `bytes`.
    let result = unsafe { libc::sched_setaffinity(0, bytes, mask.as_ptr().cast()) };
    Errno::result(result)
        .map(drop)
        .map_err(|error| Error::SystemCall {
            call: "sched_setaffinity",
            what: format!("CPU {cpu}"),
            error,
            hint: "; is it outside this process's cpuset?",
        })
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

fn length(bytes: u64) -> Result<NonZeroUsize, Error> {
    usize::try_from(bytes)
        .ok()
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| too_large(bytes))
}

fn too_large(needed_bytes: u64) -> Error {
    Error::NotEnoughMemory {
        needed_bytes,
        available_bytes: usize::MAX as u64,
    }
}
