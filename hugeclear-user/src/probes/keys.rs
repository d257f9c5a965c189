//! Which keys get a block of their own, within the memory limit. Pure.

use std::{fmt, ops::RangeInclusive};

use hugeclear_ebpf::{
    config::Pair,
    impact::{CpuClears, MAX_TASKS, Task},
    key::{
        self, BlockTable, Cause, CellKey, Dimensions, KEYS, MAX_BLOCKS, MAX_ORDER, OTHER, Outcome,
        Site, UNSELECTED,
    },
    maps::{Block, Cell, Slot, Start},
};

use super::{
    config::Request,
    select::{self, Allocator, Probe, ProbeSet},
};
use crate::{
    facts::{Facts, PreemptModel},
    notes::Note,
};

/// Memory that all maps together may take, in bytes; it can be kept up to 4,000 possible CPUs.
pub const MEMORY_LIMIT_BYTES: u64 = 64 << 20;

/// What the maps take that do not depend on the number of CPUs, in bytes, rounded up: 16,384 starts with
/// the hash table's own share, the log's 128 KiB, and small change.
const FIXED_BYTES: u64 = 4 << 20;

/// What an element of a hash map takes beside key and value, in bytes, rounded up.
const ELEMENT_BYTES: u64 = 64;

/// What a cell takes, in bytes.
const CELL_BYTES: u64 = (size_of::<CellKey>() + size_of::<Cell>()) as u64 + ELEMENT_BYTES;

/// What a task takes that waits for a clear, in bytes.
const TASK_BYTES: u64 = (size_of::<u32>() + size_of::<Task>()) as u64 + ELEMENT_BYTES;

const _: () = assert!(16 * 1024 * START_BYTES < FIXED_BYTES - (256 << 10));

/// What a start takes in the hash map, in bytes.
const START_BYTES: u64 = size_of::<Start>() as u64 + 8 + ELEMENT_BYTES;

/// What each CPU takes beside its blocks, in bytes: also a spare element of each hash map
/// (`prealloc_init`, kernel/bpf/hashtab.c).
const CPU_BYTES: u64 = Pair::COUNT as u64 * size_of::<Slot>() as u64
    + size_of::<CpuClears>() as u64
    + START_BYTES
    + CELL_BYTES
    + TASK_BYTES;

/// The most that the cells may take, in bytes.
const CELLS_LIMIT_BYTES: u64 = 24 << 20;

/// The fewest cells there are, if any are needed.
const MIN_CELLS: u64 = 8 << 10;

/// Cells for each CPU, within the limits.
const CELLS_PER_CPU: u64 = 512;

/// The smallest ring buffer, in bytes: one page.
const MIN_BUFFER_BYTES: u32 = 4096;

/// What an aggregate is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Clears, or copies, at this site.
    Site(Site),
    /// Whole faults.
    Fault,
    /// Tasks that waited for a clear to end.
    Impact,
}

/// Name of a thread, padded with zero bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comm(pub [u8; 16]);

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.0.iter().position(|byte| *byte == 0);
        let name = &self.0[..length.unwrap_or(self.0.len())];
        f.pad(&String::from_utf8_lossy(name))
    }
}

/// What an aggregate is kept by. `None` is what was not asked for, or is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What it is of.
    pub subject: Subject,
    /// log2 of the page's base pages; 0 if the page size is not known.
    pub order: u32,
    /// Preemption model in force when it began; of a fault, when it ended.
    pub model: PreemptModel,
    /// What the clear was for.
    pub cause: Option<Cause>,
    /// What became of the fault.
    pub outcome: Option<Outcome>,
    /// The sixteenth of the page in which the fault was, 0 to 15.
    pub fault_offset: Option<u8>,
    /// Node of the page's memory.
    pub memory_node: Option<u32>,
    /// Process (thread group), as the host numbers it.
    pub pid: Option<u32>,
    /// Name of the thread.
    pub comm: Option<Comm>,
    /// Id of the cgroup (v2): the inode of its directory.
    pub cgroup: Option<u64>,
}

impl Key {
    /// The key of a block: what is always told apart.
    #[must_use]
    pub const fn of_block(site: Site, order: u32, model: PreemptModel) -> Self {
        Self {
            subject: Subject::Site(site),
            order,
            model,
            cause: None,
            outcome: None,
            fault_offset: None,
            memory_node: None,
            pid: None,
            comm: None,
            cgroup: None,
        }
    }

