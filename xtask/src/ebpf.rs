//! Builds the eBPF object. The one build function of the project: `hugeclear-user/build.rs` and
//! `cargo xtask` both call [`build`].
//!
//! Two toolchains work. A stable rustc that already ships `core` for `bpfel-unknown-none` (Debian's
//! `rustc-web` with `libstd-rust-web-dev-bpf`, from forky on `rustc` with `libstd-rust-dev-bpf`),
//! or rustup's nightly with the component `rust-src`, which builds `core` on the spot. Either needs
//! `bpf-linker`, linked with the same LLVM major version as that rustc.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSymbol as _};

/// Package and binary name of the kernel side.
const PACKAGE: &str = "hugeclear-ebpf";
/// Little-endian eBPF; the only target built, since every supported host is little-endian.
const TARGET: &str = "bpfel-unknown-none";
/// A rustc to try first, for a toolchain in an unusual place.
pub const RUSTC_VARIABLE: &str = "HUGECLEAR_EBPF_RUSTC";

/// A compiler that can produce eBPF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// A rustc with a precompiled `core` for `bpfel-unknown-none`.
    Precompiled {
        /// Path of that rustc.
        rustc: PathBuf,
    },
    /// rustup's nightly with `rust-src`: `core` is built with `-Z build-std`.
    BuildStd,
}

/// Finds a toolchain that can build the eBPF object.
///
/// # Errors
/// One error that names every way to get a toolchain, if there is none.
pub fn find_toolchain() -> Result<Toolchain> {
    let named = env::var_os(RUSTC_VARIABLE).map(PathBuf::from);
    let candidates = named
        .into_iter()
        .chain(["/usr/bin/rustc", "rustc"].map(PathBuf::from));
    for rustc in candidates {
        if has_precompiled_core(&rustc) {
            return Ok(Toolchain::Precompiled { rustc });
        }
    }
    if nightly_has_rust_src() {
        return Ok(Toolchain::BuildStd);
    }
    bail!(
        "no Rust compiler here can build eBPF: none has `core` for {TARGET}, and there is no nightly \
         toolchain with rust-src. Run `cargo xtask setup`, or install one of: Debian's packages \
         rustc-web and libstd-rust-web-dev-bpf (rustc and libstd-rust-dev-bpf from forky on); \
         `rustup toolchain install nightly --component rust-src`; or name a rustc in {RUSTC_VARIABLE}"
    )
}

/// Finds `bpf-linker` on the PATH or where `cargo install` puts it.
///
/// # Errors
/// Says how to install it, if it is missing.
pub fn find_linker() -> Result<PathBuf> {
    let cargo_bin = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")))
        .map(|home| home.join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(cargo_bin)
        .map(|directory| directory.join("bpf-linker"))
        .find(|file| file.is_file())
        .context(
            "bpf-linker is not installed; run `cargo xtask setup`, or `cargo install bpf-linker`",
        )
}

/// Builds the eBPF object of the workspace at `workspace` for kernels of architecture `arch`
/// (Rust's name, as in `CARGO_CFG_TARGET_ARCH`), with cargo's files below `target_dir`, and
/// returns the object's path.
///
/// # Errors
/// If a tool is missing, the build fails, or the object holds a panic path: the verifier would
/// refuse it on every kernel ("last insn is not an exit or jmp"), so it must not leave the build.
pub fn build(workspace: &Path, target_dir: &Path, arch: &str) -> Result<PathBuf> {
    let toolchain = find_toolchain()?;
    let linker = find_linker()?;

    let mut cargo = match &toolchain {
        Toolchain::Precompiled { rustc } => {
            let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            // aya-ebpf uses unstable features; a stable compiler accepts them under this variable.
            cargo
                .env("RUSTC", rustc)
                .env("RUSTC_BOOTSTRAP", "1")
                .arg("build");
            cargo
        }
        Toolchain::BuildStd => {
            let mut rustup = Command::new("rustup");
            rustup.args(["run", "nightly", "cargo", "build", "-Z", "build-std=core"]);
            rustup.env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
            rustup
        }
    };
    let flags = [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".into(),
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".into(),
        // Compares and computes in 32 bits; every kernel since 5.1 can.
        "-Ctarget-cpu=v3".into(),
    ];
    cargo
        .current_dir(workspace)
        .args([
            "--package",
            PACKAGE,
            "--bin",
            PACKAGE,
            "--features",
            "kernel",
        ])
        .args(["--profile", "bpf", "--target", TARGET, "--target-dir"])
        .arg(target_dir)
        // The caller may be cargo itself, set up for the host: none of that applies to eBPF.
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            OsString::from(flags.join("\u{1f}")),
        );
    let output = cargo
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {:?}", cargo.get_program()))?;
    if !output.status.success() {
        bail!(
            "building the eBPF object: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }

    let object = target_dir.join(TARGET).join("bpf").join(PACKAGE);
    check_no_panic(&object)?;
    Ok(object)
}

/// Refuses an object with a path to a panic: indexing, `unwrap`, a division by a variable.
fn check_no_panic(path: &Path) -> Result<()> {
    let data = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let object = object::File::parse(&*data)
        .with_context(|| format!("{} is not an ELF object", path.display()))?;
    let panicking = panic_symbols(object.symbols().filter_map(|symbol| symbol.name().ok()));
    if !panicking.is_empty() {
        bail!(
            "the eBPF object can panic, and the verifier of every kernel would refuse it; find the \
             index, unwrap or division behind: {}",
            panicking.join(", ")
        );
    }
    Ok(())
}

/// The names among `symbols` that only exist where code can panic.
fn panic_symbols<'a>(symbols: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    symbols
        .filter(|name| name.contains("panicking") || name.contains("rust_begin_unwind"))
        .collect()
}

fn has_precompiled_core(rustc: &Path) -> bool {
    let Some(directory) =
        output_of(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]))
    else {
        return false;
    };
    fs::read_dir(directory).is_ok_and(|mut files| {
        files.any(|file| {
            file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libcore-"))
        })
    })
}

fn nightly_has_rust_src() -> bool {
    output_of(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]))
        .is_some_and(|sysroot| {
            Path::new(&sysroot)
                .join("lib/rustlib/src/rust/library/core")
                .is_dir()
        })
}

/// Standard output of a command, trimmed; `None` if it could not run or failed.
fn output_of(command: &mut Command) -> Option<String> {
    // A build script's cargo names its own toolchain here, which would redirect rustup's rustc.
    let output = command
        .env_remove("RUSTUP_TOOLCHAIN")
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::panic_symbols;

    #[test]
    fn panic_paths_are_recognised_by_symbol() {
        let symbols = [
            "folio_zero_user_entry",
            "_RNvNtNtCs6dyS4V_4core9panicking11panic_const23panic_const_div_by_zero",
            "_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE",
            "memset",
        ];
        assert_eq!(panic_symbols(symbols.into_iter()), symbols[1..3]);
        assert!(panic_symbols(["memset"].into_iter()).is_empty());
    }
}
