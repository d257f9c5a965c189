//! Why a setting was not changed or not put back.

use std::{io, path::PathBuf};

/// One line each: what, why, what to do. The kernel's answer is in the line and not a `source` beside
/// it, so that printing the chain of errors does not say it twice.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// A setting could not be written.
    #[error("cannot write `{value}` to {}: {error}{}", path.display(), remedy(error))]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// A setting did not come back. It stays in the list, for the next start to try again.
    #[error(
        "cannot put {} back to `{was}`: {why}; write it yourself, or remove {} to leave it as it is",
        path.display(),
        list.display()
    )]
    NotPutBack {
        /// The file.
        path: PathBuf,
        /// What it should be.
        was: String,
        /// Why, and what it is.
        why: String,
        /// The file that says what is to be put back.
        list: PathBuf,
    },
    /// Something else has changed a setting since, and it was left at that.
    #[error(
        "{} was changed to `{is}` by something else after a run had written `{wrote}`, and is left so; it was `{was}` before",
        path.display()
    )]
    ChangedSince {
        /// The file.
        path: PathBuf,
        /// What it was before us.
        was: String,
        /// What we wrote.
        wrote: String,
        /// What it is.
        is: String,
    },
    /// Another process has settings changed.
    #[error("another run has settings changed{}; wait until it has ended, or end it", match pid {
        Some(pid) => format!(", process {pid}"),
        None => String::new(),
    })]
    InUse {
        /// That process, where it says so.
        pid: Option<u32>,
    },
    /// What is to be put back could not be kept in a file, or not be read from it.
    #[error("cannot {call} {}: {error}; settings are changed only if a killed run can be put right, which needs root and a writable /run", path.display())]
    List {
        /// What was to be done.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The file that says what is to be put back makes no sense.
    #[error("{}, with the settings that a killed run left changed, makes no sense: {error}; put back what it names, then remove it", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
}

/// What to do about a refused write, beginning with `; `, or nothing.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; changing it needs root",
        io::ErrorKind::InvalidInput => "; this kernel does not offer that value",
        _ => "",
    }
}
