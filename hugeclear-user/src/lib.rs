//! hugeclear-trace as a library: each module is a stage of the data flow, with plain data between.
//!
//! facts -> probes -> window -> report, and facts -> probes -> strategy. A module may use what stands left of it, never right.

pub mod cli;
pub mod counters;
pub mod facts;
mod grid;
pub mod lab;
pub mod notes;
pub mod probes;
pub mod report;
pub mod settings;
pub mod stats;
pub mod strategy;
pub mod sweep;
pub mod term;
pub mod units;
pub mod window;
pub mod workload;
