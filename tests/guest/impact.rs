//! How long tasks that wake beside a clear wait for it, against what such a task itself sees.

use std::{
    fs,
    num::NonZero,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::{
        mman::{MapFlags, ProtFlags, mmap_anonymous, munmap},
        prctl::set_timerslack,
    },
    time::{ClockId, clock_gettime},
};
use serde_json::{Value, json};

use crate::{Expected, trace::trace};

const SETTING: &str = "/sys/kernel/debug/sched/preempt";

/// The name by which the kernel knows the task that wakes.
const SLEEPER: &str = "sleeper";
/// How long it sleeps each time.
const SLEEP: Duration = Duration::from_millis(1);
/// The page that is cleared meanwhile: at a nanosecond a byte, so the guest's clock, for a second.
const GIB: usize = 1 << 30;

/// What a task sees from outside and the kernel side does not, for each wake-up, at most: from the end of
/// the sleep to the wake-up, and from the switch to the reading of the clock. The guest's clock counts
/// instructions.
const OVERHEAD_NS: f64 = 40_000.0;

pub(crate) fn run(expected: &Expected) -> Result<()> {
    let mut medians = Vec::new();
    let boot = models();
    for (model, _) in &boot {
        if let Some(model) = model {
            fs::write(SETTING, model).with_context(|| format!("{SETTING}: {model}"))?;
        }
        let name = model.as_deref().unwrap_or("of the boot");
        let median_ns = compare(expected).with_context(|| format!("under the model {name}"))?;
        medians.push((name, median_ns));
    }
    if let Some((Some(model), _)) = boot.iter().find(|(_, in_force)| *in_force) {
        fs::write(SETTING, model)?;
    }
    println!("median wait of a task that wakes beside a clear of 1 GiB, in ns: {medians:?}");
    Ok(())
}

/// The models that the kernel can be switched to, each with whether it is in force; one without a name
/// if it cannot be.
fn models() -> Vec<(Option<String>, bool)> {
    let Ok(setting) = fs::read_to_string(SETTING) else {
        return vec![(None, true)];
    };
    let words = setting.split_whitespace();
    words
        .map(|word| {
            let name = word.trim_matches(['(', ')']);
            (Some(name.to_owned()), name != word)
        })
        .collect()
}

/// Has a clear of 1 GiB traced beside a task that sleeps; the median of what it waited for the clear.
fn compare(_expected: &Expected) -> Result<u64> {
    let traced = trace(
        &["--sched-impact", "--per-comm"],
        &["/checks", "sleep-beside-clear"],
    )?;
    traced.check_sound()?;
    let seen = traced.workloads.first().context("the task said nothing")?;
    let rows = traced.total["sched_impact"].as_array();
    let row = rows
        .into_iter()
        .flatten()
        .find(|row| row["comm"] == SLEEPER)
        .with_context(|| format!("no row of {SLEEPER}: {}", traced.total))?;
    println!("{seen}\n{row}");
    Ok(row["p50_ns"].as_u64().context("p50_ns")?)
}

/// Clears a page of 1 GiB while a thread sleeps and wakes; prints how late that thread was.
pub(crate) fn sleep_beside_clear() -> Result<()> {
    let ended = AtomicBool::new(false);
    let (clear, wakeups) = thread::scope(|scope| -> Result<_> {
        let sleeper = thread::Builder::new()
            .name(SLEEPER.to_owned())
            .spawn_scoped(scope, || sleep_until(&ended))?;
        // It is asleep, or about to be, by then.
        thread::sleep(10 * SLEEP);
        let clear = clear();
        ended.store(true, Ordering::Relaxed);
        let wakeups = sleeper.join().expect("the sleeper does not panic")?;
        Ok((clear?, wakeups))
    })?;
    let (start_ns, end_ns) = clear;
    let during: Vec<u64> = wakeups
        .iter()
        .filter(|(due_ns, _)| (start_ns..end_ns).contains(due_ns))
        .map(|(due_ns, awake_ns)| awake_ns.min(&end_ns).saturating_sub(*due_ns))
        .collect();
    println!(
        "{}",
        json!({
            "count": during.len(),
            "late_ns": during.iter().sum::<u64>(),
            "max_ns": during.iter().max(),
            "clear_ns": end_ns - start_ns,
        })
    );
    Ok(())
}

/// Sleeps and wakes; when each sleep was due to end, and when it was seen to have ended.
fn sleep_until(ended: &AtomicBool) -> Result<Vec<(u64, u64)>> {
    // Else the kernel may wake us that much later.
    set_timerslack(1)?;
    let mut wakeups = Vec::with_capacity(1 << 14);
    while !ended.load(Ordering::Relaxed) {
        let due_ns = now_ns()? + SLEEP.as_nanos() as u64;
        thread::sleep(SLEEP);
        wakeups.push((due_ns, now_ns()?));
    }
    Ok(wakeups)
}

/// Touches a page of 1 GiB; when the fault began and ended.
fn clear() -> Result<(u64, u64)> {
    let bytes = NonZero::new(GIB).expect("not 0");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_HUGETLB | MapFlags::MAP_HUGE_1GB;
    // SAFETY: new memory, of which nothing else knows.
    unsafe {
        let memory = mmap_anonymous(
            None,
            bytes,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            flags,
        )
        .context("no page of 1 GiB")?;
        let start_ns = now_ns()?;
        memory.cast::<u8>().write_volatile(1);
        let end_ns = now_ns()?;
        munmap(memory, GIB)?;
        Ok((start_ns, end_ns))
    }
}

/// CLOCK_MONOTONIC, in ns.
fn now_ns() -> Result<u64> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos() as u64)
}
