//! Development tasks of hugeclear-trace, as a library: the `xtask` binary, the build script of
//! hugeclear-user and the kernel-matrix tests call the same functions.

pub mod ebpf;
