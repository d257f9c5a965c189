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

/// Read from the same kernels' complete BTF, not through this reader.
#[test]
fn fault_offsets_and_constants_are_those_of_the_whole_btf() {
    for (name, flags, fallback) in [
        ("5.10", 8, Some(74)),
        ("6.1", 40, Some(79)),
        ("6.12", 40, Some(80)),
        // Without CONFIG_TRANSPARENT_HUGEPAGE the enum has no THP events.
        ("6.12-rt", 40, None),
        ("6.18", 40, Some(82)),
        ("6.19", 40, Some(82)),
        ("7.0", 40, Some(82)),
        ("7.2", 40, Some(71)),
        ("7.2-rt", 40, None),
        ("7.3", 40, Some(71)),
    ] {
        let facts = facts(name);
        let Btf {
            offsets, constants, ..
        } = facts.btf;
        assert_eq!(offsets.fault_address, Some(24), "{name}");
        assert_eq!(offsets.fault_flags, Some(flags), "{name}");
        // 1,024 nodes in the top 10 bits.
        assert_eq!(constants.node_shift, Some(54), "{name}");
        assert_eq!(constants.thp_fault_fallback, fallback, "{name}");
        assert_eq!(
            constants.thp_fault_fallback_charge,
            fallback.map(|fallback| fallback + 1),
            "{name}"
        );
        assert_eq!(fallback.is_some(), facts.thp.is_some(), "{name}");
    }
}

#[test]
fn functions_around_a_fault_are_there_with_their_parameters() {
    for name in NAMES {
        let facts = facts(name);
        let old = matches!(name, "5.10" | "6.1");
        let thp = !name.ends_with("-rt");
        for (function, parameters, there) in [
            ("hugetlb_fault", 4, true),
            ("hugetlbfs_fallocate", 4, true),
            ("memfd_alloc_folio", 2, !old),
            ("try_to_compact_pages", 6, true),
            ("try_to_free_pages", 4, true),
            (
                "try_to_free_mem_cgroup_pages",
                if old { 4 } else { 5 },
                true,
            ),
            ("do_huge_pmd_anonymous_page", 1, thp),
            ("mm_get_huge_zero_page", 1, thp && old),
            ("mm_get_huge_zero_folio", 1, thp && !old),
            ("copy_user_huge_page", 5, old),
            ("copy_user_large_folio", 4, !old),
        ] {
            let case = format!("{name} {function}");
            let symbols = &facts.symbols;
            assert_eq!(symbols.address(function).is_some(), there, "{case}");
            assert_eq!(
                symbols.variants(function).count(),
                usize::from(there),
                "{case}"
            );
            assert_eq!(symbols.traceable(function), Some(there), "{case}");
            let described = facts.btf.function(function).map(|found| found.parameters);
            assert_eq!(described, there.then_some(parameters), "{case}");
        }
    }
}

#[test]
fn variables_are_there_at_their_addresses() {
    /// Everything of the kernel proper is above.
    const IMAGE: u64 = 0xffff_ffff_8000_0000;
    for name in NAMES {
        let symbols = facts(name).symbols;
        let old = matches!(name, "5.10" | "6.1");
        let thp = !name.ends_with("-rt");
        for (variable, there) in [
            ("__per_cpu_offset", true),
            ("huge_zero_page", thp && old),
            ("huge_zero_folio", thp && !old),
        ] {
            assert_eq!(
                symbols.address(variable).map(|address| address > IMAGE),
                there.then_some(true),
                "{name} {variable}"
            );
        }
        // Per CPU: up to 6.12 an offset from zero, by 6.18 an address in the image; either way each
        // CPU's own is at this plus its __per_cpu_offset.
        let events: Vec<_> = symbols.named("vm_event_states").collect();
        let [events] = *events else {
            panic!("{name}: {events:?}");
        };
        let absolute = old || name.starts_with("6.12");
        assert_eq!(events.kind, if absolute { 'A' } else { 'D' }, "{name}");
        assert_eq!(events.address < Some(IMAGE), absolute, "{name}");
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
