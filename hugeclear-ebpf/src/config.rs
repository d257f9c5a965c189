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
    /// `do_huge_pmd_anonymous_page`: the fault around a THP clear.
    ThpFault = 3,
    /// `do_anonymous_page`: the fault around an mTHP clear.
    AnonFault = 4,
}

impl Pair {
    /// Every pair, in the order of its number.
    pub const ALL: [Self; 5] = [
        Self::Clear,
        Self::ClearGigantic,
        Self::Allocator,
        Self::ThpFault,
        Self::AnonFault,
    ];
    /// How many there are.
    pub const COUNT: u32 = Self::ALL.len() as u32;

    /// Whether its calls are clears; else they are faults, which may contain clears.
    #[must_use]
    pub const fn clears(self) -> bool {
        match self {
            Self::Clear | Self::ClearGigantic | Self::Allocator => true,
            Self::ThpFault | Self::AnonFault => false,
        }
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
    /// Argument 2 is the order.
    OrderArg2 = 3,
    /// The function only ever handles PMD-sized folios: [`Config::pmd_order`].
    Pmd = 4,
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

/// The most possible CPUs with which starts are kept in slots. The verifier follows the search for the
/// slot of a thread that migrated CPU by CPU: that of 6.1 accepts 2,048 and refuses 3,500. With more CPUs
/// than this every start goes to the hash map.
pub const MAX_SLOT_CPUS: u32 = 1024;

/// Configuration of one [`Pair`] that clears.
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
}

/// Configuration of the kernel side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Address of the kernel's `preempt_dynamic_mode`, or 0.
    pub preempt_mode_address: u64,
    /// The comm to select, padded with zero bytes, as two words in memory order; 0 selects all.
    pub comm: [u64; 2],
    /// Clearing pairs, by [`Pair`]: clear, gigantic, allocator.
    pub clears: [ClearConfig; 3],
    /// Thread group of the tracer itself, left out and counted apart; 0 leaves out nobody.
    pub own_tgid: u32,
    /// The thread group to select; 0 selects all.
    pub tgid: u32,
    /// CPUs whose slots keep starts: all possible CPUs, or 0 above [`MAX_SLOT_CPUS`].
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
    /// Order of a PMD-sized folio.
    pub pmd_order: u32,
    /// 1 if the allocator zeroes every huge page before the clear function does so again, and the
    /// time from the fault's entry to the clear's is to be kept as site `allocator`, derived.
    pub allocator_before_clear: u32,
    /// 1 if the pair [`Pair::Allocator`] counts only inside an open fault of the same task.
    pub allocator_in_fault: u32,
}

const _: () = assert!(size_of::<ClearConfig>() == 16);
const _: () = assert!(size_of::<Config>() == 128);

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, only integers, no padding (the sizes are asserted above), any bytes are valid.
unsafe impl aya::Pod for Config {}
