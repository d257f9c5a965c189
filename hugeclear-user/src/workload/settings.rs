//! Settings that are changed for the time of a run and always put back.
//!
//! Put back by [`Applied::put_back`], on drop, and from a panic hook (the released binary aborts on
//! panic, which runs no destructors). Signals are the caller's: it must catch them and return. What
//! is to be put back is plain data, [`Saved`], so that it can be kept in a file against SIGKILL.

use std::{
    fs, panic,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, ThreadId},
};

use serde::{Deserialize, Serialize};

use super::Error;
use crate::facts::source::bracketed;

/// A setting and the value it should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file, absolute.
    pub path: PathBuf,
    /// What is written to it.
    pub value: String,
}

/// Settings as they were, in the order in which they were changed.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Each file with the value it had.
    pub settings: Vec<Change>,
}

/// Changed settings; puts them back when dropped.
#[derive(Debug)]
#[must_use = "the settings are put back when this is dropped"]
pub struct Applied {
    saved: Arc<Mutex<Saved>>,
}

impl Applied {
    /// Saves each setting, then writes its new value. A setting that already has the value is left
    /// alone.
    ///
    /// # Errors
    /// A file cannot be read or written; what was changed before it is put back.
    pub fn apply(changes: &[Change]) -> Result<Self, Error> {
        let applied = Self {
            saved: Arc::default(),
        };
        if !changes.is_empty() {
            put_back_on_panic(Arc::downgrade(&applied.saved), thread::current().id());
        }
        for Change { path, value } in changes {
            let was = current(path)?;
            if was == *value {
                continue;
            }
            // Saved first: the write may take effect and then fail.
            lock(&applied.saved).settings.push(Change {
                path: path.clone(),
                value: was,
            });
            write(path, value)?;
        }
        Ok(applied)
    }

    /// Puts every setting back, last one first, and checks that it is back.
    ///
    /// # Errors
    /// The first setting that is not; the others are put back all the same.
    pub fn put_back(self) -> Result<(), Error> {
        put_back(&self.saved)
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        // Only reached with something left to do on the way out of an earlier error, which is the one
        // to report; `put_back` reports its own.
        let _ = put_back(&self.saved);
    }
}

/// The value of a setting: the chosen word where the file offers several, else all of it.
///
/// # Errors
/// The file cannot be read.
pub fn current(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(bracketed(&text).unwrap_or(text.trim()).to_owned())
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    fs::write(path, value).map_err(|source| Error::Write {
        path: path.to_owned(),
        value: value.to_owned(),
        source,
    })
}

fn put_back(saved: &Mutex<Saved>) -> Result<(), Error> {
    let mut saved = lock(saved);
    let mut result = Ok(());
    // Taken out one by one, so that a panic on the way leaves the rest to the hook.
    while let Some(Change { path, value: was }) = saved.settings.pop() {
        let written = write(&path, &was);
        let is = current(&path).unwrap_or_else(|error| error.to_string());
        if is != was {
            let why = match written {
                Ok(()) => "the kernel took the value but does not show it".to_owned(),
                Err(error) => error.to_string(),
            };
            result = result.and(Err(Error::NotPutBack { path, was, is, why }));
        }
    }
    result
}

/// A panic of the owning thread puts the settings back before the process aborts or unwinds.
fn put_back_on_panic(saved: Weak<Mutex<Saved>>, owner: ThreadId) {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() == owner
            && let Some(saved) = saved.upgrade()
            // Held by this very thread if it panicked while putting back: do not wait for ourselves.
            && saved.try_lock().is_ok()
        {
            let _ = put_back(&saved);
        }
        previous(info);
    }));
}

fn lock(saved: &Mutex<Saved>) -> MutexGuard<'_, Saved> {
    // The list is valid after any panic.
    saved.lock().unwrap_or_else(PoisonError::into_inner)
}
