//! Tasks that wake on a CPU while it clears: how long that clear keeps them waiting.
//! [`hugeclear_ebpf::impact`] has the books, this keeps them.
//!
//! The tracepoints fire with interrupts off and the lock of a run queue held: of the one that the task is
//! on, but for a task that wakes itself, which waits for nothing. So what is written of a waiting task,
//! and to the cells of its CPU, is never written by two CPUs at once. Nothing here may wake a task: no
//! ring buffer, no log.

use hugeclear_ebpf::{
    config::{Pair, wanted},
    impact::{CpuClears, Task},
    key::{CellKey, Dimensions, IMPACT},
};

use super::{
    aggregate,
    start::{cpu as this_cpu, now},
    state::{CPU_CLEARS, TASKS, config},
};

/// A `struct task_struct` that the verifier trusts: an argument of a tracepoint.
#[repr(transparent)]
struct Known(*const u8);

impl Known {
    #[inline(always)]
    fn member<T: Copy>(&self, offset: u32) -> T {
        // SAFETY: the verifier checks the access against the structure's BTF.
        unsafe { self.0.add(offset as usize).cast::<T>().read_volatile() }
    }

    /// Its number; 0 for the idle task of every CPU.
    #[inline(always)]
    fn thread(&self) -> u32 {
        self.member(config!(task.pid))
    }

    /// Whether it is a kernel thread; the idle tasks are, too.
    #[inline(always)]
    fn is_kernel_thread(&self) -> bool {
        self.member::<u32>(config!(task.flags)) & KERNEL_THREAD != 0
    }
}

/// `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// A clear begins, to be recorded with these dimensions.
#[inline(always)]
pub(crate) fn begin(pair: Pair, cpu: u32, thread: u32, dimensions: Dimensions) {
    if is_followed(pair)
        && let Some(clears) = clears_of(cpu)
    {
        let of_impact = Dimensions {
            subject: IMPACT,
            order: dimensions.order,
            model: dimensions.model,
            ..Dimensions::default()
        };
        clears.begin(thread, of_impact.pack(), now());
    }
}

/// A call of a function that clears ends. Whether it was recorded does not matter: the thread is in no
/// clear any more.
#[inline(always)]
pub(crate) fn end(pair: Pair, cpu: u32, thread: u32, now: u64) {
    if is_followed(pair)
        && let Some(clears) = clears_of(cpu)
    {
        clears.end(thread, now);
    }
}

#[inline(always)]
fn is_followed(pair: Pair) -> bool {
    config!(sched_impact) != 0 && pair as u32 != Pair::Copy as u32
}

/// A task becomes runnable; which CPU it is to run on has been decided.
#[inline(always)]
pub(crate) fn woken(task: *const u8) {
    let task = Known(task);
    let cpu = task.member(config!(task.cpu));
    let Some(clears) = clears_of(cpu) else {
        return;
    };
    if !clears.is_inside() {
        return;
    }
    let thread = task.thread();
    let Some(wait) = clears.wait(thread, cpu, now()) else {
        return;
    };
    if let Some(known) = known(thread) {
        // Its last wait had no end: a program was skipped.
        clears.lost += u64::from(known.waits_for != 0);
        *known = Task {
            clearing: known.clearing,
            ..wait
        };
    } else if TASKS.insert(thread, wait, 0).is_err() {
        clears.lost += 1;
    }
}

/// The CPU goes from one task to another.
#[inline(always)]
pub(crate) fn switched(from: *const u8, to: *const u8) {
    let Some(clears) = clears_of(this_cpu()) else {
        return;
    };
    let to = Known(to);
    let next = to.thread();
    if clears.inside.is_running() {
        let thread = Known(from).thread();
        if let Some(clearing) = clears.leave(thread, now()) {
            let task = Task {
                clearing,
                ..Task::default()
            };
            clears.lost += u64::from(TASKS.insert(thread, task, 0).is_err());
            clears.lent = u32::from(next != 0 && to.is_kernel_thread());
        }
    } else if clears.lent != 0 {
        clears.lent = u32::from(next != 0 && to.is_kernel_thread());
    }
    if next == 0 {
        return;
    }
    let Some(task) = known(next) else {
        return;
    };
    let task = *task;
    let _ = TASKS.remove(next);
    let now = now();
    if task.waits_for != 0 {
        record(&to, &task, now);
    }
    if task.clearing != 0 {
        clears.resume(next, task.clearing, now);
    }
}

/// A task is about to be moved to another CPU: if it waits for a clear, it does no longer.
#[inline(always)]
pub(crate) fn migrated(task: *const u8) {
    let moved = Known(task);
    let thread = moved.thread();
    let Some(task) = known(thread) else {
        return;
    };
    if task.waits_for != 0 {
        record(&moved, task, now());
        task.waits_for = 0;
    }
    if task.clearing == 0 {
        let _ = TASKS.remove(thread);
    }
}

/// Adds the wait of `of` that ends now, where it waited.
#[inline(always)]
fn record(of: &Known, task: &Task, now: u64) {
    let Some(clears) = clears_of(task.cpu) else {
        return;
    };
    let key = CellKey {
        dimensions: task.waits_for,
        cgroup: 0,
        comm: if config!(wanted) & wanted::COMM != 0 {
            let offset = config!(task.comm);
            [of.member(offset), of.member(offset + 8)]
        } else {
            [0; 2]
        },
        pid: 0,
        cpu: task.cpu,
    };
    let recorded = match clears.waited(task, now) {
        Some(ns) => aggregate::duration(key, ns),
        None => false,
    };
    clears.lost += u64::from(!recorded);
}

#[inline(always)]
fn clears_of(cpu: u32) -> Option<&'static mut CpuClears> {
    let clears = CPU_CLEARS.get_ptr_mut(cpu)?;
    // SAFETY: a valid element of the map. Other CPUs read it only, but for what their run queue's lock
    // allows.
    Some(unsafe { &mut *clears })
}

/// What is known of a thread that does not run.
#[inline(always)]
fn known(thread: u32) -> Option<&'static mut Task> {
    let task = TASKS.get_ptr_mut(thread)?;
    // SAFETY: a valid element of the map; only who holds the lock of the task's run queue uses it.
    Some(unsafe { &mut *task })
}
