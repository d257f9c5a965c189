//! The report for people.

use std::{
    fmt::{self, Write as _},
    iter,
    ops::Range,
};

use super::{
    Backing, PAGE_BYTES,
    report::{Cell, Heat, Region, Report, Standing},
};
use crate::{
    grid::{Column, grid},
    units::format_bytes,
};

/// Spaces between columns, as [`grid`] has them.
const GAP_COLUMNS: usize = 2;

/// What stands for a cell that was not measured.
const NOTHING: &str = "-";

/// The report; its tables are no wider than `columns` where that can be.
#[must_use]
pub fn table(report: &Report, columns: usize) -> String {
    let mut out = String::new();
    write(&mut out, report, columns).expect("strings can be written");
    out
}

fn write(out: &mut String, report: &Report, columns: usize) -> fmt::Result {
    head(out, report)?;
    for region in &report.regions {
        writeln!(out)?;
        what_was_cleared(out, region, report.backing)?;
        if primitives(region).len() == 1 {
            by_strategy(out, region)?;
        } else {
            rates(out, region, columns)?;
            for distance in 0..region.hot.len() {
                writeln!(out)?;
                heat(out, region, distance, columns)?;
            }
        }
    }
    writeln!(out)?;
    foot(out, report)
}

fn head(out: &mut String, report: &Report) -> fmt::Result {
    let processor = report.processor.as_deref().unwrap_or("unknown processor");
    write!(out, "{processor}, CPU {}", report.cpu)?;
    for cache in &report.caches {
        write!(out, ", L{} {}", cache.level, format_bytes(cache.bytes))?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{}",
        if report.evicted {
            "before each clear: the region is dropped from the caches (--evict)"
        } else {
            "before each clear: the region is written, and so in the caches (--evict: not)"
        }
    )
}

fn what_was_cleared(out: &mut String, region: &Region, backing: Backing) -> fmt::Result {
    let pages = match (backing, region.huge_bytes) {
        (Backing::Base, _) => "base pages".to_owned(),
        (Backing::Thp, Some(0)) => "base pages, for THP were not to be had".to_owned(),
        (Backing::Thp, _) => "transparent huge pages".to_owned(),
        (Backing::Hugetlb, _) => "hugetlb pages".to_owned(),
    };
    writeln!(
        out,
        "{} of {pages}, fault in 4K sub-page {} of {}, {} clears each",
        format_bytes(region.size_bytes as u64),
        region.fault_sub_page,
        region.size_bytes / PAGE_BYTES,
        region.repeat,
    )
}

/// The rates of all cells.
fn rates(out: &mut String, region: &Region, columns: usize) -> fmt::Result {
    writeln!(out, "GB/s, mean ±sd; {MARKS}")?;
    let decimals = rate_decimals(region);
    matrix(out, region, columns, |cell| {
        let Some(rates) = cell.gb_per_s else {
            return NOTHING.to_owned();
        };
        let sd = rates
            .sd
            .map_or(String::new(), |sd| format!(" ±{sd:.decimals$}"));
        format!("{:.decimals$}{sd}{}", rates.mean, mark(cell))
    })
}

/// What reading at one distance took after the clear.
fn heat(out: &mut String, region: &Region, distance: usize, columns: usize) -> fmt::Result {
    let unit = Unit::of(region, distance);
    let text = |heat: &[Heat]| unit.text(&heat[distance]);
    writeln!(
        out,
        "{} to read the {} around the fault after that, median ({} if just read, {} from memory)",
        unit.name,
        format_bytes(region.hot[distance].bytes as u64),
        text(&region.hot),
        text(&region.cold),
    )?;
    matrix(out, region, columns, |cell| text(&cell.heat))
}

