//! What is known when parts of a machine cannot be read.

use std::{fs, path::PathBuf};

use super::{super::*, tree};

#[test]
fn nothing_is_known_of_an_empty_tree_and_that_is_said() {
    let root = tempfile::tempdir().unwrap();
    let facts = Facts::read(root.path());
    assert_eq!(facts.release, "");
    assert_eq!(facts.preempt.model, PreemptModel::Unknown);
    assert_eq!(facts.init_on_alloc.on, None);
    assert_eq!(facts.thp, None);
    assert_eq!(facts.hugetlb, []);
    assert_eq!(facts.kprobes, None);
    assert_eq!(facts.strategies(), None);
    assert!(!facts.btf.present && !facts.symbols.read);
    for path in [
        "/proc/sys/kernel/osrelease",
        "/proc/kallsyms",
        "/proc/kcore",
        "/dev/kmsg",
    ] {
        assert!(
            facts.unread.iter().any(|unread| unread.path == path),
            "{path} is noted"
        );
    }
}

/// A tree with one file changed, which may not be there (`None` removes it).
fn changed(name: &str, changes: &[(&str, Option<&str>)]) -> Facts {
    let root = tree(name);
    for (path, content) in changes {
        let path: PathBuf = root.path().join(path);
        match content {
            Some(content) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            None => fs::remove_file(path).unwrap(),
        }
    }
    Facts::read(root.path())
}

#[test]
fn the_preemption_model_falls_back_in_order() {
    const DEBUGFS: &str = "sys/kernel/debug/sched/preempt";
    const CONFIG: &str = "boot/config-6.18.15+deb13-cloud-amd64";
    let no_debugfs = (DEBUGFS, None);
    for (changes, model, source) in [
        (
            vec![(DEBUGFS, Some("none voluntary (full) lazy "))],
            PreemptModel::Full,
            "/sys/kernel/debug/sched/preempt",
        ),
        (
            vec![
                no_debugfs,
                ("proc/cmdline", Some("quiet preempt=none preempt=full")),
            ],
            PreemptModel::Full,
            "preempt= on the kernel command line (may have been switched since)",
        ),
        (
            vec![
                no_debugfs,
                (
                    CONFIG,
                    Some("CONFIG_PREEMPT_LAZY=y\nCONFIG_PREEMPT_DYNAMIC=y\n"),
                ),
            ],
            PreemptModel::Lazy,
            "CONFIG_PREEMPT_LAZY in /boot/config-6.18.15+deb13-cloud-amd64 (the default; may have been switched since)",
        ),
        (
            vec![no_debugfs],
            PreemptModel::Unknown,
            "PREEMPT_DYNAMIC in uname -v, but neither kernel memory nor debugfs can be read",
        ),
        (
            vec![
                no_debugfs,
                ("proc/sys/kernel/version", Some("#1 SMP PREEMPT Debian")),
            ],
            PreemptModel::Full,
            "PREEMPT in uname -v",
        ),
        (
            vec![
                no_debugfs,
                ("proc/sys/kernel/version", Some("#1 SMP Debian")),
            ],
            PreemptModel::NoneOrVoluntary,
            "no PREEMPT in uname -v, and no config file",
        ),
        (
            vec![("sys/kernel/realtime", Some("1"))],
            PreemptModel::Rt,
            "/sys/kernel/realtime",
        ),
    ] {
        let preempt = changed("6.18", &changes).preempt;
        assert_eq!(
            (preempt.model, preempt.source.as_str()),
            (model, source),
            "{changes:?}"
        );
    }
}

#[test]
fn init_on_alloc_falls_back_in_order() {
    let no_log = ("dev/kmsg", None);
    for (changes, on, source) in [
        (vec![], Some(true), "boot log, mem auto-init: heap alloc:on"),
        (
            vec![
                no_log,
                ("proc/cmdline", Some("init_on_alloc=1 init_on_alloc=off")),
            ],
            Some(false),
            "init_on_alloc=off on the kernel command line",
        ),
        (
            vec![
                no_log,
                (
                    "boot/config-7.3.4+deb13-cloud-amd64",
                    Some("CONFIG_INIT_ON_ALLOC_DEFAULT_ON=y\n"),
                ),
            ],
            Some(true),
            "CONFIG_INIT_ON_ALLOC_DEFAULT_ON in /boot/config-7.3.4+deb13-cloud-amd64",
        ),
        (
            vec![no_log],
            None,
            "static key, boot log and config file unreadable, not on the command line",
        ),
    ] {
        let switch = changed("7.3", &changes).init_on_alloc;
        assert_eq!(
            (switch.on, switch.source.as_str()),
            (on, source),
            "{changes:?}"
        );
    }
}

