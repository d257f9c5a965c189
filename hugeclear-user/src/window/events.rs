//! Clears, copies and faults one by one.

use hugeclear_ebpf::{key::Dimensions, maps};
use serde::Serialize;

use super::{Group, Terms};
use crate::probes::keys::{Comm, Key, Subject};

/// What an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A page was cleared.
    Clear,
    /// A page was copied.
    Copy,
    /// A whole fault.
    Fault,
}

impl EventKind {
    /// The name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Copy => "copy",
            Self::Fault => "fault",
        }
    }
}

/// One clear, copy or fault that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it is of.
    pub kind: EventKind,
    /// When it began, in ns of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// How long it took, in ns of wall time.
    pub duration_ns: u64,
    /// What of that the thread waited for a CPU, in ns; `None` if the kernel does not tell.
    pub preempted_ns: Option<u64>,
    /// Context switches away from the thread; `None` if the kernel does not tell.
    pub switches: Option<u64>,
    /// All that it can be told apart by. The CPU is that on which it ended.
    pub group: Group,
    /// CPU on which it began.
    pub cpu_start: u32,
    /// CPU on which it ended.
    pub cpu_end: u32,
    /// Thread, as the host numbers it.
    pub tid: u32,
    /// The address that faulted.
    pub fault_address: Option<u64>,
    /// Whether the duration includes more than the clear.
    pub derived: bool,
    /// What a fault was made of, beside `preempted_ns`.
    pub parts: Option<EventParts>,
    /// The kernel's stack, innermost first.
    pub stack: Option<Vec<String>>,
}

/// What a fault was made of; with the time that it waited for a CPU they add up to its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventParts {
    /// Clearing, in ns without waiting for a CPU.
    pub clear_ns: u64,
    /// Direct compaction, likewise.
    pub compaction_ns: u64,
    /// Direct reclaim, likewise.
    pub reclaim_ns: u64,
    /// All else, in ns. Negative only if `losses.negative_rest` counts it.
    pub rest_ns: i64,
}

impl Event {
    /// From what the kernel side wrote, without the stack; `None` if this program does not know its
    /// numbers.
    #[must_use]
    pub fn of(raw: &maps::Event, terms: &Terms) -> Option<Self> {
        let known = Key::of_dimensions(Dimensions::unpack(raw.dimensions))?;
        let (kind, derived) = match known.subject {
            Subject::Site(site) if site.copies() => (EventKind::Copy, false),
            Subject::Site(site) => (EventKind::Clear, terms.derived.contains(&site)),
            Subject::Fault => (EventKind::Fault, false),
            Subject::Impact => return None,
        };
        let key = Key {
            pid: Some(raw.pid),
            comm: Some(Comm(raw.comm)),
            cgroup: (raw.cgroup != 0).then_some(raw.cgroup),
            ..known
        };
        let inside = raw.inside;
        let waited = terms.counts_waiting.then_some(raw.waited);
        Some(Self {
            kind,
            start_ns: raw.start_ns,
            duration_ns: raw.duration_ns,
            preempted_ns: waited.map(|waited| waited.run_delay_ns),
            switches: waited.map(|waited| waited.switches),
            group: Group::of(raw.cpu_end, Some(&key), terms),
            cpu_start: raw.cpu_start,
            cpu_end: raw.cpu_end,
            tid: raw.tid,
            fault_address: (raw.address != 0).then_some(raw.address),
            derived,
            parts: (kind == EventKind::Fault).then(|| EventParts {
                clear_ns: inside.clear_ns,
                compaction_ns: inside.compaction_ns,
                reclaim_ns: inside.reclaim_ns,
                // Modulo 2^64, as the kernel sums: exact, and negative where the parts are too long.
                rest_ns: (raw.duration_ns)
                    .wrapping_sub(inside.clear_ns)
                    .wrapping_sub(inside.compaction_ns)
                    .wrapping_sub(inside.reclaim_ns)
                    .wrapping_sub(raw.waited.run_delay_ns)
                    .cast_signed(),
            }),
            stack: None,
        })
    }

    /// The duration without what the thread waited for a CPU, in ns; `None` if the kernel does not tell.
    #[must_use]
    pub fn on_cpu_ns(&self) -> Option<u64> {
        self.duration_ns.checked_sub(self.preempted_ns?)
    }

    /// When it ended, in ns of CLOCK_MONOTONIC.
    #[must_use]
    pub const fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hugeclear_ebpf::{
        key::{Cause, FAULT, IMPACT, Outcome, Site},
        maps::{Inside, Waited},
    };

