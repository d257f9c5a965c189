//! Records a clear, copy or fault that has ended: in its block or cell, and as an event.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_get_stack},
};
use hugeclear_ebpf::{
    bucket::{self, BUCKETS, COARSE_BUCKETS},
    config::wanted,
    key::{CellKey, MEMORY_NODE_MASK, OTHER, SIXTEENTH_MASK},
    maps::{
        Block, Cell, Event, EventWithStack, Inside, Run, STACK_FRAMES, Slot, Start, Totals, Waited,
        square,
    },
};

use super::{
    select,
    state::{BLOCKS, CELLS, EMPTY_CELL, EVENTS, config},
};

/// How a call ended.
#[derive(Clone, Copy)]
pub(crate) struct End {
    /// When, in ns of CLOCK_MONOTONIC; not before its start.
    pub(crate) now: u64,
    /// On which CPU.
    pub(crate) cpu: u32,
    /// What the thread waited for a CPU inside.
    pub(crate) waited: Waited,
    /// What is known of the call by now: [`hugeclear_ebpf::key::Dimensions`], packed.
    pub(crate) dimensions: u64,
}

impl End {
    /// The end, now, of the call that began as `start` says.
    #[inline(always)]
    pub(crate) fn of(start: &Start, now: u64, cpu: u32, dimensions: u64) -> Self {
        let after = super::task::waited();
        let before = start.waited;
        Self {
            now,
            cpu,
            waited: Waited {
                run_delay_ns: after.run_delay_ns.wrapping_sub(before.run_delay_ns),
                switches: after.switches.wrapping_sub(before.switches),
            },
            dimensions,
        }
    }

    /// How long it took, without what the thread waited for a CPU, in ns.
    #[inline(always)]
    pub(crate) fn net_ns(&self, start: &Start) -> u64 {
        (self.now - start.start_ns).wrapping_sub(self.waited.run_delay_ns)
    }
}

/// Adds a clear or copy to its block, or cell.
///
/// No other program can be in the middle of this on the same block: a CPU runs a program once at a
/// time (the kernel skips and counts a second run), and each pair has sites of its own. Only block
/// [`OTHER`] is shared: where programs can preempt each other, two pairs that meet there may lose one
/// of its counts.
#[inline(always)]
pub(crate) fn clear(slot: &mut Slot, block: u32, start: &Start, end: End, run: Run) {
    if config!(cells) == 0 {
        add_to_block(block, start, end, run);
    } else if let Some(cell) = cell(key(end)) {
        count_in_cell(cell, end.now - start.start_ns);
        add(&mut cell.totals, start, end, run);
    } else {
        slot.cells_full += 1;
        add_to_block(OTHER, start, end, run);
    }
}

/// Adds a fault to its cell.
#[inline(always)]
pub(crate) fn fault(slot: &mut Slot, start: &Start, end: End) {
    let Some(cell) = cell(key(end)) else {
        slot.cells_full += 1;
        return;
    };
    cell.inside.clear_ns += start.inside.clear_ns;
    cell.inside.compaction_ns += start.inside.compaction_ns;
    cell.inside.reclaim_ns += start.inside.reclaim_ns;
    count_in_cell(cell, end.now - start.start_ns);
    add(&mut cell.totals, start, end, Run::default());
}

/// Adds a duration of nothing that began and ended to the cell of `key`; whether there was room for it.
#[inline(always)]
pub(crate) fn duration(key: CellKey, ns: u64) -> bool {
    let Some(cell) = cell(key) else {
        return false;
    };
    count_in_cell(cell, ns);
    add_ns(&mut cell.totals, ns);
    true
}

#[inline(always)]
fn add_to_block(block: u32, start: &Start, end: End, run: Run) {
    let Some(block) = BLOCKS.get_ptr_mut(end.cpu * config!(blocks) + block) else {
        return;
    };
    // SAFETY: a valid element of the map.
    let block: &mut Block = unsafe { &mut *block };
    // The compiler knows that the index is in range and would drop the comparison that the
    // verifier needs.
    let index = core::hint::black_box(bucket::index(end.now - start.start_ns));
    if index < BUCKETS {
        // SAFETY: in bounds.
        unsafe { *(&raw mut block.buckets).cast::<u64>().add(index) += 1 };
    }
    add(&mut block.totals, start, end, run);
}

#[inline(always)]
fn count_in_cell(cell: &mut Cell, ns: u64) {
    let index = bucket::coarse(bucket::index(ns));
    // As in `add_to_block`.
    let index = core::hint::black_box(index);
    if index < COARSE_BUCKETS {
        // SAFETY: in bounds.
        unsafe { *(&raw mut cell.buckets).cast::<u32>().add(index) += 1 };
    }
}

/// The last step of each record, and the count its last: it tells user space that all is there.
#[inline(always)]
fn add(totals: &mut Totals, start: &Start, end: End, run: Run) {
    totals.waited.run_delay_ns += end.waited.run_delay_ns;
    totals.waited.switches += end.waited.switches;
    if start.cpu != end.cpu {
        totals.migrated += 1;
    }
    if run.ns > totals.longest_run.ns {
        totals.longest_run = run;
    }
    add_ns(totals, end.now - start.start_ns);
}

