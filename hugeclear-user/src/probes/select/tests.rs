//! The choice of probes on the facts of real kernels, and on kernels made up from them.

use super::*;
use crate::facts::{
    Symbol, ThpEnabled,
    recorded::{NAMES, facts},
};

fn select_auto(facts: &Facts) -> ProbeSet {
    select(facts, &Wanted::default())
}

fn functions(probes: &[Probe]) -> Vec<&str> {
    probes.iter().map(|probe| &*probe.function).collect()
}

/// The function that the allocator's clears are seen by, or how else.
fn allocator_of(set: &ProbeSet) -> &str {
    match &set.allocator {
        Allocator::Untraced => "untraced",
        Allocator::BeforeClear => "before clear",
        Allocator::Probe { probe, .. } => &probe.function,
    }
}

#[test]
fn each_kernel_has_one_clear_function_and_both_methods() {
    for name in NAMES {
        let set = select_auto(&facts(name));
        let clear = match name {
            "5.10" | "6.1" => "clear_huge_page",
            _ => "folio_zero_user",
        };
        assert_eq!(functions(&set.clears), [clear], "{name}");
        assert_eq!(
            set.clears[0].methods,
            [Method::Fentry, Method::Kprobe],
            "{name}"
        );
    }
}

#[test]
fn the_allocator_is_traced_by_what_ordinary_allocations_do_not_reach() {
    for name in NAMES {
        let mut facts = facts(name);
        facts.init_on_alloc.on = Some(true);
        let set = select_auto(&facts);
        let (allocator, faults) = match name {
            "6.12-rt" | "7.2-rt" => ("untraced", &[][..]),
            "5.10" | "6.1" | "6.12" => ("before clear", &["do_huge_pmd_anonymous_page"][..]),
            _ => ("vma_alloc_anon_folio_pmd", &[][..]),
        };
        assert_eq!(
            (allocator_of(&set), &functions(&set.faults)[..]),
            (allocator, faults),
            "{name}"
        );

        facts.init_on_alloc.on = Some(false);
        assert_eq!(allocator_of(&select_auto(&facts)), "untraced", "{name}");
    }
}

#[test]
fn an_enabled_mthp_size_widens_the_search() {
    let mut facts = facts("7.3");
    facts.init_on_alloc.on = Some(true);
    let thp = facts.thp.as_mut().unwrap();
    thp.sizes[0].enabled = Some(ThpEnabled::Always);
    let set = select_auto(&facts);
    assert_eq!(allocator_of(&set), "vma_alloc_folio_noprof");
    assert_eq!(
        functions(&set.faults),
        [
            "do_huge_pmd_anonymous_page",
            "do_huge_pmd_wp_page",
            "do_anonymous_page"
        ]
    );
    assert_eq!(set.allocator_reach(|_| true), AllocatorReach::EverySize);
}

#[test]
fn exact_takes_the_clearing_itself_where_it_is_a_function() {
    for (name, function) in [
        ("5.10", "kernel_init_free_pages"),
        ("6.1", "vma_alloc_folio"),
        ("6.12", "vma_alloc_folio_noprof"),
        ("6.19", "vma_alloc_folio_noprof"),
        ("7.0", "kernel_init_pages"),
        ("7.3", "clear_highpages_kasan_tagged"),
    ] {
        let mut facts = facts(name);
        facts.init_on_alloc.on = Some(true);
        let wanted = Wanted {
            allocator: AllocatorMode::Exact,
            ..Wanted::default()
        };
        let set = select(&facts, &wanted);
        assert_eq!(allocator_of(&set), function, "{name}");
        assert!(
            set.notes.iter().any(|note| note.code == "every_allocation"),
            "{name}"
        );
    }
}

