//! The cache of kernels: what was fetched, and how it is fetched. Knows packages, not the matrix.
//!
//! Below the cache's directory: `kernels/PACKAGE_VERSION/` with `vmlinuz`, `config` if the package
//! has it, and `kernel.toml`; `apt/` with apt's state. Whoever uses it holds `lock`.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};
use glob::Pattern;
use serde::{Deserialize, Serialize};

use crate::{
    apt::{Apt, Candidate, newest},
    progress::Step,
};

/// Names another directory for the cache.
const CACHE_VARIABLE: &str = "HUGECLEAR_CACHE";

const VMLINUZ: &str = "vmlinuz";
const CONFIG: &str = "config";
const METADATA: &str = "kernel.toml";

/// A kernel in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// Debian package it is from.
    pub package: String,
    /// Version of that package.
    pub version: String,
    /// The image to boot.
    pub vmlinuz: PathBuf,
    /// Its configuration, where the package holds it.
    pub config: Option<PathBuf>,
}

/// What the cache remembers of a kernel beside its files.
#[derive(Debug, Deserialize, Serialize)]
struct Metadata {
    release: String,
    package: String,
    version: String,
}

/// The cache, locked against other processes until it is dropped.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens the cache; waits while another process uses it.
    pub(crate) fn open() -> Result<Self> {
        let directory = directory()?;
        let kernels = directory.join("kernels");
        fs::create_dir_all(&kernels)
            .with_context(|| format!("cannot make the cache {}", kernels.display()))?;
        let path = directory.join("lock");
        let lock = File::create(&path)
            .and_then(|file| file.lock().map(|()| file))
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    /// The newest kernel in the cache from a package whose name matches.
    pub(crate) fn newest(&self, package: &Pattern) -> Result<Option<Kernel>> {
        newest(self.all(package)?, |kernel| &kernel.version)
    }

    fn all(&self, package: &Pattern) -> Result<Vec<Kernel>> {
        let folder = self.directory.join("kernels");
        let mut kernels = Vec::new();
        for entry in
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?
        {
            if let Some(kernel) = read_kernel(&entry?.path())?
                && package.matches(&kernel.package)
            {
                kernels.push(kernel);
            }
        }
        Ok(kernels)
    }

    /// How long ago the package lists were last asked for; `None` if never.
    pub(crate) fn age_of_lists(&self) -> Option<Duration> {
        let asked = fs::metadata(self.asked()).ok()?.modified().ok()?;
        // A clock that was set back makes them new.
        Some(SystemTime::now().duration_since(asked).unwrap_or_default())
    }

    fn asked(&self) -> PathBuf {
        self.directory.join("apt/asked")
    }

    /// apt, with its state in the cache, for `suites`.
    pub(crate) fn apt(&self, suites: &BTreeSet<&str>) -> Result<Apt> {
        Apt::new(&self.directory.join("apt"), suites)
    }

    /// Gets the package lists anew.
    pub(crate) fn update(&self, apt: &Apt) -> Result<()> {
        let _step = Step::start("getting Debian's package lists");
        // First, so that a machine without a network does not wait for it time and again.
        fs::write(self.asked(), "").context("cannot write to the cache")?;
        apt.update()
    }

    /// Fetches `candidate`, of all that match `package`, unless it is in the cache; older ones go.
    pub(crate) fn fetch(
        &self,
        apt: &Apt,
        candidate: &Candidate,
        package: &Pattern,
    ) -> Result<Kernel> {
        let Candidate {
            package: name,
            version,
        } = candidate;
        // Versions may hold a colon or a tilde, which are plain characters in file names.
        let folder = self
            .directory
            .join("kernels")
            .join(format!("{name}_{version}"));
        if let Some(kernel) = read_kernel(&folder)? {
            return Ok(kernel);
        }

        let _step = Step::start(format!("fetching {name} {version}"));
        let work = tempfile::tempdir_in(&self.directory).context("cannot write to the cache")?;
        let package_file = apt.download(candidate, work.path())?;
        let unpacked = work.path().join("kernel");
        fs::create_dir(&unpacked)?;
        let release = unpack_package(&package_file, &unpacked)?;
        let metadata = toml::to_string(&Metadata {
            release,
            package: name.clone(),
            version: version.clone(),
        })?;
        fs::write(unpacked.join(METADATA), metadata)?;

        let older = self.all(package)?;
        fs::rename(&unpacked, &folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        for kernel in older {
            if let Some(folder) = kernel.vmlinuz.parent() {
                fs::remove_dir_all(folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?;
            }
        }
        read_kernel(&folder)?.with_context(|| format!("{} is not complete", folder.display()))
    }
}

/// Where kernels and package lists are kept.
fn directory() -> Result<PathBuf> {
    let named = |variable| env::var_os(variable).filter(|value| !value.is_empty());
    if let Some(directory) = named(CACHE_VARIABLE) {
        return std::path::absolute(directory).context(CACHE_VARIABLE);
    }
    let caches = named("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .with_context(|| format!("no home directory; name one for kernels in {CACHE_VARIABLE}"))?;
    Ok(caches.join("hugeclear-trace"))
}

/// The kernel in a folder of the cache; `None` for a folder without one.
fn read_kernel(folder: &Path) -> Result<Option<Kernel>> {
    let path = folder.join(METADATA);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let Metadata {
        release,
        package,
        version,
    } = toml::from_str(&text).with_context(|| format!("{} is broken", path.display()))?;
    let config = folder.join(CONFIG);
    Ok(Some(Kernel {
        release,
        package,
        version,
        vmlinuz: folder.join(VMLINUZ),
        config: config.is_file().then_some(config),
    }))
}

/// Takes the kernel image, and the configuration if it is there, out of a package into `folder`;
/// returns the kernel's release.
fn unpack_package(package: &Path, folder: &Path) -> Result<String> {
    let mut dpkg = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // It complains when we stop reading early. A package it cannot read has no image.
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run dpkg-deb")?;
    let tar = dpkg.stdout.take().context("dpkg-deb has no stdout")?;
    let release = unpack_tar(tar, folder);
    dpkg.wait().context("cannot wait for dpkg-deb")?;
    release.with_context(|| format!("unpacking {}", package.display()))
}

/// The part of [`unpack_package`] that needs no package. Stops at the image: what comes behind it
/// are hundreds of megabytes of modules.
fn unpack_tar(tar: impl Read, folder: &Path) -> Result<String> {
    for entry in tar::Archive::new(tar).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        match classify(&path) {
            Some(Content::Config) => drop(entry.unpack(folder.join(CONFIG))?),
            Some(Content::Image { release }) => {
                entry.unpack(folder.join(VMLINUZ))?;
                return Ok(release.to_owned());
            }
            None => {}
        }
    }
    bail!("there is no kernel image in it")
}

/// A file of a package that is kept.
#[derive(Debug, PartialEq, Eq)]
enum Content<'a> {
    Config,
    Image { release: &'a str },
}

/// What the file at `path` in a package is. From 7.2 on the image is beside its modules.
fn classify(path: &str) -> Option<Content<'_>> {
    let path = path.trim_start_matches("./");
    if path.starts_with("boot/config-") {
        return Some(Content::Config);
    }
    let in_boot = path.strip_prefix("boot/vmlinuz-");
    let in_modules = path
        .strip_prefix("usr/lib/modules/")
        .and_then(|path| path.strip_suffix("/vmlinuz"));
    let release = in_boot.or(in_modules).filter(|name| !name.contains('/'))?;
    Some(Content::Image { release })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_in_every_layout() {
        let image = |release| Some(Content::Image { release });
        for (path, content) in [
            ("./boot/vmlinuz-5.10.0-32-amd64", image("5.10.0-32-amd64")),
            ("usr/lib/modules/7.2.13/vmlinuz", image("7.2.13")),
            ("./boot/config-5.10.0-32-amd64", Some(Content::Config)),
            ("./boot/System.map-5.10", None),
            ("./usr/lib/modules/7.2.13/kernel/mm/vmlinuz", None),
            ("./usr/share/doc/vmlinuz-5.10", None),
        ] {
            assert_eq!(classify(path), content, "{path}");
        }
    }

    #[test]
    fn a_package_gives_image_config_and_release() {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, contents) in [
            ("./boot/config-6.1.0-9", "CONFIG_X=y"),
            ("./boot/vmlinuz-6.1.0-9", "image"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(contents.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, contents.as_bytes())
                .unwrap();
        }
        let tar = tar.into_inner().unwrap();

        let folder = tempfile::tempdir().unwrap();
        assert_eq!(unpack_tar(&*tar, folder.path()).unwrap(), "6.1.0-9");
        let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read(VMLINUZ), "image");
        assert_eq!(read(CONFIG), "CONFIG_X=y");

        let empty = tar::Builder::new(Vec::new()).into_inner().unwrap();
        assert!(unpack_tar(&*empty, folder.path()).is_err());
    }
}
