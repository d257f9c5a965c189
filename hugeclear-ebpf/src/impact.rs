//! How long tasks wait while their CPU clears: the books that the kernel side keeps, without the kernel.
//!
//! A CPU counts the time that it spends inside clears. A task that wakes there notes the count, and
//! notes it again when it gets the CPU: the difference is the part of its wait in which the clear ran.

use core::sync::atomic::{Ordering, compiler_fence};

/// How many clears of a CPU are remembered after their end. A task rarely waits beyond the clear that it
/// met: the CPU is switched at its end at the latest, unless others are served first.
pub const REMEMBERED: usize = 8;

/// Most tasks known at once: those waiting for a clear, and those switched out in the middle of one.
pub const MAX_TASKS: u32 = 8192;

/// Time that a CPU has spent inside clears, and whether it is inside one now. One word, so that another
/// CPU can read it at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Stopwatch(u64);

impl Stopwatch {
    /// Set while it runs: the rest is then the time at which it would have started from 0.
    const RUNNING: u64 = 1 << 63;

    /// Whether it runs.
    #[must_use]
    #[inline(always)]
    pub const fn is_running(self) -> bool {
        self.0 & Self::RUNNING != 0
    }

    /// What it shows at `now`, in ns.
    #[must_use]
    #[inline(always)]
    pub const fn at(self, now: u64) -> u64 {
        if self.is_running() {
            now.wrapping_sub(self.0 & !Self::RUNNING)
        } else {
            self.0
        }
    }

    /// As it is once it is started.
    #[must_use]
    #[inline(always)]
    pub const fn started(self, now: u64) -> Self {
        // What it shows is part of the time since boot.
        Self(now.wrapping_sub(self.at(now)) | Self::RUNNING)
    }

    /// As it is once it is stopped.
    #[must_use]
    #[inline(always)]
    pub const fn stopped(self, now: u64) -> Self {
        Self(self.at(now))
    }
}

/// The clears of one CPU. Written on that CPU only; other CPUs read it, under the lock of its run queue
/// or not, and can find a clear that has ended this moment.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct CpuClears {
    /// Time inside clears, of all that this CPU made.
    pub inside: Stopwatch,
    /// Thread of the clear that the CPU is executing if `inside` runs, or else executed last; 0 once that
    /// has ended.
    pub thread: u32,
    /// Number of that clear.
    pub serial: u32,
    /// [`crate::key::Dimensions`] of that clear, packed.
    pub dimensions: u64,
    /// What `inside` showed when the last clears left the CPU to the next, by the number.
    pub ends: [u64; REMEMBERED],
    /// 1 while the CPU is lent to a kernel thread, which took it from that clear. On a kernel built with
    /// `PREEMPT_RT` interrupts are threads: one of them, not the interrupt itself, wakes most tasks.
    pub lent: u32,
    /// No meaning.
    pub padding: u32,
    /// Waits that were not recorded. Written under the lock of this CPU's run queue.
    pub lost: u64,
}

const _: () = assert!(size_of::<CpuClears>() == 128);

/// What is known of a task that does not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Task {
    /// [`crate::key::Dimensions`] of the clear that it was switched out of; 0 if it was in none.
    pub clearing: u64,
    /// [`crate::key::Dimensions`] of the clear for which it waits; 0 if for none.
    pub waits_for: u64,
    /// What [`CpuClears::inside`] of the CPU on which it waits showed when it woke.
    pub inside_ns: u64,
    /// That CPU.
    pub cpu: u32,
    /// [`CpuClears::serial`] of the clear for which it waits.
    pub serial: u32,
}

const _: () = assert!(size_of::<Task>() == 32);

impl CpuClears {
    /// `thread` begins a clear.
    ///
    /// Where a task preempts us between two of these stores, it finds that no clear is executing; it may
    /// have made others when we go on.
    #[inline(always)]
    pub fn begin(&mut self, thread: u32, dimensions: u64, now: u64) {
        // The exit of the one before may have been missed.
        self.inside = self.inside.stopped(now);
        self.ends[self.serial as usize % REMEMBERED] = self.inside.at(now);
        self.serial = self.serial.wrapping_add(1);
        self.dimensions = dimensions;
        self.thread = thread;
        self.lent = 0;
        compiler_fence(Ordering::SeqCst);
        self.inside = self.inside.started(now);
    }

    /// `thread` gets the CPU in the middle of a clear: the one that it left here, unless another took its
    /// place or it comes from another CPU.
    #[inline(always)]
    pub fn resume(&mut self, thread: u32, dimensions: u64, now: u64) {
        if self.thread == thread && self.dimensions == dimensions {
            self.lent = 0;
            self.inside = self.inside.started(now);
        } else {
            self.begin(thread, dimensions, now);
        }
    }

    /// `thread` ends its clear.
    #[inline(always)]
    pub fn end(&mut self, thread: u32, now: u64) {
        if self.thread == thread {
            self.inside = self.inside.stopped(now);
            compiler_fence(Ordering::SeqCst);
            self.thread = 0;
        }
    }

    /// The CPU is taken from `thread`. If it was executing a clear: its dimensions.
    #[inline(always)]
    pub fn leave(&mut self, thread: u32, now: u64) -> Option<u64> {
        if !self.inside.is_running() {
            return None;
        }
        self.inside = self.inside.stopped(now);
        (self.thread == thread).then_some(self.dimensions)
    }

    /// Whether the CPU is inside a clear: it executes one, or has only lent itself.
    #[must_use]
    #[inline(always)]
    pub fn is_inside(&self) -> bool {
        self.inside.is_running() || self.lent != 0
    }

