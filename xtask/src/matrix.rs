//! The kernels to test on: `tests/kernels.toml` as data, and what of it can be had here.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use glob::Pattern;
use serde::Deserialize;

use crate::{
    apt::{Apt, newest},
    kernels::{Cache, Kernel},
};

/// Where the matrix is kept, from the root of the workspace.
const FILE: &str = "tests/kernels.toml";

/// How many kernels may be missing before a test of the matrix says too little.
const MAY_BE_MISSING: usize = 2;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// All kernels, oldest first.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// The kernels, oldest first, newest last.
    #[serde(rename = "kernel")]
    pub entries: Vec<Entry>,
}

/// One kernel of the matrix. The file says what the fields are for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// How it is called.
    pub name: String,
    /// Debian suites to look for the package.
    pub suites: Vec<String>,
    /// Name of the package, with `*` for what changes.
    pub package: String,
    /// What `preempt=` on its command line accepts; empty if it is ignored.
    pub preempt: Vec<Preempt>,
    /// The function with which it clears huge pages.
    pub site: String,
    /// With init_on_alloc: whether an anonymous huge page is cleared in the page allocator only.
    pub allocator_instead: bool,
    /// How that function clears.
    pub strategy: String,
    /// How the page allocator clears, if it does.
    pub allocator_strategy: String,
    /// Why it has no transparent huge pages, if it has none.
    pub no_thp: Option<String>,
}

/// A preemption model that a kernel can be booted with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Preempt {
    /// `preempt=none`
    None,
    /// `preempt=voluntary`
    Voluntary,
    /// `preempt=full`
    Full,
    /// `preempt=lazy`
    Lazy,
}

impl Preempt {
    /// Its name on the kernel's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Voluntary => "voluntary",
            Self::Full => "full",
            Self::Lazy => "lazy",
        }
    }
}

/// Whether to look for newer kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// Only look at the cache.
    Never,
    /// Once a day, and once an hour while a kernel is missing.
    WhenStale,
    /// Now.
    Always,
}

/// An entry, and its kernel or the reason why there is none.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The entry of the matrix.
    pub entry: Entry,
    /// The kernel in the cache, or why it is missing.
    pub kernel: Result<Kernel, String>,
}

impl Matrix {
    /// Reads the matrix of this workspace.
    ///
    /// # Errors
    /// If the file cannot be read or has a mistake; the error names the line.
    pub fn load() -> Result<Self> {
        let path = crate::workspace().join(FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
        Self::parse(&text).with_context(|| format!("{FILE} has a mistake"))
    }

    fn parse(text: &str) -> Result<Self> {
        let matrix: Self = toml::from_str(text)?;
        ensure!(!matrix.entries.is_empty(), "it names no kernel");
        let mut names = BTreeSet::new();
        for entry in &matrix.entries {
            let name = &entry.name;
            ensure!(names.insert(name), "two kernels are called {name}");
            entry.pattern()?;
        }
        Ok(matrix)
    }

    /// The entry called `name`.
    ///
    /// # Errors
    /// Names those there are, if there is none.
    pub fn entry(&self, name: &str) -> Result<&Entry> {
        let entries = &self.entries;
        let found = entries.iter().find(|entry| entry.name == name);
        found.with_context(|| {
            let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
            format!(
                "no kernel is called `{name}`; {FILE} has {}",
                names.join(", ")
            )
        })
    }

    /// Finds the kernel of every entry; fetches what is missing or outdated as `refresh` says.
    ///
    /// # Errors
    /// If the cache cannot be used. A kernel that cannot be had is no error.
    pub fn resolve(&self, refresh: Refresh) -> Result<Vec<Resolved>> {
        self.resolve_some(&self.entries, refresh)
    }

    /// As [`Matrix::resolve`], for one entry.
    ///
    /// # Errors
    /// If the cache cannot be used, or with the reason why the kernel is missing.
    pub fn resolve_one(&self, name: &str, refresh: Refresh) -> Result<Kernel> {
        let entry = self.entry(name)?;
        let resolved = self.resolve_some(std::slice::from_ref(entry), refresh)?;
        match resolved.into_iter().next().map(|resolved| resolved.kernel) {
            Some(Ok(kernel)) => Ok(kernel),
            Some(Err(why)) => bail!("kernel {name} cannot be had: {why}"),
            None => bail!("kernel {name} was not looked for"),
        }
    }

    fn resolve_some(&self, entries: &[Entry], refresh: Refresh) -> Result<Vec<Resolved>> {
        let cache = Cache::open()?;
        let mut cached = Vec::new();
        for entry in entries {
            cached.push(cache.newest(&entry.pattern()?)?);
        }
        let missing = cached.iter().any(Option::is_none);
        let update = wants_update(refresh, cache.age_of_lists(), missing);
        // Apt takes seconds to look at its lists: not where the cache has it all.
        let source = (update || missing).then(|| self.open_source(&cache, update));

        let resolve = |entry: &Entry, cached: Option<Kernel>| match (&source, cached) {
            (_, Some(kernel)) if !update => Ok(kernel),
            (None, cached) => cached.ok_or_else(|| "it is not in the cache".to_owned()),
            (Some(source), cached) => match source.fetch(&cache, entry, refresh) {
                Ok(kernel) => Ok(kernel),
                Err(error) => cached.ok_or_else(|| format!("{error:#}")),
            },
        };
        Ok(entries
            .iter()
            .zip(cached)
            .map(|(entry, cached)| Resolved {
                kernel: resolve(entry, cached),
                entry: entry.clone(),
            })
            .collect())
    }

    /// Opens Debian's package lists, new ones if `update`. Trouble with them matters only for the
    /// kernels that are not in the cache, and is told with those.
    fn open_source(&self, cache: &Cache, update: bool) -> Source {
        let suites = self.entries.iter().flat_map(|entry| &entry.suites);
        let apt = cache.apt(&suites.map(String::as_str).collect());
        let complaint = match &apt {
            Ok(apt) if update => cache.update(apt).err(),
            _ => None,
        };
        if let Some(error) = &complaint {
            eprintln!("warning: not all package lists could be got: {error:#}");
        }
        Source { apt }
    }
}

impl Entry {
    /// Whether it has transparent huge pages.
    pub fn thp(&self) -> bool {
        self.no_thp.is_none()
    }

