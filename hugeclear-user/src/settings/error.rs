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
    #[error("cannot write `{value}` to {}: {error}; changing it needs root", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// A setting did not come back.
    #[error("{} is `{is}` and could not be put back to `{was}` ({why}); write it yourself", path.display())]
    NotPutBack {
        /// The file.
        path: PathBuf,
        /// What it should be.
        was: String,
        /// What it is.
        is: String,
        /// Why.
        why: String,
    },
}
