//! Reading below the root directory, and the notes of what could not be read.

use std::{
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// Absolute path of the file, as on the machine itself (without the root).
    pub path: String,
    /// Why, in words.
    pub why: String,
}

/// The tree that is read, and what of it could not be.
#[derive(Debug)]
pub(crate) struct Source {
    root: PathBuf,
    unread: Vec<Unread>,
}

impl Source {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            unread: Vec::new(),
        }
    }

    /// The path below the root; a leading `/` of `path` is dropped.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The file's text without surrounding white space; a failure is noted.
    pub(crate) fn text(&mut self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        self.bytes(path)
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// As [`Source::text`], for files whose absence means something by itself: not noted.
    pub(crate) fn text_if_present(&mut self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        if self.exists(path) {
            self.text(path)
        } else {
            None
        }
    }

    /// The file's text read as a number; both kinds of failure are noted.
    pub(crate) fn number(&mut self, path: impl AsRef<Path>) -> Option<u64> {
        let path = path.as_ref();
        let text = self.text(path)?;
        text.parse()
            .map_err(|_| self.note(path, &format!("`{text}` is not a number")))
            .ok()
    }

    pub(crate) fn bytes(&mut self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let path = path.as_ref();
        fs::read(self.path(path))
            .map_err(|error| self.note(path, &error))
            .ok()
    }

    pub(crate) fn open(&mut self, path: impl AsRef<Path>) -> Option<fs::File> {
        let path = path.as_ref();
        fs::File::open(self.path(path))
            .map_err(|error| self.note(path, &error))
            .ok()
    }

    /// Names in a directory, sorted; empty if it is not there.
    pub(crate) fn names(&mut self, path: impl AsRef<Path>) -> Vec<String> {
        let path = path.as_ref();
        let mut names: Vec<String> = match fs::read_dir(self.path(path)) {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.note(path, &error);
                Vec::new()
            }
        };
        names.sort();
        names
    }

    /// Notes that `path` could not be read, or not understood.
    pub(crate) fn note(&mut self, path: impl AsRef<Path>, why: &dyn Display) {
        let path = path.as_ref();
        let path = Path::new("/").join(path.strip_prefix("/").unwrap_or(path));
        self.unread.push(Unread {
            path: path.display().to_string(),
            why: why.to_string(),
        });
    }

    pub(crate) fn into_unread(self) -> Vec<Unread> {
        self.unread
    }
}

/// The chosen word of a choice such as `always [madvise] never`, or `none (voluntary) full` in
/// debugfs's `sched/preempt`.
pub(crate) fn bracketed(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| {
        [('[', ']'), ('(', ')')]
            .into_iter()
            .find_map(|(open, close)| word.strip_prefix(open)?.strip_suffix(close))
    })
}

/// The bytes that the directory name `hugepages-<n>kB` stands for.
pub(crate) fn page_size_of_name(name: &str) -> Option<u64> {
    let kib: u64 = name
        .strip_prefix("hugepages-")?
        .strip_suffix("kB")?
        .parse()
        .ok()?;
    kib.checked_mul(1024)
}

/// Numbers of a kernel list such as `0-3,8,10-11`; `None` if it is not one.
/// Longer than any machine's CPU list is refused, so that noise cannot ask for gigabytes.
pub(crate) fn number_list(text: &str) -> Option<Vec<u32>> {
    const MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || numbers.len() + (last - first) as usize >= MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_mark_the_chosen_word() {
        assert_eq!(bracketed("always [madvise] never\n"), Some("madvise"));
        assert_eq!(bracketed("[none] integrity confidentiality"), Some("none"));
        assert_eq!(bracketed("none (voluntary) full lazy\n"), Some("voluntary"));
        assert_eq!(bracketed("full (laziest)\n"), Some("laziest"));
        assert_eq!(bracketed("(none] [never)"), None);
        assert_eq!(bracketed("always never"), None);
        assert_eq!(bracketed(""), None);
    }

    #[test]
    fn lists_of_numbers() {
        assert_eq!(number_list("0\n"), Some(vec![0]));
        assert_eq!(
            number_list("0-3,8,10-11"),
            Some(vec![0, 1, 2, 3, 8, 10, 11])
        );
        assert_eq!(number_list(""), Some(vec![]));
        for bad in ["a", "3-1", "1-", "-", "0-4294967295", "0-65535,1"] {
            assert_eq!(number_list(bad), None, "{bad}");
        }
    }
}
