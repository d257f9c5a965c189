//! The cgroups (v2): their ids, by which the kernel side knows them, and their paths.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use walkdir::WalkDir;

/// Inode of the first cgroup namespace (`PROC_CGROUP_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_NAMESPACE: &str = "cgroup:[4026531835]";

/// Why a cgroup cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no such hierarchy.
    #[error(
        "cannot trace cgroup {path}: cgroup2 is not mounted; mount -t cgroup2 none /sys/fs/cgroup"
    )]
    NotMounted {
        /// What was asked for.
        path: String,
    },
    /// Its depth below the machine's root cannot be known.
    #[error(
        "cannot trace cgroup {path}: this process is in a cgroup namespace of its own (a container); \
         run it on the host"
    )]
    InNamespace {
        /// What was asked for.
        path: String,
    },
    /// It cannot be read.
    #[error("cannot trace cgroup {}: {error}; systemd-cgls lists them", path.display())]
    Unreadable {
        /// Its directory.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

/// A cgroup as the kernel side recognises it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path below the mount point, as `/proc/PID/cgroup` writes it.
    pub path: String,
    /// Its id: the inode of its directory.
    pub id: u64,
    /// How far below the root it is; the root itself is 0.
    pub level: u32,
}

/// Finds the cgroup of `path`, as `/proc/PID/cgroup` writes it or with the mount point in front.
///
/// # Errors
/// If there is none, or its depth cannot be known.
pub fn find(mount: Option<&Path>, path: &str) -> Result<Cgroup, CgroupError> {
    let named = || path.to_owned();
    let mount = mount.ok_or_else(|| CgroupError::NotMounted { path: named() })?;
    let namespace = fs::read_link("/proc/self/ns/cgroup");
    if namespace.is_ok_and(|namespace| namespace.as_os_str() != INITIAL_NAMESPACE) {
        return Err(CgroupError::InNamespace { path: named() });
    }
    let below = Path::new(path)
        .strip_prefix(mount)
        .unwrap_or(Path::new(path));
    let below: PathBuf = (below.components())
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    let directory = mount.join(&below);
    match fs::metadata(&directory) {
        Ok(metadata) => Ok(Cgroup {
            path: format!("/{}", below.display()),
            id: metadata.ino(),
            level: u32::try_from(below.components().count()).unwrap_or(u32::MAX),
        }),
        Err(error) => Err(CgroupError::Unreadable {
            path: directory,
            error,
        }),
    }
}

/// The path of every cgroup by its id, as `/proc/PID/cgroup` writes it.
#[must_use]
pub fn paths(mount: &Path) -> BTreeMap<u64, String> {
    WalkDir::new(mount)
        .into_iter()
        // One that is removed meanwhile is no news.
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_dir())
        .filter_map(|entry| {
            let id = entry.metadata().ok()?.ino();
            let below = entry.path().strip_prefix(mount).ok()?;
            Some((id, format!("/{}", below.display())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_found_with_and_without_its_mount_point() {
        let mount = tempfile::tempdir().unwrap();
        let directory = mount.path().join("system.slice/db.service");
        fs::create_dir_all(&directory).unwrap();
        let id = fs::metadata(&directory).unwrap().ino();
        for path in [
            "/system.slice/db.service",
            "system.slice/db.service/",
            directory.to_str().unwrap(),
        ] {
            match find(Some(mount.path()), path) {
                Ok(cgroup) => {
                    assert_eq!((cgroup.id, cgroup.level), (id, 2), "{path}");
                    assert_eq!(cgroup.path, "/system.slice/db.service");
                }
                // Where the tests run in a container.
                Err(error) => assert!(matches!(error, CgroupError::InNamespace { .. }), "{error}"),
            }
        }
        assert_eq!(paths(mount.path())[&id], "/system.slice/db.service");
        assert!(find(None, "/x").is_err());
    }
}
