//! Trees of real machines below `tests/data/facts`, and what the facts read from them must be.
//!
//! One txtar file a kernel (`-- path --` before each file); a name that ends in `.hex` holds the
//! bytes of the file in hexadecimal, one in `.link` the target of a symbolic link.

mod fallbacks;

use std::{fs, os::unix::fs::symlink, path::Path};

use tempfile::TempDir;

use super::*;

/// Every recorded kernel, oldest first.
pub(crate) const NAMES: [&str; 10] = [
    "5.10", "6.1", "6.12", "6.12-rt", "6.18", "6.19", "7.0", "7.2", "7.2-rt", "7.3",
];

/// The recorded tree, laid out in a directory that lives as long as the value.
pub(crate) fn tree(name: &str) -> TempDir {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/facts")
        .join(format!("{name}.txt"));
    let archive =
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let root = tempfile::tempdir().unwrap();
    // What stands before the first marker is a comment.
    for part in format!("\n{archive}").split("\n-- ").skip(1) {
        let (path, content) = part.split_once(" --\n").unwrap();
        let target = |suffix: &str| Some(root.path().join(path.strip_suffix(suffix)?));
        fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
        if let Some(target) = target(".link") {
            symlink(content.trim(), target).unwrap();
        } else if let Some(target) = target(".hex") {
            fs::write(target, hex(content)).unwrap();
        } else {
            fs::write(root.path().join(path), format!("{content}\n")).unwrap();
        }
    }
    root
}

