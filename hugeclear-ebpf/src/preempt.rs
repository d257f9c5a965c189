//! The preemption models, by the numbers that keys carry.

use core::fmt;

/// How the kernel decides when a task inside the kernel gives up its CPU.
///
/// One number each, at most 3 bits wide: it is part of every key ([`crate::key::pack`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "user",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[repr(u8)]
pub enum PreemptModel {
    /// Nothing on this machine says which.
    #[default]
    Unknown = 0,
    /// Only at explicit reschedule points in long loops, and on return to user space.
    None = 1,
    /// Also at the `might_sleep()` points.
    Voluntary = 2,
    /// At any point where no lock forbids it.
    Full = 3,
    /// As full, but an ordinary task is left alone until the next tick.
    Lazy = 4,
    /// `CONFIG_PREEMPT_RT`.
    Rt = 5,
    /// A kernel built without dynamic preemption whose configuration cannot be read.
    NoneOrVoluntary = 6,
}

impl PreemptModel {
    /// Every model, in the order of its number.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::None,
        Self::Voluntary,
        Self::Full,
        Self::Lazy,
        Self::Rt,
        Self::NoneOrVoluntary,
    ];

    /// The model of the kernel's `preempt_dynamic_mode` (kernel/sched/core.c, `enum` next to it:
    /// undefined -1, none 0, voluntary 1, full 2, since 6.13 lazy 3; 6.12's RT patch has lazy 3 and
    /// laziest 4).
    #[must_use]
    #[inline(always)]
    pub const fn from_dynamic_mode(mode: i32) -> Self {
        match mode {
            0 => Self::None,
            1 => Self::Voluntary,
            2 => Self::Full,
            3 | 4 => Self::Lazy,
            _ => Self::Unknown,
        }
    }

    /// The word for it, as `/sys/kernel/debug/sched/preempt` spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::None => "none",
            Self::Voluntary => "voluntary",
            Self::Full => "full",
            Self::Lazy => "lazy",
            Self::Rt => "rt",
            Self::NoneOrVoluntary => "none-or-voluntary",
        }
    }
}

impl fmt::Display for PreemptModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A number that names no preemption model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownModel(pub u8);

impl TryFrom<u8> for PreemptModel {
    type Error = UnknownModel;

    fn try_from(number: u8) -> Result<Self, UnknownModel> {
        Self::ALL
            .get(usize::from(number))
            .copied()
            .ok_or(UnknownModel(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for model in PreemptModel::ALL {
            assert_eq!(PreemptModel::try_from(model as u8), Ok(model));
        }
        assert_eq!(PreemptModel::try_from(7), Err(UnknownModel(7)));
    }
}
