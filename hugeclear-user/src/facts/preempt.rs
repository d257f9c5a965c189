//! The preemption model in force, and whence it is known.

use std::{ops::RangeInclusive, path::Path};

pub use hugeclear_ebpf::preempt::PreemptModel;
use serde::{Deserialize, Serialize};

use super::{
    KernelConfig,
    kernel_memory::KernelMemory,
    source::{Source, bracketed},
};

/// Numbers of the kernel's `preempt_dynamic_mode`; what they mean is
/// [`PreemptModel::from_dynamic_mode`].
const MODES: RangeInclusive<i32> = 0..=4;

/// A word of the kernel's own (`preempt=` and debugfs). `laziest` is the 6.12 RT patch's.
fn from_kernel_word(word: &str) -> Option<PreemptModel> {
    match word {
        "none" => Some(PreemptModel::None),
        "voluntary" => Some(PreemptModel::Voluntary),
        "full" => Some(PreemptModel::Full),
        "lazy" | "laziest" => Some(PreemptModel::Lazy),
        _ => None,
    }
}

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
                .map(|number| Mode {
                    number,
                    model: match rt {
                        Some(_) => PreemptModel::Rt,
                        None => PreemptModel::from_dynamic_mode(number),
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
                let model = PreemptModel::from_dynamic_mode(number);
                if model != PreemptModel::Unknown {
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
        if let Some(model) = bracketed(&text).and_then(from_kernel_word) {
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
        .and_then(from_kernel_word)
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
