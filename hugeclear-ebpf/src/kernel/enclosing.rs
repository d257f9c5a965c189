//! What is around a clear: a fault, or another function that asks for the page.

use hugeclear_ebpf::{config::Pair, key::Cause, maps::Start};

use super::{start, state::config};

/// The open call of this thread that contains whatever it is doing.
pub(crate) struct Enclosing {
    /// Which function.
    pub(crate) pair: Pair,
    /// Its start.
    pub(crate) start: &'static mut Start,
}

/// The functions, of which none calls another; the most frequent first.
const PAIRS: [Pair; 6] = [
    Pair::ThpFault,
    Pair::AnonFault,
    Pair::HugetlbFault,
    Pair::Fallocate,
    Pair::Memfd,
    Pair::WriteFault,
];

/// Finds the call: on this CPU, where it is unless the thread migrated, before it looks elsewhere.
#[inline(always)]
pub(crate) fn enclosing(cpu: u32, thread: u32) -> Option<Enclosing> {
    first(|pair| start::here(pair, cpu, thread))
        .or_else(|| first(|pair| start::elsewhere(pair, thread)))
}

/// The first attached function of which a start is found.
#[inline(always)]
fn first(find: impl Fn(Pair) -> Option<&'static mut Start>) -> Option<Enclosing> {
    let attached = config!(enclosing);
    // Unrolled: the pair must be known where the verifier drops the ones that are not attached.
    macro_rules! try_pair {
        ($index:literal) => {
            let pair = PAIRS[$index];
            if attached & pair.bit() != 0
                && let Some(start) = find(pair)
            {
                return Some(Enclosing { pair, start });
            }
        };
    }
    try_pair!(0);
    try_pair!(1);
    try_pair!(2);
    try_pair!(3);
    try_pair!(4);
    try_pair!(5);
    None
}

impl Enclosing {
    /// Whether it is a fault of anonymous memory.
    #[inline(always)]
    pub(crate) fn is_anonymous_fault(&self) -> bool {
        matches!(
            self.pair,
            Pair::ThpFault | Pair::AnonFault | Pair::WriteFault
        )
    }
}

/// The cause of what happens inside.
#[inline(always)]
pub(crate) fn cause(enclosing: Option<&Enclosing>) -> Cause {
    match enclosing.map(|enclosing| enclosing.pair) {
        Some(Pair::ThpFault | Pair::WriteFault) => Cause::ThpFault,
        Some(Pair::AnonFault) => Cause::MthpFault,
        Some(Pair::HugetlbFault) => Cause::HugetlbFault,
        Some(Pair::Fallocate) => Cause::Fallocate,
        Some(Pair::Memfd) => Cause::Memfd,
        Some(_) | None => Cause::Other,
    }
}
