//! What the programs do.

pub(crate) mod aggregate;
pub(crate) mod call;
pub(crate) mod clear;
pub(crate) mod enclosing;
pub(crate) mod fault;
pub(crate) mod impact;
pub(crate) mod part;
pub(crate) mod piece;
pub(crate) mod preempt;
pub(crate) mod select;
pub(crate) mod start;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod zero_page;
