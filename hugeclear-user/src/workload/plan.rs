//! From what was asked and what the machine offers to a plan that can only fail by accident.
//! Pure: nothing is changed here, and tests need no machine.

use std::path::{Path, PathBuf};

use super::{Args, Error, Kind};
use crate::{
    facts::{HugetlbPool, Thp, ThpEnabled, hugetlb, source::Source, thp},
    settings::Change,
};

/// Default of `--size`.
const DEFAULT_SIZE_BYTES: u64 = 64 << 20;

/// What the machine offers a workload.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Transparent huge pages; `None`: not built in.
    pub thp: Option<Thp>,
    /// hugetlb pools by size; empty: not built in.
    pub hugetlb: Vec<HugetlbPool>,
    /// Bytes that can be had without swapping. Source: `MemAvailable` of `/proc/meminfo`.
    /// `None`: unreadable.
    pub available_bytes: Option<u64>,
    /// Page size of `MAP_HUGETLB` without a size. Source: `Hugepagesize` of `/proc/meminfo`.
    pub hugetlb_default_bytes: Option<u64>,
    /// Online CPUs.
    pub online: Vec<u32>,
}

impl Machine {
    /// Reads it below `root`, `/` in production.
    pub fn read(root: &Path) -> Self {
        let mut source = Source::new(root);
        let meminfo = source.text("proc/meminfo").unwrap_or_default();
        let field_bytes = |name: &str| {
            let line = meminfo
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Self {
            thp: Thp::read(&mut source),
            hugetlb: hugetlb::read(&mut source),
            available_bytes: field_bytes("MemAvailable"),
            hugetlb_default_bytes: field_bytes("Hugepagesize"),
            online: crate::facts::cpu::list(&mut source, "sys/devices/system/cpu/online")
                .unwrap_or_default(),
        }
    }
}

/// A checked workload: what [`super::run()`] does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(super) kind: Kind,
    pub(super) page_size_bytes: u64,
    pub(super) pages: u64,
    /// Whether one page is what a PMD maps: only those have an account per mapping.
    pub(super) pmd_mapped: bool,
    pub(super) cpu: Option<u32>,
    pub(super) repeat: u32,
    /// Settings to change for the time of the run, in this order.
    pub(super) changes: Vec<Change>,
    /// What the user should know about the numbers.
    pub(super) notes: Vec<String>,
}

impl Plan {
    /// Checks what was asked against what there is.
    ///
    /// # Errors
    /// Everything of [`Error`] that can be known before anything runs.
    pub fn check(args: &Args, machine: &Machine) -> Result<Self, Error> {
        let page_size_bytes = page_size(args, machine)?;
        let size_bytes = args.size.unwrap_or(DEFAULT_SIZE_BYTES.max(page_size_bytes));
        if size_bytes == 0 {
            return Err(Error::ZeroSize);
        }
        if !size_bytes.is_multiple_of(page_size_bytes) {
            return Err(Error::NotWholePages {
                size_bytes,
                page_size_bytes,
            });
        }
        if let Some(cpu) = args.cpu
            && !machine.online.contains(&cpu)
        {
            return Err(Error::NoSuchCpu {
                cpu,
                online: machine.online.clone(),
            });
        }
        let mut plan = Self {
            kind: args.kind,
            page_size_bytes,
            pages: size_bytes / page_size_bytes,
            pmd_mapped: machine.thp.as_ref().and_then(|thp| thp.pmd_size_bytes)
                == Some(page_size_bytes),
            cpu: args.cpu,
            repeat: args.repeat,
            changes: Vec::new(),
            notes: Vec::new(),
        };
        let new_bytes = match args.kind {
            Kind::Thp => {
                plan.thp(
                    machine
                        .thp
                        .as_ref()
                        .ok_or(Error::NotBuiltIn { kind: args.kind })?,
                    args.configure,
                )?;
                size_bytes
            }
            Kind::Hugetlb => plan.hugetlb(machine, args.configure)?,
        };
        let needed_bytes = new_bytes.saturating_add(plan.latency_bytes());
        match machine.available_bytes {
            Some(available_bytes) if needed_bytes > available_bytes => {
                Err(Error::NotEnoughMemory {
                    needed_bytes,
                    available_bytes,
                })
            }
            Some(_) | None => Ok(plan),
        }
    }

    /// The settings to change for the time of the run, in this order.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Bytes of the buffer that holds every latency.
    pub(super) fn latency_bytes(&self) -> u64 {
        self.pages
            .saturating_mul(u64::from(self.repeat))
            .saturating_mul(size_of::<u64>() as u64)
    }