/// All of a single primitive in one table.
fn by_strategy(out: &mut String, region: &Region) -> fmt::Result {
    writeln!(out, "{}: {MARKS}", primitives(region)[0])?;
    let decimals = rate_decimals(region);
    let units: Vec<Unit> = (0..region.hot.len())
        .map(|distance| Unit::of(region, distance))
        .collect();
    let titles: Vec<String> = units
        .iter()
        .zip(&region.hot)
        .map(|(unit, heat)| format!("READ {} {}", format_bytes(heat.bytes as u64), unit.name))
        .collect();
    let columns: Vec<Column> = [
        ("STRATEGY", true),
        ("GB/s", false),
        ("SD", false),
        ("MEDIAN", false),
        ("N", false),
    ]
    .into_iter()
    .chain(titles.iter().map(|title| (&**title, false)))
    .collect();
    let reads = |heat: &[Heat]| -> Vec<String> {
        let texts = units.iter().zip(heat).map(|(unit, heat)| unit.text(heat));
        texts.collect()
    };
    let nothing = || NOTHING.to_owned();
    let rows = region.cells.iter().map(|cell| {
        let number =
            |number: Option<f64>| number.map_or_else(nothing, |n| format!("{n:.decimals$}"));
        let rates = cell.gb_per_s;
        let mean = number(rates.map(|rates| rates.mean)) + &mark(cell).to_string();
        [
            cell.strategy.clone(),
            mean,
            number(rates.and_then(|rates| rates.sd)),
            number(rates.map(|rates| rates.median)),
            cell.clear_ns.len().to_string(),
        ]
        .into_iter()
        .chain(reads(&cell.heat))
        .collect()
    });
    // What a read can take at least and at most, below the columns of reads.
    let bound = |name: &str, heat: &[Heat]| {
        let mut row = vec![String::new(); 5];
        row[0] = format!("({name})");
        row.extend(reads(heat));
        row
    };
    let bounds = [
        bound("just read", &region.hot),
        bound("from memory", &region.cold),
    ];
    writeln!(out, "{}", grid(&columns, rows.chain(bounds)))?;
    writeln!(
        out,
        "GB/s: mean; READ: median, around the fault, after the clear"
    )
}

fn foot(out: &mut String, report: &Report) -> fmt::Result {
    for missing in &report.missing {
        writeln!(out, "no {}: {}", missing.name, missing.why)?;
    }
    let conditions = &report.conditions;
    let mhz = |khz: u64| khz / 1000;
    match conditions.khz_before.zip(conditions.khz_after) {
        Some((before, after)) => write!(out, "{} MHz before, {} after", mhz(before), mhz(after))?,
        None => write!(out, "frequency unknown")?,
    }
    match conditions.steal_ms {
        Some(ms) => write!(out, "; {ms} ms stolen by a hypervisor")?,
        None => write!(out, "; steal unknown")?,
    }
    writeln!(out, "; preempted {} times", conditions.preempted)?;
    write!(
        out,
        "reading the clock adds {} ns to each time",
        report.timer_overhead_ns
    )?;
    let times = report.regions.iter().flat_map(|region| &region.cells);
    if let Some(shortest) = times.flat_map(|cell| &cell.clear_ns).min() {
        let share = report.timer_overhead_ns as f64 / (*shortest).max(1) as f64 * 100.0;
        write!(out, ", {share:.2} % of the shortest clear")?;
    }
    writeln!(out)?;
    for note in &report.notes {
        writeln!(out, "note: {}", note.text)?;
    }
    if let Some(signal) = report.interrupted_by {
        writeln!(out, "ended early by signal {signal}")?;
    }
    Ok(())
}

const MARKS: &str = "* best, = not told apart from it (Welch, 95 %)";

fn mark(cell: &Cell) -> char {
    match cell.standing {
        Standing::Best => '*',
        Standing::WithinNoise => '=',
        Standing::Slower => ' ',
    }
}

/// The same for all rates of a region, which makes three digits of the best.
fn rate_decimals(region: &Region) -> usize {
    let means = region.cells.iter().filter_map(|cell| cell.gb_per_s);
    decimals(means.map(|rates| rates.mean).fold(0.0, f64::max))
}

