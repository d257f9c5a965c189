//! The table for people.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{Combination, Factor, Report, Row};
use crate::{
    facts::ThpEnabled,
    grid::{Column, grid},
    report::{Summary, probes_line},
    settings::Change,
    stats::Spread,
    units::format_ns,
};

/// Bytes in a GiB per byte in a GB.
const GIB_PER_GB: f64 = 1e9 / (1_u64 << 30) as f64;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "sweep of `workload {}`; runs: {}; rounds: {}; seed: {}",
            self.workload.join(" "),
            self.runs.len(),
            self.rounds,
            self.seed
        )?;
        writeln!(f, "{}", machine_line(&self.facts))?;
        let varied = varied(&self.rows);
        writeln!(f, "under all of them: {}", held(self, &varied))?;
        if let Some(trace) = &self.trace {
            writeln!(f, "traced: {}", probes_line(&trace.probes))?;
        }
        if !self.rows.is_empty() {
            writeln!(f, "{}", rows(&self.rows, &varied))?;
        }
        for refused in &self.refused {
            writeln!(f, "skipped {refused}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {}", note.text)?;
        }
        if !self.restored.is_empty() {
            let restored: Vec<String> = self
                .restored
                .iter()
                .map(|Change { path, value }| format!("{} {value}", path.display()))
                .collect();
            writeln!(f, "settings restored and verified: {}", restored.join(", "))?;
        }
        if let Some(signal) = self.interrupted_by {
            writeln!(f, "ended early by signal {signal}")?;
        }
        Ok(())
    }
}

fn machine_line(facts: &Summary) -> String {
    let cpus = facts
        .cpus_possible
        .map_or_else(String::new, |cpus| format!(", {cpus} possible CPUs"));
    let strategy = facts
        .strategy
        .as_ref()
        .map_or_else(String::new, |name| format!("; clears {name}"));
    format!(
        "kernel {} {}; {}{cpus}{strategy}",
        facts.release,
        facts.machine,
        facts.cpu_model.as_deref().unwrap_or("unknown CPU"),
    )
}

/// The factors that have more than one value.
fn varied(rows: &[Row]) -> Vec<Factor> {
    let mut values: BTreeMap<Factor, BTreeSet<&String>> = BTreeMap::new();
    for (factor, value) in rows.iter().flat_map(|row| &row.combination.0) {
        values.entry(*factor).or_default().insert(value);
    }
    values
        .into_iter()
        .filter(|(_, values)| values.len() > 1)
        .map(|(factor, _)| factor)
        .collect()
}

/// What all runs have in common: the factors with one value, and the settings that were not touched.
fn held(report: &Report, varied: &[Factor]) -> String {
    let facts = &report.facts;
    let mut held: BTreeMap<Factor, String> = BTreeMap::from([
        (Factor::Preempt, facts.preempt_model.to_string()),
        (
            Factor::Thp,
            facts
                .thp_enabled
                .map_or("not built in", ThpEnabled::as_str)
                .to_owned(),
        ),
    ]);
    if let Some(defrag) = &facts.thp_defrag {
        held.insert(Factor::Defrag, defrag.clone());
    }
    if let Some(row) = report.rows.first() {
        held.extend(row.combination.0.clone());
    }
    held.retain(|factor, _| !varied.contains(factor));
    let init_on_alloc = match facts.init_on_alloc {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown",
    };
    format!("{}, init_on_alloc {init_on_alloc}", Combination(held))
}

const FIGURES: [Column; 8] = [
    ("n", false),
    ("elapsed", false),
    ("sd", false),
    ("SE", false),
    ("GB/s", false),
    ("GiB/s", false),
    ("fault p50", false),
    ("p99", false),
];

/// Only where clears were traced.
const TRACED: [Column; 2] = [("clear", false), ("clear GB/s", false)];

/// Only where there is something to compare.
const COMPARED: [Column; 2] = [("behind", false), ("", true)];

fn rows(rows: &[Row], varied: &[Factor]) -> String {
    let is_traced = rows.iter().any(|row| row.clear_ns.is_some());
    let is_compared = rows.len() > 1;
    let columns: Vec<Column> = varied
        .iter()
        .map(|factor| (factor.as_str(), true))
        .chain(FIGURES)
        .chain(TRACED.into_iter().filter(|_| is_traced))
        .chain(COMPARED.into_iter().filter(|_| is_compared))
        .collect();
    let records = rows.iter().map(|row| {
        let values = varied.iter().map(|factor| row.combination.0.get(factor));
        let mut record: Vec<String> = values
            .map(|value| value.cloned().unwrap_or_default())
            .collect();
        record.extend(figures(row));
        if is_traced {
            record.extend([mean_time(row.clear_ns), mean_rate(row.clear_gb_per_s, 1.0)]);
        }
        if is_compared {
            record.extend(behind(&row.elapsed_ns, &fastest(row, rows, varied)));
        }
        record
    });
    let mut text = grid(&columns, records);
    if is_compared {
        text += "\nbehind: elapsed against the fastest of those that differ in the last factor only; ~ may be chance (p >= 0.05)";
    }
    text
}

fn figures(row: &Row) -> [String; FIGURES.len()] {
    let elapsed = &row.elapsed_ns;
    [
        elapsed.n.to_string(),
        format_ns(elapsed.mean),
        or_dash(elapsed.sd.map(format_ns)),
        or_dash(elapsed.se.map(format_ns)),
        mean_rate(row.gb_per_s, 1.0),
        mean_rate(row.gb_per_s, GIB_PER_GB),
        mean_time(row.fault_p50_ns),
        mean_time(row.fault_p99_ns),
    ]
}

fn mean_time(spread: Option<Spread>) -> String {
    or_dash(spread.map(|spread| format_ns(spread.mean)))
}

fn mean_rate(spread: Option<Spread>, factor: f64) -> String {
    or_dash(spread.map(|spread| format!("{:.2}", spread.mean * factor)))
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// The elapsed time of the fastest row among those that differ from this one in the last factor only.
fn fastest(row: &Row, rows: &[Row], varied: &[Factor]) -> Spread {
    let others = varied.split_last().map_or(&[][..], |(_, others)| others);
    let is_beside = |other: &&Row| {
        let values = |row: &Row| -> Vec<Option<String>> {
            others
                .iter()
                .map(|factor| row.combination.0.get(factor).cloned())
                .collect()
        };
        values(other) == values(row)
    };
    rows.iter()
        .filter(is_beside)
        .map(|other| other.elapsed_ns)
        .min_by(|a, b| a.mean.total_cmp(&b.mean))
        .unwrap_or(row.elapsed_ns)
}

/// How much longer it took than the fastest, and a mark if that may be chance.
fn behind(elapsed: &Spread, fastest: &Spread) -> [String; COMPARED.len()] {
    if elapsed.mean <= fastest.mean {
        return ["fastest".to_owned(), String::new()];
    }
    let percent = (elapsed.mean / fastest.mean - 1.0) * 100.0;
    let may_be_chance = elapsed.p_of_same_mean(fastest).is_none_or(|p| p >= 0.05);
    let mark = if may_be_chance { "~" } else { "" };
    [format!("+{percent:.1} %"), mark.to_owned()]
}

#[cfg(test)]
mod tests;
