//! The same workload under every combination of settings asked for.
//!
//! Flow: [`Args`] (clap) and [`Offer`] (what the machine can be switched to) -> [`Plan`] (pure: which
//! combinations there are, what each changes, in which order they run) -> `cli::sweep`, which runs them
//! -> [`Report`] (pure: every run, and what they add up to by combination).
//!
//! Each run is a process of its own, so that it is as fresh as the first, and because a tracer leaves
//! its own process out.

mod args;
mod child;
mod offer;
mod plan;
mod report;
mod table;

pub use args::{Args, Tracing};
pub use child::{Child, Outcome};
pub use offer::{Choice, Offer};
pub use plan::{Combination, Error, Factor, Plan, Planned, Refused};
pub use report::{Report, Row, Run, Trace, Traced, name_of_run};
