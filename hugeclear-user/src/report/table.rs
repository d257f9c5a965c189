//! The table for people.

use std::fmt::Write as _;

use tabled::{
    builder::Builder,
    settings::{
        Alignment, Padding, Style,
        object::{Columns, Object as _, Rows},
    },
};

use super::{Kind, Report, Summary};
use crate::{
    probes::tracer::AttachedProbe,
    units,
    window::{Losses, Row},
};

/// The report as text: the machine, the probes, the rows, what was lost, and the notes.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    let seconds = report.end_ns.saturating_sub(report.start_ns) as f64 / 1e9;
    if report.kind == Kind::Total {
        let _ = writeln!(text, "{}", machine_line(&report.facts));
        let _ = writeln!(text, "traced: {}", probes_line(&report.probes));
    }
    let what = match report.kind {
        Kind::Window => "window of",
        Kind::Total => "total of",
    };
    let _ = writeln!(text, "{what} {seconds:.1} s:");
    if report.rows.is_empty() {
        let _ = writeln!(text, "no clears");
    } else {
        let _ = writeln!(text, "{}", rows(&report.rows, &report.totals));
    }
    if report.kind == Kind::Total {
        let _ = writeln!(text, "{}", losses_line(&report.losses));
        for note in &report.notes {
            let _ = writeln!(text, "note: {}", note.text);
        }
    }
    text
}

fn machine_line(facts: &Summary) -> String {
    let switch = |on: Option<bool>| match on {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown",
    };
    let dynamic = facts
        .preempt_dynamic
        .map_or(String::new(), |model| format!(" ({model})"));
    let strategy = facts
        .strategy
        .as_ref()
        .map_or(String::new(), |name| format!("; clears {name}"));
    format!(
        "kernel {} {}; preempt {}{dynamic}{strategy}; THP {}; init_on_alloc {}",
        facts.release,
        facts.machine,
        facts.preempt_model,
        facts.thp_enabled.as_deref().unwrap_or("not built in"),
        switch(facts.init_on_alloc),
    )
}

fn probes_line(probes: &[AttachedProbe]) -> String {
    let named = probes.iter().map(|probe| {
        let derived = if probe.derived { ", derived" } else { "" };
        match probe.site {
            Some(site) if site.name() != probe.function => {
                format!(
                    "{} by {} ({}{derived})",
                    site.name(),
                    probe.function,
                    probe.method
                )
            }
            Some(_) => format!("{} ({}{derived})", probe.function, probe.method),
            None => format!(
                "{} ({}, for the allocator's sake)",
                probe.function, probe.method
            ),
        }
    });
    named.collect::<Vec<_>>().join(", ")
}

const HEADER: [&str; 14] = [
    "CPU",
    "site",
    "page",
    "preempt",
    "count",
    "mean",
    "stddev",
    "p50",
    "p90",
    "p99",
    "max",
    "GB/s",
    "preempted",
    "GB/s on CPU",
];
/// How many of the columns, from the left, are words.
const WORDS: usize = 4;

fn rows(rows: &[Row], totals: &[Row]) -> String {
    let per_cpu = rows.iter().any(|row| row.cpu.is_some());
    let mut builder = Builder::default();
    let skip = usize::from(!per_cpu);
    builder.push_record(HEADER.into_iter().skip(skip));
    for row in rows.iter().chain(totals) {
        builder.push_record(cells(row).into_iter().skip(skip));
    }
    let mut table = builder.build();
    table
        .with(Style::blank())
        .with(Padding::new(0, 1, 0, 0))
        .modify(
            Columns::new(..).not(Columns::new(..WORDS - skip)),
            Alignment::right(),
        );
    if per_cpu {
        table.modify(Columns::first().not(Rows::first()), Alignment::right());
    }
    table
        .to_string()
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

fn cells(row: &Row) -> [String; 14] {
    let site = match row.site {
        Some(site) if row.derived => format!("{} (derived)", site.name()),
        Some(site) => site.name().to_owned(),
        None => "other".to_owned(),
    };
    let word = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let ns = |ns: u64| duration(ns as f64);
    [
        row.cpu
            .map_or_else(|| "all".to_owned(), |cpu| cpu.to_string()),
        site,
        word(row.page_size_bytes.map(units::format_bytes)),
        word(row.preempt_model.map(|model| model.to_string())),
        row.count.to_string(),
        duration(row.mean_ns),
        word(row.stddev_ns.map(duration)),
        ns(row.p50_ns),
        ns(row.p90_ns),
        ns(row.p99_ns),
        ns(row.max_ns),
        word(row.gb_per_s.map(rate)),
        word(
            row.preempted_ns
                .map(|preempted_ns| share(preempted_ns, row.sum_ns)),
        ),
        word(row.gb_per_s_on_cpu.map(rate)),
    ]
}

fn rate(gb_per_s: f64) -> String {
    format!("{gb_per_s:.2}")
}

/// A part of a whole, in percent.
fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// A duration with its unit, to three or four digits.
fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

fn losses_line(losses: &Losses) -> String {
    let Losses {
        entries_without_exit,
        exits_without_entry,
        starts_overwritten,
        end_before_start,
        map_full,
        open_at_detach,
        programs_skipped,
        other_keys,
        migrated,
        own_process,
        outside_faults,
    } = *losses;
    let list = |counts: &[(u64, &str)]| {
        let named = counts.iter().filter(|(count, _)| *count > 0);
        named
            .map(|(count, what)| format!("{count} {what}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let lost = list(&[
        (entries_without_exit, "entries without exit"),
        (starts_overwritten, "of them overwritten by the next start"),
        (exits_without_entry, "exits without entry"),
        (end_before_start, "ended before they began"),
        (map_full, "starts found the map full"),
        (open_at_detach, "still running at detach"),
        (
            programs_skipped.unwrap_or(0),
            "programs skipped by the kernel",
        ),
    ]);
    let beside = list(&[
        (migrated, "migrated"),
        (other_keys, "of unlisted size"),
        (own_process, "of our own process left out"),
        (
            outside_faults,
            "in the allocator outside huge-page faults left out",
        ),
    ]);
    let uncounted = match programs_skipped {
        Some(_) => "",
        None => " (this kernel does not count skipped programs)",
    };
    let lost = if losses.any_lost() {
        format!("LOST: {lost}")
    } else {
        "lost: nothing".to_owned()
    };
    let beside = if beside.is_empty() {
        beside
    } else {
        format!("; beside: {beside}")
    };
    format!("{lost}{uncounted}{beside}")
}
