//! Counters of `/proc/vmstat`.

use std::{fs, path::Path};

/// A counter of `/proc/vmstat` below `root`, such as `thp_fault_alloc`; `None` if this kernel has no
/// such counter.
#[must_use]
pub fn counter(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/vmstat")).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        if key == name {
            value.parse().ok()
        } else {
            None
        }
    })
}
