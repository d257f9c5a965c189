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
    /// The kernel's own reset clears neither the times nor what threads that have ended left to their parent
    /// (`_perf_event_reset` and `sync_child_event`, kernel/events/core.c): what is there is subtracted instead.
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

#[cfg(test)]
mod tests {
    use std::{hint::black_box, ops::RangeInclusive, sync::Barrier, thread, time::Duration};

    use nix::{
        sys::resource::{Usage, UsageWho, getrusage},
        time::{ClockId, clock_gettime},
        unistd::{Uid, geteuid},
    };

    use super::*;

    const NEVER: &str = "software events can be counted wherever the tests run";

    fn value(counts: &Counts, event: Event) -> u64 {
        counts.value(event).expect(NEVER)
    }

    /// Of this thread.
    fn usage() -> Usage {
        getrusage(UsageWho::RUSAGE_THREAD).unwrap()
    }

    fn faults(usage: &Usage) -> u64 {
        (usage.minor_page_faults() + usage.major_page_faults()) as u64
    }

    fn switches(usage: &Usage) -> u64 {
        (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64
    }

    fn cpu_time() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
            .unwrap()
            .into()
    }

    /// Keeps the CPU busy; how long this thread has been on a CPU in all.
    fn spin(time: Duration) -> Duration {
        let end = cpu_time() + time;
        while cpu_time() < end {
            black_box(());
        }
        cpu_time()
    }

    /// Maps so many small pages, touches each and unmaps them.
    fn touch(pages: usize) {
        let size = pages * 4096;
        let mut map = memmap2::MmapMut::map_anon(size).unwrap();
        map.advise(memmap2::Advice::NoHugePage).ok();
        for page in map.chunks_mut(4096) {
            page[0] = 1;
        }
    }

    /// The value of a counter while `work` runs, and what the kernel's other account says at least and at most.
    fn count_of(
        event: Event,
        account: fn(&Usage) -> u64,
        counters: &mut Counters,
        work: impl FnOnce(),
    ) -> (u64, RangeInclusive<u64>) {
        let outer = account(&usage());
        counters.enable();
        let inner = account(&usage());
        work();
        let inner = account(&usage()) - inner;
        counters.disable();
        let outer = account(&usage()) - outer;
        (value(&counters.read(), event), inner..=outer)
    }

    #[test]
    fn numbers_are_those_of_the_kernel() {
        const SOFTWARE: u32 = 1;
        const HARDWARE: u32 = 0;
        const CACHE: u32 = 3;
        // perf_event_open(2): for a cache, id | operation << 8 | result << 16.
        for (name, kind, config) in [
            ("task-clock", SOFTWARE, 1),
            ("context-switches", SOFTWARE, 3),
            ("cpu-migrations", SOFTWARE, 4),
            ("page-faults", SOFTWARE, 2),
            ("cycles", HARDWARE, 0),
            ("stalled-cycles-frontend", HARDWARE, 7),
            ("instructions", HARDWARE, 1),
            ("branches", HARDWARE, 4),
            ("branch-misses", HARDWARE, 5),
            ("L1-dcache-loads", CACHE, 0x00000),
            ("L1-dcache-load-misses", CACHE, 0x10000),
            ("L1-icache-loads", CACHE, 0x00001),
            ("L1-icache-load-misses", CACHE, 0x10001),
            ("LLC-loads", CACHE, 0x00002),
            ("LLC-load-misses", CACHE, 0x10002),
            ("dTLB-loads", CACHE, 0x00003),
            ("dTLB-load-misses", CACHE, 0x10003),
            ("iTLB-loads", CACHE, 0x00004),
            ("iTLB-load-misses", CACHE, 0x10004),
        ] {
            let event = Event::try_from(name.to_owned()).unwrap();
            let builder = builder(event);
            let attrs = builder.attrs();
            assert_eq!((attrs.type_, attrs.config), (kind, config), "{name}");
            assert_eq!(event.is_hardware(), kind != SOFTWARE, "{name}");
        }
    }

