//! Each cause of a clear is counted under its name, and what is no fault is not counted as one.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Expected,
    counts::anonymous_sites,
    trace::{
        MIB2, Traced, huge_pages_on_request, sum, trace_exactly, trace_loads, trace_loads_unchecked,
    },
};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

pub(crate) fn run(expected: &Expected, methods: &[String]) -> Result<()> {
    huge_pages_on_request(expected)?;
    for method in methods {
        hugetlb(expected, method).with_context(|| format!("hugetlb by {method}"))?;
        if !expected.no_thp {
            anonymous(expected, method).with_context(|| format!("THP by {method}"))?;
            limited(expected, method).with_context(|| format!("a limit by {method}"))?;
        }
    }
    if !expected.no_thp {
        written_zero_page(expected)?;
        small_sizes(expected)?;
    }
    no_faults(expected)
}

fn hugetlb(expected: &Expected, method: &str) -> Result<()> {
    let mut loads = vec![
        "hugetlb-fork-cow --count 3",
        "hugetlb-fallocate --count 5",
        "memfd --count 8",
    ];
    // The only driver at hand that pins pages of a memfd; before 6.12 none allocates them.
    let pins = fs::exists("/dev/udmabuf")?;
    if pins {
        loads.push("memfd-pin --count 7");
    }
    let traced = trace_loads(&["--faults", "--method", method], &loads)?;

    let clears = |cause: &str| {
        let like = json!({"operation": "clear", "cause": cause, "site": expected.site});
        sum(traced.rows(), "count", &like)
    };
    let counts = ["hugetlb-fault", "fallocate", "memfd"].map(clears);
    let wanted = [3 + 4, 5 + 4, if pins { 7 } else { 0 }];
    ensure!(
        counts == wanted,
        "{counts:?}, not {wanted:?}: {}",
        traced.total
    );
    let copies = json!({"operation": "copy", "cause": "hugetlb-fault", "page_size_bytes": MIB2});
    ensure!(
        sum(traced.rows(), "count", &copies) == 3,
        "copies: {}",
        traced.total
    );
    let all = sum(traced.rows(), "count", &json!({}));
    ensure!(
        all == wanted.iter().sum::<u64>() + 3,
        "more than that: {}",
        traced.total
    );

    check_outcomes(
        &traced,
        &[
            ("hugetlb-fault", "mapped", 7),
            ("hugetlb-fault", "copied", 3),
        ],
    )
}

/// The faults are these, and no others.
fn check_outcomes(traced: &Traced, wanted: &[(&str, &str, u64)]) -> Result<()> {
    for (cause, outcome, count) in wanted {
        let like = json!({"cause": cause, "outcome": outcome});
        let is = sum(traced.faults(), "count", &like);
        ensure!(
            is == *count,
            "{is} faults of {cause} {outcome}, not {count}: {}",
            traced.total
        );
    }
    let all: u64 = wanted.iter().map(|(_, _, count)| count).sum();
    let is = sum(traced.faults(), "count", &json!({}));
    ensure!(is == all, "{is} faults, not {all}: {}", traced.total);
    Ok(())
}

fn anonymous(expected: &Expected, method: &str) -> Result<()> {
    let loads = [
        "thp-fork-cow --count 9",
        "zero-page --count 6",
        "too-small --count 11",
    ];
    let traced = trace_loads(&["--faults", "--method", method], &loads)?;
    check_clears(&traced, expected, 9, 1)?;
    ensure!(
        traced.load(1)?["vmstat"]["thp_zero_page_alloc"] == 1,
        "the zero page was there before: {:?}",
        traced.workloads
    );
    // Where another task ran in the middle, it may not be told why there is no huge page.
    let unknown = json!({"outcome": "fallback-unknown"});
    let unknown = sum(traced.faults(), "count", &unknown);
    ensure!(unknown <= 2, "of most it is known: {}", traced.total);
    let wanted = [
        ("thp-fault", "mapped", 9),
        ("thp-fault", "zero-page", 6),
        ("thp-fault", "fallback-vma", 11 - unknown),
        ("thp-fault", "fallback-unknown", unknown),
    ];
    check_outcomes(&traced, &wanted)?;
    // An area that is too small is not in the kernel's own account.
    check_fault_counts(&traced, 9, 0)
}

