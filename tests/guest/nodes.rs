//! Local and remote clears are told apart, in a guest with one CPU and half of the memory in each of two
//! nodes.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::{
    Expected,
    trace::{MIB2, huge_pages_on_request, sum, trace_loads},
};

/// Node of the CPU, which is its number; node of the memory; pages.
const CLEARS: [(u64, u64, u64); 4] = [(0, 0, 3), (0, 1, 5), (1, 0, 7), (1, 1, 9)];

pub(crate) fn run(expected: &Expected) -> Result<()> {
    huge_pages_on_request(expected)?;
    let kinds: &[&str] = if expected.no_thp {
        &["--hugetlb"]
    } else {
        &["", "--hugetlb"]
    };
    for kind in kinds {
        placed(expected, kind).with_context(|| format!("pages of kind `{kind}`"))?;
    }
    Ok(())
}

fn placed(expected: &Expected, kind: &str) -> Result<()> {
    let loads = CLEARS
        .map(|(cpu, node, pages)| format!("node --cpu {cpu} --node {node} --count {pages} {kind}"));
    let loads: Vec<&str> = loads.iter().map(String::as_str).collect();
    let traced = trace_loads(&["--per-node"], &loads)?;
    for (index, (cpu, node, pages)) in CLEARS.into_iter().enumerate() {
        let bytes = traced.load(index)?["bytes_on_node"][node.to_string()].as_u64();
        ensure!(
            bytes == Some(pages * MIB2),
            "the memory is not where it should be: {:?}",
            traced.workloads
        );
        let like = json!({"site": expected.site, "node": cpu, "mem_node": node});
        let count = sum(traced.rows(), "count", &like);
        ensure!(
            count == pages,
            "{count} clears of node {node} on node {cpu}, not {pages}: {}",
            traced.total
        );
    }
    let all: u64 = CLEARS.iter().map(|(_, _, pages)| pages).sum();
    ensure!(
        sum(traced.rows(), "count", &json!({})) == all,
        "more than that: {}",
        traced.total
    );
    Ok(())
}
