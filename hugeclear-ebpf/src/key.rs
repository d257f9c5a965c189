//! What an aggregate is kept by.
//!
//! The key that is always there (site, order, preemption model) is packed into a few bits, so that
//! the kernel side finds the block of a clear with one load from a table ([`BlockTable`]) instead of
//! a hash look-up. User space fills the table before the load, from the sites, page sizes and
//! preemption models that exist on the machine. Whatever else a user asks for makes a [`CellKey`],
//! which is looked up in a hash map.

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
    /// `copy_user_huge_page` (mm/memory.c, until 6.3): a copy, not a clear.
    CopyUserHugePage = 5,
    /// `copy_user_large_folio` (mm/memory.c, since 6.4): a copy, not a clear.
    CopyUserLargeFolio = 6,
}

impl Site {
    /// Every site, in the order of its number.
    pub const ALL: [Self; 7] = [
        Self::FolioZeroUser,
        Self::ClearHugePage,
        Self::ProcessHugePage,
        Self::ClearGiganticPage,
        Self::Allocator,
        Self::CopyUserHugePage,
        Self::CopyUserLargeFolio,
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
            Self::CopyUserHugePage => "copy_user_huge_page",
            Self::CopyUserLargeFolio => "copy_user_large_folio",
        }
    }

    /// Whether pages are copied there, not cleared.
    #[must_use]
    pub const fn copies(self) -> bool {
        match self {
            Self::CopyUserHugePage | Self::CopyUserLargeFolio => true,
            Self::FolioZeroUser
            | Self::ClearHugePage
            | Self::ProcessHugePage
            | Self::ClearGiganticPage
            | Self::Allocator => false,
        }
    }
}

/// Why a page was cleared or copied: the function around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "user",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[repr(u8)]
pub enum Cause {
    /// A fault of an anonymous page of PMD size (`do_huge_pmd_anonymous_page`).
    ThpFault = 1,
    /// A fault of an anonymous page of any other size (`do_anonymous_page`).
    MthpFault = 2,
    /// A fault in hugetlb memory (`hugetlb_fault`).
    HugetlbFault = 3,
    /// The huge zero page, once per boot (`mm_get_huge_zero_folio`).
    HugeZeroPage = 4,
    /// `fallocate` of a hugetlb file (`hugetlbfs_fallocate`).
    Fallocate = 5,
    /// Pages of a hugetlb memfd that are pinned before they are faulted (`memfd_alloc_folio`).
    Memfd = 6,
    /// Inside none of these.
    Other = 7,
}

impl Cause {
    /// Every cause, in the order of its number; 0 is a cause that was not looked for.
    pub const ALL: [Self; 7] = [
        Self::ThpFault,
        Self::MthpFault,
        Self::HugetlbFault,
        Self::HugeZeroPage,
        Self::Fallocate,
        Self::Memfd,
        Self::Other,
    ];

    /// The name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ThpFault => "thp-fault",
            Self::MthpFault => "mthp-fault",
            Self::HugetlbFault => "hugetlb-fault",
            Self::HugeZeroPage => "huge-zero-page",
            Self::Fallocate => "fallocate",
            Self::Memfd => "memfd",
            Self::Other => "other",
        }
    }
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "user",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[repr(u8)]
pub enum Outcome {
    /// A huge page was mapped.
    Mapped = 1,
    /// The huge zero page was mapped: a read of memory never written.
    ZeroPage = 2,
    /// A huge page was copied (private hugetlb memory after a fork).
    Copied = 3,
    /// Small pages instead: none of the size could be allocated.
    FallbackAlloc = 4,
    /// Small pages instead: the memory cgroup's limit (`thp_fault_fallback_charge`).
    FallbackCharge = 5,
    /// Small pages instead: the mapping has no room for an aligned huge page there.
    FallbackVma = 6,
    /// Small pages instead: it cannot be told why.
    FallbackUnknown = 7,
    /// Neither: out of memory, pool empty, or to be retried.
    Failed = 8,
}

impl Outcome {
    /// Every outcome, in the order of its number.
    pub const ALL: [Self; 8] = [
        Self::Mapped,
        Self::ZeroPage,
        Self::Copied,
        Self::FallbackAlloc,
        Self::FallbackCharge,
        Self::FallbackVma,
        Self::FallbackUnknown,
        Self::Failed,
    ];

