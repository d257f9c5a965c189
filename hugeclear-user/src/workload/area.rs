//! The memory of one pass, and what is done to its pages.

use std::{
    fs::File,
    ops::Range,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::memfd::{MFdFlags, memfd_create},
};

use super::{
    Error, Kind, Plan,
    account::{Account, smaps_bytes},
    memory::{MADV_COLLAPSE, Mapping, Part, size_flag},
    plan::{Origin, Step},
    run::length,
};

/// Unit of `st_blocks`, bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;

/// Fresh memory.
#[derive(Debug)]
pub(super) struct Area {
    /// Dropped before the file, whose pages it holds.
    mapping: Mapping,
    file: Option<File>,
}

impl Area {
    /// As the plan wants it, ready for its steps.
    pub(super) fn new(plan: &Plan) -> Result<Self, Error> {
        let bytes = length(plan.size_bytes())?;
        let page = length(plan.page_size_bytes)?.get();
        let (mapping, file) = match (plan.kind, plan.origin) {
            (Kind::MemfdHugetlb | Kind::FallocateHugetlb, _) => {
                let size =
                    MFdFlags::from_bits_retain(size_flag(plan.page_size_bytes).cast_unsigned());
                let file = memfd(plan, MFdFlags::MFD_HUGETLB | size)?;
                (Mapping::file(bytes, page, &file)?, Some(file))
            }
            (_, Origin::Shmem) => {
                let file = memfd(plan, MFdFlags::empty())?;
                let mapping = Mapping::file(bytes, page, &file)?;
                mapping.advise(libc::MADV_HUGEPAGE)?;
                (mapping, Some(file))
            }
            (_, Origin::Pool) => (Mapping::hugetlb(bytes, plan.page_size_bytes)?, None),
            (Kind::Collapse, _) => (collapsible(plan, Mapping::aligned(bytes, page)?)?, None),
            (_, Origin::Transparent) if plan.madvise => (Mapping::transparent(bytes, page)?, None),
            (_, Origin::Transparent) => (Mapping::aligned(bytes, page)?, None),
            (_, Origin::Base) => (Mapping::plain(bytes)?, None),
            (_, Origin::Zero) if plan.pmd_mapped => (Mapping::transparent(bytes, page)?, None),
            (_, Origin::Zero) => (Mapping::plain(bytes)?, None),
        };
        Ok(Self { mapping, file })
    }

    /// Writes to each page, as a parent does before its child writes.
    pub(super) fn fill(&mut self, plan: &Plan) {
        let mut whole = self.mapping.whole();
        for offset in (0..whole.bytes()).step_by(plan.pitch_bytes() as usize) {
            whole.write(offset);
        }
    }

    /// All of it.
    pub(super) fn whole(&mut self) -> Part<'_> {
        self.mapping.whole()
    }

    /// What each thread has of it: the pages of its share.
    pub(super) fn split(&mut self, plan: &Plan) -> Vec<Pages<'_>> {
        let bound = |page: u64| plan.size_bytes().min(page * plan.pitch_bytes()) as usize;
        let ranges: Vec<Range<usize>> = plan
            .shares()
            .iter()
            .map(|share| bound(share.start)..bound(share.end))
            .collect();
        let file = self.file.as_ref();
        let parts = self.mapping.parts(ranges.iter().cloned());
        parts
            .into_iter()
            .zip(ranges)
            .map(|(part, range)| Pages {
                part,
                file,
                offset: range.start,
                page: plan.page_size_bytes as usize,
            })
            .collect()
    }

    /// The pages that it has by this account; `None` if it does not tell of memory.
    pub(super) fn pages(&self, plan: &Plan, account: &Account) -> Result<Option<u64>, Error> {
        let bytes = match account {
            Account::Smaps(fields) => smaps_bytes(&self.mapping.addresses(), fields)?,
            Account::Blocks => {
                let metadata = self.file.as_ref().and_then(|file| file.metadata().ok());
                metadata.map(|metadata| metadata.blocks() * BLOCK_BYTES)
            }
            Account::Counter(_) | Account::Pool(_) | Account::MinorFaults | Account::Nowhere => {
                None
            }
        };
        Ok(bytes.map(|bytes| bytes / plan.page_size_bytes))
    }
}

/// Base pages that may be collapsed to huge ones.
fn collapsible(plan: &Plan, mut mapping: Mapping) -> Result<Mapping, Error> {
    // First not, or the touches would have huge pages at once.
    mapping.advise(libc::MADV_NOHUGEPAGE)?;
    let mut whole = mapping.whole();
    for offset in (0..whole.bytes()).step_by(plan.base_page_bytes as usize) {
        whole.write(offset);
    }
    mapping.advise(libc::MADV_HUGEPAGE)?;
    Ok(mapping)
}

fn memfd(plan: &Plan, flags: MFdFlags) -> Result<File, Error> {
    let failed = |call: &'static str| {
        move |error| Error::SystemCall {
            call,
            what: format!("{} bytes", plan.size_bytes()),
            error,
            hint: "",
        }
    };
    let file: File = memfd_create(c"hugeclear-trace", flags | MFdFlags::MFD_CLOEXEC)
        .map_err(failed("memfd_create"))?
        .into();
    file.set_len(plan.size_bytes())
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        .map_err(failed("ftruncate"))?;
    Ok(file)
}

/// Memory that one thread has to itself.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    pub(super) part: Part<'a>,
    file: Option<&'a File>,
    /// Of the part in the file.
    offset: usize,
    page: usize,
}

impl Pages<'_> {
    /// Does the step to the page at `page`, a touch at `touched`; both from the start of the part.
    #[inline]
    pub(super) fn step(&mut self, step: Step, page: usize, touched: usize) -> Result<(), Error> {
        let range = page..page + self.page;
        match step {
            Step::Write => self.part.write(touched),
            Step::Read => {
                self.part.read(touched);
            }
            Step::Populate => self.part.advise(range, libc::MADV_POPULATE_WRITE)?,
            Step::Collapse => self.part.advise(range, MADV_COLLAPSE)?,
            Step::PopulateAll => self.part.populate()?,
            Step::Fallocate => self.fallocate(page)?,
        }
        Ok(())
    }

    fn fallocate(&self, page: usize) -> Result<(), Error> {
        let file = self.file.expect("memory by fallocate is that of a file");
        let (offset, bytes) = (
            (self.offset + page) as libc::off_t,
            self.page as libc::off_t,
        );
        fallocate(file, FallocateFlags::empty(), offset, bytes).map_err(|error| Error::SystemCall {
            call: "fallocate",
            what: format!("a page at {offset} of descriptor {}", file.as_raw_fd()),
            error,
            hint: "; the pool has too few free pages",
        })
    }
}
