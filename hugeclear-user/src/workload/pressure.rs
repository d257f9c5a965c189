//! What goes on beside a workload: spinning threads, threads that write to memory, fragmented memory.

use std::{
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    Error, Plan,
    memory::Mapping,
    place,
    plan::SATURATE_BYTES,
    run::{length, spawn_failed},
};

/// How much memory is filled before looking at what is asked of us meanwhile.
const STEP_BYTES: u64 = 64 << 20;
/// How long nobody looks whether the run is over, at most, when it waits for the next fault.
const LOOK: Duration = Duration::from_millis(100);
/// Of so many base pages one stays in use: enough that no block of 2 MiB stays whole, and room for compaction.
const KEPT_OF: usize = 8;

/// Threads beside the workload, until this is dropped.
#[derive(Debug)]
pub(super) struct Neighbours {
    stop: Arc<AtomicBool>,
    written_bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbours {
    /// Starts those that the plan asks for; they run when this returns.
    pub(super) fn start(plan: &Plan) -> Result<Self, Error> {
        let mut this = Self {
            stop: Arc::default(),
            written_bytes: Arc::default(),
            threads: Vec::new(),
        };
        let same_cpus = if plan.cpus.is_empty() {
            &plan.node_cpus
        } else {
            &plan.cpus
        };
        for number in 0..plan.compete as usize {
            let cpus: Vec<u32> = if plan.cpus.is_empty() {
                same_cpus.clone()
            } else {
                vec![plan.cpus[number % plan.cpus.len()]]
            };
            let stop = Arc::clone(&this.stop);
            this.spawn(move || {
                // Checked for the workload's own threads, which are on the same CPUs.
                let _ = place::run_on(&cpus);
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })?;
        }
        for _ in 0..plan.saturate {
            let mut memory = Mapping::plain(length(SATURATE_BYTES)?)?;
            memory.as_u64s().fill(1);
            let (stop, written_bytes) = (Arc::clone(&this.stop), Arc::clone(&this.written_bytes));
            let cpus = plan.saturate_cpus.clone();
            this.spawn(move || {
                // They are online; and beside the point if we may not have them.
                let _ = place::run_on(&cpus);
                while !stop.load(Ordering::Relaxed) {
                    let mut part = memory.whole();
                    part.stream();
                    written_bytes.fetch_add(part.bytes() as u64, Ordering::Relaxed);
                }
            })?;
        }
        Ok(this)
    }

    /// Bytes that they have written to memory so far.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    fn spawn(&mut self, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = thread::Builder::new().spawn(body).map_err(spawn_failed)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // They do not panic; and if one did, the run is over anyway.
            let _ = thread.join();
        }
    }
}

/// Memory that is held so that what is free between it comes in small pieces.
#[derive(Debug)]
pub(super) struct Fragments {
    _held: Vec<Mapping>,
}

impl Fragments {
    /// Fills `bytes` of memory with base pages and gives most of them back. `progress` is told how many
    /// bytes have been filled, and whether it returns tells if to go on.
    pub(super) fn make(
        bytes: u64,
        base_page_bytes: u64,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Result<Self, Error> {
        let page = length(base_page_bytes)?.get();
        let mut held = Vec::new();
        for filled in (0..bytes).step_by(STEP_BYTES as usize) {
            if !goes_on(filled) {
                break;
            }
            let mut mapping = Mapping::plain(length(STEP_BYTES.min(bytes - filled))?)?;
            let mut part = mapping.whole();
            for offset in (0..part.bytes()).step_by(page) {
                part.write(offset);
            }
            held.push(mapping);
        }
        // Only now: memory given back would be filled again.
        for mapping in &mut held {
            let mut part = mapping.whole();
            for kept in (0..part.bytes()).step_by(KEPT_OF * page) {
                let end = (kept + KEPT_OF * page).min(part.bytes());
                if kept + page < end {
                    part.advise(kept + page..end, libc::MADV_DONTNEED)?;
                }
            }
        }
        Ok(Self { _held: held })
    }
}

/// Spaces faults out in time.
#[derive(Debug)]
pub(super) struct Pace {
    start: Instant,
    every: Duration,
}

impl Pace {
    /// So many faults a second for each thread, from now on.
    pub(super) fn new(per_second: f64) -> Self {
        Self {
            start: Instant::now(),
            every: Duration::from_secs_f64(1.0 / per_second),
        }
    }

    /// Waits until fault number `index` is due, and looks every [`LOOK`] whether `is_over` meanwhile. A thread
    /// that is late makes up for it.
    pub(super) fn wait(&self, index: u32, is_over: impl Fn() -> bool) {
        let due = self.start + self.every.saturating_mul(index);
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() || is_over() {
                break;
            }
            thread::sleep(left.min(LOOK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_when_it_is_over() {
        let pace = Pace::new(1e-6);
        let looks = AtomicU64::new(0);
        pace.wait(1, || looks.fetch_add(1, Ordering::Relaxed) == 2);
        assert_eq!(looks.into_inner(), 3);
    }

    #[test]
    fn faults_come_no_sooner_than_they_are_due() {
        let pace = Pace::new(1000.0);
        pace.wait(5, || false);
        assert!(pace.start.elapsed() >= Duration::from_millis(5));
    }
}