    /// The name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::ZeroPage => "zero-page",
            Self::Copied => "copied",
            Self::FallbackAlloc => "fallback-alloc",
            Self::FallbackCharge => "fallback-charge",
            Self::FallbackVma => "fallback-vma",
            Self::FallbackUnknown => "fallback-unknown",
            Self::Failed => "failed",
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

/// In place of a site: the aggregate is one of whole faults.
pub const FAULT: u8 = 64;

/// In place of a site: the aggregate is one of tasks that waited for a clear to end.
pub const IMPACT: u8 = 65;

/// As [`FAULT`], of writes to the huge zero page: two programs that may preempt each other write no
/// common cell.
pub const WRITE_FAULT: u8 = 66;

/// What is known of a clear, copy or fault beside its times, in one word. All bytes but the first
/// may be 0: not known, or not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dimensions {
    /// A [`Site`] as a number, [`FAULT`], [`IMPACT`] or [`WRITE_FAULT`].
    pub subject: u8,
    /// log2 of the folio's base pages.
    pub order: u8,
    /// A [`crate::preempt::PreemptModel`] as a number.
    pub model: u8,
    /// A [`Cause`] as a number.
    pub cause: u8,
    /// An [`Outcome`] as a number.
    pub outcome: u8,
    /// 1 + the sixteenth of the page in which the fault was.
    pub sixteenth: u8,
    /// 1 + the node of the page's memory.
    pub memory_node: u16,
}

const SIXTEENTH_SHIFT: u32 = 40;
const MEMORY_NODE_SHIFT: u32 = 48;
/// Where [`Dimensions::sixteenth`] is in the word.
pub const SIXTEENTH_MASK: u64 = 0xff << SIXTEENTH_SHIFT;
/// Where [`Dimensions::memory_node`] is in the word.
pub const MEMORY_NODE_MASK: u64 = 0xffff << MEMORY_NODE_SHIFT;

impl Dimensions {
    /// As one word.
    #[must_use]
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        self.subject as u64
            | (self.order as u64) << 8
            | (self.model as u64) << 16
            | (self.cause as u64) << 24
            | (self.outcome as u64) << 32
            | (self.sixteenth as u64) << SIXTEENTH_SHIFT
            | (self.memory_node as u64) << MEMORY_NODE_SHIFT
    }

    /// From the word of [`Self::pack`].
    #[must_use]
    #[inline(always)]
    pub const fn unpack(word: u64) -> Self {
        Self {
            subject: word as u8,
            order: (word >> 8) as u8,
            model: (word >> 16) as u8,
            cause: (word >> 24) as u8,
            outcome: (word >> 32) as u8,
            sixteenth: (word >> SIXTEENTH_SHIFT) as u8,
            memory_node: (word >> MEMORY_NODE_SHIFT) as u16,
        }
    }
}

/// The key of a cell. What was not asked for is 0, and so not told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct CellKey {
    /// [`Dimensions::pack`].
    pub dimensions: u64,
    /// Id of the cgroup (v2): the inode of its directory.
    pub cgroup: u64,
    /// Name of the thread, padded with zero bytes, as two words in memory order.
    pub comm: [u64; 2],
    /// Process (thread group), as the host numbers it.
    pub pid: u32,
    /// CPU on which the clear or fault ended. Always there: a cell is written by one CPU only.
    pub cpu: u32,
}

const _: () = assert!(size_of::<CellKey>() == 40);

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, only integers, no padding (the size is asserted above), any bytes are valid.
unsafe impl aya::Pod for CellKey {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preempt::PreemptModel;

    proptest::proptest! {
        #[test]
        fn dimensions_survive_their_packing(word: u64) {
            proptest::prop_assert_eq!(Dimensions::unpack(word).pack(), word);
        }
    }

    #[test]
    fn numbers_of_sites_are_apart_from_the_other_subjects() {
        for site in Site::ALL {
            assert!(![FAULT, IMPACT, WRITE_FAULT].contains(&(site as u8)));
        }
    }

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
