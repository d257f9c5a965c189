//! The table for people.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use hugeclear_ebpf::key::{Cause, Outcome, Site};

use tabled::{
    builder::Builder,
    settings::{Alignment, Padding, Style, object::Columns},
};

use super::{FaultCount, Kind, Report, Summary};
use crate::{
    facts::ThpEnabled,
    grid::{Column, grid, trimmed},
    probes::tracer::AttachedProbe,
    units::{self, format_ns},
    window::{By, FaultRow, Group, ImpactRow, Losses, Operation, Row, Times},
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
    let by = &report.by;
    if report.rows.is_empty() {
        let _ = writeln!(text, "no clears");
    } else {
        let _ = writeln!(text, "{}", rows(by, &report.rows, &report.totals));
    }
    text.push_str(&node_matrices(&report.by_node));
    if !report.faults.is_empty() {
        let _ = writeln!(
            text,
            "faults, and what they were made of:\n{}",
            fault_rows(by, &report.faults)
        );
    }
    if !report.sched_impact.is_empty() {
        let _ = writeln!(
            text,
            "tasks that woke while their CPU cleared, and how long that clear kept them waiting:\n{}",
            impact_rows(by, &report.sched_impact)
        );
    } else if report
        .probes
        .iter()
        .any(|probe| probe.function == "sched_wakeup")
    {
        let _ = writeln!(text, "no task woke while its CPU cleared");
    }
    if report.kind == Kind::Total {
        for count in &report.fault_counts {
            let _ = writeln!(text, "{}", fault_counts_line(count));
        }
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
        facts.thp_enabled.map_or("not built in", ThpEnabled::as_str),
        switch(facts.init_on_alloc),
    )
}

/// How each site is traced, in words.
pub(crate) fn probes_line(probes: &[AttachedProbe]) -> String {
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
            None => format!("{} ({})", probe.function, probe.method),
        }
    });
    named.collect::<Vec<_>>().join(", ")
}

/// What a table shows of the groups of its rows: every key but `site` and `outcome` where those mean
/// nothing.
fn keys(by: &BTreeSet<By>, not: By) -> Vec<By> {
    /// The order of the columns.
    const ORDER: [By; 12] = [
        By::Cpu,
        By::Node,
        By::MemNode,
        By::Pid,
        By::Comm,
        By::Cgroup,
        By::Site,
        By::Cause,
        By::Outcome,
        By::PageSize,
        By::FaultOffset,
        By::Preempt,
    ];
    let shown = ORDER.into_iter();
    shown
        .filter(|key| by.contains(key) && *key != not)
        .collect()
}

fn column(key: By) -> Column {
    match key {
        By::Cpu => ("CPU", false),
        By::Node => ("node", false),
        By::MemNode => ("memory", false),
        By::Pid => ("pid", false),
        By::Comm => ("comm", true),
        By::Cgroup => ("cgroup", true),
        By::Site => ("site", true),
        By::Cause => ("cause", true),
        By::Outcome => ("outcome", true),
        By::PageSize => ("page", true),
        By::FaultOffset => ("16th", false),
        By::Preempt => ("preempt", true),
    }
}

/// A number or word; `-` if there is none.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn key_cells(keys: &[By], group: &Group) -> Vec<String> {
    let cell = |key: &By| match key {
        By::Cpu => group
            .cpu
            .map_or_else(|| "all".to_owned(), |cpu| cpu.to_string()),
        By::Node => or_dash(group.node),
        By::MemNode => or_dash(group.mem_node),
        By::Pid => or_dash(group.pid),
        By::Comm => or_dash(group.comm.as_deref()),
        By::Cgroup => or_dash(group.cgroup.as_deref()),
        By::Site => or_dash(group.site.map(Site::name)),
        By::Cause => or_dash(group.cause.map(Cause::name)),
        By::Outcome => or_dash(group.outcome.map(Outcome::name)),
        By::PageSize => or_dash(group.page_size_bytes.map(units::format_bytes)),
        By::FaultOffset => or_dash(group.fault_offset),
        By::Preempt => or_dash(group.preempt_model),
    };
    keys.iter().map(cell).collect()
}

