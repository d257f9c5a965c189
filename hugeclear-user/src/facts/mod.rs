//! Kernel facts: everything learnt of the machine before attaching, as plain data.
//!
//! Owns the reading of `/proc`, `/sys`, `/boot` and `/dev/kmsg` below a root directory (`/` in
//! production, a recorded tree in tests). Knows nothing of probes or of BPF; its data goes to the
//! choice of the probe set, to recordings and to `doctor`.
//!
//! What cannot be read is a fact too: the field is `None` (or empty) and [`Facts::unread`] says
//! which file it was and why. Reading never fails and needs no privilege beyond the file's own.

pub mod btf;
pub mod cgroup;
pub mod clear_sites;
pub mod config;
pub mod cpu;
pub mod hugetlb;
pub mod init_on;
pub mod kallsyms;
pub mod kernel_memory;
mod mounts;
pub mod numa;
pub mod preempt;
pub mod privileges;
#[cfg(test)]
pub(crate) mod recorded;
pub(crate) mod source;
pub mod strategy;
pub mod symbols;
pub mod thp;
pub mod vmstat;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use btf::{Btf, Constants, Offsets};
pub use config::KernelConfig;
pub use cpu::Cpu;
pub use hugetlb::HugetlbPool;
pub use init_on::Switch;
pub use numa::{Numa, NumaNode};
pub use preempt::{Preempt, PreemptModel};
pub use privileges::Privileges;
pub use source::Unread;
pub use strategy::{Strategies, Strategy};
pub use symbols::{Symbol, Symbols};
pub use thp::{Thp, ThpEnabled, ThpSize};
pub use vmstat::HugeFaults;

use kernel_memory::KernelMemory;
use source::Source;

/// What is known of the machine before anything is attached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Kernel release, `uname -r`. Empty if unreadable. Source: `/proc/sys/kernel/osrelease`.
    pub release: String,
    /// Kernel build string, `uname -v`. Empty if unreadable. Source: `/proc/sys/kernel/version`.
    pub version: String,
    /// Architecture as `std::env::consts::ARCH` writes it: `x86_64`, `aarch64`.
    /// Source: `/proc/sys/kernel/arch` (6.1), else the architecture of this binary.
    pub machine: String,
    /// Bytes of a base page. Source: `AT_PAGESZ` of `/proc/self/auxv`, else `sysconf`.
    pub page_size_bytes: u64,
    /// Kernel command line. Source: `/proc/cmdline`.
    pub cmdline: String,
    /// Options of the kernel's build that matter here, if a config file was found.
    pub config: Option<KernelConfig>,
    /// Preemption model in force at reading, and whence it is known.
    pub preempt: Preempt,
    /// Processor model, flags and counts.
    pub cpu: Cpu,
    /// Memory nodes and their CPUs.
    pub numa: Numa,
    /// Type information of the running kernel.
    pub btf: Btf,
    /// Interesting symbols and what may be probed.
    pub symbols: Symbols,
    /// Transparent huge pages. `None`: not built into this kernel (as with `PREEMPT_RT`).
    pub thp: Option<Thp>,
    /// hugetlb pools, smallest page size first. Empty: hugetlb not built in.
    pub hugetlb: Vec<HugetlbPool>,
    /// Whether the page allocator zeroes every page it hands out (`init_on_alloc`).
    pub init_on_alloc: Switch,
    /// Whether the page allocator zeroes every page it takes back (`init_on_free`).
    pub init_on_free: Switch,
    /// `none`, `integrity` or `confidentiality`; `None` if the kernel has no lockdown or
    /// securityfs is not mounted. Source: `/sys/kernel/security/lockdown`.
    pub lockdown: Option<String>,
    /// Directory of tracefs, not prefixed with the root. `None`: not mounted.
    pub tracefs: Option<PathBuf>,
    /// Directory of debugfs, not prefixed with the root. `None`: not mounted.
    pub debugfs: Option<PathBuf>,
    /// Directory of cgroup2, not prefixed with the root. `None`: not mounted.
    pub cgroup2: Option<PathBuf>,
    /// Who we are and what we may do.
    pub privileges: Privileges,
    /// Whether kprobes can be opened as perf events. `None`: cannot be told (no sysfs).
    /// Source: `/sys/bus/event_source/devices/kprobe/type`.
    pub kprobes: Option<bool>,
    /// What could not be read, and why.
    pub unread: Vec<Unread>,
}

impl Facts {
    /// Reads the facts below `root`. Never fails; see [`Facts::unread`].
    pub fn read(root: &Path) -> Self {
        let mut source = Source::new(root);
        let release = source.text("proc/sys/kernel/osrelease").unwrap_or_default();
        let version = source.text("proc/sys/kernel/version").unwrap_or_default();
        // Absent before 6.1, which is no news.
        let machine = source
            .text_if_present("proc/sys/kernel/arch")
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let page_size_bytes = cpu::page_size_bytes(&mut source);
        let cmdline = source.text("proc/cmdline").unwrap_or_default();
        let config = KernelConfig::read(&mut source, &release);
        let mounts = mounts::Mounts::read(&mut source);
        let symbols = Symbols::read(
            &mut source,
            mounts.tracefs.as_deref(),
            mounts.debugfs.as_deref(),
        );
        let memory = KernelMemory::open(root)
            .map_err(|error| source.note(kernel_memory::PATH, &error))
            .ok();
        let preempt = Preempt::read(
            &mut source,
            &preempt::Hints {
                version: &version,
                cmdline: &cmdline,
                config: config.as_ref(),
                debugfs: mounts.debugfs.as_deref(),
                mode_symbol_address: symbols.address("preempt_dynamic_mode"),
                memory: memory.as_ref(),
            },
        );
        let (init_on_alloc, init_on_free) = init_on::read(
            &mut source,
            &init_on::Hints {
                cmdline: &cmdline,
                config: config.as_ref(),
                symbols: &symbols,
                memory: memory.as_ref(),
            },
        );
        let cpu = Cpu::read(&mut source);
        let numa = Numa::read(&mut source, &cpu.online);
        Self {
            preempt,
            numa,
            btf: Btf::read(&mut source),
            thp: Thp::read(&mut source),
            hugetlb: hugetlb::read(&mut source),
            init_on_alloc,
            init_on_free,
            lockdown: source
                .text_if_present("sys/kernel/security/lockdown")
                .and_then(|text| source::bracketed(&text).map(str::to_owned)),
            tracefs: mounts.tracefs,
            debugfs: mounts.debugfs,
            cgroup2: mounts.cgroup2,
            privileges: Privileges::read(&mut source),
            kprobes: kprobes(&source),
            unread: source.into_unread(),
            release,
            version,
            machine,
            page_size_bytes,
            cmdline,
            config,
            cpu,
            symbols,
        }
    }

    /// Bytes of a PMD-sized page; `None`: no THP.
    pub fn pmd_bytes(&self) -> Option<u64> {
        self.thp.as_ref().and_then(|thp| thp.pmd_size_bytes)
    }

    /// How this kernel clears huge pages, where the facts tell; `None` where they do not.
    pub fn strategies(&self) -> Option<Strategies> {
        Strategies::new(self)
    }
}

fn kprobes(source: &Source) -> Option<bool> {
    source
        .exists("sys/bus/event_source/devices")
        .then(|| source.exists("sys/bus/event_source/devices/kprobe/type"))
}
