//! `cargo xtask`: see `cargo xtask --help`.

fn main() {}
