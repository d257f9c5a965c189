//! Whether the page allocator zeroes pages by itself: `init_on_alloc` and `init_on_free`.
//!
//! Decides where clearing happens: with `init_on_alloc` on, kernels since about 6.13 clear anonymous
//! huge pages in the allocator and never call `folio_zero_user` for them.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
};

use serde::{Deserialize, Serialize};

use super::{KernelConfig, Symbols, kernel_memory::KernelMemory, source::Source};

/// A switch of the kernel and whence its state is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    /// On or off; `None` if it cannot be told.
    pub on: Option<bool>,
    /// Whence we know, or why we do not.
    pub source: String,
}

/// What other facts say, needed to find the switches.
pub(super) struct Hints<'a> {
    pub(super) cmdline: &'a str,
    pub(super) config: Option<&'a KernelConfig>,
    pub(super) symbols: &'a Symbols,
    pub(super) memory: Option<&'a KernelMemory>,
}

/// `init_on_alloc` and `init_on_free`, from the surest source that can be read: the static key in
/// kernel memory, the boot log, the command line, the build's default.
pub(super) fn read(source: &mut Source, hints: &Hints) -> (Switch, Switch) {
    let keys = ["init_on_alloc", "init_on_free"].map(|name| static_key(source, hints, name));
    if let [Some(alloc), Some(free)] = keys {
        return (alloc, free);
    }
    let log = boot_log_line(source);
    let [alloc_key, free_key] = keys;
    let or_else = |key: Option<Switch>, name: &str, in_log: &str| {
        key.or_else(|| from_log(log.as_deref()?, in_log))
            .or_else(|| from_cmdline(hints.cmdline, name))
            .or_else(|| from_config(hints.config?, name))
            .unwrap_or_else(|| Switch {
                on: None,
                source: "static key, boot log and config file unreadable, not on the command line"
                    .to_owned(),
            })
    };
    (
        or_else(alloc_key, "init_on_alloc", "heap alloc:"),
        or_else(free_key, "init_on_free", "heap free:"),
    )
}

/// The static key itself. `struct static_key` begins with the `atomic_t enabled`, which is above
/// zero when the key is on (include/linux/jump_label.h, 5.3 to 7.3).
fn static_key(source: &mut Source, hints: &Hints, name: &str) -> Option<Switch> {
    let address = hints.symbols.address(name)?;
    match hints.memory?.read_u32(address) {
        Ok(word) => Some(Switch {
            on: Some(word.cast_signed() > 0),
            source: format!("static key {name} in kernel memory"),
        }),
        Err(error) => {
            source.note("proc/kcore", &error);
            None
        }
    }
}

/// The line `mem auto-init: stack:off, heap alloc:on, heap free:off` of the boot log, if it is still
/// there. Source: `report_meminit`, mm/mm_init.c.
fn boot_log_line(source: &mut Source) -> Option<String> {
    const PATH: &str = "dev/kmsg";
    // One record per read, at most this long (`PRINTK_MESSAGE_MAX`).
    const RECORD: usize = 8192;
    // The line is printed within the first second; do not walk through weeks of log behind it.
    const LATEST_US: u64 = 60_000_000;
    let mut kmsg = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(source.path(PATH))
        .map_err(|error| source.note(PATH, &error))
        .ok()?;
    let mut record = vec![0; RECORD];
    loop {
        match kmsg.read(&mut record) {
            Ok(0) => return None,
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                if let Some(line) = text.lines().find(|line| line.contains("mem auto-init:")) {
                    return Some(line.to_owned());
                }
                // priority,sequence,microseconds,flags;text
                let time_us = text.split(',').nth(2).and_then(|us| us.parse::<u64>().ok());
                if time_us.is_some_and(|us| us > LATEST_US) {
                    return None;
                }
            }
            // The record was overwritten while we read: the next one is there.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => {
                source.note(PATH, &error);
                return None;
            }
        }
    }
}

fn from_log(line: &str, key: &str) -> Option<Switch> {
    let value = line.split_once(key)?.1.split([',', ' ']).next()?;
    Some(Switch {
        on: Some(boolean(value)?),
        source: format!("boot log, mem auto-init: {key}{value}"),
    })
}

fn from_cmdline(cmdline: &str, name: &str) -> Option<Switch> {
    let value = cmdline
        .split_whitespace()
        .filter_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        .next_back()?;
    Some(Switch {
        on: Some(boolean(value)?),
        source: format!("{name}={value} on the kernel command line"),
    })
}

fn from_config(config: &KernelConfig, name: &str) -> Option<Switch> {
    let option = format!("{}_DEFAULT_ON", name.to_uppercase());
    Some(Switch {
        on: Some(config.is_set(&option)),
        source: format!("CONFIG_{option} in {}", config.path),
    })
}

/// As the kernel's `kstrtobool` reads it.
fn boolean(word: &str) -> Option<bool> {
    match word {
        "1" | "on" | "y" | "Y" => Some(true),
        "0" | "off" | "n" | "N" => Some(false),
        _ => None,
    }
}
