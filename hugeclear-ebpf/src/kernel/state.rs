//! Configuration and maps.

use core::cell::UnsafeCell;

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, RingBuf},
};
use hugeclear_ebpf::{
    config::{ClearConfig, Config, FallbackCounters, TaskOffsets},
    impact::{CpuClears, Task},
    key::{BlockTable, CellKey, KEYS, OTHER},
    maps::{Block, Cell, Slot, Start},
};

/// Lets user space map an array into its memory (linux/bpf.h, since 5.5).
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Set before the load by the symbol's name; constant for the verifier.
#[unsafe(no_mangle)]
pub(crate) static CONFIG: Config = Config {
    preempt_mode_address: 0,
    comm: [0; 2],
    cgroup: 0,
    clears: [ClearConfig {
        site: 0,
        size_from: 0,
        only_function: 0,
        address_from: 0,
        page_is_arg1: 0,
        derived: 0,
        padding: 0,
    }; 4],
    fallback_counters: FallbackCounters {
        address: 0,
        per_cpu_offset: 0,
    },
    huge_zero_page: 0,
    run_gap_ns: 0,
    slower_ns: 0,
    own_tgid: 0,
    tgid: 0,
    cgroup_level: 0,
    slot_cpus: 0,
    blocks: 0,
    model_from: 0,
    model: 0,
    folio_order_offset: 0,
    task: TaskOffsets {
        run_delay: 0,
        voluntary_switches: 0,
        involuntary_switches: 0,
        trusted: 0,
        pid: 0,
        cpu: 0,
        comm: 0,
        flags: 0,
    },
    page_shift: 0,
    pmd_order: 0,
    allocator_before_clear: 0,
    allocator_in_fault: 0,
    enclosing: 0,
    faults: 0,
    cells: 0,
    wanted: 0,
    node_shift: 0,
    fault_address_offset: 0,
    fault_flags_offset: 0,
    events: 0,
    sched_impact: 0,
    padding: 0,
};

/// The block of each key; set before the load like [`CONFIG`].
#[unsafe(no_mangle)]
static BLOCK_OF: BlockTable = [OTHER as u8; KEYS];

/// A field of the configuration. A volatile read, or the compiler would take the zeros above as the
/// values; of the field alone, or it would copy the whole to the stack.
macro_rules! config {
    ($($field:tt)+) => {
        // SAFETY: a field of a static that nothing writes.
        unsafe { core::ptr::read_volatile(&raw const $crate::kernel::state::CONFIG.$($field)+) }
    };
}
pub(crate) use config;

/// The block of `key`, or [`hugeclear_ebpf::key::UNSELECTED`]; `key` is a result of [`hugeclear_ebpf::key::pack`].
#[inline(always)]
pub(crate) fn block_of(key: u32) -> u32 {
    // The compiler must not know the range of the key, or it drops the mask that the verifier needs.
    let index = core::hint::black_box(key) as usize & (KEYS - 1);
    // SAFETY: the mask keeps the index in bounds.
    u32::from(unsafe { core::ptr::read_volatile((&raw const BLOCK_OF).cast::<u8>().add(index)) })
}

/// Row `cpu`, column [`hugeclear_ebpf::config::Pair`]. Resized at load.
#[map]
pub(crate) static SLOTS: Array<Slot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Row `cpu`, column number of the block. Resized at load.
#[map]
pub(crate) static BLOCKS: Array<Block> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// By the whole key, where more than the packed one is asked for, and faults. Resized at load.
#[map]
pub(crate) static CELLS: HashMap<CellKey, Cell> = HashMap::with_max_entries(1, 0);

/// What a new cell is made from: too large for the stack.
#[map]
pub(crate) static EMPTY_CELL: Array<Cell> = Array::with_max_entries(1, 0);

/// Clears, copies and faults one by one, as [`hugeclear_ebpf::maps::Event`]. Resized at load.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Starts that found their CPU's slot taken, by pair (high half) and thread (low half).
#[map]
pub(crate) static STARTS: HashMap<u64, Start> = HashMap::with_max_entries(16 * 1024, 0);

/// What each CPU is clearing. Resized at load.
#[map]
pub(crate) static CPU_CLEARS: Array<CpuClears> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// By thread: those that wait for a clear, and those switched out in the middle of one. Resized at load.
#[map]
pub(crate) static TASKS: HashMap<u32, Task> = HashMap::with_max_entries(1, 0);

/// The preemption model in force, as a [`hugeclear_ebpf::preempt::PreemptModel`]. A variable, not a
/// map of its own: a clear reads it with one load.
#[unsafe(no_mangle)]
pub(crate) static PREEMPT_MODEL: Word = Word(UnsafeCell::new(0));

/// Not 0 before the trace begins and after it ends: while probes are attached and detached, one by one,
/// calls are tracked but not recorded, so that all of them see the same stretch of time.
#[unsafe(no_mangle)]
pub(crate) static PAUSED: Word = Word(UnsafeCell::new(1));

/// A word that programs on all CPUs read and write. The target has no 32-bit atomics; an aligned load
/// or store of a word is one instruction all the same.
#[repr(transparent)]
pub(crate) struct Word(UnsafeCell<u32>);

// SAFETY: only whole words are read and written, by volatile accesses.
unsafe impl Sync for Word {}

impl Word {
    #[inline(always)]
    pub(crate) fn get(&self) -> u32 {
        // SAFETY: valid and aligned.
        unsafe { self.0.get().read_volatile() }
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u32) {
        // SAFETY: valid and aligned.
        unsafe { self.0.get().write_volatile(value) }
    }
}
