//! The measurements themselves.

use std::{
    num::NonZeroUsize,
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    Backing, Error, Machine, Plan, Primitive, Strategy,
    machine::Disturbances,
    plan::RegionPlan,
    region::Region,
    report::{self, Cell, Heat, Missing, Report},
    strategy::PAGE_BYTES,
};
use crate::{
    notes::Note,
    stats::OUTLIER_DEVIATIONS,
    units::format_bytes,
    workload::{memory::Mapping, place::run_on, signals::Signals},
};

/// How much is read around the fault: the page itself, about an L1 data cache, about an L2.
const DISTANCES_BYTES: [usize; 3] = [PAGE_BYTES, 64 << 10, 2 << 20];

/// Does what is planned.
///
/// SIGINT, SIGTERM, SIGHUP and SIGQUIT end it between two clears: the report then says which, and holds
/// what was measured until then.
///
/// # Errors
/// The kernel refused memory or the CPU, or a primitive did not clear.
pub fn run(plan: &Plan, machine: &Machine) -> Result<Report, Error> {
    let signals = Signals::catch().map_err(Error::Signals)?;
    run_on(&[plan.cpu])?;
    let timer_overhead_ns = timer_overhead_ns();
    let progress = progress(plan);
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let before = Disturbances::read(Path::new("/"), plan.cpu);
    let mut regions = Vec::with_capacity(plan.regions.len());
    for of in &plan.regions {
        regions.push(measure(
            plan,
            of,
            machine,
            &mut random,
            &signals,
            &progress,
        )?);
    }
    let conditions = before.until(Disturbances::read(Path::new("/"), plan.cpu));
    progress.finish_and_clear();
    let mut report = Report {
        processor: machine.cpu.model.clone(),
        caches: machine.caches.clone(),
        kernel: machine.release.clone(),
        cpu: plan.cpu,
        backing: plan.backing,
        evicted: plan.evict,
        seed: plan.seed,
        warmup: plan.warmup,
        timer_overhead_ns,
        missing: plan.missing.iter().filter_map(|p| missing(p)).collect(),
        conditions,
        regions,
        notes: Vec::new(),
        interrupted_by: signals.seen(),
    };
    report.notes = notes(&report);
    Ok(report)
}

fn missing(primitive: &Primitive) -> Option<Missing> {
    primitive.missing().map(|why| Missing {
        name: primitive.name,
        why,
    })
}

/// A cell under measurement.
struct Bench {
    strategy: Strategy,
    primitive: &'static Primitive,
    clear_ns: Vec<u64>,
    read_ns: [Vec<u64>; DISTANCES_BYTES.len()],
}

fn measure(
    plan: &Plan,
    of: &RegionPlan,
    machine: &Machine,
    random: &mut fastrand::Rng,
    signals: &Signals,
    progress: &ProgressBar,
) -> Result<report::Region, Error> {
    let mut region = region(plan, of, machine, random)?;
    let huge_bytes = region.huge_bytes(match plan.backing {
        Backing::Thp | Backing::Base => &["AnonHugePages"],
        // Which of the two it is counted as differs between kernels.
        Backing::Hugetlb => &["Private_Hugetlb", "Shared_Hugetlb"],
    })?;
    let around = DISTANCES_BYTES.map(|bytes| neighbourhood(of, bytes));
    let mut benches: Vec<Bench> = of
        .strategies
        .iter()
        .flat_map(|strategy| {
            plan.primitives.iter().map(|primitive| Bench {
                strategy: *strategy,
                primitive,
                clear_ns: Vec::with_capacity(of.repeat as usize),
                read_ns: Default::default(),
            })
        })
        .collect();
    let mut hot: [Vec<u64>; DISTANCES_BYTES.len()] = Default::default();
    let mut cold = hot.clone();
    let mut order: Vec<usize> = (0..benches.len()).collect();

    'rounds: for round in 0..plan.warmup + of.repeat {
        let counts = round >= plan.warmup;
        // In turn, because reading one warms the others.
        let distance = round as usize % DISTANCES_BYTES.len();
        random.shuffle(&mut order);
        for index in &order {
            if signals.seen().is_some() {
                break 'rounds;
            }
            let bench = &mut benches[*index];
            region.dirty();
            if plan.evict {
                region.flush();
            }
            let cleared = region.clear(
                bench.strategy.pieces(of.pages(), of.hint),
                bench.primitive.clear(),
                bench.strategy.yields(),
            );
            let read = region.read(around[distance].clone());
            if round == 0
                && let Some(offset) = region.first_not_zero()
            {
                return Err(Error::NotCleared {
                    strategy: bench.strategy.to_string(),
                    primitive: bench.primitive.name,
                    offset,
                });
            }
            if counts {
                bench.clear_ns.push(nanoseconds(cleared));
                bench.read_ns[distance].push(nanoseconds(read));
            }
            progress.inc(of.bytes as u64);
        }
        region.dirty();
        region.read(around[distance].clone());
        let just_read = region.read(around[distance].clone());
        region.flush();
        let flushed = region.read(around[distance].clone());
        if counts {
            hot[distance].push(nanoseconds(just_read));
            cold[distance].push(nanoseconds(flushed));
        }
    }

    let heat = |times: [Vec<u64>; DISTANCES_BYTES.len()]| -> Vec<Heat> {
        around
            .iter()
            .zip(times)
            .map(|(around, read_ns)| Heat::of(around.len(), read_ns))
            .collect()
    };
    let mut cells: Vec<Cell> = benches
        .into_iter()
        .map(|bench| {
            Cell::of(
                bench.strategy.to_string(),
                bench.primitive.name,
                of.bytes,
                bench.clear_ns,
                heat(bench.read_ns),
            )
        })
        .collect();
    report::rank(&mut cells);
    Ok(report::Region {
        size_bytes: of.bytes,
        huge_bytes,
        fault_sub_page: of.hint,
        repeat: of.repeat,
        cells,
        hot: heat(hot),
        cold: heat(cold),
    })
}

