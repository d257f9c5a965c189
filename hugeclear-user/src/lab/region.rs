//! The memory that is cleared: nearly all unsafe code of the lab.

use std::{
    num::NonZeroUsize,
    ops::Range,
    ptr::NonNull,
    time::{Duration, Instant},
};

use super::{
    primitives::{self, Clear},
    strategy::{PAGE_BYTES, Piece},
};
use crate::workload::{self, memory::Mapping};

/// Memory of whole pages, all of it faulted in.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Pages in the order in which they are dirtied: a random one, that no strategy profits from what is
    /// left in the caches.
    shuffled: Vec<u32>,
    /// Owns the memory, at least `bytes` of it.
    mapping: Mapping,
}

impl Region {
    /// The first `bytes` of a mapping that has as many.
    pub(super) fn new(
        mut mapping: Mapping,
        bytes: NonZeroUsize,
        random: &mut fastrand::Rng,
    ) -> Self {
        let bytes = bytes.get();
        for offset in (0..bytes).step_by(PAGE_BYTES) {
            mapping.touch(offset);
        }
        let pages = u32::try_from(bytes / PAGE_BYTES).expect("16 TiB are not had");
        let mut shuffled: Vec<u32> = (0..pages).collect();
        random.shuffle(&mut shuffled);
        Self {
            start: NonNull::new(mapping.address() as *mut u8).expect("no mapping is at 0"),
            bytes,
            shuffled,
            mapping,
        }
    }

    /// Bytes of it that the kernel says are huge pages, by these fields of smaps.
    pub(super) fn huge_bytes(&self, fields: &[&str]) -> Result<Option<u64>, workload::Error> {
        workload::account::smaps_bytes(&self.mapping.addresses(), fields)
    }

    /// Clears it, and says how long that took. `between` runs between two pieces.
    #[inline]
    pub(super) fn clear(
        &mut self,
        pieces: impl Iterator<Item = Piece>,
        clear: Clear,
        yields: bool,
    ) -> Duration {
        let start = Instant::now();
        for (index, Piece { offset, bytes }) in pieces.enumerate() {
            if yields && index > 0 {
                // SAFETY: no memory is involved. It cannot fail on Linux.
                unsafe { libc::sched_yield() };
            }
            let piece = self.part(offset..offset + bytes);
            // SAFETY: the piece is inside our own writable memory, to which no reference exists while
            // `self` is borrowed mutably; pieces are whole pages, and the memory starts at one. Plans
            // hold only what this processor has.
            unsafe { clear(piece.as_ptr(), bytes) };
        }
        start.elapsed()
    }

    /// Reads a range of whole pages by ascending addresses, and says how long that took.
    #[inline]
    pub(super) fn read(&self, range: Range<usize>) -> Duration {
        let bytes = range.len();
        let first = self.part(range);
        let start = Instant::now();
        // SAFETY: inside our own memory, and initialised by the kernel.
        unsafe { primitives::read(first.as_ptr(), bytes) };
        start.elapsed()
    }

    /// Fills it with ones, page by page in the same random order each time.
    pub(super) fn dirty(&mut self) {
        for page in &self.shuffled {
            let offset = *page as usize * PAGE_BYTES;
            // SAFETY: the page is inside our own writable memory, to which no reference exists while
            // `self` is borrowed mutably.
            unsafe {
                self.part(offset..offset + PAGE_BYTES)
                    .write_bytes(0xff, PAGE_BYTES)
            };
        }
    }

    /// Writes its lines back to memory and drops them from all caches.
    pub(super) fn flush(&self) {
        // SAFETY: the memory is mapped.
        unsafe { primitives::flush(self.start.as_ptr(), self.bytes) };
    }

    /// Offset of the first 8 bytes that are not zero.
    pub(super) fn first_not_zero(&self) -> Option<usize> {
        let first = self.start.cast::<u64>();
        (0..self.bytes / size_of::<u64>())
            // SAFETY: inside our memory, aligned, and any bits are a number.
            .find(|index| unsafe { first.add(*index).read_volatile() } != 0)
            .map(|index| index * size_of::<u64>())
    }

    fn part(&self, range: Range<usize>) -> NonNull<u8> {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "the range is inside the region"
        );
        // SAFETY: the offset is inside the mapping.
        unsafe { self.start.add(range.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{Primitive, Strategy};

    fn region(pages: usize) -> Region {
        let bytes = NonZeroUsize::new(pages * PAGE_BYTES).unwrap();
        let mapping = Mapping::plain(bytes).unwrap();
        Region::new(mapping, bytes, &mut fastrand::Rng::with_seed(1))
    }

    #[test]
    fn every_strategy_clears_all_with_every_primitive() {
        let mut region = region(20);
        let strategies = [
            Strategy::OneShot,
            Strategy::Forward,
            Strategy::Reverse,
            Strategy::Converging,
            Strategy::TwoPass {
                offset_bytes: 2 * PAGE_BYTES,
            },
            Strategy::Chunked {
                bytes: 8 * PAGE_BYTES,
            },
            Strategy::Ranges,
        ];
        let primitives = Primitive::all();
        for primitive in primitives.iter().filter(|p| p.missing().is_none()) {
            for strategy in strategies {
                region.dirty();
                assert_eq!(region.first_not_zero(), Some(0));
                region.clear(strategy.pieces(20, 7), primitive.clear(), strategy.yields());
                assert_eq!(
                    region.first_not_zero(),
                    None,
                    "{strategy} {}",
                    primitive.name
                );
            }
        }
    }

    #[test]
    fn what_is_left_out_is_found() {
        let mut region = region(4);
        region.dirty();
        let pieces = Strategy::Forward
            .pieces(4, 0)
            .filter(|piece| piece.offset != 2 * PAGE_BYTES);
        region.clear(pieces, Primitive::all()[0].clear(), false);
        assert_eq!(region.first_not_zero(), Some(2 * PAGE_BYTES));
    }

    #[test]
    fn flushing_loses_nothing() {
        let mut region = region(2);
        region.dirty();
        region.flush();
        region.read(0..2 * PAGE_BYTES);
        assert_eq!(region.first_not_zero(), Some(0));
    }

    #[test]
    #[should_panic(expected = "inside the region")]
    fn a_piece_outside_is_refused() {
        let pieces = Strategy::Forward.pieces(5, 0);
        region(4).clear(pieces, Primitive::all()[0].clear(), false);
    }
}
