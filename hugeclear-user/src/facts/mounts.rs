//! Where tracefs, debugfs and cgroup2 are mounted.

use std::path::PathBuf;

use super::source::Source;

/// Mount points of the file systems that tracing uses.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    pub(super) tracefs: Option<PathBuf>,
    pub(super) debugfs: Option<PathBuf>,
    pub(super) cgroup2: Option<PathBuf>,
}

impl Mounts {
    pub(super) fn read(source: &mut Source) -> Self {
        let text = source.text("proc/self/mounts").unwrap_or_default();
        let of_type = |wanted: &str| {
            text.lines().find_map(|line| {
                // device, mount point, type, options, two numbers
                let mut fields = line.split(' ').skip(1);
                let (point, fstype) = (fields.next()?, fields.next()?);
                (fstype == wanted).then(|| PathBuf::from(point))
            })
        };
        let debugfs = of_type("debugfs");
        // debugfs mounts tracefs below itself when someone walks in (automount, since 4.1).
        let tracefs = of_type("tracefs").or_else(|| {
            let below = debugfs.as_ref()?.join("tracing");
            source.exists(&below).then_some(below)
        });
        Self {
            tracefs,
            debugfs,
            cgroup2: of_type("cgroup2"),
        }
    }
}