fn region(
    plan: &Plan,
    of: &RegionPlan,
    machine: &Machine,
    random: &mut fastrand::Rng,
) -> Result<Region, Error> {
    let bytes = NonZeroUsize::new(of.bytes).expect("plans have no empty regions");
    // Whole huge pages, for less gets none.
    let rounded = |page_bytes: u64| {
        let page_bytes = usize::try_from(page_bytes).ok()?;
        bytes.get().checked_next_multiple_of(page_bytes)
    };
    let mapping = match plan.backing {
        Backing::Thp => {
            let page_bytes = machine.pmd_bytes.unwrap_or(PAGE_BYTES as u64);
            let whole = rounded(page_bytes).and_then(NonZeroUsize::new);
            Mapping::transparent(whole.unwrap_or(bytes), page_bytes as usize)?
        }
        Backing::Hugetlb => {
            let page_bytes = of.hugetlb_bytes.expect("plans for hugetlb have a pool");
            let whole = rounded(page_bytes).and_then(NonZeroUsize::new);
            Mapping::hugetlb(whole.unwrap_or(bytes), page_bytes)?
        }
        Backing::Base => Mapping::plain(bytes)?,
    };
    Ok(Region::new(mapping, bytes, random))
}

/// So many bytes around the middle of the fault's page, moved where they would leave the region; all of
/// a smaller region.
fn neighbourhood(of: &RegionPlan, bytes: usize) -> Range<usize> {
    let bytes = bytes.min(of.bytes);
    let fault = of.hint * PAGE_BYTES;
    let start = fault
        .saturating_sub((bytes / 2) / PAGE_BYTES * PAGE_BYTES)
        .min(of.bytes - bytes);
    start..start + bytes
}

fn progress(plan: &Plan) -> ProgressBar {
    let total: u64 = plan
        .regions
        .iter()
        .map(|of| {
            let cells = (of.strategies.len() * plan.primitives.len()) as u64;
            cells * u64::from(plan.warmup + of.repeat) * of.bytes as u64
        })
        .sum();
    // To stderr, and only if that is a terminal.
    let style = ProgressStyle::with_template("clearing {bar:40} {percent:>3} %, {eta} left")
        .expect("the template is right");
    ProgressBar::new(total).with_style(style)
}

fn notes(report: &Report) -> Vec<Note> {
    let mut notes = Vec::new();
    for region in &report.regions {
        let size = format_bytes(region.size_bytes as u64);
        if report.backing != Backing::Base
            && let Some(huge_bytes) = region.huge_bytes
            && huge_bytes < region.size_bytes as u64
        {
            notes.push(Note::new(
                "not_huge",
                format!(
                    "only {} of the {size} are huge pages: THP are off, or free memory is fragmented; \
                     TLB misses are in the times that a kernel does not have",
                    format_bytes(huge_bytes)
                ),
            ));
        }
        let outliers: usize = region.cells.iter().map(|cell| cell.outliers).sum();
        let times: usize = region.cells.iter().map(|cell| cell.clear_ns.len()).sum();
        if outliers > 0 {
            notes.push(Note::new(
                "outliers",
                format!(
                    "{outliers} of {times} clears of {size} are outliers, more than \
                     {OUTLIER_DEVIATIONS} robust sd from their cell's median; they are in mean and sd"
                ),
            ));
        }
    }
    notes
}

/// What reading the clock twice costs, ns: the median of many pairs.
fn timer_overhead_ns() -> u64 {
    const PAIRS: usize = 1001;
    let mut pairs: Vec<u64> = (0..PAIRS)
        .map(|_| nanoseconds(Instant::now().elapsed()))
        .collect();
    pairs.sort_unstable();
    pairs[PAIRS / 2]
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbourhoods_lie_around_the_fault_and_inside() {
        let around = |pages: usize, hint: usize, bytes: usize| {
            let of = RegionPlan {
                bytes: pages * PAGE_BYTES,
                hint,
                strategies: Vec::new(),
                repeat: 1,
                hugetlb_bytes: None,
            };
            let range = neighbourhood(&of, bytes);
            (range.start / PAGE_BYTES, range.end / PAGE_BYTES)
        };
        assert_eq!(around(512, 256, 4096), (256, 257));
        assert_eq!(around(512, 256, 64 << 10), (248, 264));
        assert_eq!(around(512, 0, 64 << 10), (0, 16));
        assert_eq!(around(512, 511, 4096), (511, 512));
        assert_eq!(around(512, 511, 64 << 10), (496, 512));
        assert_eq!(around(512, 100, 2 << 20), (0, 512));
        assert_eq!(around(8, 3, 64 << 10), (0, 8));
    }
}
