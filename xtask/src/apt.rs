//! Packages of other Debian releases, through apt with a state of its own.
//!
//! apt checks the signatures and checksums; the mirror is the one this machine is set up for; the
//! machine's own sources, lists and packages stay as they are.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// Debian's own keys, as its package debian-archive-keyring installs them.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// A package in one version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub(crate) package: String,
    pub(crate) version: String,
}

/// Where this machine gets Debian's packages from.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    main: String,
    security: String,
}

/// apt with its files below one directory.
#[derive(Debug)]
pub(crate) struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Sets up apt below `directory` for the packages of `suites`.
    pub(crate) fn new(directory: &Path, suites: &BTreeSet<&str>) -> Result<Self> {
        let mirror = find_mirror()?;
        let keyring = KEYRINGS
            .into_iter()
            .find(|path| Path::new(path).is_file())
            .context("Debian's archive keys are not installed; install debian-archive-keyring")?;
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = directory.join(folder);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let apt = Self {
            directory: directory.to_owned(),
        };
        for (path, text) in [
            (apt.sources(), sources(&mirror, suites, keyring)),
            (
                apt.configuration(),
                configuration(directory, &apt.sources()),
            ),
        ] {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(apt)
    }

    fn sources(&self) -> PathBuf {
        self.directory.join("debian.sources")
    }

    fn configuration(&self) -> PathBuf {
        self.directory.join("apt.conf")
    }

    /// Gets the package lists. After an error those of some suites may be there all the same.
    pub(crate) fn update(&self) -> Result<()> {
        self.run("apt-get", &["-qq", "update"], Path::new("/"))?;
        Ok(())
    }

    /// The packages in the lists whose names `matches` accepts; all their names start with
    /// `prefix`.
    pub(crate) fn candidates(
        &self,
        prefix: &str,
        matches: impl Fn(&str) -> bool,
    ) -> Result<Vec<Candidate>> {
        let names = self.run("apt-cache", &["pkgnames", prefix], Path::new("/"))?;
        let names: Vec<_> = names.lines().filter(|name| matches(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let table = self.run(
            "apt-cache",
            &[&["madison"], &names[..]].concat(),
            Path::new("/"),
        )?;
        Ok(parse_madison(&table))
    }

    /// Downloads a package into `folder` and returns the file's path.
    pub(crate) fn download(&self, candidate: &Candidate, folder: &Path) -> Result<PathBuf> {
        let Candidate { package, version } = candidate;
        let wanted = format!("{package}={version}");
        self.run("apt-get", &["-qq", "download", &wanted], folder)?;
        fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|end| end == "deb"))
            .with_context(|| format!("apt downloaded no file for {wanted}"))
    }

    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<String> {
        let output = Command::new(program)
            .arg("-c")
            .arg(self.configuration())
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {program}; kernels are fetched with apt"))?;
        let what = arguments[..arguments.len().min(3)].join(" ");
        stdout_of(output).with_context(|| format!("{program} {what}"))
    }
}

/// The newest of `items` in Debian's order of versions.
pub(crate) fn newest<T>(
    items: impl IntoIterator<Item = T>,
    version: impl Fn(&T) -> &str,
) -> Result<Option<T>> {
    let mut newest: Option<T> = None;
    for item in items {
        let newer = match &newest {
            Some(newest) => is_newer(version(&item), version(newest))?,
            None => true,
        };
        if newer {
            newest = Some(item);
        }
    }
    Ok(newest)
}

fn is_newer(version: &str, than: &str) -> Result<bool> {
    let status = Command::new("dpkg")
        .args(["--compare-versions", version, "gt", than])
        .status()
        .context("cannot run dpkg")?;
    Ok(status.success())
}

fn find_mirror() -> Result<Mirror> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .arg("Created-By: Packages")
        .stdin(Stdio::null())
        .output()
        .context("cannot run apt-get; kernels are fetched with apt")?;
    parse_index_targets(&stdout_of(output).context("apt-get indextargets")?)
}

/// Finds Debian's archive and its security archive among the repositories that apt uses, one a
/// line. All mirrors keep the archives' own names as the last part of the address.
fn parse_index_targets(addresses: &str) -> Result<Mirror> {
    let find = |name: &str| {
        addresses
            .lines()
            .map(|address| address.trim_end_matches('/'))
            .find(|address| address.rsplit('/').next() == Some(name))
    };
    let main = find("debian").context(
        "apt is not set up for a mirror of Debian on this machine; kernels come from there",
    )?;
    let security = match find("debian-security") {
        Some(address) => address.to_owned(),
        None => format!("{main}-security"),
    };
    Ok(Mirror {
        main: main.to_owned(),
        security,
    })
}