#[test]
fn a_kprobe_is_not_put_where_interrupts_clear_too() {
    for (name, function) in [
        ("5.10", "alloc_pages_vma"),
        ("7.3", "vma_alloc_folio_noprof"),
    ] {
        let mut facts = facts(name);
        facts.init_on_alloc.on = Some(true);
        let wanted = Wanted {
            method: Some(Method::Kprobe),
            allocator: AllocatorMode::Exact,
            ..Wanted::default()
        };
        let set = select(&facts, &wanted);
        assert_eq!(allocator_of(&set), function, "{name}");
        assert!(refusals(&set).contains("interrupts call it too"), "{name}");
    }
}

#[test]
fn the_switch_of_the_model_is_watched_where_there_is_one() {
    for name in NAMES {
        let watched = select_auto(&facts(name)).preempt_switch.is_some();
        let fixed = ["5.10", "6.12-rt", "7.2-rt"].contains(&name);
        assert_eq!(watched, !fixed, "{name}");
    }
}

#[test]
fn a_forced_method_is_the_only_one() {
    let wanted = Wanted {
        method: Some(Method::Kprobe),
        ..Wanted::default()
    };
    let set = select(&facts("6.12"), &wanted);
    assert_eq!(set.clears[0].methods, [Method::Kprobe]);
}

fn symbol(name: &str) -> Symbol {
    Symbol {
        name: name.to_owned(),
        address: Some(0xffff_ffff_8100_0000),
        kind: 't',
    }
}

/// Facts of 6.12, with other clear functions than it has.
fn with_symbols(names: &[&str]) -> Facts {
    let mut facts = facts("6.12");
    facts
        .symbols
        .symbols
        .retain(|symbol| symbol.base() != "folio_zero_user");
    facts
        .symbols
        .symbols
        .extend(names.iter().map(|name| symbol(name)));
    facts.symbols.traceable = None;
    facts
}

fn refusals(set: &ProbeSet) -> String {
    set.refusals
        .iter()
        .map(Refusal::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn of_two_functions_of_one_name_none_is_taken() {
    let set = select_auto(&with_symbols(&["folio_zero_user", "folio_zero_user"]));
    assert!(set.clears.is_empty());
    assert!(
        refusals(&set).contains("2 symbols have this name"),
        "{}",
        refusals(&set)
    );
}

#[test]
fn a_split_off_cold_part_is_no_second_function() {
    let set = select_auto(&with_symbols(&["folio_zero_user", "folio_zero_user.cold"]));
    assert_eq!(functions(&set.clears), ["folio_zero_user"]);
}

#[test]
fn a_variant_is_taken_only_if_btf_vouches_for_its_arguments() {
    let mut facts = with_symbols(&["folio_zero_user.constprop.0"]);
    let set = select_auto(&facts);
    assert_eq!(functions(&set.clears), ["folio_zero_user.constprop.0"]);
    assert_eq!(set.clears[0].methods, [Method::Kprobe]);

    facts
        .btf
        .functions
        .retain(|function| function.name != "folio_zero_user");
    let set = select_auto(&facts);
    assert!(set.clears.is_empty());
    assert!(refusals(&set).contains("nothing says that its arguments are unchanged"));
}

#[test]
fn inner_functions_serve_where_the_outer_one_is_inlined() {
    let set = select_auto(&with_symbols(&[
        "process_huge_page",
        "clear_gigantic_page",
        "clear_subpage",
    ]));
    assert_eq!(
        functions(&set.clears),
        ["process_huge_page", "clear_gigantic_page"]
    );
    let clear = set.clears[0].clear.unwrap();
    assert_eq!(
        (clear.site, clear.only_function),
        (Site::ProcessHugePage, Some(0xffff_ffff_8100_0000))
    );

    // It copies as well: without the address that tells which, it is not taken.
    let set = select_auto(&with_symbols(&["process_huge_page"]));
    assert!(set.clears.is_empty());
}

#[test]
fn a_kernel_without_btf_has_no_folio_order() {
    let mut facts = facts("6.12");
    facts.btf.present = false;
    facts.btf.functions.clear();
    facts.btf.offsets.folio_flags_1 = None;
    let set = select_auto(&facts);
    assert!(set.clears.is_empty());
    assert!(refusals(&set).contains("order of a folio cannot be located"));
}
