//! The driver: causes a known number of huge-page faults and says how many it caused.
//!
//! Flow: [`Args`] (clap) and [`Machine`] (what the machine offers) -> [`Plan::check`] (pure) ->
//! [`run()`] -> [`Report`]. The report is the ground truth that traces are tested against: how many
//! pages the kernel itself says it gave, not how many were asked for.
//!
//! A run is one pass (or several, for a duration) over fresh memory (`area`) by its threads, in `run`.
//! Their heap and their stacks stay below one huge page, and their buffers are out of reach of huge pages,
//! so that with THP `always` they fault no huge page but those they mean to.

pub(crate) mod account;
mod area;
mod args;
mod child;
mod error;
mod machine;
pub(crate) mod memory;
pub(crate) mod place;
mod plan;
mod pressure;
mod report;
mod run;
pub(crate) mod signals;

pub use args::{Args, Bench, Events, Kind, PopulateBy, Retouch, Touch, ZeroMapping};
pub use error::Error;
pub use machine::{Machine, Node, NodePool};
pub use plan::Plan;
pub use report::{Expected, Latency, Report, Rewrite, Run, Summary};
pub use run::run;
