//! What user space decides before the load. It is frozen read-only data: the verifier takes every
//! value as a constant and drops the branches of what is switched off.

/// A pair of programs, one at the entry and one at the exit of a kernel function.
///
/// Each pair has state of its own on every CPU, so that no two programs ever write the same state
/// while one of them is preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "user",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[repr(u8)]
pub enum Pair {
    /// The function that clears.
    Clear = 0,
    /// A second clearing function, where the kernel has the gigantic pages apart.
    ClearGigantic = 1,
    /// The page allocator's clearing, or the allocation that contains it.
    Allocator = 2,
    /// The function that copies.
    Copy = 3,
    /// `mm_get_huge_zero_folio`: makes the huge zero page when there is none.
    HugeZeroPage = 4,
    /// `do_huge_pmd_anonymous_page`: the fault around a THP clear.
    ThpFault = 5,
    /// `do_anonymous_page`: the fault around an mTHP clear.
    AnonFault = 6,
    /// `hugetlb_fault`.
    HugetlbFault = 7,
    /// `hugetlbfs_fallocate`.
    Fallocate = 8,
    /// `memfd_alloc_folio`.
    Memfd = 9,
    /// `try_to_compact_pages`: direct compaction.
    Compaction = 10,
    /// `try_to_free_pages`: direct reclaim.
    Reclaim = 11,
    /// `try_to_free_mem_cgroup_pages`: direct reclaim for a memory cgroup's limit.
    CgroupReclaim = 12,
    /// `do_huge_pmd_wp_page`: the fault of a write to the huge zero page, which since 6.18, maybe 6.13,
    /// allocates and clears a huge page.
    WriteFault = 13,
}

/// What the calls of a pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Clears or copies: what is recorded by site.
    Clears,
    /// A clear that only some of the calls make.
    MayClear,
    /// What is around clears, and tells their cause.
    Encloses,
    /// A part of a fault.
    Part,
}

impl Pair {
    /// Every pair, in the order of its number.
    pub const ALL: [Self; 14] = [
        Self::Clear,
        Self::ClearGigantic,
        Self::Allocator,
        Self::Copy,
        Self::HugeZeroPage,
        Self::ThpFault,
        Self::AnonFault,
        Self::HugetlbFault,
        Self::Fallocate,
        Self::Memfd,
        Self::Compaction,
        Self::Reclaim,
        Self::CgroupReclaim,
        Self::WriteFault,
    ];
    /// How many there are.
    pub const COUNT: u32 = Self::ALL.len() as u32;

    /// What its calls are.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::Clear | Self::ClearGigantic | Self::Allocator | Self::Copy => Role::Clears,
            Self::HugeZeroPage => Role::MayClear,
            Self::ThpFault
            | Self::AnonFault
            | Self::HugetlbFault
            | Self::Fallocate
            | Self::Memfd
            | Self::WriteFault => Role::Encloses,
            Self::Compaction | Self::Reclaim | Self::CgroupReclaim => Role::Part,
        }
    }

    /// As a bit of [`Config::enclosing`].
    #[must_use]
    #[inline(always)]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Where the entry program finds the size of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SizeFrom {
    /// The low byte of `folio->_flags_1` of argument 1 (6.6 and later), at
    /// [`Config::folio_order_offset`].
    FolioOrder = 0,
    /// Argument 2 is a number of base pages.
    PagesArg2 = 1,
    /// Argument 3 is a number of base pages.
    PagesArg3 = 2,
    /// Argument 5 is a number of base pages; only of copies.
    PagesArg5 = 3,
    /// Argument 2 is the order.
    OrderArg2 = 4,
    /// The function only ever handles PMD-sized folios: [`Config::pmd_order`].
    Pmd = 5,
}

/// Where the entry program finds the address that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AddressFrom {
    /// Only the fault around it knows.
    Fault = 0,
    /// The function's argument 2; of a copy, 3.
    Argument = 1,
}

/// When the preemption model of a clear is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ModelFrom {
    /// It cannot change: [`Config::model`].
    Fixed = 0,
    /// From `PREEMPT_MODEL`, which a probe on `sched_dynamic_update` keeps up to date.
    Watched = 1,
    /// From `preempt_dynamic_mode` at every clear, where that probe was refused.
    EachClear = 2,
}

/// The most possible CPUs with which starts are kept in slots, where a program has one search for the slot
/// of a thread that migrated. The verifier follows each search CPU by CPU: that of 6.1 accepts 2,048 steps
/// in a program and refuses 3,500. Where it is more, every start goes to the hash map.
pub const MAX_SLOT_CPUS: u32 = 1024;

/// Configuration of one [`Pair`] whose [`Role`] is [`Role::Clears`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClearConfig {
    /// A [`crate::key::Site`] as a number.
    pub site: u32,
    /// A [`SizeFrom`] as a number.
    pub size_from: u32,
    /// If not 0: only a call whose third argument is this address is a clear. `process_huge_page`
    /// also copies; what it does to each sub-page is its third argument.
    pub only_function: u64,
    /// An [`AddressFrom`] as a number.
    pub address_from: u32,
    /// 1 if argument 1 points to the page that is cleared or copied to.
    pub page_is_arg1: u32,
    /// 1 if the duration includes more than the clear: what else happened in the fault until then is
    /// not part of the clear.
    pub derived: u32,
    /// No meaning.
    pub padding: u32,
}