/// The facts of a recorded kernel.
pub(crate) fn facts(name: &str) -> Facts {
    Facts::read(tree(name).path())
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks_exact(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn every_kernel_is_recognised() {
    use PreemptModel::{Full, Lazy, NoneOrVoluntary, Rt, Voluntary};
    for (name, release, model, dynamic) in [
        ("5.10", "5.10.0-32-cloud-amd64", NoneOrVoluntary, None),
        ("6.1", "6.1.0-57-cloud-amd64", Voluntary, None),
        ("6.12", "6.12.117+deb12-cloud-amd64", Voluntary, None),
        ("6.12-rt", "6.12.117+deb12-rt-amd64", Rt, Some(Lazy)),
        ("6.18", "6.18.15+deb13-cloud-amd64", Lazy, None),
        ("6.19", "6.19.14+deb13-cloud-amd64", Lazy, None),
        ("7.0", "7.0.13+deb13-cloud-amd64", Lazy, None),
        ("7.2", "7.2.13+deb14-cloud-amd64", Lazy, None),
        ("7.2-rt", "7.2.13+deb14-rt-amd64", Rt, Some(Full)),
        ("7.3", "7.3.4+deb13-cloud-amd64", Lazy, None),
    ] {
        let facts = facts(name);
        assert_eq!(facts.release, release);
        assert_eq!(facts.machine, "x86_64", "{name}");
        assert_eq!(facts.page_size_bytes, 4096, "{name}");
        assert_eq!(
            (facts.preempt.model, facts.preempt.dynamic),
            (model, dynamic),
            "{name}"
        );
        // From the boot log here: a recorded tree has no /proc/kcore.
        assert_eq!(
            facts.init_on_alloc.on,
            Some(true),
            "{name}: {:?}",
            facts.init_on_alloc
        );
        assert_eq!(facts.init_on_free.on, Some(false), "{name}");
        assert!(!facts.symbols.addresses_hidden, "{name}");
        assert_eq!(facts.preempt.mode_symbol_address.is_some(), name != "5.10");
        assert_eq!(facts.preempt.modes.is_empty(), name == "5.10");
        assert_eq!(facts.cpu.online, [0, 1], "{name}");
        assert_eq!(facts.numa.node_of(1), Some(0), "{name}");
        assert!(facts.cpu.has("erms") && facts.cpu.has("pdpe1gb"), "{name}");
        assert_eq!(
            facts.tracefs.as_deref(),
            Some(Path::new("/sys/kernel/tracing")),
            "{name}"
        );
        assert_eq!(facts.kprobes, Some(true), "{name}");
        assert_eq!(facts.privileges.euid, Some(0), "{name}");
        assert_eq!(facts.privileges.initial_pid_namespace, Some(true), "{name}");
    }
}

#[test]
fn every_strategy_is_recognised() {
    use Strategy::{OneRange, PagesConverging, PagesForward, RangesNeighbourhoodLast};
    let single = (PagesConverging, PagesForward);
    let ranges = (RangesNeighbourhoodLast, RangesNeighbourhoodLast);
    for (name, (function, function_gigantic), allocator, allocator_instead) in [
        ("5.10", single, Some(PagesForward), false),
        ("6.1", single, Some(PagesForward), false),
        ("6.12", single, Some(PagesForward), false),
        ("6.12-rt", single, None, false),
        ("6.18", single, Some(PagesForward), true),
        ("6.19", single, Some(PagesForward), true),
        ("7.0", ranges, Some(PagesForward), true),
        ("7.2", ranges, Some(OneRange), true),
        ("7.2-rt", ranges, None, false),
        ("7.3", ranges, Some(OneRange), true),
    ] {
        let mut facts = facts(name);
        let expected = Strategies {
            function,
            function_gigantic,
            allocator,
            allocator_instead,
        };
        // The trees were recorded with init_on_alloc on.
        assert_eq!(facts.strategies(), Some(expected), "{name}");
        facts.init_on_alloc.on = Some(false);
        let without = Strategies {
            allocator: None,
            allocator_instead: false,
            ..expected
        };
        assert_eq!(facts.strategies(), Some(without), "{name}");
    }
}

/// The table of offsets as read from memory dumps on these kernels, not through this reader.
#[test]
fn offsets_are_those_measured() {
    for (name, flags_1, folio_order, compound_order, nr_pages) in [
        ("5.10", None, None, Some(81), None),
        ("6.1", None, Some(81), Some(81), Some(92)),
        ("6.12", Some(64), None, None, Some(96)),
        ("6.12-rt", Some(64), None, None, Some(96)),
        ("6.18", Some(64), None, None, Some(120)),
        ("6.19", Some(64), None, None, Some(120)),
        ("7.0", Some(64), None, None, Some(120)),
        ("7.2", Some(64), None, None, Some(120)),
        ("7.2-rt", Some(64), None, None, Some(120)),
        ("7.3", Some(64), None, None, Some(120)),
    ] {
        let offsets = facts(name).btf.offsets;
        assert_eq!(offsets.page_size_of, Some(64), "{name}");
        assert_eq!(offsets.folio_flags_1, flags_1, "{name}");
        assert_eq!(offsets.folio_order, folio_order, "{name}");
        // BTF counts from the second page; the table from the head page.
        assert_eq!(
            offsets.page_compound_order.map(|offset| offset + 64),
            compound_order,
            "{name}"
        );
        assert_eq!(offsets.folio_nr_pages, nr_pages, "{name}");
        assert_eq!(offsets.folio_flags, (name != "5.10").then_some(0), "{name}");
        assert!(offsets.task_run_delay.is_some(), "{name}");
    }
}

#[test]
fn functions_and_symbols_are_found_where_they_are() {
    for name in NAMES {
        let facts = facts(name);
        let old = matches!(name, "5.10" | "6.1");
        let clear = if old {
            "clear_huge_page"
        } else {
            "folio_zero_user"
        };
        assert_eq!(facts.symbols.named(clear).count(), 1, "{name}");
        assert_eq!(
            facts.symbols.variants(clear).count(),
            1,
            "{name}: the cold part is not counted"
        );
        assert_eq!(facts.symbols.traceable(clear), Some(true), "{name}");
        assert_eq!(facts.symbols.blacklisted(clear), Some(false), "{name}");
        let parameters = facts
            .btf
            .function(clear)
            .map(|function| function.parameters);
        assert_eq!(parameters, Some(if old { 3 } else { 2 }), "{name}");
        assert_eq!(
            facts.symbols.traceable("post_alloc_hook"),
            Some(false),
            "{name}: notrace"
        );
        assert!(!facts.symbols.has("clear_gigantic_page"), "{name}: inlined");
    }
    assert!(
        facts("6.18")
            .symbols
            .symbols
            .iter()
            .any(|s| s.name == "folio_zero_user.cold" && s.is_cold())
    );
}

#[test]
fn huge_page_settings() {
    for name in NAMES {
        let facts = facts(name);
        let sizes: Vec<u64> = facts
            .hugetlb
            .iter()
            .map(|pool| pool.page_size_bytes)
            .collect();
        assert_eq!(sizes, [2 << 20, 1 << 30], "{name}");
        assert_eq!(facts.hugetlb[0].available_pages(), 8, "{name}");
        let Some(thp) = facts.thp else {
            assert!(name.ends_with("-rt"), "{name}: only RT kernels have no THP");
            continue;
        };
        assert_eq!(thp.enabled, Some(ThpEnabled::Always), "{name}");
        assert_eq!(thp.pmd_size_bytes, Some(2 << 20), "{name}");
        assert_eq!(thp.anonymous(2 << 20), Some(ThpEnabled::Always), "{name}");
        let per_size = !matches!(name, "5.10" | "6.1");
        assert_eq!(
            thp.anonymous(64 << 10),
            per_size.then_some(ThpEnabled::Never),
            "{name}"
        );
        assert_eq!(
            thp.offered_bytes().len(),
            if per_size { 8 } else { 1 },
            "{name}"
        );
    }
}

#[test]
fn facts_survive_json() {
    for name in NAMES {
        let facts = facts(name);
        let json = serde_json::to_string(&facts).unwrap();
        assert_eq!(
            serde_json::from_str::<Facts>(&json).unwrap(),
            facts,
            "{name}"
        );
    }
}
