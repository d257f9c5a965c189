//! Why a workload was refused or failed.

use std::{io, path::PathBuf};

use super::Kind;
use crate::{
    settings,
    units::{format_bytes, format_numbers},
};

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
    #[error("--cpu {cpu} is not online; online CPUs: {}", format_numbers(online))]
    NoSuchCpu {
        /// What was asked for.
        cpu: u32,
        /// What there is.
        online: Vec<u32>,
    },
    /// No such memory node, or it is offline.
    #[error("node {node} is not online; online nodes: {}", format_numbers(online))]
    NoSuchNode {
        /// What was asked for.
        node: u32,
        /// What there is.
        online: Vec<u32>,
    },
    /// A node of memory alone.
    #[error("node {node} has no CPUs to run on; it can be given to --mem-node only")]
    NodeWithoutCpus {
        /// What was asked for.
        node: u32,
    },
    /// An option that means nothing here.
    #[error("{option} is not for `workload {}`; see hugeclear-trace workload --help", kind.as_str())]
    NotForKind {
        /// The option.
        option: &'static str,
        /// The workload.
        kind: Kind,
    },
    /// `zero-page` does not say what to do.
    #[error("zero-page needs --bench compare or stride, and --mapping huge or small")]
    NoBench,
    /// Threads without a page.
    #[error(
        "--threads {threads} is more than the {pages} pages to touch; use a larger --size or fewer threads"
    )]
    TooManyThreads {
        /// What was asked for.
        threads: u32,
        /// Pages touched in one pass.
        pages: u64,
    },
    /// The touch is behind the page.
    #[error("--touch `{}` is not inside a page of `{}`", format_bytes(*offset_bytes), format_bytes(*page_size_bytes))]
    TouchOutside {
        /// What was asked for.
        offset_bytes: u64,
        /// The page size in force.
        page_size_bytes: u64,
    },
    /// The stride would not hit pages at the same place.
    #[error(
        "--stride `{}` is neither a multiple nor a divisor of the page size `{}`, or is larger than the size `{}`",
        format_bytes(*stride_bytes),
        format_bytes(*page_size_bytes),
        format_bytes(*size_bytes)
    )]
    StrideDoesNotFit {
        /// What was asked for.
        stride_bytes: u64,
        /// The page size in force.
        page_size_bytes: u64,
        /// The size in force.
        size_bytes: u64,
    },
    /// The kernel has no such pages at all.
    #[error("this kernel has no {origin}")]
    NotBuiltIn {
        /// Which pages, and why not.
        origin: &'static str,
    },
    /// The kernel has no such call.
    #[error("this kernel has no {call} (since Linux {since}){instead}")]
    NoSuchCall {
        /// The call.
        call: &'static str,
        /// The version that brought it.
        since: &'static str,
        /// What to do, beginning with `; `, or empty.
        instead: &'static str,
    },
    /// Transparent huge pages of that size are switched off.
    #[error("transparent huge pages of `{}` are off; pass --configure, or write {needs} to {}", format_bytes(*page_size_bytes), path.display())]
    ThpOff {
        /// The page size in force.
        page_size_bytes: u64,
        /// The word that switches them on.
        needs: &'static str,
        /// The file that switches them on.
        path: PathBuf,
    },
    /// The huge zero page is switched off.
    #[error("the huge zero page is off; pass --configure, or write 1 to {}", path.display())]
    ZeroPageOff {
        /// The file that switches it on.
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
        "{} are needed, {} are available{}; use a smaller --size",
        format_bytes(needed_bytes.div_ceil(MIB).saturating_mul(MIB)),
        format_bytes(available_bytes / MIB * MIB),
        node.map_or(String::new(), |node| format!(" on node {node}"))
    )]
    NotEnoughMemory {
        /// Bytes one run needs.
        needed_bytes: u64,
        /// `MemAvailable`, or what the node has, bytes.
        available_bytes: u64,
        /// The node that memory must come from, if it must.
        node: Option<u32>,
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
    /// The child of `fork-cow` failed.
    #[error("the child that writes failed: {0}")]
    Child(String),
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
            | Self::NoSuchCpu { .. }
            | Self::NoSuchNode { .. }
            | Self::NodeWithoutCpus { .. }
            | Self::NotForKind { .. }
            | Self::NoBench
            | Self::TooManyThreads { .. }
            | Self::TouchOutside { .. }
            | Self::StrideDoesNotFit { .. } => true,
            Self::NotBuiltIn { .. }
            | Self::NoSuchCall { .. }
            | Self::ThpOff { .. }
            | Self::ZeroPageOff { .. }
            | Self::PoolTooSmall { .. }
            | Self::PoolDidNotGrow { .. }
            | Self::NotEnoughMemory { .. }
            | Self::Signals(_)
            | Self::Read { .. }
            | Self::Settings(_)
            | Self::Child(_)
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
