//! Mappings, and what is done to them: nearly all unsafe code of the driver.

use std::{
    ffi::c_void,
    fs::File,
    hint::black_box,
    marker::PhantomData,
    num::NonZeroUsize,
    ops::Range,
    os::fd::AsRawFd as _,
    ptr::{self, NonNull},
    slice,
};

use nix::{
    errno::Errno,
    sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap},
};

use super::Error;
use crate::units::format_bytes;

/// `MADV_COLLAPSE` of linux/mman.h, which libc does not have for every target.
pub(super) const MADV_COLLAPSE: i32 = 25;

/// Base pages are at most 64 KiB (arm64).
const LARGEST_BASE_PAGE_BYTES: usize = 64 << 10;

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// Whether this kernel knows an advice: nothing is done to no bytes, but the advice is looked at first
/// (madvise_should_skip, mm/madvise.c; the same order in 5.10).
pub(super) fn knows(advice: i32) -> bool {
    // SAFETY: a range of no bytes.
    unsafe { libc::madvise(ptr::null_mut(), 0, advice) == 0 }
}

/// Memory of our own, zero, readable and writable, unmapped on drop. Nothing of it is faulted in before
/// it is touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
    /// What mmap returned, and how much: this and the room around it.
    whole: (NonNull<c_void>, NonZeroUsize),
}

