//! Draws the pieces of a cleared page: time to the right, sub-pages upwards. Pure.

use std::fmt::Write as _;

use super::{Measured, Name, Piece};
use crate::units::format_bytes;

/// Lines of the picture without its axis.
const ROWS: usize = 16;
/// A picture is no wider.
const MAX_COLUMNS: usize = 70;
/// Room for the numbers of the sub-pages.
const LABEL_COLUMNS: usize = 6;

/// The picture, no wider than `columns`, and its legend.
#[must_use]
pub fn plot(measured: &Measured, columns: usize) -> String {
    let pages = measured
        .pieces
        .iter()
        .map(|piece| piece.sub_page + piece.pages)
        .max()
        .unwrap_or(1);
    // The label, the axis and the mark at the right.
    let width = columns
        .min(MAX_COLUMNS)
        .saturating_sub(LABEL_COLUMNS + 3)
        .max(8);
    let end_ns = measured.duration_ns.max(1) as f64;
    let column = |ns: f64| scaled(ns / end_ns, width);
    let row = |page: f64| ROWS - 1 - scaled(page / pages as f64, ROWS);

    let mut cells = vec![vec![' '; width]; ROWS];
    for (index, piece) in measured.pieces.iter().enumerate() {
        let next = measured.pieces.get(index + 1);
        let until_ns = next.map_or(measured.duration_ns, |next| next.start_ns);
        for (ns, page) in points(piece, until_ns, 4 * width.max(ROWS)) {
            cells[row(page)][column(ns)] = '·';
        }
    }
    let mut axis = vec!['─'; width];
    for ns in &measured.resched_points_ns {
        axis[column(*ns as f64)] = '┬';
    }

    let touched = row(measured.touched_sub_page as f64);
    let mut out = String::new();
    // Writing to a string cannot fail.
    for (index, cells) in cells.iter().enumerate() {
        let label = match index {
            0 => (pages - 1).to_string(),
            _ if index + 1 == ROWS => "0".to_owned(),
            _ => String::new(),
        };
        let mark = if index == touched { "◂" } else { "" };
        let line: String = cells.iter().collect();
        let line = format!("{label:>LABEL_COLUMNS$}│{line}{mark}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let axis: String = axis.into_iter().collect();
    let _ = writeln!(out, "{:>LABEL_COLUMNS$}└{axis}", "");
    let end = format!("{:.0} µs", measured.duration_ns as f64 / 1e3);
    let _ = writeln!(out, "{:>LABEL_COLUMNS$}0{end:>width$}", "");
    out
}

/// What the picture shows, in lines.
#[must_use]
pub fn legend(measured: &Measured) -> Vec<String> {
    let base_bytes = |pages: u64, total: u64| pages * (measured.page_size_bytes / total.max(1));
    let total: u64 = measured.pieces.iter().map(|piece| piece.pages).sum();
    let mut sizes: Vec<u64> = measured.pieces.iter().map(|piece| piece.pages).collect();
    let pieces = if sizes.windows(2).all(|pair| pair[0] == pair[1]) {
        let size = sizes.first().copied().unwrap_or(0);
        let plural = if sizes.len() == 1 {
            "piece"
        } else {
            "pieces of"
        };
        format!(
            "{} {plural} {}",
            sizes.len(),
            format_bytes(base_bytes(size, total))
        )
    } else {
        sizes.truncate(4);
        let sizes: Vec<String> = sizes
            .iter()
            .map(|pages| format_bytes(base_bytes(*pages, total)))
            .collect();
        let more = if measured.pieces.len() > sizes.len() {
            ", …"
        } else {
            ""
        };
        format!(
            "{} pieces: {}{more}",
            measured.pieces.len(),
            sizes.join(", ")
        )
    };
    let points = match measured.resched_points_ns.len() {
        0 => "no reschedule point".to_owned(),
        1 => "1 reschedule point (┬)".to_owned(),
        points => format!("{points} reschedule points (┬)"),
    };
    vec![
        pieces,
        points,
        format!("touched sub-page {} (◂)", measured.touched_sub_page),
    ]
}

/// What was measured, in one line.
#[must_use]
pub fn headline(measured: &Measured) -> String {
    let name = match &measured.name {
        Name::Known(strategy) => strategy.to_string(),
        Name::Unknown(why) => format!("unknown: {why}"),
    };
    format!(
        "{name} ({} of {}, by {})",
        measured.page.as_str(),
        format_bytes(measured.page_size_bytes),
        measured.function
    )
}

/// Points of a piece that lasts until `until_ns`: one page is one point, a range a line, since nothing
/// is known of what happens inside of it.
fn points(piece: &Piece, until_ns: u64, steps: usize) -> impl Iterator<Item = (f64, f64)> {
    let steps = if piece.pages == 1 { 1 } else { steps };
    let (ns, lasts) = (
        piece.start_ns as f64,
        until_ns.saturating_sub(piece.start_ns) as f64,
    );
    let (first, pages) = (piece.sub_page as f64, piece.pages as f64);
    (0..steps).map(move |step| {
        let part = step as f64 / steps as f64;
        (ns + part * lasts, first + part * pages)
    })
}

/// A part of a whole as one of `cells`.
fn scaled(part: f64, cells: usize) -> usize {
    ((part * cells as f64) as usize).min(cells - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, proptest};

    use super::*;
    use crate::strategy::PageKind;

    fn measured(pieces: Vec<Piece>, duration_ns: u64, resched_points_ns: Vec<u64>) -> Measured {
        Measured {
            name: Name::Unknown("a test".to_owned()),
            function: "folio_zero_user".to_owned(),
            page: PageKind::Anonymous,
            page_size_bytes: 2 << 20,
            touched_sub_page: 256,
            hint_sub_page: Some(256),
            duration_ns,
            pieces,
            resched_points_ns,
            dropped: 0,
        }
    }

    #[test]
    fn ranges_are_lines_and_pages_are_points() {
        let ranges = [(0, 259, 253), (50_000, 0, 254), (98_000, 254, 5)];
        let ranges = ranges.map(|(start_ns, sub_page, pages)| Piece {
            start_ns,
            sub_page,
            pages,
        });
        let pages = (0..512).map(|page| Piece {
            start_ns: page * 190,
            sub_page: page,
            pages: 1,
        });
        let every = (0..10).map(|point| point * 10_000).collect();
        let mut shown = String::new();
        for measured in [
            measured(ranges.to_vec(), 100_000, Vec::new()),
            measured(pages.collect(), 100_000, every),
        ] {
            shown += &headline(&measured);
            shown += "\n";
            shown += &plot(&measured, 40);
            shown += &legend(&measured).join("\n");
            shown += "\n";
        }
        insta::assert_snapshot!(shown);
    }

    proptest! {
        #[test]
        fn it_fits_and_never_panics(
            noise in prop::collection::vec((any::<u32>(), 0..1_u64 << 18, 0..1_u64 << 18), 0..20),
            duration_ns: u64,
            columns in 0..200_usize,
        ) {
            let points = noise.iter().map(|(start_ns, ..)| u64::from(*start_ns)).collect();
            let pieces = noise.into_iter().map(|(start_ns, sub_page, pages)| Piece {
                start_ns: start_ns.into(),
                sub_page,
                pages,
            });
            let measured = measured(pieces.collect(), duration_ns, points);
            let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
            // A gigantic page has 2^18 sub-pages. Below 40 columns nothing could be seen.
            prop_assert!(widest(&plot(&measured, columns)) <= Some(columns.clamp(40, MAX_COLUMNS)));
            prop_assert!(!legend(&measured).is_empty());
        }
    }
}