    fn pattern(&self) -> Result<Pattern> {
        let Self { name, package, .. } = self;
        Pattern::new(package).with_context(|| format!("`package` of kernel {name}"))
    }
}

/// Where kernels that are not in the cache come from.
struct Source {
    apt: Result<Apt>,
}

impl Source {
    /// The newest kernel for `entry`, put into the cache.
    fn fetch(&self, cache: &Cache, entry: &Entry, refresh: Refresh) -> Result<Kernel> {
        if refresh == Refresh::Never && cache.age_of_lists().is_none() {
            bail!("nothing was fetched yet; run `cargo xtask vm fetch`");
        }
        let apt = self.apt.as_ref().map_err(|error| anyhow!("{error:#}"))?;
        let Entry {
            suites, package, ..
        } = entry;
        let pattern = entry.pattern()?;
        let prefix = package.split('*').next().unwrap_or_default();
        let candidates = apt.candidates(prefix, |name| pattern.matches(name))?;
        let candidate = newest(candidates, |candidate| &candidate.version)?.with_context(|| {
            let suites = suites.join(", ");
            format!("no package `{package}` is in the lists of {suites}")
        })?;
        if refresh == Refresh::Never {
            bail!(
                "{} {} is not fetched; run `cargo xtask vm fetch`",
                candidate.package,
                candidate.version
            );
        }
        cache.fetch(apt, &candidate, &pattern)
    }
}

/// Whether to get new package lists.
fn wants_update(refresh: Refresh, age: Option<Duration>, missing: bool) -> bool {
    match refresh {
        Refresh::Never => false,
        Refresh::Always => true,
        Refresh::WhenStale => age.is_none_or(|age| age > if missing { HOUR } else { DAY }),
    }
}

/// Checks that enough of the matrix is there for a test of it to say something.
///
/// # Errors
/// If the oldest, the newest, or more than two kernels are missing; the error says which and why.
pub fn check(resolved: &[Resolved]) -> Result<()> {
    let is_missing = |resolved: &Resolved| resolved.kernel.is_err();
    let ends_missing = [resolved.first(), resolved.last()]
        .into_iter()
        .any(|end| end.is_none_or(is_missing));
    let missing: Vec<_> = resolved
        .iter()
        .filter_map(|Resolved { entry, kernel }| {
            let why = kernel.as_ref().err()?;
            Some(format!("{} ({why})", entry.name))
        })
        .collect();
    if ends_missing || missing.len() > MAY_BE_MISSING {
        bail!(
            "too few kernels to test on: the oldest and the newest must be there and at most \
             {MAY_BE_MISSING} may be missing, but there is no {}",
            missing.join(", no ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_of_this_workspace_is_sound() {
        let matrix = Matrix::load().unwrap();
        assert_eq!(matrix.entries[0].name, "5.10");
        assert!(matrix.entries[0].preempt.is_empty());
        let rt = matrix.entry("6.12-rt").unwrap();
        assert!(!rt.thp());
        assert_eq!(rt.preempt, [Preempt::Full, Preempt::Lazy]);
        assert!(matrix.entry("6.12").unwrap().thp());

        let error = matrix.entry("2.6").unwrap_err().to_string();
        assert!(error.contains("`2.6`") && error.contains("6.12-rt"));
    }

    #[test]
    fn patterns_tell_flavours_apart() {
        let matrix = Matrix::load().unwrap();
        let matches = |name: &str, package: &str| {
            let entry = matrix.entry(name).unwrap();
            entry.pattern().unwrap().matches(package)
        };
        assert!(matches("6.12", "linux-image-6.12.117+deb12-cloud-amd64"));
        for package in [
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.12.117+deb12-rt-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64-dbg",
            "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
            "linux-image-6.1.0-57-cloud-amd64",
        ] {
            assert!(!matches("6.12", package), "{package}");
        }
        assert!(matches("6.12-rt", "linux-image-6.12.117+deb12-rt-amd64"));
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        let matrix = |names: &[&str], preempt: &str| -> String {
            let entry = |name| {
                format!(
                    "[[kernel]]\nname=\"{name}\"\nsuites=[]\npackage=\"p\"\nsite=\"s\"\n\
                     allocator_instead=true\nstrategy=\"pages_converging\"\n\
                     allocator_strategy=\"one_range\"\n{preempt}\n"
                )
            };
            names.iter().map(entry).collect()
        };
        Matrix::parse(&matrix(&["a", "b"], "preempt=[]")).unwrap();
        for (text, complaint) in [
            (matrix(&["a"], ""), "missing field `preempt`"),
            (
                matrix(&["a"], "preempt=[\"some\"]"),
                "unknown variant `some`",
            ),
            (matrix(&["a"], "colour=1"), "unknown field `colour`"),
            (
                matrix(&["a", "a"], "preempt=[]"),
                "two kernels are called a",
            ),
            ("kernel=[]".into(), "names no kernel"),
        ] {
            let error = Matrix::parse(&text).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn lists_are_renewed_once_a_day_or_hour() {
        let minutes = |minutes: u64| Some(Duration::from_secs(minutes * 60));
        for (refresh, age, missing, update) in [
            (Refresh::Never, None, true, false),
            (Refresh::Always, minutes(1), false, true),
            (Refresh::WhenStale, None, false, true),
            (Refresh::WhenStale, minutes(90), false, false),
            (Refresh::WhenStale, minutes(90), true, true),
            (Refresh::WhenStale, minutes(30), true, false),
            (Refresh::WhenStale, minutes(25 * 60), false, true),
        ] {
            let case = (refresh, age, missing);
            assert_eq!(wants_update(refresh, age, missing), update, "{case:?}");
        }
    }

    /// Five kernels, without those at the places `missing`.
    fn resolved(missing: &[usize]) -> Vec<Resolved> {
        let kernel = Kernel {
            release: "6.1.0-9".into(),
            package: "p".into(),
            version: "1".into(),
            vmlinuz: "/k/vmlinuz".into(),
            config: None,
        };
        (0..5)
            .map(|place| Resolved {
                entry: Entry {
                    name: format!("k{place}"),
                    suites: Vec::new(),
                    package: "p".into(),
                    preempt: Vec::new(),
                    site: "folio_zero_user".into(),
                    allocator_instead: true,
                    strategy: "s".to_owned(),
                    allocator_strategy: "a".to_owned(),
                    no_thp: None,
                },
                kernel: if missing.contains(&place) {
                    Err("gone".into())
                } else {
                    Ok(kernel.clone())
                },
            })
            .collect()
    }

    #[test]
    fn two_kernels_in_the_middle_may_be_missing() {
        check(&resolved(&[])).unwrap();
        check(&resolved(&[1, 2])).unwrap();
        for missing in [&[0][..], &[4], &[1, 2, 3]] {
            let error = check(&resolved(missing)).unwrap_err().to_string();
            for place in missing {
                assert!(error.contains(&format!("no k{place} (gone)")), "{error}");
            }
        }
        assert!(check(&[]).is_err());
    }
}
