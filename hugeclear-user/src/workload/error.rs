//! Why a workload was refused or failed.

use std::{io, path::PathBuf};

use super::Kind;
use crate::{settings, units::format_bytes};

/// Memory is compared in whole MiB for people: what is needed rounded up, what there is down.
const MIB: u64 = 1 << 20;

/// One line each: what, why, what to do. The kernel's answer is in the line and not a `source` beside
/// it, so that printing the chain of errors does not say it twice.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to do.
    #[error("--size is 0; nothing would be touched")]
    ZeroSize,
    /// The size is not whole pages.
    #[error(
        "--size `{}` is not a multiple of the page size `{}`; the next one is `{}`",
        format_bytes(*size_bytes),
        format_bytes(*page_size_bytes),
        format_bytes(size_bytes.div_ceil(*page_size_bytes).saturating_mul(*page_size_bytes))
    )]
    NotWholePages {
        /// What was asked for.
        size_bytes: u64,
        /// The page size in force.
        page_size_bytes: u64,
    },
    /// The kernel offers no such huge page.
    #[error("no {} pages of `{}` on this kernel; there are: {}", kind.as_str(), format_bytes(*page_size_bytes), list(offered))]
    NoSuchPageSize {
        /// Where the page should come from.
        kind: Kind,
        /// What was asked for.
        page_size_bytes: u64,
        /// What there is, in bytes.
        offered: Vec<u64>,
    },
    /// No such CPU, or it is offline.
    #[error("--cpu {cpu} is not online; online CPUs: {}", ranges(online))]
    NoSuchCpu {
        /// What was asked for.
        cpu: u32,
        /// What there is.
        online: Vec<u32>,
    },
    /// The kernel has no such pages at all.
    #[error("this kernel has no {}", match kind {
        Kind::Thp => "transparent huge pages (not built in, as with PREEMPT_RT); use `workload hugetlb`",
        Kind::Hugetlb => "hugetlb pages (CONFIG_HUGETLBFS is off); use `workload thp`",
    })]
    NotBuiltIn {
        /// What was asked for.
        kind: Kind,
    },
    /// Transparent huge pages of that size are switched off.
    #[error("transparent huge pages of `{}` are off; pass --configure, or write madvise to {}", format_bytes(*page_size_bytes), path.display())]
    ThpOff {
        /// The page size in force.
        page_size_bytes: u64,
        /// The file that switches them on.
        path: PathBuf,
    },
    /// Not enough free pages in the hugetlb pool.
    #[error("the pool of `{}` pages has {available} to spare, {needed} are needed; pass --configure, or write {total_needed} to {}", format_bytes(*page_size_bytes), path.display())]
    PoolTooSmall {
        /// The page size in force.
        page_size_bytes: u64,
        /// Pages neither used nor reserved.
        available: u64,
        /// Pages one run needs.
        needed: u64,
        /// What the whole pool would have to be, in pages.
        total_needed: u64,
        /// The file that grows it.
        path: PathBuf,
    },
    /// The pool did not grow to what was asked.
    #[error("the pool of `{}` pages grew to {got} of {wanted}: not enough free memory in one piece; free memory, or reserve at boot with hugepagesz={} hugepages={wanted}", format_bytes(*page_size_bytes), format_bytes(*page_size_bytes))]
    PoolDidNotGrow {
        /// The page size in force.
        page_size_bytes: u64,
        /// Pages in the pool after the attempt.
        got: String,
        /// Pages asked for.
        wanted: String,
    },
    /// More memory than there is.
    #[error(
        "{} are needed, {} are available; use a smaller --size",
        format_bytes(needed_bytes.div_ceil(MIB).saturating_mul(MIB)),
        format_bytes(available_bytes / MIB * MIB)
    )]
    NotEnoughMemory {
        /// Bytes one run needs.
        needed_bytes: u64,
        /// `MemAvailable`, bytes.
        available_bytes: u64,
    },
    /// The handlers that let a signal end the run in order could not be set.
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
    /// A file of the machine could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// A setting could not be changed or put back.
    #[error(transparent)]
    Settings(#[from] settings::Error),
    /// A system call failed.
    #[error("{call} of {what} failed: {error}{hint}")]
    SystemCall {
        /// The call.
        call: &'static str,
        /// What it was to do.
        what: String,
        /// The kernel's answer.
        error: nix::Error,
        /// The usual cause and what to do, beginning with `; `, or empty.
        hint: &'static str,
    },
}

impl Error {
    /// Whether what was asked for cannot be on this machine (exit status 2), rather than has failed
    /// or needs a setting changed (1).
    pub fn usage(&self) -> bool {
        match self {
            Self::ZeroSize
            | Self::NotWholePages { .. }
            | Self::NoSuchPageSize { .. }
            | Self::NoSuchCpu { .. } => true,
            Self::NotBuiltIn { .. }
            | Self::ThpOff { .. }
            | Self::PoolTooSmall { .. }
            | Self::PoolDidNotGrow { .. }
            | Self::NotEnoughMemory { .. }
            | Self::Signals(_)
            | Self::Read { .. }
            | Self::Settings(_)
            | Self::SystemCall { .. } => false,
        }
    }
}

fn list(sizes: &[u64]) -> String {
    sizes
        .iter()
        .map(|bytes| format_bytes(*bytes))
        .collect::<Vec<_>>()
        .join(", ")
}

/// `0-3,6` of ascending numbers.
fn ranges(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            Some(_) | None => ranges.push((*number, *number)),
        }
    }
    let words: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_short() {
        assert_eq!(ranges(&[0, 1, 2, 3, 6]), "0-3,6");
        assert_eq!(ranges(&[0]), "0");
        assert_eq!(ranges(&[]), "");
    }
}
