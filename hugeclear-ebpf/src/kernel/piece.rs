//! One huge page of the tracer itself, cleared piece by piece: every event goes to a ring buffer.
//!
//! Apart from the trace: `doctor --strategy` loads these programs alone, for one fault of one thread.

use aya_ebpf::{
    macros::map,
    maps::{Array, RingBuf},
    programs::ProbeContext,
};
use hugeclear_ebpf::piece::{Event, Kind};

use super::start;

/// The only thread whose events are kept, as the initial namespace numbers it. Set before the load by
/// the symbol's name; constant for the verifier.
#[unsafe(no_mangle)]
static PIECE_THREAD: u32 = 0;

/// The events. Every load makes this map, so it is as small as can be, and resized where it is used.
#[map]
static PIECES: RingBuf = RingBuf::with_byte_size(4096, 0);

/// How many events found no room. Written by one thread only.
#[map]
static PIECES_DROPPED: Array<u64> = Array::with_max_entries(1, 0);

/// Keeps an event with the registers of the first and the fourth argument. In the middle of a function
/// they are what they are: on x86_64 rdi and rcx, the destination and the count of a string store.
#[inline(always)]
pub(crate) fn piece(ctx: &ProbeContext, kind: Kind) {
    keep(kind, ctx.arg(0).unwrap_or(0), ctx.arg(3).unwrap_or(0));
}

/// Keeps the entry of the function that clears, with its first two arguments.
#[inline(always)]
pub(crate) fn enter(ctx: &ProbeContext) {
    keep(
        Kind::Enter,
        ctx.arg(0).unwrap_or(0),
        ctx.arg(1).unwrap_or(0),
    );
}

/// Keeps an event that has nothing but its time.
#[inline(always)]
pub(crate) fn moment(kind: Kind) {
    keep(kind, 0, 0);
}

#[inline(always)]
fn keep(kind: Kind, address: u64, count: u64) {
    // SAFETY: a static that nothing writes; volatile, or the compiler would take the zero above as the
    // value.
    let thread = unsafe { core::ptr::read_volatile(&raw const PIECE_THREAD) };
    if start::thread() != thread {
        return;
    }
    let Some(mut entry) = PIECES.reserve::<Event>(0) else {
        if let Some(dropped) = PIECES_DROPPED.get_ptr_mut(0) {
            // SAFETY: a valid element, which only programs of this thread write, one at a time.
            unsafe { *dropped += 1 };
        }
        return;
    };
    entry.write(Event {
        ns: start::now(),
        kind: kind as u64,
        address,
        count,
    });
    entry.submit(0);
}
