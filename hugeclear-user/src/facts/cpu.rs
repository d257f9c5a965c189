//! The processor: model, the flags that decide how a page is cleared, and counts.

use serde::{Deserialize, Serialize};

use super::source::{Source, number_list};

/// Flags of `/proc/cpuinfo` that matter for clearing memory, x86 then arm64: string stores
/// (`rep stosb/q` and their fast forms), line zeroing, wide and non-temporal stores, 1G pages.
const FLAGS: &[&str] = &[
    "rep_good",
    "erms",
    "fsrm",
    "fzrm",
    "clzero",
    "sse2",
    "avx",
    "avx2",
    "avx512f",
    "movdiri",
    "movdir64b",
    "pse",
    "pdpe1gb",
    "la57",
    "hypervisor",
    "asimd",
    "sve",
    "sve2",
    "mops",
    "mte",
];

/// Processor facts. All processors are taken to be alike; the first one is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Model name, e.g. `AMD EPYC 9354`; on arm64 implementer and part numbers.
    pub model: Option<String>,
    /// `vendor_id` (x86) or implementer number (arm64).
    pub vendor: Option<String>,
    /// Those of the flags relevant to clearing that this processor has.
    pub flags: Vec<String>,
    /// Online CPUs. Source: `/sys/devices/system/cpu/online`.
    pub online: Vec<u32>,
    /// Number of possible CPUs: what per-CPU maps are sized by.
    /// `None` if unreadable. Source: `/sys/devices/system/cpu/possible`.
    pub possible: Option<u32>,
}

impl Cpu {
    /// Whether the processor has this flag, as far as we look for it.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    pub(super) fn read(source: &mut Source) -> Self {
        let cpuinfo = source.text("proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let implementer = field("CPU implementer");
        let part = field("CPU part");
        let flags = field("flags")
            .or_else(|| field("Features"))
            .unwrap_or_default();
        Self {
            model: field("model name").or_else(|| {
                Some(format!(
                    "implementer {} part {}",
                    implementer.as_deref()?,
                    part?
                ))
            }),
            vendor: field("vendor_id").or(implementer),
            flags: flags
                .split_whitespace()
                .filter(|flag| FLAGS.contains(flag))
                .map(str::to_owned)
                .collect(),
            online: list(source, "sys/devices/system/cpu/online").unwrap_or_default(),
            possible: list(source, "sys/devices/system/cpu/possible")
                .and_then(|cpus| u32::try_from(cpus.len()).ok()),
        }
    }
}

/// A CPU list file; failures are noted.
pub(crate) fn list(source: &mut Source, path: &str) -> Option<Vec<u32>> {
    let text = source.text(path)?;
    let numbers = number_list(&text);
    if numbers.is_none() {
        source.note(path, &format!("`{text}` is not a list of CPUs"));
    }
    numbers
}

/// Bytes of a base page.
pub(crate) fn page_size_bytes(source: &mut Source) -> u64 {
    const WORD: usize = size_of::<usize>();
    let from_auxv = source.bytes("proc/self/auxv").and_then(|auxv| {
        auxv.chunks_exact(2 * WORD).find_map(|entry| {
            let (key, value) = entry.split_at(WORD);
            let word = |bytes: &[u8]| bytes.try_into().map(usize::from_ne_bytes).ok();
            (word(key)? as u64 == libc::AT_PAGESZ).then(|| word(value))?
        })
    });
    match from_auxv {
        Some(bytes) => bytes as u64,
        None => nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
            .and_then(|bytes| u64::try_from(bytes).ok())
            .expect("sysconf(_SC_PAGESIZE) always answers on Linux"),
    }
}
