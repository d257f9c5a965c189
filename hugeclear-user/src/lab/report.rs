//! What was measured. Plain data: the JSON is this.

use serde::Serialize;

use super::{Backing, machine::Cache, machine::Conditions};
use crate::{
    notes::Note,
    stats::{self, Spread},
};

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Processor model.
    pub processor: Option<String>,
    /// Caches of the CPU that hold data.
    pub caches: Vec<Cache>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// The CPU.
    pub cpu: u32,
    /// What the memory was to be made of.
    pub backing: Backing,
    /// Whether the regions were dropped from the caches before each clear, or written.
    pub evicted: bool,
    /// Of the order of the measurements.
    pub seed: u64,
    /// Rounds before those that count.
    pub warmup: u32,
    /// What the two clock readings around a clear or a read cost, ns; part of each time.
    pub timer_overhead_ns: u64,
    /// Primitives that this processor lacks.
    pub missing: Vec<Missing>,
    /// What disturbed it.
    pub conditions: Conditions,
    /// One for each size.
    pub regions: Vec<Region>,
    /// What to know about the numbers.
    pub notes: Vec<Note>,
    /// Number of the signal that ended it early, if one did; exit status 128 + this number.
    pub interrupted_by: Option<i32>,
}

/// A primitive that this processor lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Its name.
    pub name: &'static str,
    /// Why.
    pub why: &'static str,
}

/// A region of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Region {
    /// Its size.
    pub size_bytes: usize,
    /// Of them huge pages, by the kernel's account. `None`: it does not tell.
    pub huge_bytes: Option<u64>,
    /// The 4K sub-page of the fault, from 0.
    pub fault_sub_page: usize,
    /// Clears of each cell that were asked for.
    pub repeat: u32,
    /// Each strategy with each primitive.
    pub cells: Vec<Cell>,
    /// Reading what was read a moment before: the least that a read can take.
    pub hot: Vec<Heat>,
    /// Reading what is in no cache: what a clear that leaves nothing there would cost.
    pub cold: Vec<Heat>,
}

/// A strategy with a primitive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// The strategy.
    pub strategy: String,
    /// The primitive.
    pub primitive: &'static str,
    /// Rates of the clears, GB/s; `None` if there were none.
    pub gb_per_s: Option<Spread>,
    /// How it compares with the best of the region.
    pub standing: Standing,
    /// Times that are far from the median of the cell.
    pub outliers: usize,
    /// Times of the clears, ns, in the order in which they were measured.
    pub clear_ns: Vec<u64>,
    /// What reading took right after the clear, by distance.
    pub heat: Vec<Heat>,
}

/// How a cell compares with the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The highest mean.
    Best,
    /// Not to be told apart from the best.
    WithinNoise,
    /// Slower.
    Slower,
}

/// Reads of the surroundings of the fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Heat {
    /// Bytes read, around the fault.
    pub bytes: usize,
    /// Times, ns; `None` if there were none.
    pub ns: Option<Spread>,
    /// Each, in the order in which they were measured.
    pub read_ns: Vec<u64>,
}

impl Heat {
    pub(super) fn of(bytes: usize, read_ns: Vec<u64>) -> Self {
        Self {
            bytes,
            ns: Spread::of(read_ns.iter().map(|ns| *ns as f64)),
            read_ns,
        }
    }
}

impl Cell {
    /// Its standing is to be found by [`rank`].
    pub(super) fn of(
        strategy: String,
        primitive: &'static str,
        size_bytes: usize,
        clear_ns: Vec<u64>,
        heat: Vec<Heat>,
    ) -> Self {
        // Bytes per ns are GB per s.
        let rate = |ns: &u64| size_bytes as f64 / (*ns).max(1) as f64;
        Self {
            strategy,
            primitive,
            gb_per_s: Spread::of(clear_ns.iter().map(rate)),
            standing: Standing::Slower,
            outliers: stats::outliers(&clear_ns).len(),
            clear_ns,
            heat,
        }
    }
}

/// Probability that a region calls a cell slower than the best though it is not.
const ALPHA: f64 = 0.05;

/// Compares all cells with the best of them: within noise is what Welch's test does not tell apart from it, at
/// [`ALPHA`] for all comparisons together (Bonferroni), and what was cleared once.
pub(super) fn rank(cells: &mut [Cell]) {
    let best = cells
        .iter()
        .enumerate()
        .filter_map(|(index, cell)| Some((index, cell.gb_per_s?)))
        .max_by(|(_, a), (_, b)| a.mean.total_cmp(&b.mean));
    let Some((best_index, best)) = best else {
        return;
    };
    let alpha = ALPHA / (cells.len() - 1).max(1) as f64;
    for (index, cell) in cells.iter_mut().enumerate() {
        cell.standing = match cell.gb_per_s {
            _ if index == best_index => Standing::Best,
            Some(rates) if best.p_of_same_mean(&rates).is_none_or(|p| p >= alpha) => {
                Standing::WithinNoise
            }
            Some(_) | None => Standing::Slower,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_compared_with_the_best() {
        let cell = |clear_ns: &[u64]| {
            Cell::of(
                "forward".to_owned(),
                "memset",
                1000,
                clear_ns.to_vec(),
                Vec::new(),
            )
        };
        let mut cells = [
            cell(&[200, 201, 199]),
            cell(&[100, 120, 110]),
            cell(&[]),
            cell(&[101, 118, 112]),
        ];
        rank(&mut cells);
        let standings = cells.each_ref().map(|cell| cell.standing);
        use Standing::{Best, Slower, WithinNoise};
        assert_eq!(standings, [Slower, Best, Slower, WithinNoise]);
        // 1000 bytes in 200 ns are 5e9 bytes per second.
        assert!((cells[0].gb_per_s.unwrap().median - 5.0).abs() < 1e-9);
    }
}
