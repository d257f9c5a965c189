//! What is around a clear: a fault, or another function that asks for the page.

use hugeclear_ebpf::{config::Pair, key::Cause, maps::Start};

use super::{start, state::config};

/// The open call of this thread that contains whatever it is doing, if there is one.
///
/// Not an `Option` of a structure: where there is none, the compiler would leave the rest of it undefined and
/// load it all the same, and kernels before 6.3 refuse a load of stack that nothing was written to.
#[derive(Clone, Copy)]
pub(crate) struct Enclosing {
    /// Which function, as a number; [`NONE`] if there is none.
    pair: u32,
    /// Its start; null if there is none.
    start: *mut Start,
}

const NONE: u32 = Pair::COUNT;

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
pub(crate) fn enclosing(cpu: u32, thread: u32) -> Enclosing {
    let here = first(|pair| start::here(pair, cpu, thread));
    if here.pair != NONE {
        return here;
    }
    first(|pair| start::elsewhere(pair, thread))
}

/// The first attached function of which a start is found.
#[inline(always)]
fn first(find: impl Fn(Pair) -> Option<&'static mut Start>) -> Enclosing {
    let attached = config!(enclosing);
    // Unrolled: the pair must be known where the verifier drops the ones that are not attached.
    macro_rules! try_pair {
        ($index:literal) => {
            let pair = PAIRS[$index];
            if attached & pair.bit() != 0
                && let Some(start) = find(pair)
            {
                return Enclosing {
                    pair: pair as u32,
                    start,
                };
            }
        };
    }
    try_pair!(0);
    try_pair!(1);
    try_pair!(2);
    try_pair!(3);
    try_pair!(4);
    try_pair!(5);
    Enclosing::NOTHING
}

impl Enclosing {
    /// There is none.
    pub(crate) const NOTHING: Self = Self {
        pair: NONE,
        start: core::ptr::null_mut(),
    };

    /// The start of the call, which only this thread changes.
    #[inline(always)]
    pub(crate) fn start(self) -> Option<&'static mut Start> {
        // SAFETY: null, or a start of this thread, in a slot or in the hash map.
        unsafe { self.start.as_mut() }
    }

    /// Whether it is a fault of anonymous memory.
    #[inline(always)]
    pub(crate) fn is_anonymous_fault(self) -> bool {
        self.pair == Pair::ThpFault as u32
            || self.pair == Pair::AnonFault as u32
            || self.pair == Pair::WriteFault as u32
    }

    /// The cause of what happens inside.
    #[inline(always)]
    pub(crate) fn cause(self) -> Cause {
        let is = |pair: Pair| self.pair == pair as u32;
        if is(Pair::ThpFault) || is(Pair::WriteFault) {
            Cause::ThpFault
        } else if is(Pair::AnonFault) {
            Cause::MthpFault
        } else if is(Pair::HugetlbFault) {
            Cause::HugetlbFault
        } else if is(Pair::Fallocate) {
            Cause::Fallocate
        } else if is(Pair::Memfd) {
            Cause::Memfd
        } else {
            Cause::Other
        }
    }
}
