//! The preemption model in force, and whence it is known.

use std::{fmt, path::Path};

use serde::{Deserialize, Serialize};

use super::{KernelConfig, kernel_memory::KernelMemory, source::Source};

/// When the kernel lets another task take the CPU from kernel code.
///
/// The numbers are what the kernel side stores; they are ours, not the kernel's (see
/// [`Preempt::modes`] for those).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum PreemptModel {
    /// Not known.
    Unknown = 0,
    /// Never: only on return to user space (`PREEMPT_NONE`).
    None = 1,
    /// At explicit points, `might_sleep` and `cond_resched` (`PREEMPT_VOLUNTARY`).
    Voluntary = 2,
    /// Anywhere outside critical sections (`PREEMPT`).
    Full = 3,
    /// Anywhere, but for ordinary tasks only at the next tick (`PREEMPT_LAZY`, since 6.13).
    Lazy = 4,
    /// Almost everywhere (`PREEMPT_RT`).
    Rt = 5,
    /// None or voluntary; a kernel without `PREEMPT_DYNAMIC` and without its config file does not
    /// tell which.
    NoneOrVoluntary = 6,
}

impl PreemptModel {
    const ALL: [Self; 7] = [
        Self::Unknown,
        Self::None,
        Self::Voluntary,
        Self::Full,
        Self::Lazy,
        Self::Rt,
        Self::NoneOrVoluntary,
    ];

    /// The word used in output and recordings.
    pub fn as_str(self) -> &'static str {
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

    /// A word of the kernel's own (`preempt=` and debugfs). `laziest` is the 6.12 RT patch's.
    fn from_kernel_word(word: &str) -> Option<Self> {
        match word {
            "none" => Some(Self::None),
            "voluntary" => Some(Self::Voluntary),
            "full" => Some(Self::Full),
            "lazy" | "laziest" => Some(Self::Lazy),
            _ => None,
        }
    }
}

impl fmt::Display for PreemptModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<PreemptModel> for u8 {
    fn from(model: PreemptModel) -> Self {
        model as Self
    }
}

/// A number that is no [`PreemptModel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no preemption model")]
pub struct UnknownModelNumber(pub u8);

impl TryFrom<u8> for PreemptModel {
    type Error = UnknownModelNumber;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        Self::ALL
            .into_iter()
            .find(|model| u8::from(*model) == number)
            .ok_or(UnknownModelNumber(number))
    }
}

/// What `preempt_dynamic_mode` numbers mean (kernel/sched/core.c, `enum` before
/// `preempt_dynamic_mode`; -1 is undefined). 3 exists since 6.13, and in the RT patch of 6.12,
/// which alone has 4.
const MODES: [(i32, PreemptModel); 5] = [
    (0, PreemptModel::None),
    (1, PreemptModel::Voluntary),
    (2, PreemptModel::Full),
    (3, PreemptModel::Lazy),
    (4, PreemptModel::Lazy),
];

/// The preemption model and how to follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preempt {
    /// Model in force at reading. It may be switched at run time where [`Preempt::modes`] is not
    /// empty.
    pub model: PreemptModel,
    /// Whence we know the model, in words.
    pub source: String,
    /// With `PREEMPT_RT`: full or lazy, if the kernel tells.
    pub dynamic: Option<PreemptModel>,
    /// Address of the kernel's `int preempt_dynamic_mode`. `None`: no such variable
    /// (before 5.12, or no `PREEMPT_DYNAMIC`), or addresses are hidden.
    pub mode_symbol_address: Option<u64>,
    /// What the numbers in `preempt_dynamic_mode` mean; empty where the address is `None`.
    pub modes: Vec<Mode>,
}

/// A number of the kernel's `preempt_dynamic_mode` and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    /// The kernel's number.
    pub number: i32,
    /// The model to report for it; on RT kernels always [`PreemptModel::Rt`].
    pub model: PreemptModel,
}

/// What other facts say, needed to find the model.
pub(super) struct Hints<'a> {
    pub(super) version: &'a str,
    pub(super) cmdline: &'a str,
    pub(super) config: Option<&'a KernelConfig>,
    pub(super) debugfs: Option<&'a Path>,
    pub(super) mode_symbol_address: Option<u64>,
    pub(super) memory: Option<&'a KernelMemory>,
}

impl Preempt {
    /// The model that a number read from `preempt_dynamic_mode` stands for.
    pub fn model_of(&self, number: i32) -> PreemptModel {
        self.modes
            .iter()
            .find(|mode| mode.number == number)
            .map_or(PreemptModel::Unknown, |mode| mode.model)
    }

