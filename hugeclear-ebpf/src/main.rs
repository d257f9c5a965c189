//! The eBPF programs: entry points only, one line each into a body in `kernel`.
//!
//! Every [`Pair`] has four programs: fentry and fexit, and for kernels that refuse those kprobe and
//! kretprobe. User space chooses the function when it loads or attaches a program; a program that
//! is not loaded is never verified. One program per pair and way, because neither a kprobe nor an
//! fentry on 5.10 can tell which function it fired on.
#![no_std]
#![no_main]

mod kernel;

use aya_ebpf::{
    macros::{btf_tracepoint, fentry, fexit, kprobe, kretprobe},
    programs::{BtfTracePointContext, FEntryContext, FExitContext, ProbeContext, RetProbeContext},
};
use hugeclear_ebpf::{config::Pair, piece::Kind};

use crate::kernel::{clear, fault, impact, part, piece, preempt, zero_page};

macro_rules! programs {
    ($body:ident, $pair:expr, $fentry:ident, $fexit:ident, $kprobe:ident, $kretprobe:ident) => {
        #[fentry]
        fn $fentry(ctx: FEntryContext) -> i32 {
            $body::enter(&ctx, $pair);
            0
        }

        #[fexit]
        fn $fexit(ctx: FExitContext) -> i32 {
            $body::exit(&ctx, $pair);
            0
        }

        #[kprobe]
        fn $kprobe(ctx: ProbeContext) -> u32 {
            $body::enter(&ctx, $pair);
            0
        }

        #[kretprobe]
        fn $kretprobe(ctx: RetProbeContext) -> u32 {
            $body::exit(&ctx, $pair);
            0
        }
    };
}

programs!(
    clear,
    Pair::Clear,
    clear_fentry,
    clear_fexit,
    clear_kprobe,
    clear_kretprobe
);
programs!(
    clear,
    Pair::ClearGigantic,
    gigantic_fentry,
    gigantic_fexit,
    gigantic_kprobe,
    gigantic_kretprobe
);
programs!(
    clear,
    Pair::Allocator,
    allocator_fentry,
    allocator_fexit,
    allocator_kprobe,
    allocator_kretprobe
);
programs!(
    clear,
    Pair::Copy,
    copy_fentry,
    copy_fexit,
    copy_kprobe,
    copy_kretprobe
);
programs!(
    zero_page,
    Pair::HugeZeroPage,
    zero_page_fentry,
    zero_page_fexit,
    zero_page_kprobe,
    zero_page_kretprobe
);
programs!(
    fault,
    Pair::ThpFault,
    thp_fentry,
    thp_fexit,
    thp_kprobe,
    thp_kretprobe
);
programs!(
    fault,
    Pair::AnonFault,
    anon_fentry,
    anon_fexit,
    anon_kprobe,
    anon_kretprobe
);
programs!(
    fault,
    Pair::HugetlbFault,
    hugetlb_fentry,
    hugetlb_fexit,
    hugetlb_kprobe,
    hugetlb_kretprobe
);
programs!(
    fault,
    Pair::Fallocate,
    fallocate_fentry,
    fallocate_fexit,
    fallocate_kprobe,
    fallocate_kretprobe
);
programs!(
    fault,
    Pair::Memfd,
    memfd_fentry,
    memfd_fexit,
    memfd_kprobe,
    memfd_kretprobe
);
programs!(
    part,
    Pair::Compaction,
    compaction_fentry,
    compaction_fexit,
    compaction_kprobe,
    compaction_kretprobe
);
programs!(
    part,
    Pair::Reclaim,
    reclaim_fentry,
    reclaim_fexit,
    reclaim_kprobe,
    reclaim_kretprobe
);
programs!(
    part,
    Pair::CgroupReclaim,
    cgroup_reclaim_fentry,
    cgroup_reclaim_fexit,
    cgroup_reclaim_kprobe,
    cgroup_reclaim_kretprobe
);
programs!(
    fault,
    Pair::WriteFault,
    write_fentry,
    write_fexit,
    write_kprobe,
    write_kretprobe
);

/// Exit of `sched_dynamic_update`: someone switched the preemption model.
#[fexit]
fn preempt_fexit(ctx: FExitContext) -> i32 {
    preempt::switched(&ctx);
    0
}

/// As [`preempt_fexit`].
#[kretprobe]
fn preempt_kretprobe(ctx: RetProbeContext) -> u32 {
    preempt::switched(&ctx);
    0
}

/// Entry of the function whose pieces are shown.
#[kprobe]
fn piece_enter(ctx: ProbeContext) -> u32 {
    piece::enter(&ctx);
    0
}

/// Its return.
#[kretprobe]
fn piece_exit(_ctx: RetProbeContext) -> u32 {
    piece::moment(Kind::Exit);
    0
}

/// `cond_resched`.
#[kprobe]
fn piece_resched(_ctx: ProbeContext) -> u32 {
    piece::moment(Kind::Resched);
    0
}

/// The call of a primitive that clears one page. The instruction decides what the registers mean, and
/// a kprobe on 5.10 cannot tell where it fired: so one program for each kind of instruction.
#[kprobe]
fn piece_page(ctx: ProbeContext) -> u32 {
    piece::piece(&ctx, Kind::Page);
    0
}

/// A store of bytes, or the call of a primitive that is told how many.
#[kprobe]
fn piece_bytes(ctx: ProbeContext) -> u32 {
    piece::piece(&ctx, Kind::Bytes);
    0
}

/// A store of words.
#[kprobe]
fn piece_words(ctx: ProbeContext) -> u32 {
    piece::piece(&ctx, Kind::Words);
    0
}

/// A task was woken: argument 1.
#[btf_tracepoint(function = "sched_wakeup")]
fn impact_wakeup(ctx: BtfTracePointContext) -> i32 {
    impact::woken(ctx.arg(0));
    0
}

/// A new task was woken for the first time: argument 1.
#[btf_tracepoint(function = "sched_wakeup_new")]
fn impact_wakeup_new(ctx: BtfTracePointContext) -> i32 {
    impact::woken(ctx.arg(0));
    0
}

/// The CPU goes from the task of argument 2 to that of argument 3; newer kernels pass one more.
#[btf_tracepoint(function = "sched_switch")]
fn impact_switch(ctx: BtfTracePointContext) -> i32 {
    impact::switched(ctx.arg(1), ctx.arg(2));
    0
}

/// A task, argument 1, is about to be moved to another CPU.
#[btf_tracepoint(function = "sched_migrate_task")]
fn impact_migrate(ctx: BtfTracePointContext) -> i32 {
    impact::migrated(ctx.arg(0));
    0
}

/// Never reached: the build refuses an object in which anything can panic.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The helpers that read kernel memory are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
