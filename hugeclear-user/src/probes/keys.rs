//! Which keys get a block of their own, within the memory limit. Pure.

use std::ops::RangeInclusive;

use hugeclear_ebpf::{
    config::Pair,
    key::{self, BlockTable, KEYS, MAX_BLOCKS, MAX_ORDER, OTHER, Site, UNSELECTED},
    maps::{Block, Slot},
};

use super::select::{self, Allocator, ProbeSet};
use crate::{
    facts::{Facts, PreemptModel},
    notes::Note,
};

/// Memory that all maps together may take, in bytes; it can be kept up to 6,800 possible CPUs.
pub const MEMORY_LIMIT_BYTES: u64 = 64 << 20;

/// What the maps other than slots and blocks take, in bytes, rounded up: 16,384 starts of 32 bytes
/// with the hash table's own 64 bytes each, the log's 128 KiB, and small change.
const FIXED_BYTES: u64 = 2 << 20;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Where the clear was made.
    pub site: Site,
    /// log2 of the page's base pages.
    pub order: u32,
    /// Preemption model in force when it began.
    pub model: PreemptModel,
}

/// The blocks of every CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Possible CPUs.
    pub cpus: u32,
    /// Key of each block after [`OTHER`].
    pub keys: Vec<Key>,
    /// How many keys that can occur found no room.
    pub without_block: usize,
}

impl Layout {
    /// Assigns blocks to the keys that can occur on this machine with this probe set, most likely
    /// first: the page sizes in use under the model in force, then under the models that it can be
    /// switched to, then sizes that are not switched on.
    #[must_use]
    pub fn new(facts: &Facts, probes: &ProbeSet) -> Self {
        let cpus = facts.cpu.possible.unwrap_or(1).max(1);
        let mut models = vec![facts.preempt.model];
        models.extend(facts.preempt.modes.iter().map(|mode| mode.model));
        let orders = |sizes: Vec<u64>| -> Vec<u32> {
            sizes
                .into_iter()
                .filter_map(|bytes| order(bytes, facts.page_size_bytes))
                .collect()
        };
        let thp: Vec<u64> = facts
            .thp
            .iter()
            .filter_map(|thp| thp.pmd_size_bytes)
            .collect();
        let hugetlb: Vec<u64> = facts
            .hugetlb
            .iter()
            .map(|pool| pool.page_size_bytes)
            .collect();
        let anonymous = [thp, select::keys_of_enabled_mthp(facts).collect()].concat();
        let offered = facts
            .thp
            .iter()
            .flat_map(|thp| thp.offered_bytes())
            .collect();
        let clears = probes.clears.iter().filter_map(|probe| probe.clear);
        let clear_sites: Vec<Site> = clears.map(|clear| clear.site).collect();
        let mut anonymous_sites = clear_sites.clone();
        if probes.allocator != Allocator::Untraced {
            anonymous_sites.push(Site::Allocator);
        }
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
            (now, &unused),
            (later, &unused),
        ] {
            for &model in models {
                for (orders, sites) in sizes {
                    for &order in orders {
                        for &site in *sites {
                            let key = Key { site, order, model };
                            if !keys.contains(&key) {
                                keys.push(key);
                            }
                        }
                    }
                }
            }
        }

        let room = ((MEMORY_LIMIT_BYTES - FIXED_BYTES) / u64::from(cpus))
            .saturating_sub(u64::from(Pair::COUNT) * size_of::<Slot>() as u64)
            / size_of::<Block>() as u64;
        let most = usize::try_from(room)
            .unwrap_or(usize::MAX)
            .clamp(1, MAX_BLOCKS)
            - 1;
        let without_block = keys.len().saturating_sub(most);
        keys.truncate(most);
        Self {
            cpus,
            keys,
            without_block,
        }
    }

    /// Blocks of each CPU, [`OTHER`] included.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        u32::try_from(self.keys.len() + 1).expect("at most `MAX_BLOCKS`")
    }

    /// Memory of all maps, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let of_cpu = u64::from(self.blocks()) * size_of::<Block>() as u64
            + u64::from(Pair::COUNT) * size_of::<Slot>() as u64;
        FIXED_BYTES + u64::from(self.cpus) * of_cpu
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
                    table[packed(&Key { site, order, model })] = OTHER as u8;
                }
            }
        }
        for (key, block) in self.keys.iter().zip(1..) {
            if selected.contains(&key.order) {
                table[packed(key)] = block;
            }
        }
        table
    }
}

/// The place of a key in a [`BlockTable`].
fn packed(key: &Key) -> usize {
    key::pack(key.site as u32, key.order, key.model as u32) as usize
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
    use super::*;
    use crate::{
        facts::recorded::{NAMES, facts},
        probes::select::{Wanted, select},
    };

    fn layout(facts: &Facts) -> Layout {
        Layout::new(facts, &select(facts, &Wanted::default()))
    }

    #[test]
    fn memory_stays_within_the_limit_up_to_thousands_of_cpus() {
        for name in NAMES {
            let mut facts = facts(name);
            for cpus in [1, 2, 64, 512, 1024, 2048, 4096, 6800] {
                facts.cpu.possible = Some(cpus);
                let layout = layout(&facts);
                let bytes = layout.memory_bytes();
                assert!(
                    bytes <= MEMORY_LIMIT_BYTES,
                    "{name}, {cpus} CPUs: {bytes} bytes"
                );
                assert!(cpus > 2048 || !layout.keys.is_empty());
            }
        }
    }

    #[test]
    fn the_sizes_in_use_under_the_model_in_force_come_first() {
        let mut facts = facts("6.18");
        facts.cpu.possible = Some(1024);
        facts.init_on_alloc.on = Some(true);
        let layout = layout(&facts);
        let first: Vec<(Site, u32)> = layout
            .keys
            .iter()
            .take_while(|key| key.model == facts.preempt.model)
            .map(|key| (key.site, key.order))
            .collect();
        let clear = Site::FolioZeroUser;
        assert_eq!(first, [(clear, 9), (Site::Allocator, 9), (clear, 18)]);
        assert!(layout.without_block > 0);
    }

    #[test]
    fn the_table_maps_each_key_to_its_block() {
        for name in NAMES {
            let layout = layout(&facts(name));
            let table = layout.table(&(1..=MAX_ORDER));
            for (key, block) in layout.keys.iter().zip(1_u8..) {
                assert_eq!(table[packed(key)], block, "{name}: {key:?}");
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
            let model = PreemptModel::Voluntary;
            u32::from(
                table[packed(&Key {
                    site: Site::FolioZeroUser,
                    order,
                    model,
                })],
            )
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
