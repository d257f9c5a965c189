//! Settings that are changed for the time of a run and always put back.
//!
//! Put back by [`Applied::put_back`], on drop, and from a panic hook (the released binary aborts on
//! panic, which runs no destructors). Signals are the caller's: it must catch them and return. Against
//! SIGKILL, what is to be put back is in a file before anything is changed, and the next start puts it
//! back: [`repair`].
//!
//! A setting is put back only while it is what we made it. What something else has written since is
//! that one's wish: it is left and named ([`Error::ChangedSince`]). What we made it is what was read
//! after our write, which need not be what we wrote (a pool grows as far as it can); if we were killed
//! before we could read, whatever is there counts as ours.
//!
//! Only one run at a time may have settings changed, in this process as in all others.

mod error;
mod list;
#[cfg(test)]
mod tests;

use std::{
    fmt, fs, panic,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, ThreadId},
};

use serde::{Deserialize, Serialize};

pub use self::error::Error;
use self::list::List;
use crate::facts::source::bracketed;

/// Where the list of changed settings and its lock are. A reboot resets the settings and, where `/run`
/// is a tmpfs, as systemd mounts it, this with them.
const DIR: &str = "/run/hugeclear-trace";

/// A setting and the value it should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file, absolute.
    pub path: PathBuf,
    /// What is written to it.
    pub value: String,
}

/// A changed setting and how to put it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The file, absolute.
    pub path: PathBuf,
    /// The value it had before.
    pub was: String,
    /// What was written to it.
    pub wrote: String,
    /// What was read afterwards. `None`: not read yet.
    pub shows: Option<String>,
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            was,
            wrote,
            shows,
        } = self;
        let is = shows.as_ref().unwrap_or(wrote);
        write!(f, "{} to `{is}` from `{was}`", path.display())
    }
}

/// A setting that a killed run had left changed, and that is back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The file, absolute.
    pub path: PathBuf,
    /// The value it had before that run, and has again.
    pub value: String,
    /// The value that run had left.
    pub left: String,
}

impl fmt::Display for Repaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, value, left } = self;
        write!(
            f,
            "put back {} to `{value}`, which a run that was killed had left at `{left}`",
            path.display()
        )
    }
}

/// Changed settings; puts them back when dropped.
#[derive(Debug)]
#[must_use = "the settings are put back when this is dropped"]
pub struct Applied {
    /// `None`: nothing is changed, or all was put back.
    held: Arc<Mutex<Option<Held>>>,
    repaired: Vec<Result<Repaired, Error>>,
}

/// What is changed: in memory, one per file in the order of the first change, and in the list.
#[derive(Debug)]
struct Held {
    list: List,
    settings: Vec<Saved>,
}

impl Applied {
    /// Saves each setting, then writes its new value. A setting that already has the value is left
    /// alone. What a killed run left changed is put back first: see [`Applied::repaired`].
    ///
    /// # Errors
    /// Another run has settings changed; what a killed run left cannot be put back; a file cannot be
    /// read or written. What was changed before it is put back.
    pub fn apply(changes: &[Change]) -> Result<Self, Error> {
        Self::apply_in(Path::new(DIR), changes)
    }

    fn apply_in(dir: &Path, changes: &[Change]) -> Result<Self, Error> {
        let mut applied = Self {
            held: Arc::default(),
            repaired: Vec::new(),
        };
        if changes.is_empty() || (!list::exists(dir) && in_force(changes)?) {
            return Ok(applied);
        }
        let list = List::lock(dir)?;
        let mut left_over = list.read()?;
        applied.repaired = restore_all(&mut left_over, &list);
        if !left_over.is_empty() {
            // Nothing is changed on top of what did not come back.
            for outcome in applied.repaired.drain(..) {
                outcome?;
            }
        }
        *lock(&applied.held) = Some(Held {
            list,
            settings: Vec::new(),
        });
        put_back_on_panic(Arc::downgrade(&applied.held), thread::current().id());
        if let Some(held) = lock(&applied.held).as_mut() {
            for change in changes {
                held.change(change)?;
            }
        }
        Ok(applied)
    }

    /// Makes exactly these changes to the settings as they were at first: those changed before and not
    /// among these are put back. What they were at first stays saved.
    ///
    /// # Errors
    /// As [`Applied::apply`]; and a setting is not put back.
    pub fn switch(&mut self, changes: &[Change]) -> Result<(), Error> {
        self.switch_in(Path::new(DIR), changes)
    }

    fn switch_in(&mut self, dir: &Path, changes: &[Change]) -> Result<(), Error> {
        if let Some(held) = lock(&self.held).as_mut() {
            held.put_back_all_but(changes)?;
            return changes.iter().try_for_each(|change| held.change(change));
        }
        *self = Self::apply_in(dir, changes)?;
        Ok(())
    }

    /// What a killed run had left changed, as [`repair`] tells it: for the user to know.
    pub fn repaired(&self) -> &[Result<Repaired, Error>] {
        &self.repaired
    }

    /// Puts every setting back, last one first, and checks that it is back.
    ///
    /// # Errors
    /// The first setting that is not; the others are put back all the same.
    pub fn put_back(self) -> Result<(), Error> {
        put_back(&self.held)
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        // Only reached with something left to do on the way out of an earlier error, which is the one
        // to report; `put_back` reports its own. What does not come back stays in the list.
        let _ = put_back(&self.held);
    }
}

