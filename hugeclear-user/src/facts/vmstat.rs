//! The kernel's own counts of huge-page faults.

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

/// Anonymous faults that the kernel served with a huge page, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugeFaults {
    /// PMD-sized ones. Source: `thp_fault_alloc` of `/proc/vmstat`.
    pub thp: u64,
    /// Smaller ones (mTHP). Source: `hugepages-<n>kB/stats/anon_fault_alloc`, since 6.10.
    pub mthp: u64,
}

impl HugeFaults {
    /// Reads the counts below `root`; `pmd_bytes` is the size of a PMD-sized page. `None`: this kernel
    /// has no THP.
    #[must_use]
    pub fn read(root: &Path, pmd_bytes: Option<u64>) -> Option<Self> {
        let thp = counter(root, "thp_fault_alloc")?;
        let directory = root.join(super::thp::DIR);
        let pmd = pmd_bytes.map(|bytes| format!("hugepages-{}kB", bytes >> 10));
        let sizes = fs::read_dir(&directory).into_iter().flatten().flatten();
        let mthp = sizes
            .map(|size| size.file_name())
            .filter(|size| size.to_str() != pmd.as_deref())
            .filter_map(|size| {
                let count = directory.join(size).join("stats/anon_fault_alloc");
                fs::read_to_string(count).ok()?.trim().parse::<u64>().ok()
            })
            .sum();
        Some(Self { thp, mthp })
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            thp: self.thp.saturating_sub(earlier.thp),
            mthp: self.mthp.saturating_sub(earlier.mthp),
        }
    }
}