/// More pages than a cgroup may have.
fn limited(expected: &Expected, method: &str) -> Result<()> {
    let traced = trace_loads_unchecked(&["--faults", "--method", method], &["limited"])?;
    traced.check_sound()?;
    traced.check_parts()?;
    let counted = |field: &str| {
        traced.load(0)?[field]
            .as_u64()
            .with_context(|| format!("{field}: {:?}", traced.workloads))
    };
    let (mapped, refused) = (counted("mapped")?, counted("fallbacks")?);
    ensure!(
        refused > 0,
        "the limit had no effect: {:?}",
        traced.workloads
    );
    // What the allocator clears before a charge is refused cannot be told from an allocation that failed.
    check_clears(&traced, expected, mapped, 0)?;

    // A charge reclaims, which switches tasks; it is told all the same.
    let wanted = [
        ("thp-fault", "mapped", mapped),
        ("thp-fault", "fallback-charge", refused),
    ];
    check_outcomes(&traced, &wanted)?;
    check_fault_counts(&traced, mapped, refused)?;
    ensure!(
        sum(traced.faults(), "reclaim_ns", &json!({})) > 0,
        "the limit makes the kernel reclaim: {}",
        traced.total
    );
    Ok(())
}

/// So many pages were cleared for THP faults, so many to be the huge zero page, and no others. Base pages that
/// are copied after a fork are no huge copies.
fn check_clears(traced: &Traced, expected: &Expected, thp: u64, zero_pages: u64) -> Result<()> {
    let sites = anonymous_sites(expected);
    for site in &sites {
        let like = json!({"cause": "thp-fault", "site": site, "page_size_bytes": MIB2, "operation": "clear"});
        let count = sum(traced.rows(), "count", &like);
        ensure!(
            count == thp,
            "{count} by {site}, not {thp}: {}",
            traced.total
        );
    }
    let like = json!({"cause": "huge-zero-page", "site": "allocator", "operation": "clear"});
    let count = sum(traced.rows(), "count", &like);
    ensure!(
        count == zero_pages,
        "{count} zero pages, not {zero_pages}: {}",
        traced.total
    );
    let all = sum(traced.rows(), "count", &json!({}));
    ensure!(
        all == thp * sites.len() as u64 + zero_pages,
        "more than that: {}",
        traced.total
    );
    Ok(())
}

/// The kernel's own account of PMD-sized faults, of which none is refused but for a charge.
fn check_fault_counts(traced: &Traced, mapped: u64, charge: u64) -> Result<()> {
    let counts = traced.total["fault_counts"]
        .as_array()
        .context("fault_counts")?;
    let pmd = json!({"page_size_bytes": MIB2});
    let is = ["mapped", "fallback", "fallback_charge"].map(|field| sum(counts, field, &pmd));
    ensure!(
        is == [mapped, charge, charge],
        "fault_counts are {is:?}: {}",
        traced.total
    );
    Ok(())
}

/// A write to the huge zero page: up to 6.12 it is split, later the write gets a huge page, in another
/// function than other faults do.
fn written_zero_page(expected: &Expected) -> Result<()> {
    let traced = trace_loads(&["--faults"], &["zero-page --count 5 --written"])?;
    let written = traced.load(0)?["thp_by_write"]
        .as_u64()
        .context("thp_by_write")?;
    for site in anonymous_sites(expected) {
        let like = json!({"site": site, "cause": "thp-fault"});
        let count = sum(traced.rows(), "count", &like);
        ensure!(
            count == written,
            "{count} by {site}, not {written}: {}",
            traced.total
        );
    }
    let mapped = json!({"cause": "thp-fault", "outcome": "mapped"});
    ensure!(
        sum(traced.faults(), "count", &mapped) == written,
        "{written} were written to: {}",
        traced.total
    );
    let zero = json!({"cause": "thp-fault", "outcome": "zero-page"});
    ensure!(
        sum(traced.faults(), "count", &zero) == 5,
        "faults: {}",
        traced.total
    );
    Ok(())
}