fn decimals(largest: f64) -> usize {
    match largest {
        largest if largest < 10.0 => 2,
        largest if largest < 100.0 => 1,
        _ => 0,
    }
}

/// The unit of the reads at one distance.
struct Unit {
    name: &'static str,
    ns: f64,
    decimals: usize,
}

impl Unit {
    fn of(region: &Region, distance: usize) -> Self {
        let cells = region.cells.iter().map(|cell| &cell.heat);
        let largest_ns = cells
            .chain([&region.cold, &region.hot])
            .filter_map(|heat| heat[distance].ns)
            .map(|ns| ns.median)
            .fold(0.0, f64::max);
        let (name, ns) = match largest_ns {
            largest if largest < 1e3 => ("ns", 1.0),
            largest if largest < 1e6 => ("µs", 1e3),
            _ => ("ms", 1e6),
        };
        Self {
            name,
            ns,
            // A clock that tells whole ns.
            decimals: if ns > 1.0 {
                decimals(largest_ns / ns)
            } else {
                0
            },
        }
    }

    fn text(&self, heat: &Heat) -> String {
        let decimals = self.decimals;
        heat.ns.map_or(NOTHING.to_owned(), |ns| {
            format!("{:.decimals$}", ns.median / self.ns)
        })
    }
}

/// The primitives of the cells, each once.
fn primitives(region: &Region) -> Vec<&'static str> {
    let mut primitives: Vec<&'static str> = Vec::new();
    for cell in &region.cells {
        if !primitives.contains(&cell.primitive) {
            primitives.push(cell.primitive);
        }
    }
    primitives
}

/// A row for each strategy, a column for each primitive, in as many tables below one another as the
/// width asks for.
fn matrix(
    out: &mut String,
    region: &Region,
    columns: usize,
    text: impl Fn(&Cell) -> String,
) -> fmt::Result {
    let primitives = primitives(region);
    // Cells are ordered by strategy, and each strategy has all primitives.
    let rows: Vec<(&str, Vec<String>)> = region
        .cells
        .chunks(primitives.len())
        .map(|cells| (&*cells[0].strategy, cells.iter().map(&text).collect()))
        .collect();
    let length = |text: &str| text.chars().count();
    let label = rows
        .iter()
        .map(|(strategy, _)| length(strategy))
        .fold(length(STRATEGY), usize::max);
    let widths: Vec<usize> = primitives
        .iter()
        .enumerate()
        .map(|(column, primitive)| {
            rows.iter()
                .map(|(_, texts)| length(&texts[column]))
                .fold(length(primitive), usize::max)
        })
        .collect();
    for part in parts(&widths, columns.saturating_sub(label)) {
        let titles: Vec<Column> = iter::once((STRATEGY, true))
            .chain(primitives[part.clone()].iter().map(|name| (*name, false)))
            .collect();
        let records = rows.iter().map(|(strategy, texts)| {
            let texts = texts[part.clone()].iter().cloned();
            iter::once((*strategy).to_owned()).chain(texts).collect()
        });
        writeln!(out, "{}", grid(&titles, records))?;
    }
    Ok(())
}

const STRATEGY: &str = "STRATEGY";

/// Which columns of these widths go together into `columns`, at least one at a time.
fn parts(widths: &[usize], columns: usize) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut used = 0;
    for (index, width) in widths.iter().enumerate() {
        let width = width + GAP_COLUMNS;
        match parts.last_mut() {
            Some(part) if used + width <= columns => {
                part.end = index + 1;
                used += width;
            }
            Some(_) | None => {
                parts.push(index..index + 1);
                used = width;
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_parted_by_width() {
        assert_eq!(parts(&[8, 8, 8], 30), [0..3]);
        assert_eq!(parts(&[8, 8, 8], 29), [0..2, 2..3]);
        assert_eq!(parts(&[8, 8, 8], 1), [0..1, 1..2, 2..3]);
        assert_eq!(parts(&[], 80), []);
    }
}