/// The sources file: `suites`, each in the archive it belongs to.
fn sources(mirror: &Mirror, suites: &BTreeSet<&str>, keyring: &str) -> String {
    let (security, main): (Vec<&str>, Vec<&str>) = suites
        .iter()
        .partition(|suite| suite.ends_with("-security"));
    [(&mirror.main, main), (&mirror.security, security)]
        .into_iter()
        .filter(|(_, suites)| !suites.is_empty())
        .map(|(address, suites)| {
            format!(
                "Types: deb\nURIs: {address}\nSuites: {}\nComponents: main\n\
                 Architectures: amd64\nTargets: Packages\nSigned-By: {keyring}\n\n",
                suites.join(" ")
            )
        })
        .collect()
}

/// apt's configuration, read after the machine's own and so stronger.
fn configuration(directory: &Path, sources: &Path) -> String {
    let directory = directory.display();
    let sources = sources.display();
    format!(
        r#"Dir::Etc::sourcelist "{sources}";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{directory}/lists";
Dir::Cache "{directory}/cache";
// Container images turn these off, and then every call takes seconds to read the lists.
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Acquire::GzipIndexes "true";
APT::Architecture "amd64";
#clear APT::Architectures;
APT::Architectures {{ "amd64"; }};
// The cache may lie where apt's own user cannot go.
APT::Sandbox::User "root";
// Lists of releases past their end of life expire; signatures are checked all the same.
Acquire::Check-Valid-Until "false";
Acquire::PDiffs "false";
Acquire::Retries "3";
// The machine's hooks are about the machine's own lists and packages.
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"#
    )
}

/// The packages and versions in the output of `apt-cache madison`.
fn parse_madison(table: &str) -> Vec<Candidate> {
    let mut candidates: Vec<_> = table
        .lines()
        .filter_map(|line| {
            let mut columns = line.split('|').map(str::trim);
            Some(Candidate {
                package: columns.next()?.to_owned(),
                version: columns.next()?.to_owned(),
            })
        })
        .collect();
    // One package may be in several suites.
    candidates.sort();
    candidates.dedup();
    candidates
}

fn stdout_of(output: Output) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let complaints = String::from_utf8_lossy(&stderr);
    let errors: Vec<_> = complaints
        .lines()
        .filter_map(|line| line.strip_prefix("E: "))
        .collect();
    if errors.is_empty() {
        bail!("{status}: {}", complaints.trim());
    }
    bail!("{}", errors.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_read_from_apts_answer() {
        let mirror = parse_index_targets(
            "https://tools.example/nodistro/\nhttp://mirror.example/pub/debian/\n\
             http://mirror.example/pub/debian/\nhttp://other.example/debian-security/\n",
        )
        .unwrap();
        assert_eq!(mirror.main, "http://mirror.example/pub/debian");
        assert_eq!(mirror.security, "http://other.example/debian-security");
    }

    #[test]
    fn the_security_archive_is_beside_the_main_one() {
        let mirror = parse_index_targets("http://mirror.example/debian\n").unwrap();
        assert_eq!(mirror.security, "http://mirror.example/debian-security");
        assert!(parse_index_targets("http://mirror.example/ubuntu/\n").is_err());
    }

    #[test]
    fn suites_go_to_their_archive() {
        let mirror = Mirror {
            main: "http://m.example/debian".into(),
            security: "http://m.example/debian-security".into(),
        };
        let suites = ["sid", "bookworm-security", "bookworm"].into();
        let text = sources(&mirror, &suites, "/keys.gpg");
        assert!(text.contains("URIs: http://m.example/debian\nSuites: bookworm sid\n"));
        assert!(
            text.contains("URIs: http://m.example/debian-security\nSuites: bookworm-security\n")
        );
        assert_eq!(text.matches("Signed-By: /keys.gpg").count(), 2);

        let no_security = sources(&mirror, &["sid"].into(), "/keys.gpg");
        assert_eq!(no_security.matches("Types:").count(), 1);
    }

    #[test]
    fn madison_gives_each_version_once() {
        let table = "linux-image-b |  6.1.9-1 | http://m.example/debian sid/main amd64 Packages\n\
                     linux-image-a | 6.1.10-1~bpo1 | http://m.example/debian a/main amd64 Packages\n\
                     linux-image-b |  6.1.9-1 | http://m.example/debian b/main amd64 Packages\n";
        let candidate = |package: &str, version: &str| Candidate {
            package: package.into(),
            version: version.into(),
        };
        assert_eq!(
            parse_madison(table),
            [
                candidate("linux-image-a", "6.1.10-1~bpo1"),
                candidate("linux-image-b", "6.1.9-1")
            ]
        );
    }

    #[test]
    fn the_newest_is_newest_in_debians_order() {
        let versions = ["6.1.9-1", "6.1.10-1~bpo1", "6.1.10-1", "6.1.10-1~deb12u1"];
        assert_eq!(
            newest(versions, |version| version).unwrap(),
            Some("6.1.10-1")
        );
        assert_eq!(newest([], |version: &&str| version).unwrap(), None);
    }
}