    #[test]
    fn every_event_has_a_value_or_a_reason() {
        let mut counters = Counters::open(&Event::ALL);
        counters.enable();
        spin(Duration::from_millis(20));
        counters.disable();
        let counts = counters.read();
        let events: Vec<Event> = counts.rows.iter().map(|row| row.event).collect();
        assert_eq!(events, Event::ALL);
        for row in &counts.rows {
            match &row.reading {
                Reading::Counted(counted) => assert!(counted.running_ns > 0, "{row:?}"),
                Reading::Missing(Missing::Failed(_)) => panic!("{row:?}"),
                Reading::Missing(why) => assert!(
                    row.event.is_hardware() || *why == Missing::NotPermitted,
                    "{row:?}"
                ),
            }
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_told_apart() {
        let of = |errno: Errno| missing(&io::Error::from_raw_os_error(errno as i32));
        assert_eq!(of(Errno::ENOENT), Missing::NotSupported);
        assert_eq!(of(Errno::EOPNOTSUPP), Missing::NotSupported);
        assert_eq!(of(Errno::EACCES), Missing::NotPermitted);
        assert_eq!(of(Errno::EPERM), Missing::NotPermitted);
        assert_eq!(
            of(Errno::EMFILE),
            Missing::Failed("Too many open files (os error 24)".to_owned())
        );
    }

    #[test]
    fn threads_are_counted_while_they_live_and_after() {
        const TIME: Duration = Duration::from_millis(60);
        let mut counters = Counters::open(&[Event::TaskClock]);
        counters.enable();
        let barrier = Barrier::new(3);
        let before = cpu_time();
        let (living, known) = thread::scope(|scope| {
            let spinners = [(); 2].map(|()| {
                scope.spawn(|| {
                    let spun = spin(TIME);
                    barrier.wait();
                    barrier.wait();
                    spun
                })
            });
            barrier.wait();
            let living = value(&counters.read(), Event::TaskClock);
            barrier.wait();
            let spun: Duration = spinners.map(|spinner| spinner.join().unwrap()).iter().sum();
            (living, spun + (cpu_time() - before))
        });
        counters.disable();
        let ended = value(&counters.read(), Event::TaskClock);
        assert!(living <= ended, "{living} {ended}");
        // A quarter is room for time stolen by the hypervisor, which the two clocks do not agree on; missing one of the
        // threads would be a half.
        let known = known.as_nanos() as f64;
        for counted in [living, ended] {
            let ratio = counted as f64 / known;
            assert!((0.75..1.25).contains(&ratio), "{counted} of {known} ns");
        }
    }

    #[test]
    fn threads_that_were_there_are_not_counted() {
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                touch(500);
                barrier.wait();
            });
            let mut counters = Counters::open(&[Event::PageFaults]);
            counters.enable();
            barrier.wait();
            barrier.wait();
            counters.disable();
            assert!(value(&counters.read(), Event::PageFaults) < 500);
        });
    }

    #[test]
    fn context_switches_are_those_of_getrusage() {
        let mut counters = Counters::open(&[Event::ContextSwitches]);
        let (counted, account) = count_of(Event::ContextSwitches, switches, &mut counters, || {
            for _ in 0..20 {
                thread::sleep(Duration::from_micros(100));
            }
        });
        assert!(account.contains(&counted), "{counted} {account:?}");
        assert!(*account.start() >= 20, "{account:?}");
    }

    #[test]
    fn page_faults_are_those_of_getrusage_and_begin_anew() {
        let mut counters = Counters::open(&[Event::PageFaults]);
        for pages in [1000, 300] {
            let (counted, account) =
                count_of(Event::PageFaults, faults, &mut counters, || touch(pages));
            assert!(account.contains(&counted), "{counted} {account:?}");
            // What else faults is the stack and code of this test, for the first time.
            assert!(
                (pages as u64..pages as u64 + 100).contains(&counted),
                "{counted}"
            );
            counters.reset();
        }
        assert_eq!(
            counters.read().value(Event::PageFaults),
            None,
            "no time has passed"
        );
    }

    #[test]
    fn a_new_run_is_without_what_ended_before() {
        let mut counters = Counters::open(&[Event::PageFaults]);
        let mut run = |pages| {
            counters.reset();
            counters.enable();
            // A process has surely ended once it was waited for; a thread that was joined may be on its way out.
            let faults = faults_of_child(pages);
            counters.disable();
            (faults, value(&counters.read(), Event::PageFaults))
        };
        let ((_, first), (faults, second)) = (run(3000), run(10));
        assert!(first >= 3000, "{first}");
        assert!((faults..3000).contains(&second), "{second}");
    }

    #[test]
    fn a_child_process_counts_to_the_page() {
        let mut counters = Counters::open(&[Event::PageFaults]);
        let mut child_faults = 0;
        let (counted, account) = count_of(Event::PageFaults, faults, &mut counters, || {
            child_faults = faults_of_child(500);
        });
        assert!(child_faults >= 500, "{child_faults}");
        let all = account.start() + child_faults..=account.end() + child_faults;
        assert!(all.contains(&counted), "{counted} {all:?}");
    }

    /// Faults of a child process that touches so many small pages, as wait4 tells them.
    fn faults_of_child(pages: usize) -> u64 {
        // SAFETY: the child only maps memory, touches it and exits, without the allocator's locks.
        let child = unsafe { libc::fork() };
        if child == 0 {
            touch(pages);
            // SAFETY: ends the child without running what the parent wants to run at its exit.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "{}", io::Error::last_os_error());
        // SAFETY: all-zero is a valid rusage, which is integers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: waits for our own child; both pointers are null or to a live object.
        let waited = unsafe { libc::wait4(child, std::ptr::null_mut(), 0, &raw mut usage) };
        assert_eq!(waited, child);
        (usage.ru_minflt + usage.ru_majflt) as u64
    }

    #[test]
    fn without_privileges_user_space_is_counted_or_nothing() {
        let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
        let paranoid: i32 = paranoid.trim().parse().unwrap();
        let counts = thread::spawn(|| {
            if geteuid().is_root() {
                give_up_root();
            }
            let mut counters = Counters::open(&[Event::PageFaults, Event::ContextSwitches]);
            counters.enable();
            touch(100);
            counters.disable();
            counters.read()
        })
        .join()
        .unwrap();
        let [faults, switches] = &counts.rows[..] else {
            panic!("{counts:?}");
        };
        let refused = Reading::Missing(Missing::NotPermitted);
        // perf_event_paranoid above 2 is a patch of Debian and Ubuntu: nothing at all.
        assert_eq!(faults.reading == refused, paranoid > 2, "{faults:?}");
        assert_eq!(faults.user_only, paranoid == 2, "{faults:?}");
        assert_eq!(switches.reading == refused, paranoid >= 2, "{switches:?}");
    }

    /// For this thread alone.
    fn give_up_root() {
        let nobody = Uid::from_raw(65534).as_raw();
        // SAFETY: without pointers; the raw call, because that of the C library changes all threads.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
}
