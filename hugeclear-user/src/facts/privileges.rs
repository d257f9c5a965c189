//! Who this process is and what it may do.

use std::fs;

use serde::{Deserialize, Serialize};

use super::source::Source;

/// Capabilities we look for, with their numbers (include/uapi/linux/capability.h).
const CAPABILITIES: &[(u32, &str)] = &[
    (2, "CAP_DAC_READ_SEARCH"),
    (14, "CAP_IPC_LOCK"),
    (17, "CAP_SYS_RAWIO"),
    (21, "CAP_SYS_ADMIN"),
    (24, "CAP_SYS_RESOURCE"),
    (34, "CAP_SYSLOG"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];

/// Inode of the first pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Identity and effective capabilities of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Privileges {
    /// Effective user id; `None` if `/proc/self/status` could not be read.
    pub euid: Option<u32>,
    /// Effective ones of the capabilities that tracing, kernel memory or pool changes need.
    pub capabilities: Vec<String>,
    /// Whether we are in the first pid namespace, whose numbers BPF sees. `None`: cannot be told.
    pub initial_pid_namespace: Option<bool>,
}

impl Privileges {
    /// Whether this capability (`CAP_BPF`, ...) is effective.
    pub fn has(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|c| c == capability)
    }

    pub(super) fn read(source: &mut Source) -> Self {
        let status = source.text("proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        // real, effective, saved, file system
        let euid = field("Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
        let effective = field("CapEff")
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or_default();
        const NS: &str = "proc/self/ns/pid";
        let initial_pid_namespace = fs::read_link(source.path(NS))
            .map_err(|error| source.note(NS, &error))
            .ok()
            .map(|target| target.as_os_str() == INITIAL_PID_NAMESPACE);
        Self {
            euid,
            capabilities: CAPABILITIES
                .iter()
                .filter(|(bit, _)| effective & (1 << bit) != 0)
                .map(|(_, name)| (*name).to_owned())
                .collect(),
            initial_pid_namespace,
        }
    }
}
