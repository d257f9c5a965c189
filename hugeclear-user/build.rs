//! Builds the eBPF object and tells the crate where it is (`HUGECLEAR_EBPF_OBJECT`).

use std::{env, path::PathBuf};

use anyhow::{Context as _, Result};

fn main() -> Result<()> {
    let variable = |name: &str| env::var(name).with_context(|| format!("cargo did not set {name}"));
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("..");
    let target_dir = PathBuf::from(variable("OUT_DIR")?).join("ebpf");

    for input in [
        "Cargo.lock",
        "Cargo.toml",
        "hugeclear-ebpf",
        "xtask/src/ebpf.rs",
    ] {
        println!("cargo:rerun-if-changed={}", workspace.join(input).display());
    }
    println!("cargo:rerun-if-env-changed={}", xtask::ebpf::RUSTC_VARIABLE);

    let object = xtask::ebpf::build(&workspace, &target_dir, &variable("CARGO_CFG_TARGET_ARCH")?)?;
    println!("cargo:rustc-env=HUGECLEAR_EBPF_OBJECT={}", object.display());
    Ok(())
}
