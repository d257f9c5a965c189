//! Settings that are changed for the time of a run and always put back.
//!
//! Put back by [`Applied::put_back`], on drop, and from a panic hook (the released binary aborts on
//! panic, which runs no destructors). Signals are the caller's: it must catch them and return. What
//! is to be put back is plain data, [`Saved`], so that it can be kept in a file against SIGKILL.

mod error;

use std::{
    fs, panic,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, ThreadId},
};

use serde::{Deserialize, Serialize};

pub use self::error::Error;
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
    let text = fs::read_to_string(path).map_err(|error| Error::Read {
        path: path.to_owned(),
        error,
    })?;
    Ok(bracketed(&text).unwrap_or(text.trim()).to_owned())
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    fs::write(path, value).map_err(|error| Error::Write {
        path: path.to_owned(),
        value: value.to_owned(),
        error,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Files as sysfs shows them, except that they take what is written literally.
    fn files(values: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let paths = values
            .iter()
            .enumerate()
            .map(|(number, value)| {
                let path = dir.path().join(number.to_string());
                fs::write(&path, format!("{value}\n")).unwrap();
                path
            })
            .collect();
        (dir, paths)
    }

    fn change(path: &Path, value: &str) -> Change {
        Change {
            path: path.to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn a_setting_is_changed_and_put_back() {
        let (_dir, paths) = files(&["always madvise [never]", "0"]);
        let changes = [change(&paths[0], "madvise"), change(&paths[1], "8")];
        let applied = Applied::apply(&changes).unwrap();
        assert_eq!(current(&paths[0]).unwrap(), "madvise");
        assert_eq!(current(&paths[1]).unwrap(), "8");
        applied.put_back().unwrap();
        assert_eq!(current(&paths[0]).unwrap(), "never");
        assert_eq!(current(&paths[1]).unwrap(), "0");
    }

    #[test]
    fn an_error_on_the_way_puts_back_what_was_changed() {
        let (dir, paths) = files(&["0"]);
        let missing = dir.path().join("missing");
        let error = Applied::apply(&[change(&paths[0], "8"), change(&missing, "1")]).unwrap_err();
        assert!(matches!(error, Error::Read { path, .. } if path == missing));
        assert_eq!(current(&paths[0]).unwrap(), "0");
    }

    #[test]
    fn one_file_changed_twice_ends_as_it_began() {
        let (_dir, paths) = files(&["0"]);
        Applied::apply(&[change(&paths[0], "8"), change(&paths[0], "9")])
            .unwrap()
            .put_back()
            .unwrap();
        assert_eq!(current(&paths[0]).unwrap(), "0");
    }

    #[test]
    fn a_setting_that_does_not_come_back_is_an_error() {
        let (dir, paths) = files(&["0"]);
        let applied = Applied::apply(&[change(&paths[0], "8")]).unwrap();
        drop(dir);
        assert!(matches!(applied.put_back(), Err(Error::NotPutBack { was, .. }) if was == "0"));
    }

    #[test]
    fn a_panic_puts_settings_back_before_anything_unwinds() {
        let (_dir, paths) = files(&["0"]);
        let path = paths[0].clone();
        let panicked = thread::spawn(move || {
            let applied = Applied::apply(&[change(&path, "8")]).unwrap();
            // With panic=abort no destructor runs; the hook must do.
            std::mem::forget(applied);
            panic!("on purpose");
        })
        .join();
        assert!(panicked.is_err());
        assert_eq!(current(&paths[0]).unwrap(), "0");
    }
}
