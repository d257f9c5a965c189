//! The kernel's own counts of huge-page faults.

use std::{collections::BTreeMap, fs, path::Path};

use super::source::page_size_of_name;

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

/// The kernel's counts, since boot, of the anonymous faults of one page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugeFaults {
    /// Faults that got such a page.
    pub mapped: u64,
    /// Faults that fell back to a smaller size.
    pub fallback: u64,
    /// Part of `fallback` for the memory cgroup's limit.
    pub fallback_charge: u64,
}

impl HugeFaults {
    /// Reads the counts below `root`, by page size in bytes; `pmd_bytes` is the size of a PMD-sized page.
    /// Empty: this kernel has no THP.
    ///
    /// PMD-sized ones from `/proc/vmstat`, which all kernels have; smaller ones (mTHP) from
    /// `hugepages-<n>kB/stats`, since 6.10.
    #[must_use]
    pub fn read(root: &Path, pmd_bytes: Option<u64>) -> BTreeMap<u64, Self> {
        let mut counts = BTreeMap::new();
        if let Some(pmd_bytes) = pmd_bytes
            && let Some(mapped) = counter(root, "thp_fault_alloc")
        {
            let of = |name| counter(root, name).unwrap_or(0);
            let of_pmd = Self {
                mapped,
                fallback: of("thp_fault_fallback"),
                fallback_charge: of("thp_fault_fallback_charge"),
            };
            counts.insert(pmd_bytes, of_pmd);
        }
        let directory = root.join(super::thp::DIR);
        let sizes = fs::read_dir(&directory).into_iter().flatten().flatten();
        for size in sizes {
            let Some(bytes) = page_size_of_name(&size.file_name().to_string_lossy()) else {
                continue;
            };
            let stat = |name: &str| -> Option<u64> {
                let text = fs::read_to_string(size.path().join("stats").join(name)).ok()?;
                text.trim().parse().ok()
            };
            if let Some(mapped) = stat("anon_fault_alloc") {
                counts.entry(bytes).or_insert_with(|| Self {
                    mapped,
                    fallback: stat("anon_fault_fallback").unwrap_or(0),
                    fallback_charge: stat("anon_fault_fallback_charge").unwrap_or(0),
                });
            }
        }
        counts
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            mapped: self.mapped.saturating_sub(earlier.mapped),
            fallback: self.fallback.saturating_sub(earlier.fallback),
            fallback_charge: self.fallback_charge.saturating_sub(earlier.fallback_charge),
        }
    }
}
