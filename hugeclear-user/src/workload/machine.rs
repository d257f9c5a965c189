//! What the machine offers a workload.

use std::path::Path;

use super::memory;
use crate::facts::{
    HugetlbPool, Numa, NumaNode, Thp, cpu, hugetlb, numa,
    source::{Source, bracketed, page_size_of_name},
    thp,
};

/// What the machine offers a workload.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Bytes of a base page.
    pub base_page_bytes: u64,
    /// Transparent huge pages; `None`: not built in.
    pub thp: Option<Thp>,
    /// Setting for shared memory of the size of a PMD. `None`: it has no setting of its own (before 6.11).
    pub shmem_pmd_enabled: Option<String>,
    /// hugetlb pools by size; empty: not built in.
    pub hugetlb: Vec<HugetlbPool>,
    /// Bytes that can be had without swapping. Source: `MemAvailable` of `/proc/meminfo`.
    /// `None`: unreadable.
    pub available_bytes: Option<u64>,
    /// Page size of `MAP_HUGETLB` without a size. Source: `Hugepagesize` of `/proc/meminfo`.
    pub hugetlb_default_bytes: Option<u64>,
    /// Online CPUs.
    pub online: Vec<u32>,
    /// Online memory nodes; one that is number 0 where the kernel knows none.
    pub nodes: Vec<Node>,
    /// Whether madvise(2) knows `MADV_POPULATE_WRITE` (5.14).
    pub has_populate: bool,
    /// Whether madvise(2) knows `MADV_COLLAPSE` (6.1, with THP).
    pub has_collapse: bool,
}

/// A memory node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its online CPUs.
    pub cpus: Vec<u32>,
    /// About what can be had from it without swapping, bytes: free memory and the page cache.
    /// `None`: unreadable.
    pub available_bytes: Option<u64>,
    /// Its part of the hugetlb pools.
    pub pools: Vec<NodePool>,
}

/// A node's part of a hugetlb pool.
#[derive(Debug, Clone, Copy)]
pub struct NodePool {
    /// Bytes of one page.
    pub page_size_bytes: u64,
    /// Pages of the pool on this node.
    pub total_pages: u64,
    /// Those not handed out; reserved ones count as free.
    pub free_pages: u64,
}

impl Machine {
    /// Reads it below `root`, `/` in production.
    pub fn read(root: &Path) -> Self {
        let mut source = Source::new(root);
        let meminfo = source.text("proc/meminfo").unwrap_or_default();
        let thp = Thp::read(&mut source);
        let pmd_bytes = thp.as_ref().and_then(|thp| thp.pmd_size_bytes);
        let online = cpu::list(&mut source, "sys/devices/system/cpu/online").unwrap_or_default();
        Self {
            base_page_bytes: cpu::page_size_bytes(&mut source),
            shmem_pmd_enabled: pmd_bytes.and_then(|bytes| {
                let file = format!("hugepages-{}kB/shmem_enabled", bytes / 1024);
                let text = source.text_if_present(Path::new(thp::DIR).join(file))?;
                bracketed(&text).map(str::to_owned)
            }),
            thp,
            hugetlb: hugetlb::read(&mut source),
            available_bytes: field_bytes(&meminfo, AVAILABLE),
            hugetlb_default_bytes: field_bytes(&meminfo, "Hugepagesize"),
            nodes: nodes(&mut source, &online),
            online,
            has_populate: memory::knows(libc::MADV_POPULATE_WRITE),
            has_collapse: memory::knows(memory::MADV_COLLAPSE),
        }
    }
}

const AVAILABLE: &str = "MemAvailable";

/// Bytes that can be had without swapping, now.
pub(super) fn available_bytes(source: &mut Source) -> Option<u64> {
    field_bytes(&source.text("proc/meminfo")?, AVAILABLE)
}

/// A field of `/proc/meminfo`, or of a node's, whose lines begin with `Node <n>`.
fn field_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| {
        let (label, value) = line.split_once(':')?;
        (label.split_whitespace().next_back() == Some(name)).then_some(value)
    })?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn nodes(source: &mut Source, online: &[u32]) -> Vec<Node> {
    let nodes = Numa::read(source, online).nodes;
    nodes
        .into_iter()
        .map(|NumaNode { id, cpus }| {
            let dir = format!("{}/node{id}", numa::DIR);
            let meminfo = source.text_if_present(format!("{dir}/meminfo"));
            let field_bytes = |name| field_bytes(meminfo.as_deref()?, name);
            let pools = source.names(format!("{dir}/hugepages"));
            Node {
                id,
                cpus,
                available_bytes: field_bytes("MemFree")
                    .map(|free| free + field_bytes("FilePages").unwrap_or(0)),
                pools: pools
                    .iter()
                    .filter_map(|name| {
                        let mut pages =
                            |file| source.number(format!("{dir}/hugepages/{name}/{file}"));
                        Some(NodePool {
                            page_size_bytes: page_size_of_name(name)?,
                            total_pages: pages("nr_hugepages")?,
                            free_pages: pages("free_hugepages")?,
                        })
                    })
                    .collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_machine_and_of_a_node() {
        assert_eq!(
            field_bytes(
                "MemTotal: 10 kB\nMemAvailable:    24089 kB\n",
                "MemAvailable"
            ),
            Some(24089 << 10)
        );
        assert_eq!(
            field_bytes("Node 1 MemTotal: 9 kB\nNode 1 MemFree:  7 kB\n", "MemFree"),
            Some(7 << 10)
        );
        assert_eq!(field_bytes("MemFree: 7\n", "MemFree"), None);
        assert_eq!(field_bytes("", "MemFree"), None);
    }

    #[test]
    fn this_machine_is_read() {
        let machine = Machine::read(Path::new("/"));
        assert!(machine.base_page_bytes.is_power_of_two());
        assert!(!machine.online.is_empty() && !machine.nodes.is_empty());
    }
}
