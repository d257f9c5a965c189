//! Each cause of a clear is counted under its name, and what is no fault is not counted as one.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Expected,
    counts::anonymous_sites,
    trace::{MIB2, Traced, huge_pages_on_request, sum, trace, trace_loads},
};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

pub(crate) fn run(expected: &Expected, methods: &[String]) -> Result<()> {
    huge_pages_on_request(expected)?;
    for method in methods {
        hugetlb(expected, method).with_context(|| format!("hugetlb by {method}"))?;
        if !expected.no_thp {
            anonymous(expected, method).with_context(|| format!("THP by {method}"))?;
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
        "limited",
    ];
    let traced = trace_loads(&["--faults", "--method", method], &loads)?;
    let counted = |index: usize, field: &str| -> Result<u64> {
        traced.load(index)?[field]
            .as_u64()
            .with_context(|| format!("{field} of {loads:?}: {:?}", traced.workloads))
    };
    let (mapped, uncharged) = (9 + counted(3, "mapped")?, counted(3, "fallbacks")?);
    ensure!(
        uncharged > 0,
        "the limit had no effect: {:?}",
        traced.workloads
    );

    let mut all = 0;
    for site in anonymous_sites(expected) {
        let like = json!({"cause": "thp-fault", "site": site, "page_size_bytes": MIB2});
        let count = sum(traced.rows(), "count", &like);
        ensure!(
            count == mapped,
            "{count} by {site}, not {mapped}: {}",
            traced.total
        );
        all += count;
    }
    // Base pages are copied, which is no huge copy; and there is one zero page.
    let zero_page = json!({"cause": "huge-zero-page", "site": "allocator", "operation": "clear"});
    ensure!(
        traced.load(1)?["vmstat"]["thp_zero_page_alloc"] == 1
            && sum(traced.rows(), "count", &zero_page) == 1,
        "the zero page: {} {:?}",
        traced.total,
        traced.workloads
    );
    ensure!(
        sum(traced.rows(), "count", &json!({})) == all + 1,
        "more than that: {}",
        traced.total
    );

    // Where another task ran in the middle, it cannot be told why a page was refused.
    let unknown = json!({"cause": "thp-fault", "outcome": "fallback-unknown"});
    let unknown = sum(traced.faults(), "count", &unknown);
    let of = |outcome: &str| sum(traced.faults(), "count", &json!({"outcome": outcome}));
    let (charge, vma) = (of("fallback-charge"), of("fallback-vma"));
    ensure!(
        charge + vma + unknown == uncharged + 11
            && charge <= uncharged
            && vma <= 11
            && unknown <= 4,
        "{uncharged} could not be charged, 11 did not fit: {}",
        traced.total
    );
    let wanted = [
        ("thp-fault", "mapped", mapped),
        ("thp-fault", "zero-page", 6),
        ("thp-fault", "fallback-charge", charge),
        ("thp-fault", "fallback-vma", vma),
        ("thp-fault", "fallback-unknown", unknown),
    ];
    check_outcomes(&traced, &wanted)?;

    // The kernel's own account. It does not count an area that is too small.
    let counts = &traced.total["fault_counts"];
    let ours = json!({
        "page_size_bytes": MIB2,
        "mapped": mapped,
        "fallback": uncharged,
        "fallback_charge": uncharged,
    });
    let has_ours = counts.as_array().is_some_and(|rows| {
        rows.iter().any(|row| {
            ours.as_object()
                .into_iter()
                .flatten()
                .all(|(name, value)| row[name] == *value)
        })
    });
    ensure!(has_ours, "fault_counts are {counts}, not {ours}");
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
        let of = |cause: &str| {
            sum(
                traced.rows(),
                "count",
                &json!({"site": site, "cause": cause}),
            )
        };
        let count = of("thp-fault") + of("other");
        ensure!(
            count == written,
            "{count} by {site}, not {written}: {}",
            traced.total
        );
    }
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
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()
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
    let traced = trace(&["--faults"], &["sh", "-c", &script.join(" && ")]);
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
