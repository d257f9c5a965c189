//! What the kernel side tells of one huge page that is cleared piece by piece.

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// The traced function is entered.
    Enter = 0,
    /// It returns.
    Exit = 1,
    /// The kernel offers to reschedule (`cond_resched`).
    Resched = 2,
    /// One base page is about to be cleared.
    Page = 3,
    /// A number of bytes is about to be cleared.
    Bytes = 4,
    /// A number of 64-bit words is about to be cleared.
    Words = 5,
}

impl Kind {
    /// The kind of this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Enter,
            1 => Self::Exit,
            2 => Self::Resched,
            3 => Self::Page,
            4 => Self::Bytes,
            5 => Self::Words,
            _ => return None,
        })
    }
}

/// One event of the traced thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When, in ns of CLOCK_MONOTONIC.
    pub ns: u64,
    /// A [`Kind`] as a number.
    pub kind: u64,
    /// [`Kind::Enter`]: the function's first argument. A piece: its kernel address. Else 0.
    pub address: u64,
    /// [`Kind::Enter`]: the function's second argument. [`Kind::Bytes`] and [`Kind::Words`]: how many.
    /// Else of no meaning.
    pub count: u64,
}

const _: () = assert!(size_of::<Event>() == 32);

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn numbers_are_those_of_the_kinds() {
        let kinds: Vec<Kind> = (0..).map_while(Kind::from_number).collect();
        assert_eq!(kinds.len(), 6);
        for (number, kind) in kinds.into_iter().enumerate() {
            assert_eq!(kind as u64, number as u64);
        }
    }
}