    /// From what the kernel side wrote; `None` if this program does not know its numbers.
    #[must_use]
    pub fn of_cell(key: &CellKey) -> Option<Self> {
        let dimensions = Dimensions::unpack(key.dimensions);
        let known = Self::of_dimensions(dimensions)?;
        Some(Self {
            pid: (key.pid != 0).then_some(key.pid),
            comm: (key.comm != [0; 2]).then(|| Comm(comm_bytes(key.comm))),
            cgroup: (key.cgroup != 0).then_some(key.cgroup),
            ..known
        })
    }

    /// From what is known beside who it was; `None` if this program does not know its numbers.
    #[must_use]
    pub fn of_dimensions(dimensions: Dimensions) -> Option<Self> {
        /// The variant of number `number`, which counts from 1.
        fn numbered<T: Copy>(all: &[T], number: u8) -> Option<T> {
            all.get(usize::from(number).checked_sub(1)?).copied()
        }
        let subject = match dimensions.subject {
            key::FAULT | key::WRITE_FAULT => Subject::Fault,
            key::IMPACT => Subject::Impact,
            site => Subject::Site(*Site::ALL.get(usize::from(site))?),
        };
        Some(Self {
            subject,
            order: dimensions.order.into(),
            model: PreemptModel::try_from(dimensions.model).ok()?,
            cause: numbered(&Cause::ALL, dimensions.cause),
            outcome: numbered(&Outcome::ALL, dimensions.outcome),
            fault_offset: dimensions.sixteenth.checked_sub(1),
            memory_node: dimensions.memory_node.checked_sub(1).map(u32::from),
            pid: None,
            comm: None,
            cgroup: None,
        })
    }
}

