//! Mappings: the only unsafe code of the driver.

use std::{ffi::c_void, num::NonZeroUsize, ptr::NonNull};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use super::Error;
use crate::units::format_bytes;

/// Private anonymous memory, zero, readable and writable, unmapped on drop. Nothing of it is faulted
/// in before it is touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
}

impl Mapping {
    /// Memory that starts at a multiple of `alignment` and uses transparent huge pages.
    pub(crate) fn transparent(bytes: NonZeroUsize, alignment: usize) -> Result<Self, Error> {
        let mapping = Self::aligned(bytes, alignment)?;
        mapping.advise(MmapAdvise::MADV_HUGEPAGE, "MADV_HUGEPAGE")?;
        Ok(mapping)
    }

    /// Memory that never gets huge pages, whatever the settings.
    pub(super) fn plain(bytes: NonZeroUsize) -> Result<Self, Error> {
        let mapping = Self::map(bytes, MapFlags::empty(), "")?;
        match mapping.advise(MmapAdvise::MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE") {
            // A kernel without THP does not know the advice and needs none.
            Ok(())
            | Err(Error::SystemCall {
                error: nix::Error::EINVAL,
                ..
            }) => Ok(mapping),
            Err(error) => Err(error),
        }
    }

    /// Memory from the hugetlb pool of this page size; reserves its pages.
    pub(crate) fn hugetlb(bytes: NonZeroUsize, page_size_bytes: u64) -> Result<Self, Error> {
        let size_flag = (page_size_bytes.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT;
        Self::map(
            bytes,
            MapFlags::MAP_HUGETLB | MapFlags::from_bits_retain(size_flag),
            "; the pool has too few free pages, or a cgroup limit is in the way",
        )
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Writes one byte at this offset, which faults the page in.
    ///
    /// # Panics
    /// The offset is not inside.
    pub(crate) fn touch(&mut self, offset: usize) {
        assert!(
            offset < self.bytes.get(),
            "the offset is inside the mapping"
        );
        // SAFETY: the byte is inside our own writable mapping (checked above), to which no reference
        // exists while `self` is borrowed mutably. Volatile, so that the compiler keeps the store.
        unsafe {
            self.start
                .as_ptr()
                .cast::<u8>()
                .add(offset)
                .write_volatile(1)
        }
    }

    /// The memory as numbers.
    pub(super) fn as_u64s(&mut self) -> &mut [u64] {
        let length = self.bytes.get() / size_of::<u64>();
        // SAFETY: mmap returned `bytes` readable, writable, page-aligned bytes that read as zero;
        // every bit pattern is a u64, and the borrow of `self` keeps the mapping and the exclusion.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), length) }
    }

    fn aligned(bytes: NonZeroUsize, alignment: usize) -> Result<Self, Error> {
        let with_room = bytes.checked_add(alignment).ok_or(Error::NotEnoughMemory {
            needed_bytes: u64::MAX,
            available_bytes: usize::MAX as u64,
        })?;
        let mut whole = Self::map(with_room, MapFlags::MAP_NORESERVE, "")?;
        let head = whole.address().next_multiple_of(alignment) - whole.address();
        // Cut off what is before and behind, so that the mapping holds our pages and no others.
        if let Some(head) = NonZeroUsize::new(head) {
            drop(whole.split_front(head));
        }
        // There is always a tail: the head is shorter than the alignment.
        Ok(whole.split_front(bytes))
    }

    /// Splits off the first `bytes`, fewer than there are.
    fn split_front(&mut self, bytes: NonZeroUsize) -> Self {
        let rest = self
            .bytes
            .get()
            .checked_sub(bytes.get())
            .and_then(NonZeroUsize::new)
            .expect("only part of a mapping is split off");
        let front = Self {
            start: self.start,
            bytes,
        };
        // SAFETY: `bytes` is less than the length, so the address is inside the mapping.
        self.start = unsafe { self.start.byte_add(bytes.get()) };
        self.bytes = rest;
        front
    }

    fn map(bytes: NonZeroUsize, flags: MapFlags, hint: &'static str) -> Result<Self, Error> {
        let flags = flags | MapFlags::MAP_PRIVATE;
        // SAFETY: the kernel chooses the address (no MAP_FIXED), so no existing memory is touched.
        let mapped = unsafe {
            mmap_anonymous(
                None,
                bytes,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                flags,
            )
        };
        let start = mapped.map_err(|error| Error::SystemCall {
            call: "mmap",
            what: format_bytes(bytes.get() as u64),
            error,
            hint,
        })?;
        Ok(Self { start, bytes })
    }

    fn advise(&self, advice: MmapAdvise, name: &'static str) -> Result<(), Error> {
        // SAFETY: the range is ours, and neither advice changes what the memory holds.
        let advised = unsafe { madvise(self.start, self.bytes.get(), advice) };
        advised.map_err(|error| Error::SystemCall {
            call: "madvise",
            what: name.to_owned(),
            error,
            hint: "",
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and nothing borrows it any more. It cannot fail for a range that
        // mmap returned or that was split off one.
        let unmapped = unsafe { munmap(self.start, self.bytes.get()) };
        debug_assert_eq!(unmapped, Ok(()), "our own mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_memory_is_aligned_and_writable() {
        const ALIGNMENT: usize = 2 << 20;
        for bytes in [4096, ALIGNMENT, 3 * ALIGNMENT] {
            let bytes = NonZeroUsize::new(bytes).unwrap();
            let mut mapping = Mapping::aligned(bytes, ALIGNMENT).unwrap();
            assert_eq!(mapping.address() % ALIGNMENT, 0);
            assert_eq!(mapping.bytes, bytes);
            mapping.touch(0);
            mapping.touch(bytes.get() - 1);
            assert_eq!(mapping.as_u64s()[0], 1);
        }
    }

    #[test]
    #[should_panic(expected = "inside the mapping")]
    fn a_touch_outside_is_refused() {
        Mapping::plain(NonZeroUsize::new(4096).unwrap())
            .unwrap()
            .touch(4096);
    }
}