    use super::*;
    use crate::{facts::PreemptModel, window::Only};

    fn terms() -> Terms {
        Terms {
            base_page_bytes: 4096,
            derived: vec![Site::Allocator],
            counts_waiting: true,
            node_of_cpu: BTreeMap::from([(0, 0), (1, 0), (2, 1)]),
            cgroups: BTreeMap::from([(77, "/db.service".to_owned())]),
        }
    }

    fn dimensions(subject: u8) -> Dimensions {
        Dimensions {
            subject,
            order: 9,
            model: PreemptModel::Lazy as u8,
            cause: Cause::ThpFault as u8,
            outcome: 0,
            sixteenth: 4,
            memory_node: 1,
        }
    }

    fn raw(dimensions: Dimensions) -> maps::Event {
        maps::Event {
            start_ns: 1_000_000,
            duration_ns: 900,
            waited: Waited {
                run_delay_ns: 200,
                switches: 1,
            },
            dimensions: dimensions.pack(),
            address: 0x7f00_0000_3000,
            inside: Inside {
                clear_ns: 500,
                compaction_ns: 50,
                ..Inside::default()
            },
            cgroup: 77,
            comm: *b"postgres\0\0\0\0\0\0\0\0",
            pid: 42,
            tid: 43,
            cpu_start: 1,
            cpu_end: 2,
        }
    }

    #[test]
    fn everything_in_a_record_is_decoded() {
        let event = Event::of(&raw(dimensions(Site::FolioZeroUser as u8)), &terms()).unwrap();
        let expected = Event {
            kind: EventKind::Clear,
            start_ns: 1_000_000,
            duration_ns: 900,
            preempted_ns: Some(200),
            switches: Some(1),
            group: Group {
                cpu: Some(2),
                node: Some(1),
                mem_node: Some(0),
                pid: Some(42),
                comm: Some("postgres".to_owned()),
                cgroup: Some("/db.service".to_owned()),
                site: Some(Site::FolioZeroUser),
                cause: Some(Cause::ThpFault),
                outcome: None,
                page_size_bytes: Some(2 << 20),
                fault_offset: Some(3),
                preempt_model: Some(PreemptModel::Lazy),
            },
            cpu_start: 1,
            cpu_end: 2,
            tid: 43,
            fault_address: Some(0x7f00_0000_3000),
            derived: false,
            parts: None,
            stack: None,
        };
        assert_eq!(event, expected);
        assert_eq!(event.on_cpu_ns(), Some(700));
    }

    #[test]
    fn kinds_are_told_apart_and_unknown_numbers_are_not_events() {
        let of = |subject| Event::of(&raw(dimensions(subject)), &terms());
        let copy = of(Site::CopyUserHugePage as u8).unwrap();
        assert_eq!(copy.kind, EventKind::Copy);
        assert!(of(Site::Allocator as u8).unwrap().derived);
        let fault = Dimensions {
            outcome: Outcome::Mapped as u8,
            ..dimensions(FAULT)
        };
        let fault = Event::of(&raw(fault), &terms()).unwrap();
        assert_eq!(fault.kind, EventKind::Fault);
        assert_eq!(fault.group.outcome, Some(Outcome::Mapped));
        assert_eq!(fault.group.site, None);
        let parts = fault.parts.unwrap();
        assert_eq!((parts.clear_ns, parts.rest_ns), (500, 150));
        for unknown in [IMPACT, 200] {
            assert_eq!(of(unknown), None);
        }
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_zero() {
        let silent = Terms {
            counts_waiting: false,
            ..terms()
        };
        let event = Event::of(&raw(dimensions(0)), &silent).unwrap();
        let waited = (event.preempted_ns, event.switches, event.on_cpu_ns());
        assert_eq!(waited, (None, None, None));
    }

    #[test]
    fn filters_see_all_that_is_known() {
        let event = Event::of(&raw(dimensions(Site::FolioZeroUser as u8)), &terms()).unwrap();
        let admits = |only: Only| only.admits(&event.group);
        assert!(admits(Only::default()));
        // Where it ended, not where it began.
        assert!(admits(Only {
            cpus: vec![2],
            nodes: vec![1],
            mem_nodes: vec![0],
            fault_offsets: vec![3],
            causes: vec![Cause::ThpFault],
            ..Only::default()
        }));
        assert!(!admits(Only {
            cpus: vec![1],
            ..Only::default()
        }));
        assert!(!admits(Only {
            outcomes: vec![Outcome::Mapped],
            ..Only::default()
        }));
    }
}
