//! Performance counters of the threads that do the work: what `perf stat -d -d` counts.
//!
//! [`Counters`] is the only part that speaks to the kernel (perf_event_open(2)); [`Counts`] is what it read, plain
//! data; [`figures()`] and [`Summary`] say what that means, of one run and of several.
//!
//! # What is counted
//! The thread that opened the counters, and all threads and processes that it starts later, and those that they start.
//! Threads that are there already are not counted: open before starting any. User space and kernel are both counted;
//! where `kernel.perf_event_paranoid` forbids that, only user space is, and [`Count::user_only`] says so. Context
//! switches and migrations all happen inside the kernel: they are then [`Missing::NotPermitted`], and not the 0 that the
//! kernel would give.
//!
//! # What it costs
//! While counters are enabled, each context switch from or to a counted thread stops and starts every one of them. The
//! four software events made a switch between two threads through a pipe slower by some 80 ns (of 1.4 µs, median of 7
//! pairs of runs in a virtual machine, 6.18), and a fault by less than the noise (of 1.9 µs). A hardware event costs a
//! read and some writes of model-specific registers per switch, which trap in a virtual machine; not measured. Opening,
//! reading and closing the table took 80 µs there, 15 of its events refused.
//!
//! A CPU has some 4 to 8 hardware counters per thread. 15 hardware events take turns on them (are *multiplexed*) at timer
//! ticks, so that runs of few ticks are scaled up from little. Who wants exact counts opens fewer events.
//!
//! # Untested
//! Hardware events were never seen to count by those who wrote this, who had machines without hardware counters: the
//! names' translation to the kernel's numbers, the scaling and the derived figures are tested, the counting is not. On a
//! CPU with two kinds of cores the kernel counts hardware events on one kind only, where `perf stat` opens each event for
//! each kind: the share that a counter ran then tells how much was seen.

mod count;
mod event;
mod figures;
#[cfg(test)]
mod measured;
mod open;
mod summary;

pub use count::{Count, Counted, Counts, Missing, Reading, scale};
pub use event::{Event, Unit};
pub use figures::{Figure, FigureKind, figures};
pub use open::Counters;
pub use summary::{Summary, SummaryRow};