impl Held {
    /// Puts back, last one first, the settings that are not among `changes`.
    fn put_back_all_but(&mut self, changes: &[Change]) -> Result<(), Error> {
        for index in (0..self.settings.len()).rev() {
            let path = &self.settings[index].path;
            if changes.iter().all(|change| change.path != *path) {
                restore(&mut self.settings[index], self.list.path())?;
                self.settings.remove(index);
            }
        }
        self.list.write(&self.settings)
    }

    fn change(&mut self, Change { path, value }: &Change) -> Result<(), Error> {
        let was = current(path)?;
        if was == *value {
            return Ok(());
        }
        let index = match self.settings.iter().position(|saved| saved.path == *path) {
            Some(index) => index,
            None => {
                self.settings.push(Saved {
                    path: path.clone(),
                    was,
                    wrote: String::new(),
                    shows: None,
                });
                self.settings.len() - 1
            }
        };
        value.clone_into(&mut self.settings[index].wrote);
        self.settings[index].shows = None;
        // Kept first: the write may take effect and then fail, or be our last.
        self.list.write(&self.settings)?;
        fs::write(path, value).map_err(|error| Error::Write {
            path: path.clone(),
            value: value.clone(),
            error,
        })?;
        self.settings[index].shows = Some(current(path)?);
        self.list.write(&self.settings)
    }
}

/// Puts back what a killed run left changed, last one first: what every start does that cares for the
/// settings. One outcome for each setting that was not as before, for the user to know. Nothing if no
/// run was killed, one is still at it, or this user may not do anything about it.
#[must_use]
pub fn repair() -> Vec<Result<Repaired, Error>> {
    repair_in(Path::new(DIR))
}

fn repair_in(dir: &Path) -> Vec<Result<Repaired, Error>> {
    let left_over =
        List::left_over(dir).and_then(|list| list.map(|list| Ok((list.read()?, list))).transpose());
    match left_over {
        Ok(Some((mut settings, list))) => restore_all(&mut settings, &list),
        Ok(None) => Vec::new(),
        Err(error) => vec![Err(error)],
    }
}

/// What a killed run left changed, for [`repair`] to put back. Empty where that would do nothing.
///
/// # Errors
/// The list cannot be read.
pub fn left_over() -> Result<Vec<Saved>, Error> {
    List::left_over(Path::new(DIR))?.map_or(Ok(Vec::new()), |list| list.read())
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

fn in_force(changes: &[Change]) -> Result<bool, Error> {
    for Change { path, value } in changes {
        if current(path)? != *value {
            return Ok(false);
        }
    }
    Ok(true)
}

fn put_back(held: &Mutex<Option<Held>>) -> Result<(), Error> {
    // Taken out before anything is done, so that a panic on the way does not come back here.
    let Some(Held { list, mut settings }) = lock(held).take() else {
        return Ok(());
    };
    restore_all(&mut settings, &list)
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop))
}

/// Puts back, last one first; what does not come back stays in `settings` and in the list.
fn restore_all(settings: &mut Vec<Saved>, list: &List) -> Vec<Result<Repaired, Error>> {
    let mut outcomes = Vec::new();
    let mut kept = Vec::new();
    while let Some(mut saved) = settings.pop() {
        let outcome = restore(&mut saved, list.path());
        if matches!(outcome, Err(Error::NotPutBack { .. })) {
            kept.push(saved);
        }
        outcomes.extend(outcome.transpose());
    }
    settings.extend(kept.into_iter().rev());
    // Once is enough: a kill before it repeats what has been done, which does nothing.
    outcomes.extend(list.write(settings).err().map(Err));
    outcomes
}

/// Puts one setting back; `None`: it was.
fn restore(saved: &mut Saved, list: &Path) -> Result<Option<Repaired>, Error> {
    let Saved {
        path,
        was,
        wrote,
        shows,
    } = saved;
    let not_put_back = |why: String| Error::NotPutBack {
        path: path.clone(),
        was: was.clone(),
        why,
        list: list.to_owned(),
    };
    let is = current(path).map_err(|error| not_put_back(error.to_string()))?;
    if is == *was {
        return Ok(None);
    }
    if shows.as_ref().is_some_and(|shows| is != *shows) && is != *wrote {
        return Err(Error::ChangedSince {
            path: path.clone(),
            was: was.clone(),
            wrote: wrote.clone(),
            is,
        });
    }
    let written = fs::write(&*path, &*was);
    let now = current(path).map_err(|error| not_put_back(error.to_string()))?;
    if now != *was {
        let error = not_put_back(match written {
            Ok(()) => format!("the kernel took the value, but it is `{now}`"),
            Err(error) => format!("it is `{now}`, and the kernel says: {error}"),
        });
        // Ours as well, when this is tried again.
        *shows = Some(now);
        return Err(error);
    }
    Ok(Some(Repaired {
        path: path.clone(),
        value: was.clone(),
        left: is,
    }))
}

/// A panic of the owning thread puts the settings back before the process aborts or unwinds.
fn put_back_on_panic(held: Weak<Mutex<Option<Held>>>, owner: ThreadId) {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() == owner
            && let Some(held) = held.upgrade()
            // Held by this very thread if it panicked while changing settings: do not wait for
            // ourselves.
            && held.try_lock().is_ok()
        {
            let _ = put_back(&held);
        }
        previous(info);
    }));
}

fn lock(held: &Mutex<Option<Held>>) -> MutexGuard<'_, Option<Held>> {
    // What is saved is valid after any panic.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