/// Bytes from the start of `task_struct` to its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskOffsets {
    /// `sched_info.run_delay`: ns that the task was runnable and not running (kernel/sched/stats.h).
    pub run_delay: u32,
    /// `nvcsw`: times that the task gave up its CPU.
    pub voluntary_switches: u32,
    /// `nivcsw`: times that its CPU was taken from it.
    pub involuntary_switches: u32,
    /// 1 if the kernel hands out the current task as a trusted pointer (`bpf_get_current_task_btf`,
    /// 5.11), whose members are read with plain loads.
    pub trusted: u32,
    /// `pid`: the thread's number.
    pub pid: u32,
    /// `cpu`: where it runs, or is to run.
    pub cpu: u32,
    /// `comm`: its name.
    pub comm: u32,
    /// `flags`: `PF_KTHREAD` among others.
    pub flags: u32,
}

/// Which parts of a [`crate::key::CellKey`] are asked for: bits of [`Config::wanted`].
pub mod wanted {
    /// [`crate::key::Dimensions::sixteenth`].
    pub const SIXTEENTH: u32 = 1;
    /// [`crate::key::Dimensions::memory_node`].
    pub const MEMORY_NODE: u32 = 2;
    /// [`crate::key::CellKey::pid`].
    pub const PID: u32 = 4;
    /// [`crate::key::CellKey::comm`].
    pub const COMM: u32 = 8;
    /// [`crate::key::CellKey::cgroup`].
    pub const CGROUP: u32 = 16;
}

/// The kernel's per-CPU count of THP faults that fell back; all 0 if it is not to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FallbackCounters {
    /// Address of `THP_FAULT_FALLBACK` among the `vm_event_states`, which
    /// `THP_FAULT_FALLBACK_CHARGE` follows (include/linux/vm_event_item.h), before the offset of the
    /// CPU is added.
    pub address: u64,
    /// Address of `__per_cpu_offset`, the offsets of the CPUs.
    pub per_cpu_offset: u64,
}

/// Configuration of the kernel side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Address of the kernel's `preempt_dynamic_mode`, or 0.
    pub preempt_mode_address: u64,
    /// The comm to select, padded with zero bytes, as two words in memory order; 0 selects all.
    pub comm: [u64; 2],
    /// Id of the cgroup (v2) to select, with all below it; 0 selects all.
    pub cgroup: u64,
    /// Pairs that clear or copy, by [`Pair`].
    pub clears: [ClearConfig; 4],
    /// See [`FallbackCounters`].
    pub fallback_counters: FallbackCounters,
    /// Address of the pointer to the huge zero page, or 0.
    pub huge_zero_page: u64,
    /// Longest time between two clears of a run, in ns.
    pub run_gap_ns: u64,
    /// Shortest duration of a clear, copy or fault that makes an event, in ns.
    pub slower_ns: u64,
    /// Thread group of the tracer itself, left out and counted apart; 0 leaves out nobody.
    pub own_tgid: u32,
    /// The thread group to select; 0 selects all.
    pub tgid: u32,
    /// How far below the root [`Config::cgroup`] is.
    pub cgroup_level: u32,
    /// CPUs whose slots keep starts: all possible CPUs, or 0 if there are too many, see
    /// [`MAX_SLOT_CPUS`].
    pub slot_cpus: u32,
    /// Blocks of each CPU.
    pub blocks: u32,
    /// A [`ModelFrom`] as a number.
    pub model_from: u32,
    /// A [`crate::preempt::PreemptModel`] as a number; in force when [`ModelFrom::Fixed`].
    pub model: u32,
    /// Bytes from the start of a folio to the byte that holds its order.
    pub folio_order_offset: u32,
    /// Where the counters of a task are; all 0 if they are not to be read.
    pub task: TaskOffsets,
    /// log2 of the bytes of a base page.
    pub page_shift: u32,
    /// Order of a PMD-sized folio.
    pub pmd_order: u32,
    /// 1 if the allocator zeroes every huge page before the clear function does so again, and the
    /// time from the fault's entry to the clear's is to be kept as site `allocator`, derived.
    pub allocator_before_clear: u32,
    /// 1 if the pair [`Pair::Allocator`] counts only inside an open fault of the same task.
    pub allocator_in_fault: u32,
    /// The enclosing pairs that are attached, by [`Pair::bit`].
    pub enclosing: u32,
    /// 1 if the faults are recorded, and each clear's cause.
    pub faults: u32,
    /// 1 if clears and copies are kept in cells, by their whole key, instead of blocks.
    pub cells: u32,
    /// Bits of [`wanted`].
    pub wanted: u32,
    /// Position of the node in the flags of a page, or 0.
    pub node_shift: u32,
    /// Bytes from the start of `struct vm_fault` to `address`.
    pub fault_address_offset: u32,
    /// Bytes from the start of `struct vm_fault` to `flags`; 0 if a read fault never maps the huge
    /// zero page, or that is not known.
    pub fault_flags_offset: u32,
    /// 1 if each clear, copy and fault makes an event, 2 with its kernel stack.
    pub events: u32,
    /// 1 if each clear is noted as what its CPU executes, for the tasks that wake there.
    pub sched_impact: u32,
    /// No meaning.
    pub padding: u32,
}

const _: () = assert!(size_of::<ClearConfig>() == 32);
const _: () = assert!(size_of::<Config>() == 320);

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, only integers, no padding (the sizes are asserted above), any bytes are valid.
unsafe impl aya::Pod for Config {}
