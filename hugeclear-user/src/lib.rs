//! hugeclear-trace as a library.
