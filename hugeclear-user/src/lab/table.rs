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
use crate::{grid::grid, units::format_bytes};

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
            writeln!(out)?;
            heat(out, region, columns)?;
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

/// What reading took after the clears of all cells.
fn heat(out: &mut String, region: &Region, columns: usize) -> fmt::Result {
    let units = units(region);
    let text = |heat: &[Heat]| {
        let texts = units.iter().zip(heat).map(|(unit, heat)| unit.text(heat));
        texts.collect::<Vec<_>>().join("/")
    };
    let distances = units
        .iter()
        .zip(&region.hot)
        .map(|(unit, heat)| format!("{} ({})", format_bytes(heat.bytes as u64), unit.name));
    writeln!(
        out,
        "heat: time to read {} around the fault then, median",
        distances.collect::<Vec<_>>().join("/")
    )?;
    writeln!(
        out,
        "      {} if just read, {} from memory",
        text(&region.hot),
        text(&region.cold)
    )?;
    matrix(out, region, columns, |cell| text(&cell.heat))
}

/// All of a single primitive in one table.
fn by_strategy(out: &mut String, region: &Region) -> fmt::Result {
    writeln!(out, "with {}; {MARKS}", primitives(region)[0])?;
    let decimals = rate_decimals(region);
    let units = units(region);
    let titles: Vec<String> = units
        .iter()
        .zip(&region.hot)
        .map(|(unit, heat)| format!("{} {}", format_bytes(heat.bytes as u64), unit.name))
        .collect();
    let columns: Vec<(&str, bool)> = [
        ("STRATEGY", true),
        ("GB/s", false),
        ("SD", false),
        ("MEDIAN", false),
        ("N", false),
        ("CLEAR µs", false),
    ]
    .into_iter()
    .chain(titles.iter().map(|title| (&**title, false)))
    .collect();
    let reads = |heat: &[Heat]| -> Vec<String> {
        let texts = units.iter().zip(heat).map(|(unit, heat)| unit.text(heat));
        texts.collect()
    };
    let rows = region.cells.iter().map(|cell| {
        let number = |number: Option<f64>| {
            number.map_or(NOTHING.to_owned(), |number| format!("{number:.decimals$}"))
        };
        let rates = cell.gb_per_s;
        let median = rates.map(|rates| rates.median);
        // Of the median, as the reads.
        let clear = median.map_or(NOTHING.to_owned(), |gb_per_s| {
            format!("{:.1}", region.size_bytes as f64 / gb_per_s / 1e3)
        });
        [
            cell.strategy.clone(),
            format!("{}{}", number(rates.map(|rates| rates.mean)), mark(cell)),
            number(rates.and_then(|rates| rates.sd)),
            number(median),
            cell.clear_ns.len().to_string(),
            clear,
        ]
        .into_iter()
        .chain(reads(&cell.heat))
        .collect()
    });
    // What a read can take at least and at most, below the reads.
    let bound = |name: &str, heat: &[Heat]| -> Vec<String> {
        let texts = iter::once(name.to_owned());
        let gap = iter::repeat_n(String::new(), columns.len() - 1 - heat.len());
        texts.chain(gap).chain(reads(heat)).collect()
    };
    let bounds = [
        bound("(just read)", &region.hot),
        bound("(from memory)", &region.cold),
    ];
    writeln!(out, "{}", grid(&columns, rows.chain(bounds)))?;
    writeln!(
        out,
        "from CLEAR on medians; on the right what reading so much around the fault took then"
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

const MARKS: &str = "* best, = not told apart from it (Welch, 95 % for all)";

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

/// The unit of each distance.
fn units(region: &Region) -> Vec<Unit> {
    (0..region.hot.len())
        .map(|distance| Unit::of(region, distance))
        .collect()
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
    for (index, part) in parts(&widths, columns.saturating_sub(label))
        .into_iter()
        .enumerate()
    {
        if index > 0 {
            writeln!(out)?;
        }
        let titles: Vec<(&str, bool)> = iter::once((STRATEGY, true))
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

/// Which columns of these widths go together into `columns`, at least one at a time: as few tables as
/// can be, and these about equally wide.
fn parts(widths: &[usize], columns: usize) -> Vec<Range<usize>> {
    let fewest = filled(widths, columns);
    let narrower = (1..columns).rev().map(|columns| filled(widths, columns));
    narrower
        .take_while(|parts| parts.len() == fewest.len())
        .last()
        .unwrap_or(fewest)
}

/// Each part as full as can be.
fn filled(widths: &[usize], columns: usize) -> Vec<Range<usize>> {
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
    use crate::{
        lab::{
            Cache, Conditions,
            report::{Missing, rank},
        },
        notes::Note,
    };

    #[test]
    fn columns_are_parted_by_width() {
        assert_eq!(parts(&[8, 8, 8], 30), vec![0..3]);
        assert_eq!(parts(&[8, 8, 8, 8], 39), [0..2, 2..4]);
        assert_eq!(parts(&[8, 8, 8], 29), [0..2, 2..3]);
        assert_eq!(parts(&[8, 8, 8], 1), [0..1, 1..2, 2..3]);
        assert_eq!(parts(&[], 80), []);
    }

    /// Times that are made up: the text of them is what is tested.
    fn report(primitives: &[&'static str]) -> Report {
        let heat = |factor: u64| -> Vec<Heat> {
            [(4 << 10, 90), (64 << 10, 1500), (2 << 20, 66_000)]
                .map(|(bytes, ns)| Heat::of(bytes, vec![ns * factor; 3]))
                .into()
        };
        let strategies = ["one-shot", "converging", "chunked 256K"];
        let mut cells: Vec<Cell> = Vec::new();
        for (strategy, row) in strategies.iter().zip(1..) {
            for (primitive, column) in primitives.iter().zip(0..) {
                let ns = 50_000 + 10_000 * (row / 2) + 100_000 * (column / 5);
                let times = vec![ns, ns + 1000 * row, ns + 2000 * row];
                let heat = heat(row);
                cells.push(Cell::of(
                    (*strategy).to_owned(),
                    primitive,
                    2 << 20,
                    times,
                    heat,
                ));
            }
        }
        rank(&mut cells);
        let cache = |level, bytes| Cache { level, bytes };
        Report {
            processor: Some("Example 9000".to_owned()),
            caches: vec![cache(1, 48 << 10), cache(2, 2 << 20)],
            kernel: Some("6.12.0".to_owned()),
            cpu: 1,
            backing: Backing::Thp,
            evicted: false,
            seed: 1,
            warmup: 3,
            timer_overhead_ns: 25,
            missing: vec![Missing {
                name: "clzero",
                why: "this processor has no CLZERO",
            }],
            conditions: Conditions {
                khz_before: None,
                khz_after: None,
                steal_ms: Some(20),
                preempted: 3,
            },
            regions: vec![Region {
                size_bytes: 2 << 20,
                huge_bytes: Some(2 << 20),
                fault_sub_page: 256,
                repeat: 3,
                cells,
                hot: heat(1),
                cold: heat(5),
            }],
            notes: vec![Note::new("outliers", "some are far away")],
            interrupted_by: None,
        }
    }

    const EIGHT: [&str; 8] = [
        "memset",
        "rep-stosb",
        "rep-stosq",
        "avx2",
        "avx512",
        "movnti",
        "nt-avx2",
        "nt-avx512",
    ];

    #[test]
    fn tables_of_several_widths() {
        for (name, columns) in [("wide", 120), ("narrow", 80)] {
            let text = table(&report(&EIGHT), columns);
            let fits = |line: &str| line.chars().count() <= columns;
            assert!(text.lines().all(fits), "{text}");
            insta::assert_snapshot!(name, text);
        }
    }

    #[test]
    fn one_primitive_has_a_table_of_its_own() {
        insta::assert_snapshot!("one_primitive", table(&report(&["rep-stosb"]), 80));
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut report = report(&["memset", "avx2"]);
        report.evicted = true;
        report.interrupted_by = Some(2);
        report.caches.clear();
        report.processor = None;
        report.conditions.khz_before = Some(2_100_000);
        report.conditions.khz_after = Some(3_000_000);
        report.conditions.steal_ms = None;
        let region = &mut report.regions[0];
        region.huge_bytes = Some(0);
        for cell in &mut region.cells[1..] {
            let heat = cell.heat.iter();
            let heat = heat.map(|heat| Heat::of(heat.bytes, Vec::new())).collect();
            let (strategy, primitive) = (cell.strategy.clone(), cell.primitive);
            *cell = Cell::of(strategy, primitive, 2 << 20, Vec::new(), heat);
        }
        insta::assert_snapshot!("incomplete", table(&report, 80));
    }
}
