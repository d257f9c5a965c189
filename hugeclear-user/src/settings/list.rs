//! The list of what is to be put back, in a file that outlives SIGKILL, and the lock of who may write
//! it.
//!
//! The lock is the kernel's (flock), which drops it however its holder ends: a list that nobody holds
//! is what a killed run left. Children that a run forks hold it too, until they execute something
//! else or end. Only root can open the lock, else anybody could keep root out; the list itself anybody
//! may read.

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process,
};

use super::{Error, Saved};

/// The list, while this process and no other may change settings.
#[derive(Debug)]
pub(super) struct List {
    path: PathBuf,
    lock: File,
}

impl List {
    /// Makes the directory if need be and takes the lock, at once or not at all.
    pub(super) fn lock(dir: &Path) -> Result<Self, Error> {
        let failed = |call, path: &Path| {
            let path = path.to_owned();
            move |error| Error::List { call, path, error }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .map_err(failed("create", dir))?;
        let path = dir.join("lock");
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Empty while its holder is about to write it.
                let _ = lock.read_to_string(&mut pid);
                return Err(Error::InUse {
                    pid: pid.trim().parse().ok(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", process::id()))
            .map_err(failed("write", &path))?;
        Ok(Self {
            path: path_in(dir),
            lock,
        })
    }

    /// As [`List::lock`], for those who only want what a killed run left: `None` if there is no such
    /// thing, or nothing that this user could do about it.
    pub(super) fn left_over(dir: &Path) -> Result<Option<Self>, Error> {
        if !exists(dir) {
            return Ok(None);
        }
        match Self::lock(dir) {
            Ok(list) => Ok(Some(list)),
            Err(Error::InUse { .. }) => Ok(None),
            Err(Error::List { error, .. })
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What it says; nothing if it is not there.
    pub(super) fn read(&self) -> Result<Vec<Saved>, Error> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failed("read", error)),
        };
        serde_json::from_slice(&text).map_err(|error| Error::Corrupt {
            path: self.path.clone(),
            error,
        })
    }

    /// Replaces it at once as a whole; no settings, no file.
    pub(super) fn write(&self, settings: &[Saved]) -> Result<(), Error> {
        if settings.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(self.failed("remove", error))
                }
                Ok(()) | Err(_) => Ok(()),
            };
        }
        // Always the same name, which the lock makes ours: a kill leaves no litter.
        let new = self.path.with_extension("new");
        serde_json::to_vec_pretty(settings)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &self.path))
            .map_err(|error| self.failed("write", error))
    }

    fn failed(&self, call: &'static str, error: io::Error) -> Error {
        Error::List {
            call,
            path: self.path.clone(),
            error,
        }
    }
}

impl Drop for List {
    /// Closing would not do: a process that another thread has just forked holds the lock as well, until it
    /// executes its program.
    fn drop(&mut self) {
        // What cannot be unlocked is by closing it, at the latest when that process has gone on.
        let _ = self.lock.unlock();
    }
}

/// Whether there is one: settings are changed now, or were by a run that was killed.
pub(super) fn exists(dir: &Path) -> bool {
    path_in(dir).exists()
}

fn path_in(dir: &Path) -> PathBuf {
    dir.join("settings.json")
}
