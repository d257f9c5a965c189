//! From kernel facts to attached probes.
//!
//! [`catalog`] holds the sites as data, [`select`] chooses among them by the facts alone, and
//! [`tracer`] attaches what was chosen and reads the maps. Only [`tracer`], [`attach`], [`maps`] and
//! [`losses`] know aya or the kernel.

mod attach;
pub mod catalog;
pub mod keys;
mod maps;
mod program_info;
pub mod select;
pub mod tracer;
