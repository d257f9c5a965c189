//! One clear, copy or fault, as a line.

use std::fmt::Write as _;

use hugeclear_ebpf::key::{Cause, Outcome, Site};
use serde::Serialize;

use super::table::or_dash;
use crate::{
    facts::PreemptModel,
    units::{self, format_ns},
    window::{Event, EventKind},
};

/// What the columns of [`event_text`] hold.
pub const EVENT_TITLES: &str = "      ended  kind   site or cause/outcome      page   duration  preempted      CPU  nodes      \
                                pid/tid  comm             16th  of a fault\n";

/// The event as a line for people, its stack below; `origin_ns` is when the trace began.
pub fn event_text(event: &Event, origin_ns: u64, text: &mut String) {
    let group = &event.group;
    let seconds = event.end_ns().wrapping_sub(origin_ns).cast_signed() as f64 / 1e9;
    let site = group.site.map_or("-", Site::name);
    let what = match event.kind {
        EventKind::Fault => format!(
            "{}/{}",
            group.cause.map_or("-", Cause::name),
            group.outcome.map_or("-", Outcome::name)
        ),
        EventKind::Clear if event.derived => format!("{site} (derived)"),
        EventKind::Clear | EventKind::Copy => site.to_owned(),
    };
    let cpus = if event.cpu_start == event.cpu_end {
        event.cpu_end.to_string()
    } else {
        format!("{}->{}", event.cpu_start, event.cpu_end)
    };
    let line_start = text.len();
    // A name may hold anything.
    let comm = group.comm.as_deref().unwrap_or("-");
    let comm = comm.replace(char::is_control, "?");
    let _ = write!(
        text,
        "{seconds:>11.6}  {:<5}  {what:<25}  {:>4}  {:>9}  {:>9}  {cpus:>7}  {:>5}  {:>15}  {comm:<15}  {:>4}",
        event.kind.name(),
        or_dash(group.page_size_bytes.map(units::format_bytes)),
        brief(event.duration_ns as f64),
        or_dash(event.preempted_ns.map(|ns| brief(ns as f64))),
        format!("{}/{}", or_dash(group.node), or_dash(group.mem_node)),
        format!("{}/{}", or_dash(group.pid), event.tid),
        or_dash(group.fault_offset),
    );
    if let Some(parts) = event.parts {
        let _ = write!(
            text,
            "  clear {}, compaction {}, reclaim {}, rest {}",
            brief(parts.clear_ns as f64),
            brief(parts.compaction_ns as f64),
            brief(parts.reclaim_ns as f64),
            brief(parts.rest_ns as f64),
        );
    }
    text.truncate(line_start + text[line_start..].trim_end().len());
    text.push('\n');
    for frame in event.stack.iter().flatten() {
        let _ = writeln!(text, "               {frame}");
    }
}

/// A duration in ns; a zero without a unit is read over.
fn brief(ns: f64) -> String {
    if ns == 0.0 {
        return "0".to_owned();
    }
    let sign = if ns < 0.0 { "-" } else { "" };
    format!("{sign}{}", format_ns(ns.abs()))
}