    fn thp(&mut self, thp: &Thp, configure: bool) -> Result<(), Error> {
        let dir = Path::new("/").join(thp::DIR);
        let size_file = |bytes: u64| dir.join(format!("hugepages-{}kB/enabled", bytes / 1024));
        let page_size_bytes = self.page_size_bytes;
        let own = thp.sizes.iter().find(|size| size.bytes == page_size_bytes);
        // An inherited `never` is changed at the top, or the size would no longer inherit after.
        let path = match own.and_then(|size| size.enabled) {
            None | Some(ThpEnabled::Inherit) => dir.join("enabled"),
            Some(ThpEnabled::Always | ThpEnabled::Madvise | ThpEnabled::Never) => {
                size_file(page_size_bytes)
            }
        };
        match thp.anonymous(page_size_bytes) {
            Some(ThpEnabled::Never) if configure => {
                self.changes.push(Change {
                    path,
                    value: ThpEnabled::Madvise.as_str().to_owned(),
                });
            }
            Some(ThpEnabled::Never) => {
                return Err(Error::ThpOff {
                    page_size_bytes,
                    path,
                });
            }
            Some(ThpEnabled::Always | ThpEnabled::Madvise | ThpEnabled::Inherit) | None => {}
        }
        // The fault takes the largest enabled size that fits (alloc_anon_folio, mm/memory.c).
        let top_is_on = thp.enabled != Some(ThpEnabled::Never)
            || self
                .changes
                .iter()
                .any(|change| change.path == dir.join("enabled"));
        let larger = thp.sizes.iter().filter(|size| {
            size.bytes > page_size_bytes
                && match size.enabled {
                    Some(ThpEnabled::Always | ThpEnabled::Madvise) => true,
                    Some(ThpEnabled::Inherit) => top_is_on,
                    Some(ThpEnabled::Never) | None => false,
                }
        });
        for size in larger {
            if configure {
                self.changes.push(Change {
                    path: size_file(size.bytes),
                    value: ThpEnabled::Never.as_str().to_owned(),
                });
            } else {
                self.notes.push(format!(
                    "pages of {} are enabled too, and the kernel prefers the largest size that fits; --configure switches them off for the run",
                    crate::units::format_bytes(size.bytes)
                ));
            }
        }
        Ok(())
    }

    /// Plans the pool; bytes of memory that it must grow by.
    fn hugetlb(&mut self, machine: &Machine, configure: bool) -> Result<u64, Error> {
        let page_size_bytes = self.page_size_bytes;
        let pool = machine
            .hugetlb
            .iter()
            .find(|pool| pool.page_size_bytes == page_size_bytes)
            .ok_or(Error::NotBuiltIn {
                kind: Kind::Hugetlb,
            })?;
        let missing_pages = self.pages.saturating_sub(pool.available_pages());
        if missing_pages == 0 {
            return Ok(0);
        }
        let path = pool_file(page_size_bytes);
        let total_needed = pool.total_pages.saturating_add(missing_pages);
        if !configure {
            return Err(Error::PoolTooSmall {
                page_size_bytes,
                available: pool.available_pages(),
                needed: self.pages,
                total_needed,
                path,
            });
        }
        self.changes.push(Change {
            path,
            value: total_needed.to_string(),
        });
        Ok(missing_pages.saturating_mul(page_size_bytes))
    }
}

/// The file that sets the number of pages in a pool.
fn pool_file(page_size_bytes: u64) -> PathBuf {
    Path::new("/").join(hugetlb::DIR).join(format!(
        "hugepages-{}kB/nr_hugepages",
        page_size_bytes / 1024
    ))
}

/// The page size asked for or the default, if this kernel has it.
fn page_size(args: &Args, machine: &Machine) -> Result<u64, Error> {
    let kind = args.kind;
    let (offered, default) = match kind {
        Kind::Thp => {
            let thp = machine.thp.as_ref().ok_or(Error::NotBuiltIn { kind })?;
            (thp.offered_bytes(), thp.pmd_size_bytes)
        }
        Kind::Hugetlb => (
            machine
                .hugetlb
                .iter()
                .map(|pool| pool.page_size_bytes)
                .collect(),
            machine.hugetlb_default_bytes,
        ),
    };
    let page_size_bytes = args
        .page_size
        .or(default)
        .or_else(|| offered.last().copied())
        .ok_or(Error::NotBuiltIn { kind })?;
    if offered.is_empty() {
        return Err(Error::NotBuiltIn { kind });
    }
    if !offered.contains(&page_size_bytes) {
        return Err(Error::NoSuchPageSize {
            kind,
            page_size_bytes,
            offered,
        });
    }
    Ok(page_size_bytes)
}

#[cfg(test)]
mod tests;