/// The count comes last: who reads it twice sees whether it read in the middle.
#[inline(always)]
fn add_ns(totals: &mut Totals, ns: u64) {
    totals.sum_ns += ns;
    let (low, high) = square(ns);
    let (sum, carry) = totals.sum_squares[0].overflowing_add(low);
    totals.sum_squares[0] = sum;
    totals.sum_squares[1] = totals.sum_squares[1]
        .wrapping_add(high)
        .wrapping_add(u64::from(carry));
    if ns > totals.max_ns {
        totals.max_ns = ns;
    }
    if !ns > totals.max_complement {
        totals.max_complement = !ns;
    }
    totals.count += 1;
}

/// The key of the cell: what is asked for, of what is known.
#[inline(always)]
fn key(end: End) -> CellKey {
    let wanted = config!(wanted);
    // Events may know more than the cells are to tell apart.
    let mut dimensions = end.dimensions;
    if wanted & wanted::SIXTEENTH == 0 {
        dimensions &= !SIXTEENTH_MASK;
    }
    if wanted & wanted::MEMORY_NODE == 0 {
        dimensions &= !MEMORY_NODE_MASK;
    }
    CellKey {
        dimensions,
        cgroup: if wanted & wanted::CGROUP != 0 {
            // SAFETY: no conditions.
            unsafe { bpf_get_current_cgroup_id() }
        } else {
            0
        },
        comm: if wanted & wanted::COMM != 0 {
            select::comm()
        } else {
            [0; 2]
        },
        pid: if wanted & wanted::PID != 0 {
            (bpf_get_current_pid_tgid() >> 32) as u32
        } else {
            0
        },
        cpu: end.cpu,
    }
}

/// Makes an element, and never overwrites one that a program which preempts this one has just made.
const BPF_NOEXIST: u64 = 1;

/// The cell of `key`, new if need be; `None` if the map is full.
#[inline(always)]
fn cell(key: CellKey) -> Option<&'static mut Cell> {
    // The key holds the CPU: only programs on this CPU write the cell, and none deletes it.
    let cell = match CELLS.get_ptr_mut(key) {
        Some(cell) => cell,
        None => {
            let empty = EMPTY_CELL.get_ptr(0)?;
            // SAFETY: a valid element of the map, which nobody writes.
            let _ = CELLS.insert(key, unsafe { &*empty }, BPF_NOEXIST);
            CELLS.get_ptr_mut(key)?
        }
    };
    // SAFETY: a valid element of the map.
    Some(unsafe { &mut *cell })
}

/// Reports a clear, copy or fault on its own, if that is asked for.
#[inline(always)]
pub(crate) fn event(
    ctx: &impl EbpfContext,
    slot: &mut Slot,
    start: &Start,
    inside: Inside,
    end: End,
) {
    let events = config!(events);
    if events == 0 || end.now - start.start_ns < config!(slower_ns) {
        return;
    }
    if events == 1 {
        let Some(mut entry) = EVENTS.reserve::<Event>(0) else {
            slot.events_dropped += 1;
            return;
        };
        // SAFETY: reserved for one `Event`.
        unsafe { fill(entry.as_mut_ptr(), start, inside, end) };
        entry.submit(0);
    } else {
        let Some(mut entry) = EVENTS.reserve::<EventWithStack>(0) else {
            slot.events_dropped += 1;
            return;
        };
        let record = entry.as_mut_ptr();
        // SAFETY: reserved for one `EventWithStack`; the helper writes within the stack.
        unsafe {
            fill(&raw mut (*record).event, start, inside, end);
            let stack = (&raw mut (*record).stack).cast();
            (*record).stack_bytes = bpf_get_stack(
                ctx.as_ptr(),
                stack,
                (STACK_FRAMES * size_of::<u64>()) as u32,
                0,
            );
        }
        entry.submit(0);
    }
}

/// # Safety
/// `event` must be valid for writes.
#[inline(always)]
unsafe fn fill(event: *mut Event, start: &Start, inside: Inside, end: End) {
    let id = bpf_get_current_pid_tgid();
    let comm = select::comm();
    macro_rules! set {
        ($($field:ident).+ = $value:expr) => {
            (&raw mut (*event).$($field).+).write_volatile($value)
        };
    }
    // SAFETY: by the caller. Field by field, and volatile: the target sets and copies what the compiler
    // puts together byte by byte, in loops that the verifier follows.
    unsafe {
        set!(start_ns = start.start_ns);
        set!(duration_ns = end.now - start.start_ns);
        set!(waited.run_delay_ns = end.waited.run_delay_ns);
        set!(waited.switches = end.waited.switches);
        set!(dimensions = end.dimensions);
        set!(address = start.address);
        set!(inside.clear_ns = inside.clear_ns);
        set!(inside.compaction_ns = inside.compaction_ns);
        set!(inside.reclaim_ns = inside.reclaim_ns);
        set!(inside.order = inside.order);
        set!(inside.happened = inside.happened);
        set!(cgroup = bpf_get_current_cgroup_id());
        let name = (&raw mut (*event).comm).cast::<u64>();
        name.write_volatile(comm[0]);
        name.add(1).write_volatile(comm[1]);
        set!(pid = (id >> 32) as u32);
        set!(tid = id as u32);
        set!(cpu_start = start.cpu);
        set!(cpu_end = end.cpu);
    }
}