/// The event as one line of JSON.
///
/// # Panics
/// Never: every part of an event can be JSON.
pub fn event_json(event: &Event, text: &mut String) {
    #[derive(Serialize)]
    struct Line<'a> {
        r#type: &'static str,
        kind: EventKind,
        start_ns: u64,
        duration_ns: u64,
        on_cpu_ns: Option<u64>,
        preempted_ns: Option<u64>,
        switches: Option<u64>,
        site: Option<Site>,
        cause: Option<Cause>,
        outcome: Option<Outcome>,
        page_size_bytes: Option<u64>,
        preempt_model: Option<PreemptModel>,
        cpu_start: u32,
        cpu_end: u32,
        node: Option<u32>,
        mem_node: Option<u32>,
        pid: Option<u32>,
        tid: u32,
        comm: Option<&'a str>,
        cgroup: Option<&'a str>,
        fault_address: Option<u64>,
        fault_offset: Option<u8>,
        clear_ns: Option<u64>,
        compaction_ns: Option<u64>,
        reclaim_ns: Option<u64>,
        rest_ns: Option<i64>,
        stack: Option<&'a [String]>,
    }
    let group = &event.group;
    let line = Line {
        r#type: "event",
        kind: event.kind,
        start_ns: event.start_ns,
        duration_ns: event.duration_ns,
        on_cpu_ns: event.on_cpu_ns(),
        preempted_ns: event.preempted_ns,
        switches: event.switches,
        site: group.site,
        cause: group.cause,
        outcome: group.outcome,
        page_size_bytes: group.page_size_bytes,
        preempt_model: group.preempt_model,
        cpu_start: event.cpu_start,
        cpu_end: event.cpu_end,
        node: group.node,
        mem_node: group.mem_node,
        pid: group.pid,
        tid: event.tid,
        comm: group.comm.as_deref(),
        cgroup: group.cgroup.as_deref(),
        fault_address: event.fault_address,
        fault_offset: group.fault_offset,
        clear_ns: event.parts.map(|parts| parts.clear_ns),
        compaction_ns: event.parts.map(|parts| parts.compaction_ns),
        reclaim_ns: event.parts.map(|parts| parts.reclaim_ns),
        rest_ns: event.parts.map(|parts| parts.rest_ns),
        stack: event.stack.as_deref(),
    };
    text.push_str(&serde_json::to_string(&line).expect("no maps"));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{EventParts, Group};

    fn events() -> Vec<Event> {
        let clear = Event {
            kind: EventKind::Clear,
            start_ns: 3_000_000_000,
            duration_ns: 118_250,
            preempted_ns: Some(0),
            switches: Some(0),
            group: Group {
                cpu: Some(1),
                node: Some(0),
                mem_node: Some(0),
                pid: Some(4242),
                comm: Some("postgres".to_owned()),
                cgroup: Some("/system.slice/db.service".to_owned()),
                site: Some(Site::FolioZeroUser),
                cause: None,
                outcome: None,
                page_size_bytes: Some(2 << 20),
                fault_offset: None,
                preempt_model: Some(PreemptModel::Lazy),
            },
            cpu_start: 1,
            cpu_end: 1,
            tid: 4242,
            fault_address: None,
            derived: false,
            parts: None,
            stack: None,
        };
        let migrated = Event {
            start_ns: 15_000_000_000,
            duration_ns: 92_100_000,
            preempted_ns: Some(1_500_000),
            switches: Some(3),
            cpu_start: 12,
            cpu_end: 113,
            tid: 4_194_303,
            group: Group {
                site: Some(Site::Allocator),
                node: Some(1),
                mem_node: None,
                pid: Some(4_194_302),
                comm: Some("a\nb".to_owned()),
                page_size_bytes: Some(1 << 30),
                ..clear.group.clone()
            },
            derived: true,
            stack: Some(vec![
                "folio_zero_user+0x1a".to_owned(),
                "0xffffffffc0001234".to_owned(),
            ]),
            ..clear.clone()
        };
        let fault = Event {
            kind: EventKind::Fault,
            duration_ns: 400_000,
            preempted_ns: None,
            switches: None,
            group: Group {
                site: None,
                cause: Some(Cause::ThpFault),
                outcome: Some(Outcome::FallbackCharge),
                fault_offset: Some(15),
                ..clear.group.clone()
            },
            fault_address: Some(0x7f12_3456_7000),
            parts: Some(EventParts {
                clear_ns: 118_250,
                compaction_ns: 200_000,
                reclaim_ns: 0,
                rest_ns: 81_750,
            }),
            ..clear.clone()
        };
        vec![clear, migrated, fault]
    }

    #[test]
    fn lines_for_people() {
        let mut text = EVENT_TITLES.to_owned();
        for event in events() {
            event_text(&event, 2_500_000_000, &mut text);
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn lines_for_programs() {
        let mut text = String::new();
        for event in events() {
            event_json(&event, &mut text);
        }
        assert_eq!(text.lines().count(), 3);
        insta::assert_snapshot!(text);
    }
}
