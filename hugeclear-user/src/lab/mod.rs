//! The lab: what the order and the instructions of clearing cost, measured in user space.
//!
//! Flow: [`Args`] (clap) and [`Machine`] (what the machine offers) -> [`Plan::check`] (pure) -> [`run()`] ->
//! [`Report`] -> [`table()`] or JSON. [`Strategy`] says in which pieces a region is cleared, [`Primitive`] with
//! which instructions; `region` and `primitives` hold the unsafe code.

mod args;
mod error;
mod machine;
mod measure;
mod plan;
mod primitives;
mod region;
pub mod report;
mod strategy;
mod table;

pub use args::{Args, Backing, Kind};
pub use error::Error;
pub use machine::{Cache, Conditions, Machine};
pub use measure::run;
pub use plan::Plan;
pub use primitives::Primitive;
pub use report::Report;
pub use strategy::{PAGE_BYTES, Piece, Strategy};
pub use table::table;
