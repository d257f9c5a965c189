//! What the machine can be switched to.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    facts::{Facts, thp},
    workload::Machine,
};

/// A file of the kernel in which one word of several is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The file, absolute.
    pub path: PathBuf,
    /// The words that it shows, which are those it accepts.
    pub words: Vec<String>,
}

/// What the machine can be switched to, and what it offers a workload. A file that cannot be had is an
/// error in words: it matters only if it is asked for.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Preemption models. Source: `sched/preempt` in debugfs (since 5.13).
    pub preempt: Result<Choice, String>,
    /// Source: `transparent_hugepage/enabled`.
    pub thp: Result<Choice, String>,
    /// Source: `transparent_hugepage/defrag`.
    pub defrag: Result<Choice, String>,
    /// What the machine offers a workload.
    pub machine: Machine,
}

impl Offer {
    /// Reads it below `root`, `/` in production. `facts` are those of the same machine.
    pub fn read(root: &Path, facts: &Facts) -> Self {
        let preempt = facts.debugfs.as_ref().map_or_else(
            || {
                Err("the preemption model is switched in debugfs, which is not mounted; mount it with `mount -t debugfs debugfs /sys/kernel/debug`".to_owned())
            },
            |debugfs| {
                choice(
                    root,
                    &debugfs.join("sched/preempt"),
                    "this kernel cannot switch its preemption model (CONFIG_PREEMPT_DYNAMIC is off)",
                )
            },
        );
        let thp = |name| {
            choice(
                root,
                &Path::new("/").join(thp::DIR).join(name),
                "this kernel has no transparent huge pages",
            )
        };
        Self {
            preempt,
            thp: thp("enabled"),
            defrag: thp("defrag"),
            machine: Machine::read(root),
        }
    }
}

/// Reads the words of a file; `absent` says what it means that there is none.
fn choice(root: &Path, path: &Path, absent: &str) -> Result<Choice, String> {
    let below = path.strip_prefix("/").unwrap_or(path);
    match fs::read_to_string(root.join(below)) {
        Ok(text) => Ok(Choice {
            path: path.to_owned(),
            words: words(&text),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("{absent}: there is no {}", path.display()))
        }
        Err(error) => Err(format!(
            "cannot read {}: {error}; run it with sudo",
            path.display()
        )),
    }
}

/// The words of a choice, without the mark of the chosen one: `[word]` in sysfs, `(word)` in debugfs.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace()
        .map(|word| word.trim_matches(['[', ']', '(', ')']).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_without_marks() {
        assert_eq!(
            words("none (voluntary) full\n"),
            ["none", "voluntary", "full"]
        );
        assert_eq!(
            words("always defer+madvise [never]"),
            ["always", "defer+madvise", "never"]
        );
    }

    #[test]
    fn what_cannot_be_had_says_why() {
        let root = tempfile::tempdir().unwrap();
        let read = |name| choice(root.path(), Path::new(name), "no such switch");
        assert_eq!(
            read("/sched/preempt"),
            Err("no such switch: there is no /sched/preempt".to_owned())
        );
        fs::write(root.path().join("preempt"), "full (lazy)\n").unwrap();
        assert_eq!(
            read("/preempt"),
            Ok(Choice {
                path: "/preempt".into(),
                words: vec!["full".to_owned(), "lazy".to_owned()],
            })
        );
    }
}
