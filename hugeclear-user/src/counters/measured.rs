//! Two outputs of `perf stat -r 10 -d -d numactl -m 0 -N 0 map_hugetlb_1G` on an EPYC 9B24: 64 GiB cleared as 1 GiB
//! pages, page by page and in larger pieces (v3 of multi-page clearing for huge pages, linux-mm, April 2025).

use super::Event;

/// One output.
pub(super) struct Measured {
    /// `seconds time elapsed`, mean, ns.
    pub(super) elapsed_ns: u64,
    /// Means over the runs, scaled; task-clock in ns.
    pub(super) means: &'static [(Event, u64)],
    /// Part of the time that the hardware counters ran.
    pub(super) running_share: f64,
    /// task-clock of the last run, ns, which is not printed: perf divides means over the runs by it, and all of `rates`
    /// follow from it to the last digit.
    pub(super) last_task_clock_ns: u64,
    /// What perf prints behind `#` that is divided by task-clock.
    pub(super) rates: &'static [(Event, &'static str)],
    /// What perf prints behind `#` that is divided by the mean of the time elapsed, or too round to tell.
    pub(super) others: &'static [(Event, &'static str)],
    /// Percentages as perf prints them, divided by the last run's counts, which are not printed.
    pub(super) percentages: &'static [(Event, f64)],
}

pub(super) const BASE: Measured = Measured {
    elapsed_ns: 2_470_440_000,
    means: &[
        (Event::TaskClock, 2_476_470_000),
        (Event::ContextSwitches, 5),
        (Event::CpuMigrations, 2),
        (Event::PageFaults, 202),
        (Event::Cycles, 7_348_664_233),
        (Event::StalledCyclesFrontend, 878_805_326),
        (Event::Instructions, 339_023_729),
        (Event::Branches, 88_579_915),
        (Event::BranchMisses, 17_369_776),
        (Event::L1DcacheLoads, 2_261_339_695),
        (Event::L1DcacheLoadMisses, 1_073_880_164),
        (Event::L1IcacheLoads, 511_231_988),
        (Event::L1IcacheLoadMisses, 128_533),
        (Event::DtlbLoads, 38_134),
        (Event::DtlbLoadMisses, 33_992),
        (Event::ItlbLoads, 156),
        (Event::ItlbLoadMisses, 156),
    ],
    running_share: 0.3845,
    last_task_clock_ns: 2_469_265_000,
    rates: &[
        (Event::ContextSwitches, "2.025 /sec"),
        (Event::CpuMigrations, "0.810 /sec"),
        (Event::PageFaults, "81.806 /sec"),
        (Event::Cycles, "2.976 GHz"),
        (Event::Branches, "35.873 M/sec"),
        (Event::L1DcacheLoads, "915.795 M/sec"),
        (Event::L1IcacheLoads, "207.038 M/sec"),
        (Event::DtlbLoads, "15.443 K/sec"),
        (Event::ItlbLoads, "63.177 /sec"),
    ],
    others: &[
        (Event::TaskClock, "1.002 CPUs utilized"),
        (Event::Instructions, "0.05 insn per cycle"),
    ],
    percentages: &[
        (Event::StalledCyclesFrontend, 11.99),
        (Event::BranchMisses, 19.55),
        (Event::L1DcacheLoadMisses, 47.48),
    ],
};

pub(super) const PATCHED: Measured = Measured {
    elapsed_ns: 1_060_877_000,
    means: &[
        (Event::TaskClock, 1_056_720_000),
        (Event::ContextSwitches, 10),
        (Event::CpuMigrations, 3),
        (Event::PageFaults, 200),
        (Event::Cycles, 3_146_571_264),
        (Event::StalledCyclesFrontend, 17_226_261),
        (Event::Instructions, 14_130_553),
        (Event::Branches, 3_578_614),
        (Event::BranchMisses, 415_807),
        (Event::L1DcacheLoads, 22_208_699),
        (Event::L1DcacheLoadMisses, 7_312_684),
        (Event::L1IcacheLoads, 4_032_315),
        (Event::L1IcacheLoadMisses, 15_094),
        (Event::DtlbLoads, 14_365),
        (Event::DtlbLoadMisses, 9_477),
        (Event::ItlbLoads, 18),
        (Event::ItlbLoadMisses, 67),
    ],
    running_share: 0.3845,
    last_task_clock_ns: 1_059_780_000,
    rates: &[
        (Event::ContextSwitches, "9.436 /sec"),
        (Event::CpuMigrations, "2.831 /sec"),
        (Event::PageFaults, "188.718 /sec"),
        (Event::Cycles, "2.969 GHz"),
        (Event::Branches, "3.377 M/sec"),
        (Event::L1DcacheLoads, "20.956 M/sec"),
        (Event::L1IcacheLoads, "3.805 M/sec"),
        (Event::DtlbLoads, "13.555 K/sec"),
        (Event::ItlbLoads, "16.985 /sec"),
    ],
    others: &[
        (Event::TaskClock, "0.996 CPUs utilized"),
        (Event::Instructions, "0.00 insn per cycle"),
    ],
    percentages: &[
        (Event::StalledCyclesFrontend, 0.55),
        (Event::L1IcacheLoadMisses, 0.38),
        (Event::DtlbLoadMisses, 65.36),
    ],
};

impl Measured {
    /// The mean of an event.
    pub(super) fn mean(&self, event: Event) -> Option<f64> {
        let mean = self.means.iter().find(|(of, _)| *of == event);
        mean.map(|(_, value)| *value as f64)
    }
}
