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

/// The time, for each wake-up, in which a task is late and does not wait for the clear: the interrupt of
/// the timer before its wake-up, and its way to user space after it has the CPU. Measured: 5 to 9 µs, in
/// a guest whose clock counts instructions.
const BESIDE_NS: f64 = 20_000.0;
/// How often the sleep may end between the beginnings, or the ends, of fault and clear.
const AT_THE_BORDERS: u64 = 2;

/// How much longer than under `full` the median may be under a model that reschedules after every base
/// page, which takes 4 µs: measured 0.3 (6.12) to 3.7 µs (6.1).
const BASE_PAGE_NS: f64 = 8_000.0;
/// How much longer it must be under `lazy`, where the clear goes on until the tick, or the end of its
/// slice: measured 150 (7.3) and 1,100 (6.18).
const LAZIER: f64 = 20.0;

/// What was measured under one model.
struct Measured {
    model: Option<String>,
    median_ns: f64,
}

#[expect(clippy::print_stdout, reason = "the host shows how long tasks wait")]
pub(crate) fn run(expected: &Expected) -> Result<()> {
    let models = models();
    let mut all = Vec::new();
    for (model, _) in &models {
        if let Some(model) = model {
            fs::write(SETTING, model).with_context(|| format!("{SETTING}: {model}"))?;
        }
        let median_ns = median_ns(expected, model.as_deref())
            .with_context(|| format!("under the model {model:?}"))?;
        println!(
            "a task that wakes beside a clear of 1 GiB, {model:?}: median wait {median_ns} ns"
        );
        all.push(Measured {
            model: model.clone(),
            median_ns,
        });
    }
    if let Some((Some(model), _)) = models.iter().find(|(_, in_force)| *in_force) {
        fs::write(SETTING, model)?;
    }
    let of = |name: &str| {
        let measured = all.iter().find(|all| all.model.as_deref() == Some(name));
        measured.map(|measured| measured.median_ns)
    };
    let Some(full) = of("full") else {
        return Ok(());
    };
    for name in ["none", "voluntary"] {
        ensure!(
            of(name).is_none_or(|ns| ns < full + BASE_PAGE_NS),
            "{name} is worse than full"
        );
    }
    ensure!(
        of("lazy").is_none_or(|ns| ns > LAZIER * full),
        "lazy is as good as full"
    );
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

/// Has a clear of 1 GiB traced beside a task that sleeps, and compares what was recorded of that task with
/// what it has seen itself; the median of what it waited for the clear.
fn median_ns(expected: &Expected, model: Option<&str>) -> Result<f64> {
    let traced = trace(
        &["--sched-impact", "--per-comm"],
        &["/checks", "sleep-beside-clear"],
    )?;
    traced.check_sound()?;
    ensure!(
        traced.total["losses"]["impact_lost"] == 0,
        "{}",
        traced.total["losses"]
    );
    let seen = traced.workloads.first().context("the task said nothing")?;
    let row = (traced.total["sched_impact"]
        .as_array()
        .into_iter()
        .flatten())
    .find(|row| row["comm"] == SLEEPER)
    .with_context(|| format!("no row of {SLEEPER}: {}", traced.total))?;
    let reported = if expected.no_thp { Some("rt") } else { model };
    ensure!(
        row["page_size_bytes"] == GIB && reported.is_none_or(|model| row["preempt_model"] == model),
        "{row}"
    );

    let integer =
        |of: &Value, field: &str| of[field].as_u64().with_context(|| format!("{field}: {of}"));
    let (count, seen_count) = (integer(row, "count")?, integer(seen, "count")?);
    ensure!(count.abs_diff(seen_count) <= AT_THE_BORDERS, "{row} {seen}");
    let (waited, late) = (integer(row, "sum_ns")?, integer(seen, "late_ns")?);
    let beside_ns = (late as f64 - waited as f64) / count as f64;
    ensure!(
        (0.0..BESIDE_NS).contains(&beside_ns),
        "late {beside_ns} ns more than it waited: {row} {seen}"
    );
    ensure!(
        integer(row, "max_ns")? <= integer(seen, "max_ns")?,
        "{row} {seen}"
    );
    Ok(integer(row, "p50_ns")? as f64)
}

/// Clears a page of 1 GiB while a thread sleeps and wakes; prints how late that thread was.
#[expect(clippy::print_stdout, reason = "it is the report of what it saw")]
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