// SAFETY: it owns its memory; what is shared between threads is only what it hands out as `Part`s.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Private anonymous memory that starts at a multiple of `alignment` and uses transparent huge pages.
    pub(crate) fn transparent(bytes: NonZeroUsize, alignment: usize) -> Result<Self, Error> {
        let mapping = Self::aligned(bytes, alignment)?;
        mapping.advise(libc::MADV_HUGEPAGE)?;
        Ok(mapping)
    }

    /// Private anonymous memory that starts at a multiple of `alignment`, with huge pages if those are
    /// given to memory that does not ask for them.
    ///
    /// Room that cannot be used is kept on both sides. Without it the kernel may join the mapping to a
    /// neighbour that is like it (vma_merge, mm/mmap.c), say a thread's stack, and then tells their pages
    /// as those of one.
    pub(super) fn aligned(bytes: NonZeroUsize, alignment: usize) -> Result<Self, Error> {
        let with_room = alignment
            .checked_mul(2)
            .and_then(|room| bytes.checked_add(room))
            .ok_or_else(|| too_large(u64::MAX))?;
        let mut mapping = Self::map(
            with_room,
            ProtFlags::PROT_NONE,
            MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE,
            "",
        )?;
        // At least a page, at most the alignment; so that as much is left behind.
        let head = (mapping.address() + 1).next_multiple_of(alignment) - mapping.address();
        // SAFETY: head and bytes together are less than the length, so the address is inside.
        mapping.start = unsafe { mapping.start.byte_add(head) };
        mapping.bytes = bytes;
        // SAFETY: the range is ours, and nothing refers to it yet.
        unsafe { mprotect(mapping.start, bytes.get(), READ_WRITE) }.map_err(|error| {
            Error::SystemCall {
                call: "mprotect",
                what: format_bytes(bytes.get() as u64),
                error,
                hint: "",
            }
        })?;
        Ok(mapping)
    }

    /// Private anonymous memory that never gets huge pages, whatever the settings.
    pub(crate) fn plain(bytes: NonZeroUsize) -> Result<Self, Error> {
        Self::aligned(bytes, LARGEST_BASE_PAGE_BYTES)?.without_huge_pages()
    }

    /// The same, shared with children.
    pub(super) fn shared(bytes: NonZeroUsize) -> Result<Self, Error> {
        Self::map(bytes, READ_WRITE, MapFlags::MAP_SHARED, "")?.without_huge_pages()
    }

    /// Private anonymous memory from the hugetlb pool of this page size; reserves its pages.
    pub(crate) fn hugetlb(bytes: NonZeroUsize, page_size_bytes: u64) -> Result<Self, Error> {
        Self::map(
            bytes,
            READ_WRITE,
            MapFlags::MAP_PRIVATE
                | MapFlags::MAP_HUGETLB
                | MapFlags::from_bits_retain(size_flag(page_size_bytes)),
            POOL_HINT,
        )
    }

    /// A file, shared, at a multiple of `alignment`. hugetlb files are aligned by the kernel itself.
    pub(super) fn file(bytes: NonZeroUsize, alignment: usize, file: &File) -> Result<Self, Error> {
        let mapping = Self::aligned(bytes, alignment)?;
        // SAFETY: it replaces exactly our own mapping, to which nothing refers yet.
        let mapped = unsafe {
            libc::mmap(
                mapping.start.as_ptr(),
                bytes.get(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(mmap_failed(bytes.get(), Errno::last(), POOL_HINT));
        }
        Ok(mapping)
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Its addresses.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.address()..self.address() + self.bytes.get()
    }

    /// Writes one byte at this offset, which faults the page in.
    ///
    /// # Panics
    /// The offset is not inside.
    pub(crate) fn touch(&mut self, offset: usize) {
        self.whole().write(offset);
    }

    /// All of it.
    pub(super) fn whole(&mut self) -> Part<'_> {
        Part {
            start: self.start.cast(),
            bytes: self.bytes.get(),
            memory: PhantomData,
        }
    }

    /// Parts of it, by ascending offsets, which several threads can use at the same time.
    ///
    /// # Panics
    /// They overlap or lie outside.
    pub(super) fn parts(
        &mut self,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Vec<Part<'_>> {
        let mut free_from = 0;
        ranges
            .into_iter()
            .map(|Range { start, end }| {
                assert!(
                    free_from <= start && start <= end && end <= self.bytes.get(),
                    "parts of a mapping lie inside and apart"
                );
                free_from = end;
                Part {
                    // SAFETY: the offset is inside the mapping.
                    start: unsafe { self.start.cast::<u8>().byte_add(start) },
                    bytes: end - start,
                    memory: PhantomData,
                }
            })
            .collect()
    }

    /// The memory as numbers.
    pub(super) fn as_u64s(&mut self) -> &mut [u64] {
        let length = self.bytes.get() / size_of::<u64>();
        // SAFETY: mmap returned `bytes` readable, writable, page-aligned bytes that read as zero;
        // every bit pattern is a u64, and the borrow of `self` keeps the mapping and the exclusion.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().cast(), length) }
    }

    /// madvise(2) of all of it.
    pub(super) fn advise(&self, advice: i32) -> Result<(), Error> {
        // SAFETY: the range is ours, and no advice that we give breaks what references may rely on.
        advise(self.start, self.bytes.get(), advice)
    }

    fn without_huge_pages(self) -> Result<Self, Error> {
        match self.advise(libc::MADV_NOHUGEPAGE) {
            // A kernel without THP does not know the advice and needs none.
            Ok(())
            | Err(Error::SystemCall {
                error: Errno::EINVAL,
                ..
            }) => Ok(self),
            Err(error) => Err(error),
        }
    }

    fn map(
        bytes: NonZeroUsize,
        protection: ProtFlags,
        flags: MapFlags,
        hint: &'static str,
    ) -> Result<Self, Error> {
        // SAFETY: the kernel chooses the address (no MAP_FIXED), so no existing memory is touched.
        let mapped = unsafe { mmap_anonymous(None, bytes, protection, flags) };
        let start = mapped.map_err(|error| mmap_failed(bytes.get(), error, hint))?;
        Ok(Self {
            start,
            bytes,
            whole: (start, bytes),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, bytes) = self.whole;
        // SAFETY: the range is ours, and nothing borrows it any more. It cannot fail for a range that
        // mmap returned.
        let unmapped = unsafe { munmap(start, bytes.get()) };
        debug_assert_eq!(unmapped, Ok(()), "our own mapping can be unmapped");
    }
}

/// A part of a mapping that one thread has to itself.
#[derive(Debug)]
pub(super) struct Part<'a> {
    start: NonNull<u8>,
    bytes: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: like the `&mut [u8]` that it stands for.
unsafe impl Send for Part<'_> {}

impl Part<'_> {
    /// Writes the byte at this offset.
    ///
    /// # Panics
    /// The offset is not inside.
    #[inline]
    pub(super) fn write(&mut self, offset: usize) {
        // SAFETY: the byte is ours; volatile, so that the compiler keeps the store.
        unsafe { self.at(offset, 1).write_volatile(1) }
    }

    /// Reads the byte at this offset.
    ///
    /// # Panics
    /// The offset is not inside.
    #[inline]
    pub(super) fn read(&self, offset: usize) -> u8 {
        // SAFETY: the byte is ours; volatile, so that the compiler keeps the load.
        unsafe { self.at(offset, 1).read_volatile() }
    }

    /// Reads all of a range of whole words.
    ///
    /// # Panics
    /// The range is not inside.
    pub(super) fn read_all(&self, range: Range<usize>) {
        // SAFETY: the words are ours and aligned (offsets are those of pages); any bits are a u64.
        let words = unsafe {
            slice::from_raw_parts(
                self.at(range.start, range.len()).cast::<u64>(),
                range.len() / size_of::<u64>(),
            )
        };
        black_box(
            words
                .iter()
                .fold(0_u64, |sum, word| sum.wrapping_add(*word)),
        );
    }

    /// Writes all of a range of whole words.
    ///
    /// # Panics
    /// The range is not inside.
    pub(super) fn write_all(&mut self, range: Range<usize>) {
        // SAFETY: as in `read_all`, and `self` is borrowed mutably.
        let words = unsafe {
            slice::from_raw_parts_mut(
                self.at(range.start, range.len()).cast::<u64>(),
                range.len() / size_of::<u64>(),
            )
        };
        words.fill(black_box(1));
        black_box(words);
    }

    /// Whether its two halves are equal, by memcmp(3).
    pub(super) fn halves_are_equal(&self) -> bool {
        let half = self.bytes / 2;
        // SAFETY: both halves are ours, and initialised by the kernel.
        black_box(unsafe {
            libc::memcmp(self.at(0, half).cast(), self.at(half, half).cast(), half)
        }) == 0
    }

    /// madvise(2) of a range of pages.
    ///
    /// # Panics
    /// The range is not inside.
    pub(super) fn advise(&mut self, range: Range<usize>, advice: i32) -> Result<(), Error> {
        let start = NonNull::new(self.at(range.start, range.len())).expect("a mapping is not at 0");
        advise(start.cast(), range.len(), advice)
    }

    /// Maps all of it anew as private anonymous memory, and has the kernel fault it all in
    /// (`MAP_POPULATE`). The kernel does not say if it could not.
    pub(super) fn populate(&mut self) -> Result<(), Error> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_POPULATE;
        // SAFETY: it replaces exactly our own part, to which no reference exists while `self` is
        // borrowed mutably.
        let mapped = unsafe {
            libc::mmap(
                self.start.as_ptr().cast(),
                self.bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(mmap_failed(self.bytes, Errno::last(), ""));
        }
        Ok(())
    }

    /// Writes to all of it past the caches, where the processor has such stores.
    pub(super) fn stream(&mut self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_set1_epi64x, _mm_sfence, _mm_stream_si128};
            let vectors = self.bytes / size_of::<__m128i>();
            let start = self.at(0, self.bytes).cast::<__m128i>();
            for index in 0..vectors {
                // SAFETY: the vector is inside our part, which is aligned to a page; every x86_64
                // processor has SSE2.
                unsafe { _mm_stream_si128(start.add(index), _mm_set1_epi64x(1)) }
            }
            // SAFETY: a fence.
            unsafe { _mm_sfence() }
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.write_all(0..self.bytes);
    }

    /// Bytes of it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "the range is inside the part"
        );
        self.start.as_ptr().wrapping_add(offset)
    }
}