    pub(super) fn read(source: &mut Source, hints: &Hints) -> Self {
        let switchable = switchable(source, hints);
        // 7.2-rt has no /sys/kernel/realtime; old RT patches had no PREEMPT_RT in the version.
        let rt = if hints.version.contains("PREEMPT_RT") {
            Some("PREEMPT_RT in uname -v")
        } else if source.text_if_present("sys/kernel/realtime").as_deref() == Some("1") {
            Some("/sys/kernel/realtime")
        } else {
            None
        };
        let modes = match hints.mode_symbol_address {
            Some(_) => MODES
                .into_iter()
                .map(|(number, model)| Mode {
                    number,
                    model: if rt.is_some() {
                        PreemptModel::Rt
                    } else {
                        model
                    },
                })
                .collect(),
            None => Vec::new(),
        };
        let (model, known_from, dynamic) = match (rt, switchable) {
            (Some(known_from), switchable) => (
                PreemptModel::Rt,
                known_from.to_owned(),
                switchable.map(|(model, _)| model),
            ),
            (None, Some((model, known_from))) => (model, known_from, None),
            (None, None) => {
                let (model, known_from) = built_in(hints);
                (model, known_from, None)
            }
        };
        Self {
            model,
            source: known_from,
            dynamic,
            mode_symbol_address: hints.mode_symbol_address,
            modes,
        }
    }
}

/// The mode of a kernel with `PREEMPT_DYNAMIC` (or RT with a choice), and whence it is known.
fn switchable(source: &mut Source, hints: &Hints) -> Option<(PreemptModel, String)> {
    if let (Some(address), Some(memory)) = (hints.mode_symbol_address, hints.memory) {
        match memory.read_u32(address) {
            Ok(word) => {
                // The kernel's variable is a signed int.
                let number = word.cast_signed();
                if let Some((_, model)) = MODES.into_iter().find(|(n, _)| *n == number) {
                    return Some((model, "preempt_dynamic_mode in kernel memory".to_owned()));
                }
                source.note(
                    "proc/kcore",
                    &format!("preempt_dynamic_mode is `{number}`, which no known kernel uses"),
                );
            }
            Err(error) => source.note("proc/kcore", &error),
        }
    }
    if let Some(path) = hints.debugfs.map(|debugfs| debugfs.join("sched/preempt")) {
        let text = source.text_if_present(&path).unwrap_or_default();
        let chosen = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix('(')?.strip_suffix(')'))
            .and_then(PreemptModel::from_kernel_word);
        if let Some(model) = chosen {
            return Some((model, path.display().to_string()));
        }
    }
    if !hints.version.contains("PREEMPT_DYNAMIC") {
        return None;
    }
    // Only what it was at boot, and a refused word leaves the default: the last resort.
    hints
        .cmdline
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("preempt="))
        .next_back()
        .and_then(PreemptModel::from_kernel_word)
        .map(|model| {
            (
                model,
                "preempt= on the kernel command line (may have been switched since)".to_owned(),
            )
        })
}

/// The model fixed at build time.
fn built_in(hints: &Hints) -> (PreemptModel, String) {
    let dynamic = hints.version.contains("PREEMPT_DYNAMIC");
    if let Some(config) = hints.config {
        let model = [
            ("PREEMPT_LAZY", PreemptModel::Lazy),
            ("PREEMPT_VOLUNTARY", PreemptModel::Voluntary),
            ("PREEMPT_NONE", PreemptModel::None),
            ("PREEMPT", PreemptModel::Full),
        ]
        .into_iter()
        .find(|(option, _)| config.is_set(option));
        if let Some((option, model)) = model {
            let at_boot = if dynamic {
                " (the default; may have been switched since)"
            } else {
                ""
            };
            return (
                model,
                format!("CONFIG_{option} in {}{at_boot}", config.path),
            );
        }
    }
    if dynamic {
        let why = "PREEMPT_DYNAMIC in uname -v, but neither kernel memory nor debugfs can be read";
        return (PreemptModel::Unknown, why.to_owned());
    }
    for (word, model) in [
        ("PREEMPT_LAZY", PreemptModel::Lazy),
        ("PREEMPT", PreemptModel::Full),
    ] {
        if hints.version.split_whitespace().any(|w| w == word) {
            return (model, format!("{word} in uname -v"));
        }
    }
    if hints.version.is_empty() {
        return (
            PreemptModel::Unknown,
            "uname -v could not be read".to_owned(),
        );
    }
    (
        PreemptModel::NoneOrVoluntary,
        "no PREEMPT in uname -v, and no config file".to_owned(),
    )
}
