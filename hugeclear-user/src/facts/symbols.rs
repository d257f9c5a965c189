//! The interesting kernel symbols, and what of them may be probed.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::source::Source;

/// Base names that are looked for, in kallsyms, the ftrace filter and BTF alike: functions that
/// clear or copy huge pages, fault or allocate around them, and the variables that say how.
/// Add a name here to have it in the facts.
pub const INTERESTING: &[&str] = &[
    // clear
    "folio_zero_user",
    "clear_huge_page",
    "process_huge_page",
    "clear_gigantic_page",
    "clear_contig_highpages",
    "clear_subpage",
    "clear_page_erms",
    "__clear_pages_unrolled",
    // clear in the page allocator
    "clear_highpages_kasan_tagged",
    "kernel_init_pages",
    "kernel_init_free_pages",
    "post_alloc_hook",
    // allocate
    "alloc_pages_vma",
    "vma_alloc_folio",
    "vma_alloc_folio_noprof",
    "vma_alloc_anon_folio_pmd",
    "alloc_huge_page",
    "alloc_hugetlb_folio",
    "mm_get_huge_zero_folio",
    "mm_get_huge_zero_page",
    "memfd_alloc_folio",
    "hugetlbfs_fallocate",
    "get_page_from_freelist",
    "try_to_compact_pages",
    "try_to_free_pages",
    "try_to_free_mem_cgroup_pages",
    // fault
    "do_huge_pmd_anonymous_page",
    "do_huge_pmd_wp_page",
    "do_anonymous_page",
    "hugetlb_fault",
    "hugetlb_no_page",
    "handle_mm_fault",
    // copy
    "copy_user_huge_page",
    "copy_user_large_folio",
    // reschedule
    "__cond_resched",
    "_cond_resched",
    // state
    "sched_dynamic_update",
    "preempt_dynamic_mode",
    "init_on_alloc",
    "init_on_free",
    "huge_zero_folio",
    "huge_zero_page",
    "vm_event_states",
    "__per_cpu_offset",
];

/// What kallsyms, ftrace and kprobes say of the interesting symbols.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbols {
    /// Whether `/proc/kallsyms` could be read.
    pub read: bool,
    /// Whether the kernel showed zeros for addresses (`kernel.kptr_restrict`, no `CAP_SYSLOG`).
    pub addresses_hidden: bool,
    /// Interesting symbols of the kernel proper in the order of kallsyms; a name may come twice.
    pub symbols: Vec<Symbol>,
    /// Full names that ftrace can hook. `None`: the list could not be read.
    /// Source: `available_filter_functions` in tracefs.
    pub traceable: Option<Vec<String>>,
    /// Full names that kprobes refuse. `None`: the list could not be read.
    /// Source: `kprobes/blacklist` in debugfs.
    pub blacklisted: Option<Vec<String>>,
}

/// One entry of kallsyms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// Full name with the compiler's suffix, e.g. `clear_huge_page.isra.0`.
    pub name: String,
    /// Address; `None` if hidden.
    pub address: Option<u64>,
    /// Type letter of kallsyms. Do not rely on it: `preempt_dynamic_mode`, a variable, is `T` since
    /// 6.18.
    pub kind: char,
}

impl Symbol {
    /// The name before the compiler's suffix.
    pub fn base(&self) -> &str {
        base(&self.name)
    }

    /// The compiler's suffix with its dot (`.isra.0`), or nothing.
    pub fn suffix(&self) -> &str {
        &self.name[self.base().len()..]
    }

    /// Whether this is a split-off cold part, not a function of its own.
    pub fn is_cold(&self) -> bool {
        self.suffix().split('.').any(|part| part == "cold")
    }
}

impl Symbols {
    /// Whether there is a symbol of exactly this name.
    pub fn has(&self, name: &str) -> bool {
        self.named(name).next().is_some()
    }

