//! The key of a clear: what its aggregate is kept by.
//!
//! A key is packed into a few bits, so that the kernel side finds the block of a key with one load
//! from a table ([`BlockTable`]) instead of a hash look-up. User space fills the table before the
//! load, from the sites, page sizes and preemption models that exist on the machine. Further
//! dimensions (cause, nodes, comm, cgroup) belong here: more bits, chosen at load.

/// Where the kernel clears, or copies, a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "user",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[repr(u8)]
pub enum Site {
    /// `folio_zero_user` (mm/memory.c, since 6.11).
    FolioZeroUser = 0,
    /// `clear_huge_page` (mm/memory.c, until 6.10).
    ClearHugePage = 1,
    /// `process_huge_page` (mm/memory.c), where its callers are inlined.
    ProcessHugePage = 2,
    /// `clear_gigantic_page` (mm/memory.c), where its caller is inlined.
    ClearGiganticPage = 3,
    /// The page allocator (mm/page_alloc.c), under `init_on_alloc` or `__GFP_ZERO`.
    Allocator = 4,
}

impl Site {
    /// Every site, in the order of its number.
    pub const ALL: [Self; 5] = [
        Self::FolioZeroUser,
        Self::ClearHugePage,
        Self::ProcessHugePage,
        Self::ClearGiganticPage,
        Self::Allocator,
    ];

    /// The name in output: the kernel's name of the function, or of the mechanism.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FolioZeroUser => "folio_zero_user",
            Self::ClearHugePage => "clear_huge_page",
            Self::ProcessHugePage => "process_huge_page",
            Self::ClearGiganticPage => "clear_gigantic_page",
            Self::Allocator => "allocator",
        }
    }
}

const MODEL_BITS: u32 = 3;
const ORDER_BITS: u32 = 5;
const SITE_BITS: u32 = 3;

/// How many packed keys there can be.
pub const KEYS: usize = 1 << (SITE_BITS + ORDER_BITS + MODEL_BITS);

/// The largest order a key can hold; the largest folio of any architecture (16 GiB in 4 KiB pages)
/// has order 22.
pub const MAX_ORDER: u32 = (1 << ORDER_BITS) - 1;

/// Packs `site`, `order` (log2 of the folio's base pages) and `model` (a
/// [`crate::preempt::PreemptModel`] as a number).
#[must_use]
#[inline(always)]
pub const fn pack(site: u32, order: u32, model: u32) -> u32 {
    (site << (ORDER_BITS + MODEL_BITS)) | (order << MODEL_BITS) | model
}

/// For each packed key the number of its block, or [`OTHER`], or [`UNSELECTED`].
pub type BlockTable = [u8; KEYS];

/// The block that takes every selected clear whose key has no block of its own.
pub const OTHER: u32 = 0;

/// In place of a block: clears of this key are not to be recorded. All keys of order 0, and those of
/// sizes that the user left out.
pub const UNSELECTED: u32 = u8::MAX as u32;

/// The most blocks that a table can name, [`OTHER`] included.
pub const MAX_BLOCKS: usize = u8::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preempt::PreemptModel;

    #[test]
    fn keys_are_distinct_and_in_range() {
        let mut seen = std::collections::HashSet::new();
        for site in Site::ALL {
            for order in 0..=MAX_ORDER {
                for model in PreemptModel::ALL {
                    let key = pack(site as u32, order, model as u32);
                    assert!((key as usize) < KEYS);
                    assert!(seen.insert(key));
                }
            }
        }
    }
}
