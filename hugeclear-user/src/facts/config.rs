//! The kernel's build options, as far as they matter here.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

use super::source::Source;

/// Options kept, without `CONFIG_`.
const OPTIONS: &[&str] = &[
    "BPF_JIT",
    "BPF_SYSCALL",
    "DEBUG_INFO_BTF",
    "DYNAMIC_FTRACE_WITH_DIRECT_CALLS",
    "FPROBE",
    "HUGETLBFS",
    "HZ",
    "INIT_ON_ALLOC_DEFAULT_ON",
    "INIT_ON_FREE_DEFAULT_ON",
    "KPROBES",
    "KPROBE_EVENTS_ON_NOTRACE",
    "NODES_SHIFT",
    "NUMA",
    "PREEMPT",
    "PREEMPT_DYNAMIC",
    "PREEMPT_LAZY",
    "PREEMPT_NONE",
    "PREEMPT_RT",
    "PREEMPT_VOLUNTARY",
    "SCHED_INFO",
    "TRANSPARENT_HUGEPAGE",
];

/// Build options found in a config file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelConfig {
    /// The file they come from.
    pub path: String,
    /// Option (without `CONFIG_`) to value (`y`, `m`, a number). Absent: not set.
    pub options: BTreeMap<String, String>,
}

impl KernelConfig {
    /// Whether the option is `y`.
    pub fn is_set(&self, option: &str) -> bool {
        self.options.get(option).is_some_and(|value| value == "y")
    }

    /// Reads the first config file there is of the running kernel; which ones were missed is noted
    /// only if none was found.
    pub(super) fn read(source: &mut Source, release: &str) -> Option<Self> {
        let candidates = [
            "proc/config.gz".to_owned(),
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
            format!("usr/lib/modules/{release}/config"),
        ];
        let Some(path) = candidates.iter().find(|path| source.exists(path)) else {
            source.note(
                &candidates[1],
                &"no config file of this kernel here, nor any other",
            );
            return None;
        };
        let file = source.open(path)?;
        let reader: Box<dyn Read> = if path.ends_with(".gz") {
            Box::new(GzDecoder::new(file))
        } else {
            Box::new(file)
        };
        let mut options = BTreeMap::new();
        for line in BufReader::new(reader).lines() {
            match line {
                Ok(line) => options.extend(option(&line)),
                Err(error) => {
                    source.note(path, &error);
                    return None;
                }
            }
        }
        Some(Self {
            path: Path::new("/").join(path).display().to_string(),
            options,
        })
    }
}

fn option(line: &str) -> Option<(String, String)> {
    let (name, value) = line.strip_prefix("CONFIG_")?.split_once('=')?;
    OPTIONS
        .contains(&name)
        .then(|| (name.to_owned(), value.trim_matches('"').to_owned()))
}