/// Puts into the first column of words that a row is the sum of so many others.
fn name_rest(cells: &mut [String], keys: &[By], rest_of: Option<u64>) {
    let who = keys.iter().position(|key| key.is_who());
    if let (Some(rest_of), Some(place)) = (rest_of, who) {
        cells[place] = format!("({rest_of} others)");
    }
}

const TIMES: [Column; 7] = [
    ("count", false),
    ("mean", false),
    ("stddev", false),
    ("p50", false),
    ("p90", false),
    ("p99", false),
    ("max", false),
];

fn time_cells(times: &Times) -> [String; 7] {
    let ns = |ns: u64| format_ns(ns as f64);
    [
        times.count.to_string(),
        format_ns(times.mean_ns),
        or_dash(times.stddev_ns.map(format_ns)),
        ns(times.p50_ns),
        ns(times.p90_ns),
        ns(times.p99_ns),
        ns(times.max_ns),
    ]
}

fn rows(by: &BTreeSet<By>, rows: &[Row], totals: &[Row]) -> String {
    let keys = keys(by, By::Outcome);
    let mut columns: Vec<Column> = keys.iter().map(|key| column(*key)).collect();
    let has_site = keys.contains(&By::Site);
    if !has_site {
        // Clears and copies are never summed: what they are must show.
        columns.push(("what", true));
    }
    columns.extend(TIMES);
    columns.extend([
        ("GB/s", false),
        ("preempted", false),
        ("GB/s on CPU", false),
        ("longest run", false),
    ]);
    let records = rows.iter().chain(totals).map(|row| {
        let mut cells = key_cells(&keys, &row.group);
        let place = keys.iter().position(|key| *key == By::Site);
        match place {
            Some(place) if row.other => "other".clone_into(&mut cells[place]),
            Some(place) if row.derived => cells[place].push_str(" (derived)"),
            Some(_) | None => {}
        }
        name_rest(&mut cells, &keys, row.rest_of);
        if !has_site {
            let what = match (row.operation, row.other, row.derived) {
                (_, true, _) => "other",
                (Operation::Copy, ..) => "copy",
                (Operation::Clear, false, true) => "clear (derived)",
                (Operation::Clear, false, false) => "clear",
            };
            cells.push(what.to_owned());
        }
        cells.extend(time_cells(&row.times));
        let preempted = row
            .preempted_ns
            .map(|ns| share(ns as f64, row.times.sum_ns));
        cells.extend([
            or_dash(row.gb_per_s.map(rate)),
            or_dash(preempted),
            or_dash(row.gb_per_s_on_cpu.map(rate)),
            or_dash(
                row.longest_run
                    .map(|run| format!("{}, {}", run.clears, format_ns(run.ns as f64))),
            ),
        ]);
        cells
    });
    grid(&columns, records)
}

fn fault_rows(by: &BTreeSet<By>, rows: &[FaultRow]) -> String {
    let keys = keys(by, By::Site);
    let columns: Vec<Column> = (keys.iter().map(|key| column(*key)))
        .chain(TIMES)
        .chain([
            ("clear", false),
            ("compaction", false),
            ("reclaim", false),
            ("preempted", false),
            ("rest", false),
        ])
        .collect();
    let records = rows.iter().map(|row| {
        let mut cells = key_cells(&keys, &row.group);
        name_rest(&mut cells, &keys, row.rest_of);
        cells.extend(time_cells(&row.times));
        let parts = [
            row.clear_ns as f64,
            row.compaction_ns as f64,
            row.reclaim_ns as f64,
            row.preempted_ns as f64,
            row.rest_ns as f64,
        ];
        cells.extend(parts.map(|ns| share(ns, row.times.sum_ns)));
        cells
    });
    grid(&columns, records)
}

