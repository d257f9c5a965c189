//! The kernel's own account of what a run got.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use nix::sys::resource::{UsageWho, getrusage};

use super::{Error, Kind, Plan, plan::Origin};
use crate::facts::{hugetlb, thp, vmstat};

/// Where the number of pages of a run is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Account {
    /// The sum of fields of the mapping's entries in `/proc/self/smaps`.
    Smaps(&'static [&'static str]),
    /// The growth of a system-wide counter.
    Counter(PathBuf),
    /// What goes from a hugetlb pool meanwhile, system-wide.
    Pool(PathBuf),
    /// The blocks of the file.
    Blocks,
    /// The minor faults of the threads: one for each page, of whatever size.
    MinorFaults,
    /// Nowhere: sizes below a PMD have no account before Linux 6.10.
    Nowhere,
}

impl Account {
    pub(super) fn of(plan: &Plan) -> Self {
        match (plan.kind, plan.origin) {
            (Kind::FallocateHugetlb, _) => Self::Blocks,
            // smaps tells copies from what is still shared, but not of gigantic pages: see below.
            (Kind::ForkCow, Origin::Pool) => Self::Pool(PathBuf::from(format!(
                "/{}/hugepages-{}kB/free_hugepages",
                hugetlb::DIR,
                plan.page_size_bytes / 1024
            ))),
            // Zero pages are in no account of memory.
            (_, Origin::Zero) => Self::MinorFaults,
            // Both: the kernel takes a page for shared if the count of users of its page table is not
            // zero, and for gigantic pages since 6.12 that count is not set up (smaps_hugetlb_range,
            // hugetlb_pmd_shared).
            (_, Origin::Pool) => Self::Smaps(&["Private_Hugetlb", "Shared_Hugetlb"]),
            (_, Origin::Shmem) => Self::Smaps(&["ShmemPmdMapped"]),
            (_, Origin::Base) => Self::Smaps(&["Anonymous"]),
            // smaps counts only what a PMD maps (smaps_pmd_entry, fs/proc/task_mmu.c).
            (_, Origin::Transparent) if plan.pmd_mapped => Self::Smaps(&["AnonHugePages"]),
            (_, Origin::Transparent) => {
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

    /// Where the pages are counted that a parent has filled before its child writes.
    pub(super) fn of_parent(plan: &Plan) -> Self {
        match plan.origin {
            Origin::Pool => Self::Smaps(&["Private_Hugetlb", "Shared_Hugetlb"]),
            Origin::Transparent | Origin::Shmem | Origin::Base | Origin::Zero => Self::of(plan),
        }
    }

    /// In words, for the report.
    pub(super) fn source(&self) -> String {
        match self {
            Self::Smaps(fields) => {
                format!("{} of the mapping in /proc/self/smaps", fields.join(" + "))
            }
            Self::Counter(path) => format!("growth of {}, which is system-wide", path.display()),
            Self::Pool(path) => format!("what went from {}, which is system-wide", path.display()),
            Self::Blocks => "blocks of the file, by fstat".to_owned(),
            Self::MinorFaults => "minor faults of the threads, by getrusage".to_owned(),
            Self::Nowhere => "not counted by this kernel; taken to be the touches".to_owned(),
        }
    }
}

/// The counter of [`Account::Counter`] or [`Account::Pool`] now; `None` for the others.
pub(super) fn counter(account: &Account) -> Result<Option<u64>, Error> {
    match account {
        Account::Counter(path) | Account::Pool(path) => Ok(read(path)?.trim().parse().ok()),
        Account::Smaps(_) | Account::Blocks | Account::MinorFaults | Account::Nowhere => Ok(None),
    }
}

/// `thp_fault_alloc` of `/proc/vmstat` now: PMD-sized pages faulted in by anyone.
pub(super) fn thp_fault_alloc() -> Option<u64> {
    vmstat::counter(Path::new("/"), "thp_fault_alloc")
}

/// Minor faults of this thread so far.
pub(super) fn minor_faults() -> u64 {
    getrusage(UsageWho::RUSAGE_THREAD)
        .ok()
        .and_then(|usage| usage.minor_page_faults().try_into().ok())
        .expect("getrusage(RUSAGE_THREAD) always answers on Linux")
}

/// Bytes that fields of `/proc/self/smaps` give together for the mappings that begin within `addresses`.
pub(super) fn smaps_bytes(addresses: &Range<usize>, fields: &[&str]) -> Result<Option<u64>, Error> {
    let smaps = read("/proc/self/smaps")?;
    Ok(fields
        .iter()
        .map(|field| field_bytes(&smaps, addresses, field))
        .sum())
}

/// `None` if there is no such mapping, or the kernel does not tell the field.
fn field_bytes(smaps: &str, addresses: &Range<usize>, field: &str) -> Option<u64> {
    let start = |line: &str| usize::from_str_radix(line.split_once('-')?.0, 16).ok();
    let mut is_ours = false;
    let mut sum_bytes = None;
    for line in smaps.lines() {
        if let Some(start) = start(line) {
            is_ours = addresses.contains(&start);
        } else if is_ours
            && let Some(value) = line
                .strip_prefix(field)
                .and_then(|rest| rest.strip_prefix(':'))
        {
            let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
            *sum_bytes.get_or_insert(0) += kib.checked_mul(1024)?;
        }
    }
    sum_bytes
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
    fn only_the_own_mappings_count() {
        let bytes = |addresses, field| field_bytes(SMAPS, &addresses, field);
        let own = 0x7f00_0040_0000..0x7f00_0440_0000;
        assert_eq!(bytes(own.clone(), "AnonHugePages"), Some(64 << 20));
        assert_eq!(bytes(own, "Private_Hugetlb"), Some(0));
        let both = 0x7f00_0040_0000..0x7f00_0520_0000;
        assert_eq!(bytes(both, "AnonHugePages"), Some(66 << 20));
        let first = 0x7f00_0000_0000..0x7f00_0020_0000;
        assert_eq!(bytes(first.clone(), "AnonHugePages"), Some(0));
        assert_eq!(bytes(first, "Private_Hugetlb"), None);
        assert_eq!(
            bytes(0x7f00_0020_0000..0x7f00_0040_0000, "AnonHugePages"),
            None
        );
    }

    #[test]
    fn a_touch_is_a_minor_fault() {
        let bytes = std::num::NonZeroUsize::new(1024 << 12).unwrap();
        let mut mapping = super::super::memory::Mapping::plain(bytes).unwrap();
        let mut faults_of = |pages: Range<usize>| {
            let before = minor_faults();
            pages.for_each(|page| mapping.touch(page << 12));
            minor_faults() - before
        };
        // The first ones also fault in the code that touches.
        faults_of(0..24);
        assert_eq!(faults_of(24..1024), 1000);
    }
}
