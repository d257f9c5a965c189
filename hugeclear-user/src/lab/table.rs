//! The report for people.

use std::fmt::{self, Write as _};

use super::report::{Heat, Region, Report, Standing};
use crate::{
    grid::{Column, grid},
    units::{format_bytes, format_ns},
};

/// What stands for a cell that was not measured.
const NOTHING: &str = "-";

/// The report, no wider than `columns` where that can be.
#[must_use]
pub fn table(report: &Report, columns: usize) -> String {
    let mut out = String::new();
    write(&mut out, report, columns).expect("strings can be written");
    out
}

fn write(out: &mut String, report: &Report, columns: usize) -> fmt::Result {
    let caches: Vec<String> = report
        .caches
        .iter()
        .map(|cache| format!("L{} {}", cache.level, format_bytes(cache.bytes)))
        .collect();
    writeln!(
        out,
        "{}, CPU {}, caches {}",
        report.processor.as_deref().unwrap_or("unknown processor"),
        report.cpu,
        if caches.is_empty() {
            "unknown".to_owned()
        } else {
            caches.join(", ")
        },
    )?;
    for region in &report.regions {
        writeln!(out)?;
        rates(out, region, columns)?;
        for distance in 0..region.hot.len() {
            writeln!(out)?;
            heat(out, region, distance, columns)?;
        }
    }
    Ok(())
}

fn rates(out: &mut String, region: &Region, columns: usize) -> fmt::Result {
    writeln!(
        out,
        "{} cleared, fault in sub-page {}: GB/s, mean ± sd of {}; * best, = within noise of it",
        format_bytes(region.size_bytes as u64),
        region.fault_sub_page,
        region.repeat
    )?;
    matrix(out, region, columns, |cell| {
        let Some(rates) = cell.gb_per_s else {
            return NOTHING.to_owned();
        };
        let mark = match cell.standing {
            Standing::Best => '*',
            Standing::WithinNoise => '=',
            Standing::Slower => ' ',
        };
        let sd = rates.sd.map_or(String::new(), |sd| format!(" ±{sd:.1}"));
        format!("{:.1}{sd}{mark}", rates.mean)
    })
}

fn heat(out: &mut String, region: &Region, distance: usize, columns: usize) -> fmt::Result {
    let median = |heat: &[Heat]| {
        heat[distance]
            .ns
            .map_or(NOTHING.to_owned(), |ns| format_ns(ns.median))
    };
    writeln!(
        out,
        "Then reading {} around the fault, median; just read {}, from memory {}",
        format_bytes(region.hot[distance].bytes as u64),
        median(&region.hot),
        median(&region.cold),
    )?;
    matrix(out, region, columns, |cell| median(&cell.heat))
}

/// A row for each strategy, a column for each primitive, in as many tables below one another as the
/// width takes.
fn matrix(
    out: &mut String,
    region: &Region,
    columns: usize,
    text: impl Fn(&super::report::Cell) -> String,
) -> fmt::Result {
    let mut strategies: Vec<&str> = Vec::new();
    let mut primitives: Vec<&'static str> = Vec::new();
    for cell in &region.cells {
        if !strategies.contains(&&*cell.strategy) {
            strategies.push(&cell.strategy);
        }
        if !primitives.contains(&cell.primitive) {
            primitives.push(cell.primitive);
        }
    }
    let _ = columns;
    let titles: Vec<Column> = std::iter::once(("STRATEGY", true))
        .chain(primitives.iter().map(|name| (*name, false)))
        .collect();
    let rows = strategies.iter().map(|strategy| {
        let cells = region
            .cells
            .iter()
            .filter(|cell| cell.strategy == *strategy);
        std::iter::once((*strategy).to_owned())
            .chain(cells.map(&text))
            .collect()
    });
    writeln!(out, "{}", grid(&titles, rows))
}
