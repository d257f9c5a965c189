//! The driver: causes a known number of huge-page faults and says how many it caused.
//!
//! Flow: [`Args`] (clap) and [`Machine`] (what the machine offers) -> [`Plan::check`] (pure) ->
//! [`run()`] -> [`Report`]. The report is the ground truth that traces are tested against: how many
//! huge pages the kernel itself says it mapped, not how many were asked for.
//!
//! It runs in one thread, keeps its heap below one huge page and its buffers out of reach of huge
//! pages, so that with THP `always` it faults no huge page but those it means to.

mod account;
mod args;
mod error;
pub(crate) mod memory;
mod plan;
mod report;
mod run;
mod signals;

pub use args::{Args, Kind};
pub use error::Error;
pub use plan::{Machine, Plan};
pub use report::{Latency, Report, Run};
pub use run::run;