/// Every size below that of a PMD, each a different number of times.
fn small_sizes(expected: &Expected) -> Result<()> {
    let mut sizes_kib: Vec<u64> = fs::read_dir(THP)
        .context(THP)?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            // Some sizes are there for shared memory only.
            entry
                .path()
                .join("enabled")
                .exists()
                .then(|| kib.parse().ok())?
        })
        .filter(|kib| kib << 10 < MIB2)
        .collect();
    sizes_kib.sort_unstable();
    // Before 6.8 or so.
    if sizes_kib.is_empty() {
        return Ok(());
    }
    // On when the trace begins: the allocator's clears of sizes that are not are not looked for.
    let enable = |value: &str| {
        sizes_kib.iter().try_for_each(|kib| {
            let path = format!("{THP}/hugepages-{kib}kB/enabled");
            fs::write(&path, value).with_context(|| path)
        })
    };
    enable("madvise")?;
    let pages = |index: usize| 8 + index as u64;
    let script: Vec<String> = sizes_kib
        .iter()
        .enumerate()
        .map(|(index, kib)| {
            let size = kib * pages(index);
            format!("hugeclear-trace workload thp --page-size {kib}K --size {size}K --configure")
        })
        .collect();
    let traced = trace_exactly(&["--faults"], &["sh", "-c", &script.join(" && ")]);
    enable("never")?;
    let traced = traced?;
    traced.check_sound()?;
    traced.check_faults()?;
    let sites = anonymous_sites(expected);
    let mut all = 0;
    for (index, kib) in sizes_kib.iter().enumerate() {
        let bytes = kib << 10;
        for site in &sites {
            let like = json!({"cause": "mthp-fault", "site": site, "page_size_bytes": bytes});
            let count = sum(traced.rows(), "count", &like);
            ensure!(
                count == pages(index),
                "{count} of {kib}K by {site}: {}",
                traced.total
            );
        }
        let like = json!({"cause": "mthp-fault", "outcome": "mapped", "page_size_bytes": bytes});
        let count = sum(traced.faults(), "count", &like);
        ensure!(
            count == pages(index),
            "{count} faults of {kib}K: {}",
            traced.total
        );
        all += pages(index);
    }
    let rows = sum(traced.rows(), "count", &json!({}));
    ensure!(
        rows == all * sites.len() as u64,
        "more than that: {}",
        traced.total
    );
    let faults = sum(traced.faults(), "count", &json!({}));
    ensure!(faults == all, "more faults than that: {}", traced.total);
    Ok(())
}

/// The pool grows, and base pages are put together: no fault, and no clear of a fault.
fn no_faults(expected: &Expected) -> Result<()> {
    let mut loads = vec!["pool-growth"];
    if !expected.no_thp {
        loads.push("collapse --khugepaged");
        // MADV_COLLAPSE is new in 6.1.
        if !fs::read_to_string("/proc/sys/kernel/osrelease")?.starts_with("5.") {
            loads.push("collapse");
        }
    }
    let traced = trace_loads(&["--faults"], &loads)?;
    let collapsed: u64 = traced
        .workloads
        .iter()
        .filter_map(|load: &Value| load["collapsed"].as_u64())
        .sum();
    ensure!(
        collapsed as usize == 4 * (loads.len() - 1),
        "loads: {:?}",
        traced.workloads
    );
    ensure!(
        traced.rows().is_empty() && traced.faults().is_empty(),
        "nothing of it is a fault: {}",
        traced.total
    );
    Ok(())
}
