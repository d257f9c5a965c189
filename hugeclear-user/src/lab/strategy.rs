//! In which order, and in pieces of what size, a region is cleared. Pure.

use std::fmt;

use crate::units::format_bytes;

/// Bytes of a page to the strategies that go page by page: a base page of x86 and, mostly, of arm64.
pub const PAGE_BYTES: usize = 4096;

/// Pages to each side of the fault that [`Strategy::Ranges`] leaves for last (`folio_zero_user`,
/// mm/memory.c, since 7.0).
const RADIUS_PAGES: usize = 2;

/// A strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// All of it at one go, as proposed in April 2020 ("mm: THP zeroing for !HIGHMEM").
    OneShot,
    /// A page at a time, in ascending order: what the kernel does to gigantic pages until 6.19
    /// (`clear_gigantic_page`).
    Forward,
    /// A page at a time, in descending order.
    Reverse,
    /// A page at a time, from the far end towards the fault, then left and right in turn; the page of
    /// the fault is last (`process_huge_page`, since 4.14, until 6.19).
    Converging,
    /// From the fault plus `offset_bytes` to the end at one go, then from the start up to there.
    TwoPass {
        /// A multiple of [`PAGE_BYTES`].
        offset_bytes: usize,
    },
    /// Chunks in ascending order, with a chance for other tasks to run between.
    Chunked {
        /// A multiple of [`PAGE_BYTES`].
        bytes: usize,
    },
    /// What is right of the fault's neighbourhood at one go, what is left of it, then it itself
    /// (`folio_zero_user`, since 7.0).
    Ranges,
}

/// What is cleared at one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// From the start of the region.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Strategy {
    /// Whether sched_yield(2) is called between pieces.
    pub fn yields(self) -> bool {
        matches!(self, Self::Chunked { .. })
    }

    /// The pieces of a region of `pages`, in the order in which they are cleared, for a fault in page
    /// `hint`.
    ///
    /// Computed one by one, as the kernel does: a list would itself take room in the caches.
    pub fn pieces(self, pages: usize, hint: usize) -> impl Iterator<Item = Piece> + Clone {
        let sweeps = match self {
            Self::OneShot => [Sweep::up(0, pages, pages), Sweep::NONE, Sweep::NONE],
            Self::Forward => [Sweep::up(0, pages, 1), Sweep::NONE, Sweep::NONE],
            Self::Reverse => [
                Sweep::Down {
                    start: 0,
                    end: pages,
                },
                Sweep::NONE,
                Sweep::NONE,
            ],
            Self::Converging => {
                // Where the part begins and ends that lies alike on both sides of the fault.
                let (far, start, end) = if 2 * hint <= pages {
                    let end = 2 * hint;
                    (
                        Sweep::Down {
                            start: end,
                            end: pages,
                        },
                        0,
                        end,
                    )
                } else {
                    let start = 2 * hint - pages;
                    (Sweep::up(0, start, 1), start, pages)
                };
                [
                    far,
                    Sweep::Inward {
                        start,
                        end,
                        left: true,
                    },
                    Sweep::NONE,
                ]
            }
            Self::TwoPass { offset_bytes } => {
                let split = (hint + offset_bytes / PAGE_BYTES).min(pages);
                [
                    Sweep::up(split, pages, pages),
                    Sweep::up(0, split, pages),
                    Sweep::NONE,
                ]
            }
            Self::Chunked { bytes } => [
                Sweep::up(0, pages, bytes / PAGE_BYTES),
                Sweep::NONE,
                Sweep::NONE,
            ],
            Self::Ranges => {
                let start = hint.saturating_sub(RADIUS_PAGES);
                let end = (hint + RADIUS_PAGES + 1).min(pages);
                [
                    Sweep::up(end, pages, pages),
                    Sweep::up(0, start, pages),
                    Sweep::up(start, end, pages),
                ]
            }
        };
        sweeps.into_iter().flatten()
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneShot => f.write_str("one-shot"),
            Self::Forward => f.write_str("forward"),
            Self::Reverse => f.write_str("reverse"),
            Self::Converging => f.write_str("converging"),
            Self::TwoPass { offset_bytes } => {
                write!(f, "two-pass {}", format_bytes(*offset_bytes as u64))
            }
            Self::Chunked { bytes } => write!(f, "chunked {}", format_bytes(*bytes as u64)),
            Self::Ranges => f.write_str("ranges"),
        }
    }
}

/// Pages `start..end` in one direction.
#[derive(Debug, Clone, Copy)]
enum Sweep {
    /// `step` pages at a time, fewer at the end.
    Up {
        start: usize,
        end: usize,
        step: usize,
    },
    /// One page at a time.
    Down { start: usize, end: usize },
    /// One page at a time from both ends in turn.
    Inward {
        start: usize,
        end: usize,
        left: bool,
    },
}

impl Sweep {
    const NONE: Self = Self::Down { start: 0, end: 0 };

    const fn up(start: usize, end: usize, step: usize) -> Self {
        Self::Up { start, end, step }
    }
}

