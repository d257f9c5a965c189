//! How the kernel clears: named rightly from the facts, and seen in the very order that is known of it.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::Expected;

/// Sub-pages of 2 MiB.
const PAGES: u64 = 512;

/// The functions in which the page allocator clears, where it is not inlined.
const ALLOCATOR_FUNCTIONS: [&str; 3] = [
    "kernel_init_free_pages",
    "kernel_init_pages",
    "clear_highpages_kasan_tagged",
];

pub(crate) fn run(expected: &Expected) -> Result<()> {
    // For the hugetlb page: one that is free, and one that is left over.
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    fs::write(pool, "2").context(pool)?;
    let result = [("first", 0), ("middle", 256), ("last", PAGES - 1)]
        .into_iter()
        .try_for_each(|(touch, sub_page)| {
            by_default(expected, touch, sub_page).with_context(|| format!("strategy, {touch}"))
        })
        .and_then(|()| hugetlb(expected, "300", 300).context("strategy, hugetlb"));
    fs::write(pool, "0").context(pool)?;
    result
}

/// What `doctor --strategy` says, once what it says of the facts is checked.
fn doctor(expected: &Expected, options: &[&str]) -> Result<Value> {
    let output = Command::new("hugeclear-trace")
        .args(["doctor", "--json", "--strategy"])
        .args(options)
        .output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let diagnosis: Value = serde_json::from_slice(&output.stdout).context("doctor --json")?;
    let report = diagnosis["strategy"].clone();
    let allocator = (expected.init_on_alloc && !expected.no_thp)
        .then_some(expected.allocator_strategy.as_str());
    let facts = &report["from_facts"];
    ensure!(
        facts["function"] == expected.strategy.as_str()
            && facts["allocator"] == json!(allocator)
            && facts["allocator_instead"] == (allocator.is_some() && expected.allocator_instead),
        "{facts}"
    );
    Ok(report)
}

/// An anonymous page where the clearing of one can be followed, else a hugetlb page.
fn by_default(expected: &Expected, touch: &str, sub_page: u64) -> Result<()> {
    let report = doctor(expected, &["--touch", touch])?;
    if expected.no_thp || !expected.init_on_alloc || !expected.allocator_instead {
        let page = if expected.no_thp {
            "hugetlb"
        } else {
            "anonymous"
        };
        return by_function(expected, &report, page, sub_page);
    }
    let function = &report["measured"]["function"];
    if ALLOCATOR_FUNCTIONS.iter().any(|name| function == name) {
        let strategy = &expected.allocator_strategy;
        return check(&report, strategy, "anonymous", sub_page, None);
    }
    // Inlined: 6.18 and 6.19.
    by_function(expected, &report, "hugetlb", sub_page)
}

fn hugetlb(expected: &Expected, touch: &str, sub_page: u64) -> Result<()> {
    let report = doctor(expected, &["--touch", touch, "--hugetlb", "2M"])?;
    by_function(expected, &report, "hugetlb", sub_page)
}

fn by_function(expected: &Expected, report: &Value, page: &str, sub_page: u64) -> Result<()> {
    let measured = &report["measured"];
    ensure!(measured["function"] == expected.site.as_str(), "{report}");
    let hint = measured["hint_sub_page"]
        .as_u64()
        .context("hint_sub_page")?;
    // 6.1 tells it the start of a hugetlb page.
    ensure!(hint == sub_page || page == "hugetlb" && hint == 0, "{hint}");
    check(report, &expected.strategy, page, sub_page, Some(hint))
}

/// Checks what was measured, piece by piece.
fn check(
    report: &Value,
    strategy: &str,
    page: &str,
    sub_page: u64,
    hint: Option<u64>,
) -> Result<()> {
    ensure!(
        report["agree"] == true && report["not_measured"].is_null(),
        "{report}"
    );
    let measured = &report["measured"];
    for (field, value) in [
        ("name", json!(strategy)),
        ("page", json!(page)),
        ("page_size_bytes", json!(2 << 20)),
        ("touched_sub_page", json!(sub_page)),
        ("dropped", json!(0)),
    ] {
        ensure!(measured[field] == value, "{field}: {}", measured[field]);
    }

    let list = |field: &str| {
        measured[field]
            .as_array()
            .with_context(|| format!("{field}: {measured}"))
    };
    let number = |value: &Value| {
        value
            .as_u64()
            .with_context(|| format!("no number: {value}"))
    };
    let mut pieces = Vec::new();
    let mut last_ns = 0;
    for piece in list("pieces")? {
        let start_ns = number(&piece["start_ns"])?;
        ensure!(start_ns >= last_ns, "at {last_ns}, then at {start_ns}");
        last_ns = start_ns;
        pieces.push((number(&piece["sub_page"])?, number(&piece["pages"])?));
    }
    let duration_ns = number(&measured["duration_ns"])?;
    ensure!(last_ns <= duration_ns, "{last_ns} of {duration_ns} ns");
    for ns in list("resched_points_ns")? {
        ensure!(number(ns)? <= duration_ns, "{ns} of {duration_ns} ns");
    }
    let wanted = wanted(strategy, hint)?;
    let differs = pieces.iter().zip(&wanted).position(|(is, want)| is != want);
    ensure!(
        pieces.len() == wanted.len() && differs.is_none(),
        "{} pieces of {}, the first to differ {differs:?}: {pieces:?}",
        pieces.len(),
        wanted.len()
    );
    Ok(())
}

/// The pieces (first sub-page, how many) of 2 MiB, from the kernel's sources and not from ours.
fn wanted(strategy: &str, hint: Option<u64>) -> Result<Vec<(u64, u64)>> {
    let hint = || hint.context("the function is told no sub-page");
    Ok(match strategy {
        // `process_huge_page` (mm/memory.c): first what is farther than the nearer end, then left and
        // right in turn.
        "pages_converging" => {
            let hint = hint()?;
            let mut order: Vec<u64> = if 2 * hint <= PAGES {
                (2 * hint..PAGES).rev().collect()
            } else {
                (0..2 * hint - PAGES).collect()
            };
            let (base, pairs) = if 2 * hint <= PAGES {
                (0, hint)
            } else {
                (2 * hint - PAGES, PAGES - hint)
            };
            for i in 0..pairs {
                order.extend([base + i, base + 2 * pairs - 1 - i]);
            }
            order.into_iter().map(|page| (page, 1)).collect()
        }
        "pages_forward" => (0..PAGES).map(|page| (page, 1)).collect(),
        // `folio_zero_user` since 7.0: right of the neighbourhood (2 pages to either side), left of it,
        // and the neighbourhood.
        "ranges_neighbourhood_last" => {
            let hint = hint()?;
            let start = hint.saturating_sub(2);
            let end = (hint + 3).min(PAGES);
            [(end, PAGES - end), (0, start), (start, end - start)]
                .into_iter()
                .filter(|(_, pages)| *pages > 0)
                .collect()
        }
        "one_range" => vec![(0, PAGES)],
        other => bail!("no strategy is called {other}"),
    })
}
