//! Memory of a load: the only place here that touches raw memory.

use std::{ffi::c_void, io, os::fd::AsRawFd, ptr};

use anyhow::{Context as _, Result, ensure};
use nix::libc;

/// Bytes of a base page.
pub(crate) const BASE: usize = 4096;

/// A mapping of its own: it never merges with its neighbours. Unmapped when dropped.
pub(crate) struct Area {
    /// All that was mapped, with what lies around the part that is used.
    whole: *mut c_void,
    whole_bytes: usize,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory, which is shared with nobody but by reference.
unsafe impl Send for Area {}

impl Area {
    /// Private anonymous memory that starts `offset` bytes after a multiple of `alignment`.
    pub(crate) fn anonymous(bytes: usize, alignment: usize, offset: usize) -> Result<Self> {
        let whole_bytes = bytes + offset + 2 * alignment;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let whole = map(whole_bytes, libc::PROT_NONE, flags, -1)?;
        let first = (whole as usize + BASE).next_multiple_of(alignment) - whole as usize;
        let start = whole.cast::<u8>().wrapping_add(first + offset);
        let area = Self {
            whole,
            whole_bytes,
            start,
            bytes,
        };
        // SAFETY: the part lies within what was just mapped, and nothing refers to it.
        let done =
            unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
        check(done, "mprotect")?;
        Ok(area)
    }

    /// Anonymous memory that has huge pages (`MADV_HUGEPAGE`), aligned to their size.
    pub(crate) fn huge(bytes: usize, page: usize) -> Result<Self> {
        let area = Self::anonymous(bytes, page, 0)?;
        area.advise(libc::MADV_HUGEPAGE)?;
        Ok(area)
    }

    /// Anonymous memory without huge pages.
    pub(crate) fn plain(bytes: usize, alignment: usize) -> Result<Self> {
        let area = Self::anonymous(bytes, alignment, 0)?;
        // A kernel without THP does not know the advice and needs none.
        let _ = area.advise(libc::MADV_NOHUGEPAGE);
        Ok(area)
    }

    /// Private memory of the hugetlb pool of pages of this size.
    pub(crate) fn hugetlb(bytes: usize, page: usize) -> Result<Self> {
        let size = page.trailing_zeros().cast_signed() << libc::MAP_HUGE_SHIFT;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
        Self::exactly(bytes, flags, -1)
    }

    /// A file, shared.
    pub(crate) fn file(bytes: usize, file: &impl AsRawFd) -> Result<Self> {
        Self::exactly(bytes, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn exactly(bytes: usize, flags: i32, file: i32) -> Result<Self> {
        let whole = map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file)?;
        Ok(Self {
            whole,
            whole_bytes: bytes,
            start: whole.cast(),
            bytes,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.start as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// madvise(2) of all of it.
    pub(crate) fn advise(&self, advice: i32) -> Result<()> {
        self.advise_part(0, self.bytes, advice)
    }

    /// madvise(2) of a part.
    pub(crate) fn advise_part(&self, offset: usize, bytes: usize, advice: i32) -> Result<()> {
        ensure!(offset + bytes <= self.bytes, "a part outside");
        // SAFETY: the range is ours, and no reference to its contents exists.
        let done = unsafe { libc::madvise(self.start.wrapping_add(offset).cast(), bytes, advice) };
        check(done, &format!("madvise({advice})"))
    }

    /// Binds its memory to a NUMA node, by mbind(2).
    pub(crate) fn bind(&self, node: u32) -> Result<()> {
        let mask: u64 = 1 << node;
        // SAFETY: the range is ours, and the mask has the 64 bits that are read.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start,
                self.bytes,
                libc::MPOL_BIND,
                &raw const mask,
                64_usize,
                0_usize,
            )
        };
        check(i32::try_from(done)?, "mbind")
    }

    /// Writes a byte every `step` bytes.
    pub(crate) fn write(&self, step: usize) {
        for offset in (0..self.bytes).step_by(step) {
            self.write_at(offset);
        }
    }

    /// Writes the byte at this offset.
    pub(crate) fn write_at(&self, offset: usize) {
        assert!(offset < self.bytes, "outside");
        // SAFETY: the byte is inside our own mapping, to which no reference exists; volatile, so
        // that the store is made.
        unsafe { self.start.add(offset).write_volatile(1) }
    }

    /// Reads a byte every `step` bytes; how many are not zero.
    pub(crate) fn read(&self, step: usize) -> usize {
        (0..self.bytes)
            .step_by(step)
            // SAFETY: as in `write_at`.
            .filter(|offset| unsafe { self.start.add(*offset).read_volatile() } != 0)
            .count()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.whole, self.whole_bytes) };
    }
}

fn map(bytes: usize, protection: i32, flags: i32, file: i32) -> Result<*mut c_void> {
    // SAFETY: a mapping at an address that the kernel chooses touches nothing that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file, 0) };
    ensure!(
        start != libc::MAP_FAILED,
        "mmap of {bytes} bytes: {}",
        io::Error::last_os_error()
    );
    Ok(start)
}

/// The error of a system call that returned this.
pub(crate) fn check(returned: i32, call: &str) -> Result<()> {
    if returned == -1 {
        return Err(io::Error::last_os_error()).context(call.to_owned());
    }
    Ok(())
}
