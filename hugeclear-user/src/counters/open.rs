//! Opens and reads counters.

use std::io;

use nix::errno::Errno;
use perf_event::{
    Builder, Counter,
    events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software},
};

use super::{Count, Counts, Event, Missing, Reading, count::Raw};

/// Counters of the thread that opened them and of the threads and processes that it starts from then on.
///
/// One file descriptor per event that can be counted, closed on drop and not inherited through `exec`.
#[derive(Debug)]
pub struct Counters {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    event: Event,
    user_only: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Open { counter: Counter, from: Raw },
    Missing(Missing),
}

impl Counters {
    /// Opens counters of these events, disabled.
    ///
    /// Never fails as a whole: an event that cannot be counted becomes a row that says why.
    pub fn open(events: &[Event]) -> Self {
        let rows = events.iter().map(|event| Row::open(*event)).collect();
        Self { rows }
    }

    /// Lets them count, in all counted threads. One after the other: the first starts some µs before the last.
    pub fn enable(&mut self) {
        self.each(Counter::enable);
    }

    /// Stops them, in all counted threads.
    pub fn disable(&mut self) {
        self.each(Counter::disable);
    }

    /// What they counted since they were opened, or since the last [`reset`](Self::reset): of threads and child
    /// processes that live, and of those that have ended.
    pub fn read(&mut self) -> Counts {
        Counts {
            rows: self.rows.iter_mut().map(Row::read).collect(),
        }
    }

    /// Lets [`read`](Self::read) begin anew from 0.
    ///
    /// The kernel's own reset clears neither the counts of threads that have ended nor the times
    /// (`_perf_event_reset`, kernel/events/core.c): what is there is subtracted instead.
    pub fn reset(&mut self) {
        self.each_with(|counter, from| {
            *from = raw(counter)?;
            Ok(())
        });
    }

    fn each(&mut self, act: fn(&mut Counter) -> io::Result<()>) {
        self.each_with(|counter, _| act(counter));
    }

    fn each_with(&mut self, mut act: impl FnMut(&mut Counter, &mut Raw) -> io::Result<()>) {
        for row in &mut self.rows {
            if let State::Open { counter, from } = &mut row.state
                && let Err(error) = act(counter, from)
            {
                row.state = State::Missing(missing(&error));
            }
        }
    }
}

impl Row {
    fn open(event: Event) -> Self {
        let refused = match open(event, Space::UserAndKernel) {
            Ok(counter) => return Self::opened(event, false, counter),
            Err(error) => missing(&error),
        };
        if refused == Missing::NotPermitted
            && !only_in_kernel(event)
            && let Ok(counter) = open(event, Space::User)
        {
            return Self::opened(event, true, counter);
        }
        Self {
            event,
            user_only: false,
            state: State::Missing(refused),
        }
    }

    fn opened(event: Event, user_only: bool, counter: Counter) -> Self {
        Self {
            event,
            user_only,
            state: State::Open {
                counter,
                from: Raw::default(),
            },
        }
    }

    fn read(&mut self) -> Count {
        let reading = match &mut self.state {
            State::Open { counter, from } => match raw(counter) {
                Ok(now) => Reading::from(now.since(*from)),
                Err(error) => Reading::Missing(missing(&error)),
            },
            State::Missing(why) => Reading::Missing(why.clone()),
        };
        Count {
            event: self.event,
            unit: self.event.unit(),
            user_only: self.user_only,
            reading,
        }
    }
}

/// Where events are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    UserAndKernel,
    User,
}

fn open(event: Event, space: Space) -> io::Result<Counter> {
    let mut builder = builder(event);
    builder
        .inherit(true)
        .exclude_kernel(space == Space::User)
        .build()
}

/// Whether it cannot happen in user space, so that counting there only would give 0 for ever.
fn only_in_kernel(event: Event) -> bool {
    matches!(event, Event::ContextSwitches | Event::CpuMigrations)
}

/// The kernel's number of an event: include/uapi/linux/perf_event.h.
fn builder(event: Event) -> Builder<'static> {
    let loads = |which, result| {
        Builder::new(Cache {
            which,
            operation: CacheOp::READ,
            result,
        })
    };
    match event {
        Event::TaskClock => Builder::new(Software::TASK_CLOCK),
        Event::ContextSwitches => Builder::new(Software::CONTEXT_SWITCHES),
        Event::CpuMigrations => Builder::new(Software::CPU_MIGRATIONS),
        Event::PageFaults => Builder::new(Software::PAGE_FAULTS),
        Event::Cycles => Builder::new(Hardware::CPU_CYCLES),
        Event::StalledCyclesFrontend => Builder::new(Hardware::STALLED_CYCLES_FRONTEND),
        Event::Instructions => Builder::new(Hardware::INSTRUCTIONS),
        Event::Branches => Builder::new(Hardware::BRANCH_INSTRUCTIONS),
        Event::BranchMisses => Builder::new(Hardware::BRANCH_MISSES),
        Event::L1DcacheLoads => loads(CacheId::L1D, CacheResult::ACCESS),
        Event::L1DcacheLoadMisses => loads(CacheId::L1D, CacheResult::MISS),
        Event::LlcLoads => loads(CacheId::LL, CacheResult::ACCESS),
        Event::LlcLoadMisses => loads(CacheId::LL, CacheResult::MISS),
        Event::L1IcacheLoads => loads(CacheId::L1I, CacheResult::ACCESS),
        Event::L1IcacheLoadMisses => loads(CacheId::L1I, CacheResult::MISS),
        Event::DtlbLoads => loads(CacheId::DTLB, CacheResult::ACCESS),
        Event::DtlbLoadMisses => loads(CacheId::DTLB, CacheResult::MISS),
        Event::ItlbLoads => loads(CacheId::ITLB, CacheResult::ACCESS),
        Event::ItlbLoadMisses => loads(CacheId::ITLB, CacheResult::MISS),
    }
}

fn raw(counter: &mut Counter) -> io::Result<Raw> {
    let data = counter.read_full()?;
    let ns = |time: Option<std::time::Duration>| {
        let time = time.expect("the crate asks for both times by default");
        u64::try_from(time.as_nanos()).expect("the kernel gave it as u64")
    };
    Ok(Raw {
        count: data.count(),
        enabled_ns: ns(data.time_enabled()),
        running_ns: ns(data.time_running()),
    })
}

/// What an error of the kernel means, as `perf stat` takes it (`stat_handle_error`, tools/perf/builtin-stat.c).
fn missing(error: &io::Error) -> Missing {
    match error.raw_os_error().map(Errno::from_raw) {
        // x86 says EINVAL where a CPU has no such cache event (`set_ext_hw_attr`), and ENOENT where nothing counts
        // hardware events at all; ENOSYS is a kernel without CONFIG_PERF_EVENTS.
        Some(
            Errno::ENOENT
            | Errno::EINVAL
            | Errno::EOPNOTSUPP
            | Errno::ENODEV
            | Errno::ENXIO
            | Errno::ENOSYS,
        ) => Missing::NotSupported,
        Some(Errno::EACCES | Errno::EPERM) => Missing::NotPermitted,
        Some(_) | None => Missing::Failed(error.to_string()),
    }
}
