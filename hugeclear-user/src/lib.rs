//! hugeclear-trace as a library.

pub mod facts;