#[test]
fn hidden_addresses_are_a_fact() {
    let hidden = "0000000000000000 T folio_zero_user\n0000000000000000 d preempt_dynamic_mode\n";
    let facts = changed("7.3", &[("proc/kallsyms", Some(hidden))]);
    assert!(facts.symbols.addresses_hidden);
    assert!(facts.symbols.has("folio_zero_user"));
    assert_eq!(facts.symbols.address("folio_zero_user"), None);
    assert_eq!(facts.preempt.mode_symbol_address, None);
}

#[test]
fn duplicates_have_no_address_and_modules_do_not_count() {
    let text = "ffffffff81000000 t clear_huge_page\nffffffff81000100 t clear_huge_page\n\
                ffffffff81000200 t folio_zero_user.isra.0\nffffffffc0000000 t hugetlb_fault\t[module]\n";
    let symbols = changed("7.3", &[("proc/kallsyms", Some(text))]).symbols;
    assert_eq!(symbols.named("clear_huge_page").count(), 2);
    assert_eq!(symbols.address("clear_huge_page"), None);
    assert!(!symbols.has("folio_zero_user"));
    assert_eq!(
        symbols
            .variants("folio_zero_user")
            .next()
            .map(Symbol::suffix),
        Some(".isra.0")
    );
    assert!(!symbols.has("hugetlb_fault"));
}

/// `/proc/kcore` as the kernel lays it out: header, segment table, then memory.
#[test]
fn kernel_memory_is_read_at_a_symbols_address() {
    let root = tree("7.3");
    let symbols = Facts::read(root.path()).symbols;
    let address = symbols.address("preempt_dynamic_mode").unwrap();
    let alloc = symbols.address("init_on_alloc").unwrap();
    let start = address.min(alloc);
    let length = address.max(alloc) + 8 - start;
    const OFFSET: u64 = 64 + 56;
    let mut kcore = Vec::new();
    kcore.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    kcore.extend(4_u16.to_le_bytes()); // ET_CORE
    kcore.extend(62_u16.to_le_bytes()); // EM_X86_64
    kcore.extend(1_u32.to_le_bytes());
    kcore.extend([0; 8]); // e_entry
    kcore.extend(64_u64.to_le_bytes()); // e_phoff
    kcore.extend([0; 8 + 4]); // e_shoff, e_flags
    for half in [64_u16, 56, 1, 0, 0, 0] {
        kcore.extend(half.to_le_bytes()); // e_ehsize, e_phentsize, e_phnum, e_sh*
    }
    kcore.extend(1_u32.to_le_bytes()); // PT_LOAD
    kcore.extend(7_u32.to_le_bytes());
    for word in [OFFSET, start, 0, length, length, 4096] {
        kcore.extend(word.to_le_bytes());
    }
    kcore.resize(usize::try_from(OFFSET + length).unwrap(), 0);
    let put = |kcore: &mut Vec<u8>, at: u64, value: i32| {
        let at = usize::try_from(OFFSET + at - start).unwrap();
        kcore[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    put(&mut kcore, address, 2);
    put(&mut kcore, alloc, 0);
    fs::write(root.path().join("proc/kcore"), kcore).unwrap();

    let facts = Facts::read(root.path());
    assert_eq!(facts.preempt.model, PreemptModel::Full);
    assert_eq!(
        facts.preempt.source,
        "preempt_dynamic_mode in kernel memory"
    );
    assert_eq!(facts.init_on_alloc.on, Some(false));
    assert_eq!(
        facts.init_on_alloc.source,
        "static key init_on_alloc in kernel memory"
    );
    let memory = KernelMemory::open(root.path()).unwrap();
    assert_eq!(
        memory.read_u32(start - 4).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
}