    /// All symbols of exactly this full name: more than one is a duplicate, not to be probed by
    /// name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Symbol> {
        self.symbols
            .iter()
            .filter(move |symbol| symbol.name == name)
    }

    /// All symbols of this base name that are functions of their own (no `.cold` parts).
    pub fn variants<'a>(&'a self, base: &'a str) -> impl Iterator<Item = &'a Symbol> {
        self.symbols
            .iter()
            .filter(move |symbol| symbol.base() == base && !symbol.is_cold())
    }

    /// Address of the only symbol of this name; `None` if absent, ambiguous or hidden.
    pub fn address(&self, name: &str) -> Option<u64> {
        let mut named = self.named(name);
        match (named.next(), named.next()) {
            (Some(symbol), None) => symbol.address,
            (None | Some(_), _) => None,
        }
    }

    /// Whether ftrace can hook the function; `None` if the list could not be read.
    pub fn traceable(&self, name: &str) -> Option<bool> {
        Some(
            self.traceable
                .as_ref()?
                .iter()
                .any(|traceable| traceable == name),
        )
    }

    /// Whether kprobes refuse the function; `None` if the list could not be read.
    pub fn blacklisted(&self, name: &str) -> Option<bool> {
        Some(
            self.blacklisted
                .as_ref()?
                .iter()
                .any(|blacklisted| blacklisted == name),
        )
    }

    pub(super) fn read(
        source: &mut Source,
        tracefs: Option<&Path>,
        debugfs: Option<&Path>,
    ) -> Self {
        let interesting: BTreeSet<&[u8]> = INTERESTING.iter().map(|name| name.as_bytes()).collect();
        let mut symbols = Vec::new();
        let mut addresses_hidden = true;
        let read = each_line(source, Path::new("proc/kallsyms"), |line| {
            let Some((address, kind, name)) = kallsyms_line(line) else {
                // The kernel's own symbols come first; modules and BPF follow, marked [so].
                return !line.contains(&b'[');
            };
            addresses_hidden &= address.iter().all(|digit| *digit == b'0');
            if interesting.contains(base_bytes(name)) {
                symbols.extend(symbol(address, kind, name));
            }
            true
        });
        let mut names = |directory: Option<&Path>, usual: &str, file: &str, field: usize| {
            let Some(directory) = directory else {
                source.note(
                    Path::new(usual).join(file),
                    &"its file system is not mounted",
                );
                return None;
            };
            let path = directory.join(file);
            let mut found = BTreeSet::new();
            each_line(source, &path, |line| {
                let name = line
                    .split(u8::is_ascii_whitespace)
                    .nth(field)
                    .unwrap_or_default();
                if interesting.contains(base_bytes(name)) {
                    found.insert(String::from_utf8_lossy(name).into_owned());
                }
                true
            })
            .then(|| found.into_iter().collect())
        };
        Self {
            read,
            addresses_hidden: read && addresses_hidden,
            traceable: names(
                tracefs,
                "sys/kernel/tracing",
                "available_filter_functions",
                0,
            ),
            blacklisted: names(debugfs, "sys/kernel/debug", "kprobes/blacklist", 1),
            symbols,
        }
    }
}

/// Calls `each` with address and name of every symbol of the kernel proper; whether kallsyms could be
/// read. Hidden addresses are 0.
pub(super) fn each_symbol(source: &mut Source, mut each: impl FnMut(u64, &str)) -> bool {
    each_line(source, Path::new("proc/kallsyms"), |line| {
        let Some((address, kind, name)) = kallsyms_line(line) else {
            return !line.contains(&b'[');
        };
        if let Some(symbol) = symbol(address, kind, name) {
            each(symbol.address.unwrap_or(0), &symbol.name);
        }
        true
    })
}

/// Address, type letter and name of a line of kallsyms; `None` for a module's symbol or noise.
pub(super) fn kallsyms_line(line: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let (address, rest) = line.split_at(space);
    let [b' ', kind, b' ', name @ ..] = rest else {
        return None;
    };
    let plain = !name.is_empty() && !name.iter().any(u8::is_ascii_whitespace);
    plain.then_some((address, *kind, name))
}

fn symbol(address: &[u8], kind: u8, name: &[u8]) -> Option<Symbol> {
    let address = u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok()?;
    Some(Symbol {
        name: std::str::from_utf8(name).ok()?.to_owned(),
        address: (address != 0).then_some(address),
        kind: char::from(kind),
    })
}

/// Calls `each` with every line until it answers `false`; whether the file could be read.
fn each_line(source: &mut Source, path: &Path, each: impl FnMut(&[u8]) -> bool) -> bool {
    const BUFFER: usize = 1 << 16;
    let Some(file) = source.open(path) else {
        return false;
    };
    match for_each_line(BufReader::with_capacity(BUFFER, file), each) {
        Ok(()) => true,
        Err(error) => {
            source.note(path, &error);
            false
        }
    }
}

/// Calls `each` with every line until it answers `false`.
/// One buffer for all lines: these files have over 100,000 of them.
pub(super) fn for_each_line(
    mut reader: impl BufRead,
    mut each: impl FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 || !each(line.trim_ascii_end()) {
            return Ok(());
        }
    }
}

fn base(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn base_bytes(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == b'.').next().unwrap_or(name)
}
