//! The kernel's own account of what a run got.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::sys::resource::{UsageWho, getrusage};

use super::{Error, Kind, Plan};
use crate::facts::{thp, vmstat};

/// Where the number of huge pages of a run is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HugePages {
    /// The sum of fields of the mapping's entry in `/proc/self/smaps`.
    Smaps(&'static [&'static str]),
    /// The growth of a system-wide counter.
    Counter(PathBuf),
    /// Nowhere: sizes below a PMD have no account before Linux 6.10.
    Nowhere,
}

impl HugePages {
    pub(super) fn of(plan: &Plan) -> Self {
        match plan.kind {
            // Both: the kernel takes a page for shared if the count of users of its page table is not
            // zero, and for gigantic pages since 6.12 that count is not set up (smaps_hugetlb_range,
            // hugetlb_pmd_shared).
            Kind::Hugetlb => Self::Smaps(&["Private_Hugetlb", "Shared_Hugetlb"]),
            // smaps counts only what a PMD maps (smaps_pmd_entry, fs/proc/task_mmu.c).
            Kind::Thp if plan.pmd_mapped => Self::Smaps(&["AnonHugePages"]),
            Kind::Thp => {
                let path = PathBuf::from(format!(
                    "/{}/hugepages-{}kB/stats/anon_fault_alloc",
                    thp::DIR,
                    plan.page_size_bytes / 1024
                ));
                if path.exists() {
                    Self::Counter(path)
                } else {
                    Self::Nowhere
                }
            }
        }
    }

    /// In words, for the report.
    pub(super) fn source(&self) -> String {
        match self {
            Self::Smaps(fields) => {
                format!("{} of the mapping in /proc/self/smaps", fields.join(" + "))
            }
            Self::Counter(path) => format!("growth of {}, which is system-wide", path.display()),
            Self::Nowhere => "not counted by this kernel; taken to be the touches".to_owned(),
        }
    }
}

/// Counters before or after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counters {
    /// `thp_fault_alloc` of `/proc/vmstat`: PMD-sized pages faulted in by anyone.
    thp_fault_alloc: Option<u64>,
    /// Minor faults of this thread.
    minor_faults: u64,
    /// The counter of [`HugePages::Counter`].
    pages: Option<u64>,
}

/// What grew during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) thp_fault_alloc: Option<u64>,
    pub(super) minor_faults: u64,
    pub(super) pages: Option<u64>,
}

impl Counters {
    pub(super) fn read(from: &HugePages) -> Result<Self, Error> {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).map_err(|error| Error::SystemCall {
            call: "getrusage",
            what: "this thread".to_owned(),
            error,
            hint: "",
        })?;
        let pages = match from {
            HugePages::Counter(path) => read(path)?.trim().parse().ok(),
            HugePages::Smaps(_) | HugePages::Nowhere => None,
        };
        Ok(Self {
            thp_fault_alloc: vmstat::counter(Path::new("/"), "thp_fault_alloc"),
            minor_faults: usage.minor_page_faults().try_into().unwrap_or_default(),
            pages,
        })
    }

    pub(super) fn since(self, before: Self) -> Growth {
        let grown = |after: Option<u64>, before: Option<u64>| after?.checked_sub(before?);
        Growth {
            thp_fault_alloc: grown(self.thp_fault_alloc, before.thp_fault_alloc),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            pages: grown(self.pages, before.pages),
        }
    }
}

/// Bytes that fields of `/proc/self/smaps` give together for the mapping that starts at `address`.
pub(super) fn smaps_bytes(address: usize, fields: &[&str]) -> Result<Option<u64>, Error> {
    let smaps = read("/proc/self/smaps")?;
    let bytes = fields
        .iter()
        .map(|field| mapping_field_bytes(&smaps, address, field));
    Ok(bytes.sum())
}

fn mapping_field_bytes(smaps: &str, address: usize, field: &str) -> Option<u64> {
    let start = |line: &str| usize::from_str_radix(line.split_once('-')?.0, 16).ok();
    smaps
        .lines()
        .skip_while(|line| start(line) != Some(address))
        .skip(1)
        .take_while(|line| start(line).is_none())
        .find_map(|line| {
            let value = line.strip_prefix(field)?.strip_prefix(':')?;
            let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        })
}

fn read(path: impl Into<PathBuf>) -> Result<String, Error> {
    let path = path.into();
    fs::read_to_string(&path).map_err(|error| Error::Read { path, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0 
Size:               2048 kB
AnonHugePages:         0 kB
7f0000400000-7f0004400000 rw-p 00000000 00:00 0 
Size:              65536 kB
AnonHugePages:     65536 kB
Private_Hugetlb:       0 kB
7f0005000000-7f0005200000 rw-p 00000000 00:00 0 
AnonHugePages:      2048 kB
";

    #[test]
    fn only_the_own_mapping_counts() {
        let bytes = |address, field| mapping_field_bytes(SMAPS, address, field);
        assert_eq!(bytes(0x7f00_0040_0000, "AnonHugePages"), Some(64 << 20));
        assert_eq!(bytes(0x7f00_0040_0000, "Private_Hugetlb"), Some(0));
        assert_eq!(bytes(0x7f00_0000_0000, "AnonHugePages"), Some(0));
        assert_eq!(bytes(0x7f00_0000_0000, "Private_Hugetlb"), None);
        assert_eq!(bytes(0x7f00_0020_0000, "AnonHugePages"), None);
    }
}
