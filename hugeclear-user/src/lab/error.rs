//! Why the lab was refused or failed.

use std::path::PathBuf;

use super::strategy::PAGE_BYTES;
use crate::{units::format_bytes, workload};

/// One line each: what, why, what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to do.
    #[error("{option} is 0; nothing would be cleared")]
    Zero {
        /// The option.
        option: &'static str,
    },
    /// A size is not whole pages.
    #[error(
        "{option} `{}` is not a multiple of `{}`; the next one is `{}`",
        format_bytes(*bytes),
        format_bytes(PAGE_BYTES as u64),
        format_bytes(bytes.div_ceil(PAGE_BYTES as u64).saturating_mul(PAGE_BYTES as u64))
    )]
    NotWholePages {
        /// The option.
        option: &'static str,
        /// What was asked for.
        bytes: u64,
    },
    /// The fault cannot be there.
    #[error("--touch, for --size `{}`: {why}", format_bytes(*size_bytes))]
    Touch {
        /// The region.
        size_bytes: u64,
        /// Why.
        why: String,
    },
    /// No such CPU, or it is offline.
    #[error("--cpu {cpu} is not online; online CPUs: {online:?}")]
    NoSuchCpu {
        /// What was asked for.
        cpu: u32,
        /// What there is.
        online: Vec<u32>,
    },
    /// The processor has no such instructions.
    #[error("--primitive {name}: {why}; without --primitive those are used that it has")]
    Missing {
        /// What was asked for.
        name: &'static str,
        /// Why.
        why: &'static str,
    },
    /// All chunks are as large as the region.
    #[error("--strategy leaves nothing to do: no --chunk is smaller than --size `{}`", format_bytes(*size_bytes))]
    NoStrategy {
        /// The region.
        size_bytes: u64,
    },
    /// More memory than there is.
    #[error(
        "--size `{}` does not fit: `{}` are available; use a smaller --size",
        format_bytes(*needed_bytes),
        format_bytes(available_bytes >> 20 << 20)
    )]
    NotEnoughMemory {
        /// The region.
        needed_bytes: u64,
        /// `MemAvailable`, bytes.
        available_bytes: u64,
    },
    /// No pool has enough free pages.
    #[error(
        "--backing hugetlb: the pool of `{}` pages has {available} to spare, {needed} are needed; write {total_needed} to {}, or use --backing thp",
        format_bytes(*page_size_bytes),
        path.display()
    )]
    PoolTooSmall {
        /// Bytes of one page.
        page_size_bytes: u64,
        /// Pages neither used nor reserved.
        available: u64,
        /// Pages of the region.
        needed: u64,
        /// What the whole pool would have to be, in pages.
        total_needed: u64,
        /// The file that grows it.
        path: PathBuf,
    },
    /// The kernel has no pool.
    #[error("--backing hugetlb: this kernel has no hugetlb pages; use --backing thp")]
    NoHugetlb,
    /// A primitive did not do what it is for.
    #[error(
        "{strategy} with {primitive} left byte {offset} of the region not zero; this is a bug, please report it"
    )]
    NotCleared {
        /// The strategy.
        strategy: String,
        /// The primitive.
        primitive: &'static str,
        /// Of the first such byte.
        offset: usize,
    },
    /// The handlers that let a signal end the lab in order could not be set.
    #[error("cannot catch signals: {0}")]
    Signals(std::io::Error),
    /// Memory or a file of the machine could not be had.
    #[error(transparent)]
    Memory(#[from] workload::Error),
}

impl Error {
    /// Whether what was asked for cannot be on this machine (exit status 2), rather than has failed
    /// or needs something changed (1).
    pub fn usage(&self) -> bool {
        match self {
            Self::Zero { .. }
            | Self::NotWholePages { .. }
            | Self::Touch { .. }
            | Self::NoSuchCpu { .. }
            | Self::Missing { .. }
            | Self::NoStrategy { .. } => true,
            Self::NotEnoughMemory { .. }
            | Self::PoolTooSmall { .. }
            | Self::NoHugetlb
            | Self::NotCleared { .. }
            | Self::Signals(_)
            | Self::Memory(_) => false,
        }
    }
}