const POOL_HINT: &str = "; the pool has too few free pages, or a cgroup limit is in the way";

/// The flag of mmap(2) and memfd_create(2) that names a huge page size.
pub(super) fn size_flag(page_size_bytes: u64) -> i32 {
    page_size_bytes.trailing_zeros().cast_signed() << libc::MAP_HUGE_SHIFT
}

pub(super) fn too_large(needed_bytes: u64) -> Error {
    Error::NotEnoughMemory {
        needed_bytes,
        available_bytes: usize::MAX as u64,
        node: None,
    }
}

fn mmap_failed(bytes: usize, error: Errno, hint: &'static str) -> Error {
    Error::SystemCall {
        call: "mmap",
        what: format_bytes(bytes as u64),
        error,
        hint,
    }
}

fn advise(start: NonNull<c_void>, bytes: usize, advice: i32) -> Result<(), Error> {
    // SAFETY: callers pass memory of their own. No advice that we give takes away memory that is
    // referred to; what is dropped (MADV_DONTNEED) reads as zero afterwards.
    let result = unsafe { libc::madvise(start.as_ptr(), bytes, advice) };
    Errno::result(result).map(drop).map_err(|error| {
        let (name, hint) = match advice {
            libc::MADV_HUGEPAGE => ("MADV_HUGEPAGE", ""),
            libc::MADV_NOHUGEPAGE => ("MADV_NOHUGEPAGE", ""),
            libc::MADV_DONTNEED => ("MADV_DONTNEED", ""),
            libc::MADV_POPULATE_WRITE => ("MADV_POPULATE_WRITE", ""),
            MADV_COLLAPSE => (
                "MADV_COLLAPSE",
                "; ENOMEM and EAGAIN: no free huge page, as in fragmented memory",
            ),
            _ => ("advice", ""),
        };
        Error::SystemCall {
            call: "madvise",
            what: name.to_owned(),
            error,
            hint,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn plain(bytes: usize) -> Mapping {
        Mapping::plain(NonZeroUsize::new(bytes).unwrap()).unwrap()
    }

    #[test]
    fn aligned_memory_is_aligned_and_writable() {
        const ALIGNMENT: usize = 2 << 20;
        for bytes in [PAGE, ALIGNMENT, 3 * ALIGNMENT] {
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
    fn the_kernel_joins_no_other_memory_to_it() {
        let bytes = NonZeroUsize::new(2 * PAGE).unwrap();
        for alignment in [PAGE, 2 << 20] {
            let mut mapping = Mapping::aligned(bytes, alignment).unwrap();
            mapping.whole().populate().unwrap();
            let Range { start, end } = mapping.addresses();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let lines: Vec<&str> = maps.lines().collect();
            let own = format!("{start:x}-{end:x} rw-p");
            let index = lines.iter().position(|line| line.starts_with(&own));
            let index = index.unwrap_or_else(|| panic!("no {own} in\n{maps}"));
            for (neighbour, bound) in [
                (index - 1, format!("-{start:x} ---p")),
                (index + 1, format!("{end:x}-")),
            ] {
                assert!(lines[neighbour].contains(&bound), "{maps}");
                assert!(lines[neighbour].contains("---p"), "{maps}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "inside the part")]
    fn a_touch_outside_is_refused() {
        plain(PAGE).touch(PAGE);
    }

    #[test]
    #[should_panic(expected = "inside and apart")]
    fn parts_do_not_overlap() {
        plain(2 * PAGE).parts([0..PAGE + 1, PAGE..2 * PAGE]);
    }

    #[test]
    fn parts_are_written_and_read() {
        let mut mapping = plain(4 * PAGE);
        {
            let mut parts = mapping.parts([0..PAGE, 2 * PAGE..4 * PAGE]);
            assert_eq!(parts[1].bytes(), 2 * PAGE);
            assert!(parts[1].halves_are_equal());
            parts[0].write_all(0..PAGE);
            parts[1].write(PAGE);
            assert_eq!((parts[1].read(0), parts[1].read(PAGE)), (0, 1));
            assert!(!parts[1].halves_are_equal());
            parts[1].read_all(0..2 * PAGE);
        }
        let words = mapping.as_u64s();
        let page_words = PAGE / size_of::<u64>();
        assert!(words[..page_words].iter().all(|word| *word == 1));
        assert!(
            words[page_words..3 * page_words]
                .iter()
                .all(|word| *word == 0)
        );

        mapping.whole().populate().unwrap();
        assert!(mapping.as_u64s().iter().all(|word| *word == 0));
        mapping.whole().stream();
        assert!(mapping.as_u64s().iter().all(|word| *word == 1));
        mapping
            .whole()
            .advise(0..PAGE, libc::MADV_DONTNEED)
            .unwrap();
        assert_eq!(mapping.as_u64s()[0], 0);
    }

    #[test]
    fn an_unknown_advice_is_unknown() {
        assert!(knows(libc::MADV_DONTNEED));
        assert!(!knows(9999));
    }
}