    /// What a task notes that wakes while this CPU, number `cpu`, is inside a clear; `None`: it is not, or
    /// that is the task's own.
    #[inline(always)]
    pub fn wait(&self, thread: u32, cpu: u32, now: u64) -> Option<Task> {
        if !self.is_inside() || self.thread == thread {
            return None;
        }
        Some(Task {
            clearing: 0,
            waits_for: self.dimensions,
            inside_ns: self.inside.at(now),
            cpu,
            serial: self.serial,
        })
    }

    /// How much of the wait that ends now the clear ran on this CPU, in ns; `None` if that is no longer
    /// known.
    #[inline(always)]
    pub fn waited(&self, task: &Task, now: u64) -> Option<u64> {
        let later = self.serial.wrapping_sub(task.serial);
        let inside_ns = if later == 0 {
            self.inside.at(now)
        } else if later < REMEMBERED as u32 {
            self.ends[task.serial as usize % REMEMBERED]
        } else {
            return None;
        };
        Some(inside_ns.saturating_sub(task.inside_ns))
    }
}

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, only integers, no padding (the size is asserted above), any bytes are valid.
unsafe impl aya::Pod for Task {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Threads of the tests.
    const CLEARER: u32 = 7;
    const OTHER: u32 = 8;
    const WAITER: u32 = 9;
    /// Anything but 0.
    const DIMENSIONS: u64 = 0x12_41;

    proptest! {
        #[test]
        fn a_stopwatch_shows_the_time_between_its_starts_and_stops(
            steps in prop::collection::vec((0_u64..1 << 40, any::<bool>()), 1..50),
            since_boot in 0_u64..1 << 50,
        ) {
            let (mut now, mut expected, mut running) = (since_boot, 0, false);
            let mut watch = Stopwatch::default();
            for (ns, start) in steps {
                now += ns;
                if running {
                    expected += ns;
                }
                prop_assert_eq!((watch.at(now), watch.is_running()), (expected, running));
                watch = if start { watch.started(now) } else { watch.stopped(now) };
                running = start;
            }
        }
    }

    #[test]
    fn only_the_time_that_the_clear_ran_counts() {
        let mut cpu = CpuClears::default();
        assert_eq!(cpu.wait(WAITER, 0, 50), None, "no clear yet");
        cpu.begin(CLEARER, DIMENSIONS, 100);
        assert_eq!(cpu.wait(CLEARER, 0, 110), None, "the clear's own task");
        let wait = cpu.wait(WAITER, 0, 130).unwrap();
        assert_eq!((wait.waits_for, wait.inside_ns), (DIMENSIONS, 30));
        assert_eq!(cpu.waited(&wait, 130), Some(0), "preempted at once");
        assert_eq!(cpu.leave(CLEARER, 150), Some(DIMENSIONS));
        assert_eq!(cpu.wait(OTHER, 0, 160), None, "it is not executing");
        // Another task runs, then the clear again, then the one that waits.
        cpu.resume(CLEARER, DIMENSIONS, 200);
        assert_eq!(cpu.waited(&wait, 210), Some(30));
        assert_eq!(cpu.leave(CLEARER, 240), Some(DIMENSIONS));
        assert_eq!(cpu.waited(&wait, 300), Some(60));
        // Another clear takes its place.
        cpu.begin(OTHER, DIMENSIONS, 300);
        assert_eq!(cpu.leave(OTHER, 400), Some(DIMENSIONS));
        cpu.resume(CLEARER, DIMENSIONS, 400);
        assert_eq!(cpu.waited(&wait, 450), Some(60));
        cpu.end(CLEARER, 500);
        assert_eq!(cpu.leave(CLEARER, 510), None, "it has ended");
        assert_eq!(cpu.wait(WAITER, 0, 510), None, "it has ended");
        assert_eq!(cpu.inside.at(600), 290);
    }

    #[test]
    fn a_kernel_thread_only_borrows_the_cpu() {
        let mut cpu = CpuClears::default();
        cpu.begin(CLEARER, DIMENSIONS, 100);
        assert_eq!(cpu.leave(CLEARER, 150), Some(DIMENSIONS));
        cpu.lent = 1;
        let wait = cpu.wait(WAITER, 0, 170).unwrap();
        assert_eq!(cpu.wait(CLEARER, 0, 170), None, "the clear's own task");
        cpu.resume(CLEARER, DIMENSIONS, 200);
        assert_eq!(cpu.leave(CLEARER, 230), Some(DIMENSIONS));
        assert_eq!(cpu.waited(&wait, 230), Some(30));
        assert_eq!(cpu.wait(WAITER, 0, 240), None, "taken by another task");
    }

    #[test]
    fn a_wait_ends_with_its_clear() {
        let mut cpu = CpuClears::default();
        cpu.begin(CLEARER, DIMENSIONS, 100);
        let wait = cpu.wait(WAITER, 0, 110).unwrap();
        cpu.end(CLEARER, 150);
        for clear in 0..REMEMBERED as u64 {
            let now = 200 + 100 * clear;
            assert_eq!(cpu.waited(&wait, now), Some(40), "{clear} clears later");
            cpu.begin(OTHER, DIMENSIONS, now);
            cpu.end(OTHER, now + 50);
        }
        assert_eq!(cpu.waited(&wait, 2000), None, "forgotten");
    }

    #[test]
    fn a_clear_whose_exit_was_missed_ends_when_its_task_leaves() {
        let mut cpu = CpuClears::default();
        cpu.begin(CLEARER, DIMENSIONS, 100);
        assert_eq!(cpu.leave(OTHER, 150), None);
        assert!(!cpu.inside.is_running());
        cpu.end(CLEARER, 170);
        assert_eq!(cpu.inside.at(200), 50);
    }
}
