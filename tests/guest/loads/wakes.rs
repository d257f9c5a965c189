//! A task that wakes up on the CPU on which another clears a page of 1 GiB.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{area::Area, run_on};

const GIB: usize = 1 << 30;
/// Odd, so that it does not fall in step with the timer of the scheduler.
const NAP: Duration = Duration::from_micros(2_700);

/// More than there are in a minute.
const MAX_NAPS: usize = 1 << 15;

/// Clears `count` pages of 1 GiB on `cpu`, beside a task that naps there; how late it woke up.
pub(crate) fn beside_clear(count: usize, cpu: usize) -> Result<Value> {
    run_on(cpu)?;
    let began = Instant::now();
    let (done, ready) = (AtomicBool::new(false), Barrier::new(2));
    let mut late_ns = thread::scope(|scope| {
        // It inherits the CPU. Once the clear has begun it must not need memory: up to 6.6 a hugetlb
        // fault holds the lock of the address space all the while.
        let sleeper = scope.spawn(|| {
            let mut late = vec![u64::MAX; MAX_NAPS];
            let mut naps = 0;
            ready.wait();
            while !done.load(Ordering::Relaxed) && naps < MAX_NAPS {
                let before = Instant::now();
                thread::sleep(NAP);
                late[naps] = before.elapsed().saturating_sub(NAP).as_nanos() as u64;
                naps += 1;
            }
            late.truncate(naps);
            late
        });
        ready.wait();
        let cleared = (0..count).try_for_each(|_| {
            let area = Area::hugetlb(GIB, GIB)?;
            area.write(GIB);
            anyhow::Ok(())
        });
        done.store(true, Ordering::Relaxed);
        let late = sleeper.join().ok().context("the sleeper panicked");
        cleared.and(late)
    })?;
    late_ns.sort_unstable();
    let at = |percent: usize| late_ns.get(late_ns.len() * percent / 100).copied();
    Ok(json!({
        "clears": count,
        "elapsed_ns": began.elapsed().as_nanos() as u64,
        "wakes": late_ns.len(),
        "late_p50_ns": at(50),
        "late_p90_ns": at(90),
        "late_max_ns": late_ns.last(),
    }))
}