impl Iterator for Sweep {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let (page, pages) = match self {
            Self::Up { start, end, step } => {
                let pages = (*step).min(*end - *start);
                *start += pages;
                (*start - pages, pages)
            }
            Self::Down { start, end } => {
                let pages = usize::from(start < end);
                *end -= pages;
                (*end, pages)
            }
            Self::Inward { start, end, left } => {
                let pages = usize::from(start < end);
                let page = if *left {
                    *start += pages;
                    *start - pages
                } else {
                    *end -= pages;
                    *end
                };
                *left = !*left;
                (page, pages)
            }
        };
        (pages > 0).then_some(Piece {
            offset: page * PAGE_BYTES,
            bytes: pages * PAGE_BYTES,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{
        Just, Strategy as _, prop_assert, prop_assert_eq, prop_oneof, proptest,
    };

    use super::*;

    /// First page and number of pages of each piece.
    fn pages_of(strategy: Strategy, pages: usize, hint: usize) -> Vec<(usize, usize)> {
        strategy
            .pieces(pages, hint)
            .map(|piece| (piece.offset / PAGE_BYTES, piece.bytes / PAGE_BYTES))
            .collect()
    }

    fn order(strategy: Strategy, pages: usize, hint: usize) -> Vec<usize> {
        let pieces = pages_of(strategy, pages, hint);
        assert!(pieces.iter().all(|(_, pages)| *pages == 1));
        pieces.into_iter().map(|(page, _)| page).collect()
    }

    /// `process_huge_page` of mm/memory.c in 6.12, line by line.
    fn process_huge_page(nr_pages: i64, n: i64) -> Vec<usize> {
        let mut processed = Vec::new();
        let (base, l);
        if 2 * n <= nr_pages {
            base = 0;
            l = n;
            let mut i = nr_pages - 1;
            while i >= 2 * n {
                processed.push(i as usize);
                i -= 1;
            }
        } else {
            base = nr_pages - 2 * (nr_pages - n);
            l = nr_pages - n;
            for i in 0..base {
                processed.push(i as usize);
            }
        }
        for i in 0..l {
            processed.push((base + i) as usize);
            processed.push((base + 2 * l - 1 - i) as usize);
        }
        processed
    }

    #[test]
    fn converging_is_the_order_of_the_kernel() {
        // As seen by `doctor --strategy` on 5.10 to 6.19.
        let middle = order(Strategy::Converging, 512, 256);
        assert_eq!(middle[..4], [0, 511, 1, 510]);
        assert_eq!(middle[510..], [255, 256]);
        let first = order(Strategy::Converging, 512, 0);
        assert!(first.iter().copied().eq((0..512).rev()));
        let last = order(Strategy::Converging, 512, 511);
        assert!(last.iter().copied().eq(0..512));

        assert_eq!(order(Strategy::Converging, 8, 3), [7, 6, 0, 5, 1, 4, 2, 3]);
        assert_eq!(order(Strategy::Converging, 8, 6), [0, 1, 2, 3, 4, 7, 5, 6]);
        for pages in [1, 2, 7, 8, 64, 512] {
            for hint in 0..pages {
                assert_eq!(
                    order(Strategy::Converging, pages, hint),
                    process_huge_page(pages as i64, hint as i64),
                    "{hint} of {pages}"
                );
            }
        }
    }

    #[test]
    fn ranges_are_those_of_the_kernel() {
        // As seen by `doctor --strategy` on 7.3.
        for (hint, ranges) in [
            (0, &[(3, 509), (0, 3)][..]),
            (256, &[(259, 253), (0, 254), (254, 5)]),
            (511, &[(0, 509), (509, 3)]),
        ] {
            assert_eq!(pages_of(Strategy::Ranges, 512, hint), ranges, "{hint}");
        }
        assert_eq!(pages_of(Strategy::Ranges, 3, 1), [(0, 3)]);
    }

    #[test]
    fn the_others_do_as_their_names_say() {
        assert_eq!(pages_of(Strategy::OneShot, 512, 256), [(0, 512)]);
        assert_eq!(order(Strategy::Forward, 4, 2), [0, 1, 2, 3]);
        assert_eq!(order(Strategy::Reverse, 4, 2), [3, 2, 1, 0]);
        let two_pass = |offset_bytes, hint| pages_of(Strategy::TwoPass { offset_bytes }, 512, hint);
        assert_eq!(two_pass(48 << 10, 256), [(268, 244), (0, 268)]);
        assert_eq!(two_pass(48 << 10, 505), [(0, 512)]);
        assert_eq!(two_pass(0, 0), [(0, 512)]);
        let chunked = Strategy::Chunked { bytes: 32 << 10 };
        assert_eq!(pages_of(chunked, 20, 3), [(0, 8), (8, 8), (16, 4)]);
    }

    proptest! {
        #[test]
        fn every_page_is_cleared_once(
            strategy in prop_oneof![
                Just(Strategy::OneShot),
                Just(Strategy::Forward),
                Just(Strategy::Reverse),
                Just(Strategy::Converging),
                Just(Strategy::Ranges),
                (0_usize..600).prop_map(|pages| Strategy::TwoPass { offset_bytes: pages * PAGE_BYTES }),
                (1_usize..600).prop_map(|pages| Strategy::Chunked { bytes: pages * PAGE_BYTES }),
            ],
            pages in 1_usize..600,
            hint: usize,
        ) {
            let mut cleared = vec![0; pages];
            for (page, count) in pages_of(strategy, pages, hint % pages) {
                prop_assert!(count > 0);
                for page in &mut cleared[page..page + count] {
                    *page += 1;
                }
            }
            prop_assert_eq!(cleared, vec![1; pages]);
        }
    }
}
