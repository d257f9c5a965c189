//! Memory nodes.

use serde::{Deserialize, Serialize};

use super::{cpu, source::Source};

/// Where the nodes live, without the leading `/`.
pub(crate) const DIR: &str = "sys/devices/system/node";

/// Memory nodes of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numa {
    /// Whether the kernel knows nodes at all (`CONFIG_NUMA`); if not, all CPUs are on node 0.
    pub built_in: bool,
    /// Online nodes by number.
    pub nodes: Vec<NumaNode>,
}

/// One online memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Node number.
    pub id: u32,
    /// Its online CPUs; empty for a node of memory alone.
    pub cpus: Vec<u32>,
}

impl Numa {
    /// The node of a CPU; `None` if the CPU is not online.
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.nodes
            .iter()
            .find(|node| node.cpus.contains(&cpu))
            .map(|node| node.id)
    }

    pub(crate) fn read(source: &mut Source, online_cpus: &[u32]) -> Self {
        if !source.exists(DIR) {
            return Self {
                built_in: false,
                nodes: vec![NumaNode {
                    id: 0,
                    cpus: online_cpus.to_vec(),
                }],
            };
        }
        let nodes = cpu::list(source, &format!("{DIR}/online"))
            .unwrap_or_default()
            .into_iter()
            .map(|id| NumaNode {
                id,
                cpus: cpu::list(source, &format!("{DIR}/node{id}/cpulist")).unwrap_or_default(),
            })
            .collect();
        Self {
            built_in: true,
            nodes,
        }
    }
}
