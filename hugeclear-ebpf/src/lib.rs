//! What the kernel side and user space must agree on: the configuration set at load, the records in
//! the maps, and how a duration becomes a bucket and a clear becomes a key.
//!
//! Plain integers and arrays with a C layout and no padding. Nothing here touches the kernel, so all
//! of it is tested on the host. The eBPF programs are the `hugeclear-ebpf` binary of this package.
#![cfg_attr(not(test), no_std)]

pub mod bucket;
pub mod config;
pub mod impact;
pub mod key;
pub mod maps;
pub mod piece;
pub mod preempt;
