//! hugetlb pools.

use serde::{Deserialize, Serialize};

use super::source::{Source, page_size_of_name};

/// Where the pools live, without the leading `/`.
pub(crate) const DIR: &str = "sys/kernel/mm/hugepages";

/// The pool of one page size, over all nodes. Source: `/sys/kernel/mm/hugepages/hugepages-<n>kB`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugetlbPool {
    /// Bytes of one page.
    pub page_size_bytes: u64,
    /// Pages in the pool (`nr_hugepages`).
    pub total_pages: u64,
    /// Pages not handed out; reserved ones count as free.
    pub free_pages: u64,
    /// Pages promised to mappings but not yet faulted in.
    pub reserved_pages: u64,
    /// Pages above the configured number, given back when free.
    pub surplus_pages: u64,
    /// Limit of surplus pages; `None` if unreadable.
    pub overcommit_pages: Option<u64>,
}

impl HugetlbPool {
    /// Pages that a new mapping can have without growing the pool.
    pub fn available_pages(&self) -> u64 {
        self.free_pages.saturating_sub(self.reserved_pages)
    }
}

/// All pools, smallest page size first.
pub(crate) fn read(source: &mut Source) -> Vec<HugetlbPool> {
    let mut pools: Vec<HugetlbPool> = source
        .names(DIR)
        .iter()
        .filter_map(|name| {
            let page_size_bytes = page_size_of_name(name)?;
            let mut pages = |file: &str| source.number(format!("{DIR}/{name}/{file}"));
            Some(HugetlbPool {
                page_size_bytes,
                total_pages: pages("nr_hugepages")?,
                free_pages: pages("free_hugepages")?,
                reserved_pages: pages("resv_hugepages")?,
                surplus_pages: pages("surplus_hugepages")?,
                overcommit_pages: pages("nr_overcommit_hugepages"),
            })
        })
        .collect();
    pools.sort_by_key(|pool| pool.page_size_bytes);
    pools
}
