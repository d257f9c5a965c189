//! Installs what the build and the tests need, or says how to.
//!
//! A plan is made from what is missing, one step at a time, since later steps depend on what
//! earlier ones install: the linker must be built with the LLVM of the compiler.

use std::{
    env, fmt, iter,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    ebpf::{self, Toolchain},
    initramfs, qemu,
};

/// The version of bpf-linker that this project is built with.
const BPF_LINKER_VERSION: &str = "0.13.0";

/// The packages with a compiler for eBPF: Debian's names up to trixie, and from forky on.
const COMPILERS: [[&str; 2]; 2] = [
    ["rustc-web", "libstd-rust-web-dev-bpf"],
    ["rustc", "libstd-rust-dev-bpf"],
];

/// A command that installs something.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// Whether only root can run it.
    as_root: bool,
    environment: Vec<(&'static str, String)>,
    words: Vec<String>,
}

/// What was found on this machine.
#[derive(Clone, Debug)]
struct Findings {
    /// Packages that are missing, whatever the compiler.
    packages: Vec<&'static str>,
    /// Whether a compiler for eBPF is there.
    compiler: bool,
    /// Whether bpf-linker is there.
    linker: bool,
}

/// Installs everything that is missing, and returns whether anything was.
///
/// # Errors
/// If something cannot be installed: the error then holds the commands to run by hand.
pub fn run() -> Result<bool> {
    let findings = look()?;
    if findings.packages.is_empty() && findings.compiler && findings.linker {
        return Ok(false);
    }
    let can_install = nix::unistd::geteuid().is_root() && on_path("apt-get");

    let mut packages = findings.packages;
    if can_install {
        perform(&[apt(&["update"])])?;
    }
    if !findings.compiler {
        packages.extend(compiler_packages());
    }
    if !packages.is_empty() {
        let steps = [install(&packages)];
        if !can_install {
            bail!("{}", by_hand(&steps));
        }
        perform(&steps)?;
    }

    if !findings.linker {
        let llvm = llvm_major()?;
        let development = format!("llvm-{llvm}-dev");
        let prefix = format!("/usr/lib/llvm-{llvm}");
        let mut steps = Vec::new();
        if !Path::new(&prefix).join("include/llvm").is_dir() {
            steps.push(install(&[development.as_str()]));
        }
        steps.push(build_linker(llvm, prefix));
        if !can_install && steps.iter().any(|step| step.as_root) {
            bail!("{}", by_hand(&steps));
        }
        perform(&steps)?;
    }
    ebpf::find_toolchain()?;
    ebpf::find_linker()?;
    Ok(true)
}

/// Looks for everything, without asking apt, which takes seconds.
fn look() -> Result<Findings> {
    let mut packages = Vec::new();
    if !on_path(qemu::PROGRAM) {
        packages.push("qemu-system-x86");
    }
    if initramfs::find_busybox().is_none() {
        packages.push("busybox-static");
    }
    Ok(Findings {
        packages,
        compiler: ebpf::find_toolchain().is_ok(),
        linker: ebpf::find_linker().is_ok(),
    })
}

/// The names that the packages with the compiler have here.
fn compiler_packages() -> [&'static str; 2] {
    let known = |package: &str| {
        Command::new("apt-cache")
            .args(["show", package])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    COMPILERS
        .into_iter()
        .find(|packages| packages.iter().all(|package| known(package)))
        .unwrap_or(COMPILERS[0])
}

/// The major version of the LLVM in the compiler for eBPF.
fn llvm_major() -> Result<u32> {
    let mut rustc = match ebpf::find_toolchain()? {
        Toolchain::Precompiled { rustc } => Command::new(rustc),
        Toolchain::BuildStd => {
            let mut rustup = Command::new("rustup");
            rustup.args(["run", "nightly", "rustc"]);
            rustup
        }
    };
    let output = rustc.arg("-vV").output().context("cannot run rustc -vV")?;
    parse_llvm_major(&String::from_utf8_lossy(&output.stdout))
        .context("rustc -vV names no version of LLVM, which bpf-linker must match")
}

fn parse_llvm_major(version: &str) -> Option<u32> {
    let llvm = version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?;
    llvm.split('.').next()?.trim().parse().ok()
}

fn apt(words: &[&str]) -> Step {
    Step {
        as_root: true,
        environment: vec![("DEBIAN_FRONTEND", "noninteractive".into())],
        words: [&["apt-get", "-qq"], words]
            .concat()
            .into_iter()
            .map(String::from)
            .collect(),
    }
}

fn install(packages: &[&str]) -> Step {
    let words = ["install", "--yes", "--no-install-recommends"];
    apt(&[&words, packages].concat())
}

fn build_linker(llvm: u32, prefix: String) -> Step {
    let feature = format!("llvm-{llvm}");
    let words = ["cargo", "install", "bpf-linker"].into_iter();
    let version = ["--locked", "--version", BPF_LINKER_VERSION];
    let features = ["--no-default-features", "--features", &feature];
    Step {
        as_root: false,
        environment: vec![("LLVM_PREFIX", prefix)],
        words: words
            .chain(version)
            .chain(features)
            .map(String::from)
            .collect(),
    }
}

/// Runs the steps, each shown before.
fn perform(steps: &[Step]) -> Result<()> {
    for step in steps {
        eprintln!("{step}");
        let (program, arguments) = step.words.split_first().context("a step without words")?;
        let program = match program.as_str() {
            // The one that runs us, which need not be on the PATH.
            "cargo" => env::var_os("CARGO").unwrap_or_else(|| program.into()),
            _ => program.into(),
        };
        let status = Command::new(program)
            .args(arguments)
            .envs(step.environment.iter().map(|(name, value)| (name, value)))
            // Away from this workspace, whose cargo configuration links statically.
            .current_dir("/")
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("cannot start `{step}`"))?;
        if !status.success() {
            bail!("`{step}` failed ({status}); see above");
        }
    }
    Ok(())
}

/// What to tell a person whom we cannot serve: `steps` hold one for root.
fn by_hand(steps: &[Step]) -> String {
    // A fresh machine has no lists of packages yet.
    let update = apt(&["update"]);
    let commands: String = iter::once(&update)
        .chain(steps)
        .map(|step| {
            let sudo = if step.as_root { "sudo " } else { "" };
            format!("\n    {sudo}{step}")
        })
        .collect();
    format!(
        "cannot install what is missing without being root on Debian; run this, or install the \
         same in your system's way, and then `cargo xtask setup` again:{commands}"
    )
}

impl fmt::Display for Step {
    /// As it is typed into a shell.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(formatter, "{name}={value} ")?;
        }
        formatter.write_str(&self.words.join(" "))
    }
}

fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| {
        env::split_paths(&path).any(|directory| directory.join(program).is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_of_a_compiler_is_read() {
        let version = "rustc 1.96.0\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22.1.8\n";
        assert_eq!(parse_llvm_major(version), Some(22));
        assert_eq!(parse_llvm_major("rustc 1.96.0\n"), None);
    }

    #[test]
    fn commands_can_be_typed() {
        let steps = [
            install(&["qemu-system-x86", "busybox-static"]),
            build_linker(22, "/usr/lib/llvm-22".into()),
        ];
        let text = by_hand(&steps);
        assert!(text.contains(
            "\n    sudo DEBIAN_FRONTEND=noninteractive apt-get -qq update\
             \n    sudo DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes \
             --no-install-recommends qemu-system-x86 busybox-static"
        ));
        assert!(text.contains(
            "\n    LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker --locked --version 0.13.0 \
             --no-default-features --features llvm-22"
        ));
    }
}
