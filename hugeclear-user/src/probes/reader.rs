//! Reads what the kernel side keeps in its maps.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use aya::{
    Ebpf,
    maps::{HashMap, Map, MapData},
};
use hugeclear_ebpf::{
    config::{Pair, Role},
    impact::{CpuClears, Task},
    key::{CellKey, OTHER},
    maps::{Block, Cell, SKIP, Slot, Start},
};

use super::{
    keys::{Key, Layout},
    maps::MappedArray,
};
use crate::window::{Aggregate, Losses, PairCounts, Snapshot};

/// What was recorded up to a moment, and what was not.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The clears.
    pub snapshot: Snapshot,
    /// What the snapshot does not hold.
    pub losses: Losses,
}

/// The maps of a loaded object.
pub(super) struct Reader {
    slots: MappedArray<Slot>,
    blocks: MappedArray<Block>,
    starts: HashMap<MapData, u64, Start>,
    cells: HashMap<MapData, CellKey, Cell>,
    cpu_clears: MappedArray<CpuClears>,
    tasks: HashMap<MapData, u32, Task>,
    layout: Layout,
    /// What was read last, so that only what changed is copied again.
    last: Snapshot,
    /// Exits that were seen while probes were being attached: those of calls that began before.
    earlier_calls: u64,
}

impl Reader {
    /// Takes the maps of `ebpf`, which was loaded with `layout`.
    pub(super) fn new(ebpf: &mut Ebpf, layout: Layout) -> Result<Self> {
        Ok(Self {
            slots: array(ebpf, "SLOTS", layout.cpus * Pair::COUNT)?,
            blocks: array(ebpf, "BLOCKS", layout.cpus * layout.blocks())?,
            starts: HashMap::try_from(take_map(ebpf, "STARTS"))?,
            cells: HashMap::try_from(take_map(ebpf, "CELLS"))?,
            cpu_clears: array(ebpf, "CPU_CLEARS", layout.cpus)?,
            tasks: HashMap::try_from(take_map(ebpf, "TASKS"))?,
            layout,
            last: Snapshot::default(),
            earlier_calls: 0,
        })
    }

    /// From now on exits without entry are losses: so far they were of calls that began before the
    /// entry was attached.
    pub(super) fn forgive_earlier_calls(&mut self) {
        self.earlier_calls = self.exits_without_entry();
    }

    /// Exits whose entry was missed so far.
    pub(super) fn exits_without_entry(&self) -> u64 {
        let pairs = Pair::ALL.into_iter().map(|pair| self.counts(pair, None));
        let seen: u64 = pairs.map(|counts| counts.exits_without_entry).sum();
        seen.saturating_sub(self.earlier_calls)
    }

