//! Development tasks of hugeclear-trace, as a library: the `xtask` binary, the build script of
//! hugeclear-user and the kernel-matrix tests call the same functions.
//!
//! To boot a kernel from a test: resolve the [`matrix`], build one [`initramfs::Base`], run a
//! [`vm::Guest`].

pub mod ebpf;

#[cfg(feature = "init")]
pub mod protocol;

#[cfg(feature = "cli")]
mod apt;
#[cfg(feature = "cli")]
pub mod binaries;
#[cfg(feature = "cli")]
mod console;
#[cfg(feature = "cli")]
pub mod initramfs;
#[cfg(feature = "cli")]
pub mod kernels;
#[cfg(feature = "cli")]
pub mod matrix;
#[cfg(feature = "cli")]
mod progress;
#[cfg(feature = "cli")]
mod qemu;
#[cfg(feature = "cli")]
pub mod setup;
#[cfg(feature = "cli")]
pub mod vm;

/// The root of the workspace: the folder that holds `xtask`.
pub fn workspace() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}
