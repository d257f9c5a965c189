//! In which order, and in pieces of what size, this kernel clears a huge page.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Facts;

/// Pages of more base pages than this are gigantic: `MAX_ORDER_NR_PAGES` of x86_64 in its default
/// configuration.
const MAX_ORDER_PAGES: u64 = 1 << 10;

/// How a huge page is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// One base page at a time, from the far end towards the faulting one, which comes last
    /// (`process_huge_page`, since 4.14, commit c79b57e462b5).
    PagesConverging,
    /// One base page at a time, in ascending order.
    PagesForward,
    /// A few ranges of many pages, the last of them the neighbourhood of the faulting one (since 7.0,
    /// commits 94962b2628e6 and 93552c9a3350).
    RangesNeighbourhoodLast,
    /// All of it as one range.
    OneRange,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Self; 4] = [
        Self::PagesConverging,
        Self::PagesForward,
        Self::RangesNeighbourhoodLast,
        Self::OneRange,
    ];

    /// For people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PagesConverging => "page at a time, converging on the faulting page",
            Self::PagesForward => "page at a time, forward",
            Self::RangesNeighbourhoodLast => {
                "contiguous multi-page ranges, the faulting page's neighbourhood last"
            }
            Self::OneRange => "one contiguous range",
        }
    }

    /// For programs: as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PagesConverging => "pages_converging",
            Self::PagesForward => "pages_forward",
            Self::RangesNeighbourhoodLast => "ranges_neighbourhood_last",
            Self::OneRange => "one_range",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How this kernel clears huge pages, by who clears.
///
/// Shown, it is one line that goes on after the word "clears".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategies {
    /// The clear function, for pages up to the largest that the page allocator keeps.
    pub function: Strategy,
    /// The clear function, for gigantic pages.
    pub function_gigantic: Strategy,
    /// The page allocator, which clears anonymous huge pages too. `None`: it does not, or it is not
    /// known whether it does.
    pub allocator: Option<Strategy>,
    /// Whether the clear function then leaves anonymous pages alone.
    pub allocator_instead: bool,
}

impl Strategies {
    /// Of the clear function, for a page of this many base pages.
    #[must_use]
    pub const fn function_for(&self, pages: u64) -> Strategy {
        if pages > MAX_ORDER_PAGES {
            self.function_gigantic
        } else {
            self.function
        }
    }

    /// `None` where the symbols do not tell.
    ///
    /// On x86 `__clear_pages_unrolled` is there exactly when `folio_zero_user` clears ranges of pages
    /// at a time; other architectures leave no such trace. Where the allocator clears a range at a
    /// time (since 7.2) its function is `clear_highpages_kasan_tagged`. That `folio_zero_user` is left
    /// out for pages that the allocator has cleared (`user_alloc_needs_zeroing`) leaves no trace of
    /// its own: on the kernels that do so `vma_alloc_anon_folio_pmd` is there.
    pub(super) fn new(facts: &Facts) -> Option<Self> {
        if facts.machine != "x86_64" || !facts.symbols.read {
            return None;
        }
        let has = |name| facts.symbols.has(name);
        let (function, function_gigantic) = if has("__clear_pages_unrolled") {
            let ranges = Strategy::RangesNeighbourhoodLast;
            (ranges, ranges)
        } else if has("folio_zero_user") || has("clear_huge_page") {
            // `clear_gigantic_page` ignores where the fault was.
            (Strategy::PagesConverging, Strategy::PagesForward)
        } else {
            return None;
        };
        // Without THP no anonymous page is huge.
        let allocator_clears = facts.init_on_alloc.on == Some(true) && facts.thp.is_some();
        let allocator = allocator_clears.then(|| {
            if has("clear_highpages_kasan_tagged") {
                Strategy::OneRange
            } else {
                Strategy::PagesForward
            }
        });
        Some(Self {
            function,
            function_gigantic,
            allocator,
            allocator_instead: allocator.is_some() && has("vma_alloc_anon_folio_pmd"),
        })
    }
}

impl fmt::Display for Strategies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function;
        match self.allocator {
            None => function.fmt(f),
            Some(allocator) if self.allocator_instead => write!(
                f,
                "anonymous pages in the allocator ({allocator}), hugetlb pages {function}"
            ),
            Some(allocator) => write!(
                f,
                "{function}, and anonymous pages in the allocator before that ({allocator})"
            ),
        }
    }
}
