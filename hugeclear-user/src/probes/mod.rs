//! From kernel facts to attached probes.
//!
//! [`catalog`] holds the sites as data, [`select`] chooses among them by the facts alone, and
//! [`tracer`] attaches what was chosen and reads what it records. Only what follows the choice knows
//! aya and the kernel: `config`, `attach`, `tracer`, `reader`, `events`, `maps`, `program_info`, and
//! [`pieces`], which follows one fault and has no part in a trace.

mod attach;
pub mod catalog;
pub mod config;
pub mod events;
pub mod keys;
mod maps;
pub mod pieces;
mod program_info;
pub mod reader;
pub mod select;
pub mod tracer;