fn impact_rows(by: &BTreeSet<By>, rows: &[ImpactRow]) -> String {
    let asked: BTreeSet<By> = [By::Cpu, By::Node, By::Comm, By::PageSize, By::Preempt]
        .into_iter()
        .filter(|key| by.contains(key))
        .collect();
    let keys = keys(&asked, By::Site);
    let columns: Vec<Column> = (keys.iter().map(|key| column(*key))).chain(TIMES).collect();
    let records = rows.iter().map(|row| {
        let mut cells = key_cells(&keys, &row.group);
        name_rest(&mut cells, &keys, row.rest_of);
        cells.extend(time_cells(&row.times));
        cells
    });
    grid(&columns, records)
}

/// From which node's CPUs which node's memory was cleared, at what rate: one matrix for each page size.
fn node_matrices(rows: &[Row]) -> String {
    #[derive(Default)]
    struct Sum {
        bytes: u64,
        ns: u64,
        count: u64,
    }
    let mut sums: BTreeMap<Option<u64>, BTreeMap<(u32, u32), Sum>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.operation == Operation::Clear) {
        if let (Some(node), Some(mem_node), Some(bytes)) =
            (row.group.node, row.group.mem_node, row.bytes)
        {
            let sizes = sums.entry(row.group.page_size_bytes).or_default();
            let sum = sizes.entry((node, mem_node)).or_default();
            sum.bytes += bytes;
            sum.ns += row.times.sum_ns;
            sum.count += row.times.count;
        }
    }
    let mut text = String::new();
    for (size, cells) in &sums {
        let nodes: BTreeSet<u32> = cells.keys().flat_map(|(a, b)| [*a, *b]).collect();
        let mut builder = Builder::default();
        let titles = nodes.iter().map(|node| format!("memory {node}"));
        builder.push_record(["CPUs of".to_owned()].into_iter().chain(titles));
        for node in &nodes {
            let cell = |mem_node: &u32| match cells.get(&(*node, *mem_node)) {
                Some(sum) if sum.ns > 0 => {
                    format!("{} ({})", rate(sum.bytes as f64 / sum.ns as f64), sum.count)
                }
                Some(_) | None => "-".to_owned(),
            };
            let cells = nodes.iter().map(cell);
            builder.push_record([format!("node {node}")].into_iter().chain(cells));
        }
        let mut table = builder.build();
        table
            .with(Style::blank())
            .with(Padding::new(0, 1, 0, 0))
            .modify(Columns::new(1..), Alignment::right());
        let table = trimmed(&table.to_string());
        let size = size.map_or(String::new(), |size| {
            format!(" of {}", units::format_bytes(size))
        });
        let _ = writeln!(text, "GB/s (clears) of pages{size}, by node:\n{table}");
    }
    text
}

/// What the kernel counted, in a sentence for each page size.
fn fault_counts_line(count: &FaultCount) -> String {
    let FaultCount {
        page_size_bytes,
        mapped,
        fallback,
        fallback_charge,
    } = *count;
    let size = units::format_bytes(page_size_bytes);
    let charge = match fallback_charge {
        0 => String::new(),
        charge => format!(", {charge} of them for a memory cgroup's limit"),
    };
    format!(
        "anonymous faults of {size} on this machine (kernel's count): {mapped} mapped, {fallback} fell \
         back to smaller pages ({}){charge}",
        share(fallback as f64, mapped + fallback)
    )
}

fn rate(gb_per_s: f64) -> String {
    format!("{gb_per_s:.2}")
}

/// A part of a whole, in percent.
fn share(part: f64, whole: u64) -> String {
    format!("{:.1} %", part / whole.max(1) as f64 * 100.0)
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
        cells_full,
        events_dropped,
        negative_rest,
        impact_lost,
        impact_open,
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
        (cells_full, "without a row of their own (too many keys)"),
        (events_dropped, "not printed one by one (ring buffer full)"),
        (negative_rest, "faults with parts longer than the whole"),
        (impact_lost, "waits for a clear not recorded"),
        (impact_open, "tasks still waiting for a clear at detach"),
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