    /// Reads everything. `pairs`: those that are attached, each with the skipped runs of its programs.
    /// `impact_skipped`: the skipped runs of the scheduler's tracepoints.
    pub(super) fn read(
        &mut self,
        pairs: &[(Pair, Option<u64>)],
        impact_skipped: Option<u64>,
    ) -> Reading {
        let mut counts: Vec<PairCounts> = pairs
            .iter()
            .map(|&(pair, programs_skipped)| {
                let counts = self.counts(pair, programs_skipped);
                match pair.role() {
                    Role::Clears | Role::MayClear => counts,
                    // That it is open is no loss: what began before the end is not to be recorded.
                    Role::Encloses | Role::Part => PairCounts {
                        entries: 0,
                        recorded: 0,
                        open: 0,
                        overwritten: 0,
                        ..counts
                    },
                }
            })
            .collect();
        // The derived clears of an allocator without a probe count in its slots.
        if !pairs.iter().any(|(pair, _)| *pair == Pair::Allocator) {
            let PairCounts {
                cells_full,
                events_dropped,
                ..
            } = self.counts(Pair::Allocator, None);
            counts.push(PairCounts {
                cells_full,
                events_dropped,
                programs_skipped: Some(0),
                ..PairCounts::default()
            });
        }
        counts.push(PairCounts {
            impact_lost: self.impact_lost(),
            impact_open: self.waiting(),
            programs_skipped: impact_skipped,
            ..PairCounts::default()
        });
        let snapshot = self.snapshot();
        let losses = Losses::new(&counts, &snapshot);
        let exits_without_entry = losses
            .exits_without_entry
            .saturating_sub(self.earlier_calls);
        Reading {
            losses: Losses {
                exits_without_entry,
                ..losses
            },
            snapshot,
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let blocks = self.layout.blocks();
        for cpu in 0..self.layout.cpus {
            for block in 0..blocks {
                let element = self.blocks.element((cpu * blocks + block) as usize);
                let key = (block != OTHER).then(|| self.layout.keys[block as usize - 1]);
                // SAFETY: a field of a valid element; volatile, since the kernel writes it.
                let count = unsafe { (&raw const (*element).totals.count).read_volatile() };
                let known = self
                    .last
                    .cells
                    .get(&(cpu, key))
                    .map_or(0, |known| known.count);
                if count != known {
                    self.last.cells.insert((cpu, key), Arc::new(copy(element)));
                }
            }
        }
        // Two cells may have the same key for us.
        let mut cells: BTreeMap<(u32, Option<Key>), Aggregate> = BTreeMap::new();
        for (key, cell) in self.cells.iter().filter_map(Result::ok) {
            let sum = cells.entry((key.cpu, Key::of_cell(&key))).or_default();
            sum.merge(&Aggregate::from(&cell));
        }
        for (key, now) in cells {
            let known = self.last.cells.get(&key).map_or(0, |known| known.count);
            // Until the count has grown, the rest may be half written.
            if now.count != known {
                self.last.cells.insert(key, Arc::new(now));
            }
        }
        self.last.clone()
    }

    /// Waits for clears that were not recorded, over all CPUs.
    fn impact_lost(&self) -> u64 {
        let lost = (0..self.layout.cpus).map(|cpu| {
            let clears = self.cpu_clears.element(cpu as usize);
            // SAFETY: a field of a valid element; volatile, since the kernel may write it.
            unsafe { (&raw const (*clears).lost).read_volatile() }
        });
        lost.sum()
    }

    /// Tasks that wait for a clear now.
    fn waiting(&self) -> u64 {
        let tasks = self.tasks.iter().filter_map(Result::ok);
        tasks.filter(|(_, task)| task.waits_for != 0).count() as u64
    }

    /// The counts of one pair, over all CPUs.
    fn counts(&self, pair: Pair, programs_skipped: Option<u64>) -> PairCounts {
        let mut counts = PairCounts {
            programs_skipped,
            ..PairCounts::default()
        };
        for cpu in 0..self.layout.cpus {
            let slot = self
                .slots
                .element((cpu * Pair::COUNT + pair as u32) as usize);
            // SAFETY: a valid element; volatile, since the kernel may write it.
            let Slot {
                start,
                run_owner: _,
                padding: _,
                run_end_ns: _,
                run: _,
                entries,
                own_process,
                overwritten,
                map_full,
                outside_faults,
                recorded,
                exits_without_entry,
                end_before_start,
                cells_full,
                events_dropped,
                negative_rest,
            } = unsafe { slot.read_volatile() };
            counts.open += u64::from(start.owner != 0 && start.block != SKIP);
            counts.entries += entries;
            counts.own_process += own_process;
            counts.overwritten += overwritten;
            counts.map_full += map_full;
            counts.outside_faults += outside_faults;
            counts.recorded += recorded;
            counts.exits_without_entry += exits_without_entry;
            counts.end_before_start += end_before_start;
            counts.cells_full += cells_full;
            counts.events_dropped += events_dropped;
            counts.negative_rest += negative_rest;
        }
        let elsewhere = self.starts.iter().filter_map(Result::ok);
        counts.open += elsewhere
            .filter(|(key, start)| key >> 32 == pair as u64 && start.block != SKIP)
            .count() as u64;
        counts
    }
}

/// Copies a block that the kernel may be writing: again if a clear was added meanwhile.
fn copy(element: *const Block) -> Aggregate {
    /// Under constant load a copy that is off by one clear in some field must do.
    const ATTEMPTS: u32 = 4;
    let mut block = Block::EMPTY;
    for _ in 0..ATTEMPTS {
        // SAFETY: a valid element; volatile, since the kernel writes it.
        let after = unsafe {
            block = element.read_volatile();
            (&raw const (*element).totals.count).read_volatile()
        };
        if after == block.totals.count {
            break;
        }
    }
    Aggregate::from(&block)
}

fn array<T: Copy>(ebpf: &mut Ebpf, name: &str, entries: u32) -> Result<MappedArray<T>> {
    match take_map(ebpf, name) {
        Map::Array(data) => MappedArray::new(&data, entries),
        other => anyhow::bail!("map {name} is {other:?}"),
    }
}

pub(super) fn take_map(ebpf: &mut Ebpf, name: &str) -> Map {
    ebpf.take_map(name)
        .expect("the object is built from the same source tree")
}
