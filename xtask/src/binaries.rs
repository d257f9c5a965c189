//! Builds the static binaries that go into a guest.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::progress::Step;

/// Builds the hugeclear-trace binary and returns its path.
///
/// # Errors
/// If it cannot be built.
pub fn build_hugeclear_trace() -> Result<PathBuf> {
    let arguments = ["--package", "hugeclear-user", "--bin", "hugeclear-trace"];
    build("hugeclear-trace", &arguments)
}

/// Builds pid 1 of the guests.
pub(crate) fn build_guest_init() -> Result<PathBuf> {
    let features = ["--no-default-features", "--features", "init"];
    let target = ["--package", "xtask", "--bin", "guest-init"];
    build("guest-init", &[target.as_slice(), &features].concat())
}

fn build(binary: &str, arguments: &[&str]) -> Result<PathBuf> {
    let _step = Step::start(format!("building {binary}"));
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(crate::workspace())
        .args(["build", "--quiet", "--release"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!(
            "building {binary}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    executable(&String::from_utf8_lossy(&output.stdout), binary)
        .with_context(|| format!("cargo built {binary} but did not say where it is"))
}

/// The path of `binary` in cargo's messages.
fn executable(messages: &str, binary: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }

    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable)
        .find(|path| path.file_name() == Some(binary.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_read_from_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-artifact","executable":"/t/guest/build-script"}
{"reason":"compiler-artifact","executable":"/t/guest/guest-init"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            executable(messages, "guest-init"),
            Some("/t/guest/guest-init".into())
        );
        assert_eq!(executable(messages, "hugeclear-trace"), None);
    }
}