/// The bytes of a name that the kernel side holds as two words in memory order.
fn comm_bytes(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (half, word) in bytes.chunks_exact_mut(8).zip(words) {
        half.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The blocks of every CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Possible CPUs.
    pub cpus: u32,
    /// The keys that are expected: those of the blocks after [`OTHER`], in this order.
    pub keys: Vec<Key>,
    /// Whether clears are kept in cells, so that there is no block but [`OTHER`].
    pub in_cells: bool,
    /// How many keys that can occur found no room.
    pub without_block: usize,
    /// Cells of all CPUs; 1, never used, if none are needed.
    pub cells: u32,
    /// Size of the ring buffer of events, in bytes; the smallest there is, if there are none.
    pub events_bytes: u32,
    /// Tasks whose waiting for clears can be followed at once; 1, never used, if it is not to be.
    pub tasks: u32,
}

impl Layout {
    /// Assigns blocks to the keys that can occur on this machine with this probe set, most likely
    /// first: the page sizes in use under the model in force, then under the models that it can be
    /// switched to, then sizes that are not switched on. Where the request tells more apart, there are
    /// no such blocks, but cells, which the keys that do occur take.
    #[must_use]
    pub fn new(facts: &Facts, probes: &ProbeSet, request: &Request) -> Self {
        let cpus = facts.cpu.possible.unwrap_or(1).max(1);
        let mut models = vec![facts.preempt.model];
        models.extend(facts.preempt.modes.iter().map(|mode| mode.model));
        let orders = |sizes: Vec<u64>| -> Vec<u32> {
            sizes
                .into_iter()
                .filter_map(|bytes| order(bytes, facts.page_size_bytes))
                .collect()
        };
        let thp: Vec<u64> = facts.pmd_bytes().into_iter().collect();
        let hugetlb: Vec<u64> = facts
            .hugetlb
            .iter()
            .map(|pool| pool.page_size_bytes)
            .collect();
        let anonymous = [thp.clone(), select::keys_of_enabled_mthp(facts).collect()].concat();
        let offered = facts
            .thp
            .iter()
            .flat_map(|thp| thp.offered_bytes())
            .collect();
        let sites_of = |probes: &[&Probe]| -> Vec<Site> {
            let clears = probes.iter().filter_map(|probe| probe.clear);
            clears.map(|clear| clear.site).collect()
        };
        let clear_sites = sites_of(&probes.clears.iter().collect::<Vec<_>>());
        let copy_sites = sites_of(&probes.copies.iter().collect::<Vec<_>>());
        let mut anonymous_sites = clear_sites.clone();
        if probes.allocator != Allocator::Untraced {
            anonymous_sites.push(Site::Allocator);
        }
        let zero_page_sites: Vec<Site> = (probes.huge_zero_page.iter())
            .map(|_| Site::Allocator)
            .collect();
        let rare = [
            (orders(hugetlb.clone()), &copy_sites),
            (orders(thp.clone()), &zero_page_sites),
        ];
        let in_use = [
            (orders(anonymous), &anonymous_sites),
            (orders(hugetlb), &clear_sites),
        ];
        let unused = [(orders(offered), &clear_sites)];
        let (now, later) = models.split_at(1);

        let mut keys: Vec<Key> = Vec::new();
        for (models, sizes) in [
            (now, &in_use[..]),
            (later, &in_use),
            (now, &rare),
            (now, &unused),
            (later, &rare),
            (later, &unused),
        ] {
            for &model in models {
                for (orders, sites) in sizes {
                    for &order in orders {
                        for &site in *sites {
                            let key = Key::of_block(site, order, model);
                            if !keys.contains(&key) {
                                keys.push(key);
                            }
                        }
                    }
                }
            }
        }

        let in_cells = request.details.any();
        let smallest = request.events.map(|events| events.buffer_bytes);
        let events_bytes = smallest
            .unwrap_or(MIN_BUFFER_BYTES)
            .max(facts.page_size_bytes as u32);
        let tasks = if request.sched_impact { MAX_TASKS } else { 1 };
        let block_bytes = size_of::<Block>() as u64;
        let cpus_bytes = u64::from(cpus) * (CPU_BYTES + block_bytes);
        let tasks_bytes = u64::from(tasks) * TASK_BYTES;
        let rest = MEMORY_LIMIT_BYTES
            .saturating_sub(FIXED_BYTES + u64::from(events_bytes) + cpus_bytes + tasks_bytes);
        let cells = if probes.records_faults || in_cells || request.sched_impact {
            let most = rest.min(CELLS_LIMIT_BYTES) / CELL_BYTES;
            (u64::from(cpus) * CELLS_PER_CPU)
                .max(MIN_CELLS)
                .min(most)
                .max(1)
        } else {
            1
        };
        let rest = rest.saturating_sub(cells * CELL_BYTES);
        let most = if in_cells {
            u64::MAX
        } else {
            rest / (u64::from(cpus) * block_bytes)
        };
        let most = usize::try_from(most)
            .unwrap_or(usize::MAX)
            .min(MAX_BLOCKS - 1);
        let without_block = keys.len().saturating_sub(most);
        keys.truncate(most);
        Self {
            cpus,
            keys,
            without_block,
            in_cells,
            cells: u32::try_from(cells).unwrap_or(u32::MAX),
            events_bytes,
            tasks,
        }
    }

    /// Blocks of each CPU, [`OTHER`] included.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        if self.in_cells {
            return 1;
        }
        u32::try_from(self.keys.len() + 1).expect("at most `MAX_BLOCKS`")
    }

    /// Memory of all maps, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let of_cpu = u64::from(self.blocks()) * size_of::<Block>() as u64 + CPU_BYTES;
        FIXED_BYTES
            + u64::from(self.cpus) * of_cpu
            + u64::from(self.cells) * CELL_BYTES
            + u64::from(self.events_bytes)
            + u64::from(self.tasks) * TASK_BYTES
    }

    /// That some keys share a block, if so.
    #[must_use]
    pub fn note(&self) -> Option<Note> {
        (self.without_block > 0).then(|| {
            Note::new(
                "keys_without_block",
                format!(
                    "{} combinations of site, page size and preemption model share one row, to keep \
                     the maps within {} MiB on {} possible CPUs",
                    self.without_block,
                    MEMORY_LIMIT_BYTES >> 20,
                    self.cpus
                ),
            )
        })
    }

    /// The table that the kernel side looks blocks up in, with clears of `selected` orders only.
    #[must_use]
    pub fn table(&self, selected: &RangeInclusive<u32>) -> BlockTable {
        let mut table = [UNSELECTED as u8; KEYS];
        for site in Site::ALL {
            for order in selected
                .clone()
                .filter(|order| (1..=MAX_ORDER).contains(order))
            {
                for model in PreemptModel::ALL {
                    table[packed(site, order, model)] = OTHER as u8;
                }
            }
        }
        for (key, block) in self.keys.iter().zip(1..) {
            if let Subject::Site(site) = key.subject
                && selected.contains(&key.order)
            {
                table[packed(site, key.order, key.model)] = block;
            }
        }
        table
    }
}

/// The place of a block's key in a [`BlockTable`].
fn packed(site: Site, order: u32, model: PreemptModel) -> usize {
    key::pack(site as u32, order, model as u32) as usize
}

/// log2 of the base pages in a page of `bytes`; `None` if that is not a power of two of them.
#[must_use]
pub fn order(bytes: u64, base_page_bytes: u64) -> Option<u32> {
    let pages = bytes.checked_div(base_page_bytes)?;
    (pages.is_power_of_two() && pages * base_page_bytes == bytes)
        .then(|| pages.ilog2())
        .filter(|order| *order <= MAX_ORDER)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        facts::recorded::{NAMES, facts},
        probes::{
            config::{Details, EventRequest},
            select::{Wanted, select},
        },
    };

    fn layout(facts: &Facts) -> Layout {
        Layout::new(
            facts,
            &select(facts, &Wanted::default()),
            &Request::default(),
        )
    }

    #[test]
    fn memory_stays_within_the_limit_up_to_thousands_of_cpus() {
        let plain = Request::default();
        let detailed = Request {
            details: Details {
                pid: true,
                ..Details::default()
            },
            sched_impact: true,
            events: Some(EventRequest {
                slower: Duration::ZERO,
                stacks: true,
                buffer_bytes: 4 << 20,
            }),
            ..Request::default()
        };
        for name in NAMES {
            let mut facts = facts(name);
            for cpus in [1, 2, 64, 512, 1024, 2048, 4000] {
                facts.cpu.possible = Some(cpus);
                for (request, faults) in [(&plain, false), (&plain, true), (&detailed, true)] {
                    let wanted = Wanted {
                        faults,
                        ..Wanted::default()
                    };
                    let layout = Layout::new(&facts, &select(&facts, &wanted), request);
                    let bytes = layout.memory_bytes();
                    assert!(
                        bytes <= MEMORY_LIMIT_BYTES,
                        "{name}, {cpus} CPUs, {request:?}: {bytes} bytes"
                    );
                    let most = if faults { 1024 } else { 2048 };
                    let expects_keys = cpus <= most && request.events.is_none();
                    assert!(
                        !expects_keys || !layout.keys.is_empty(),
                        "{name}, {cpus} CPUs"
                    );
                    assert_eq!(layout.cells > 1, faults, "{name}, {cpus} CPUs");
                }
            }
        }
    }

    #[test]
    fn the_sizes_in_use_under_the_model_in_force_come_first() {
        let mut facts = facts("6.18");
        facts.cpu.possible = Some(1024);
        facts.init_on_alloc.on = Some(true);
        let layout = layout(&facts);
        let first: Vec<(Subject, u32)> = layout
            .keys
            .iter()
            .take_while(|key| key.model == facts.preempt.model)
            .map(|key| (key.subject, key.order))
            .collect();
        let clear = Subject::Site(Site::FolioZeroUser);
        let allocator = Subject::Site(Site::Allocator);
        assert_eq!(first[..3], [(clear, 9), (allocator, 9), (clear, 18)]);
        assert!(layout.without_block > 0);
    }

    #[test]
    fn the_table_maps_each_key_to_its_block() {
        for name in NAMES {
            let layout = layout(&facts(name));
            let table = layout.table(&(1..=MAX_ORDER));
            for (key, block) in layout.keys.iter().zip(1_u8..) {
                let Subject::Site(site) = key.subject else {
                    panic!("{name}: {key:?}");
                };
                let place = packed(site, key.order, key.model);
                assert_eq!(table[place], block, "{name}: {key:?}");
            }
            let own = |block: &&u8| ![OTHER, UNSELECTED].contains(&u32::from(**block));
            assert_eq!(
                table.iter().filter(own).count(),
                layout.keys.len(),
                "{name}"
            );
        }
    }

    #[test]
    fn orders_that_are_not_selected_have_no_block() {
        let table = layout(&facts("6.12")).table(&(9..=9));
        let block = |order| {
            let place = packed(Site::FolioZeroUser, order, PreemptModel::Voluntary);
            u32::from(table[place])
        };
        assert_ne!(block(9), UNSELECTED);
        assert_eq!(
            (block(0), block(8), block(18)),
            (UNSELECTED, UNSELECTED, UNSELECTED)
        );
    }

    #[test]
    fn orders_are_of_whole_powers_of_two() {
        assert_eq!(order(2 << 20, 4096), Some(9));
        assert_eq!(order(1 << 30, 4096), Some(18));
        assert_eq!(order(2 << 20, 65536), Some(5));
        assert_eq!(order(3 << 20, 4096), None);
        assert_eq!(order(4097, 4096), None);
    }
}
