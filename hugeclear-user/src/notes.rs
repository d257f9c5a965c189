//! What the user should know beside the numbers.

use serde::{Deserialize, Serialize};

use crate::facts::{Facts, PreemptModel, ThpEnabled};

/// A remark about a result, shown with it and part of its JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Stable name, for programs.
    pub code: String,
    /// One sentence or two, for people.
    pub text: String,
}

impl Note {
    /// A note.
    #[must_use]
    pub fn new(code: &str, text: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            text: text.into(),
        }
    }
}

/// What one should know of any result from this machine.
#[must_use]
pub fn of_machine(facts: &Facts) -> Vec<Note> {
    let mut notes = Vec::new();
    if facts.thp.is_none() {
        let text = if facts.preempt.model == PreemptModel::Rt {
            "a PREEMPT_RT kernel has no transparent huge pages: only hugetlb pages are cleared"
        } else {
            "this kernel was built without transparent huge pages: only hugetlb pages are cleared"
        };
        notes.push(Note::new("no_thp", text));
    }
    if facts.privileges.initial_pid_namespace == Some(false) {
        notes.push(Note::new(
            "pid_namespace",
            "in a container: -p takes the host's process numbers, and the tracer's own clears \
             cannot be left out",
        ));
    }
    notes
}

/// What was seen of the machine during a trace without a clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// By how much `thp_fault_alloc` of /proc/vmstat rose.
    pub thp_faults: Option<u64>,
    /// Clears of the tracer itself.
    pub own_clears: u64,
    /// Whether the user asked for some clears only.
    pub filtered: bool,
    /// Whether the site `allocator` was traced.
    pub allocator_traced: bool,
}

/// Why there may have been no clear.
#[must_use]
pub fn of_silence(facts: &Facts, seen: &Seen) -> Note {
    let enabled = facts.thp.as_ref().and_then(|thp| thp.enabled);
    let text = match seen.thp_faults {
        Some(faults) if faults > seen.own_clears && seen.filtered => format!(
            "no clear matched the filters, while the machine had {faults} THP faults \
             (thp_fault_alloc)"
        ),
        Some(faults)
            if faults > seen.own_clears
                && facts.init_on_alloc.on != Some(false)
                && !seen.allocator_traced =>
        {
            format!(
                "the machine had {faults} THP faults (thp_fault_alloc), but with init_on_alloc the \
                 page allocator zeroes their pages, and it is not traced"
            )
        }
        Some(faults) if faults > seen.own_clears => format!(
            "the machine had {faults} THP faults (thp_fault_alloc), but no clear was seen: please \
             report this kernel, with the output of hugeclear-trace doctor --json"
        ),
        Some(_) if enabled == Some(ThpEnabled::Never) => "no huge page was faulted: THP is off \
             (/sys/kernel/mm/transparent_hugepage/enabled is never), and no hugetlb page was asked for"
            .to_owned(),
        Some(_) if enabled == Some(ThpEnabled::Madvise) => "no huge page was faulted: THP is for \
             memory that asks with madvise(MADV_HUGEPAGE), none did, and no hugetlb page was asked for"
            .to_owned(),
        Some(_) | None => "no huge page was faulted".to_owned(),
    };
    Note::new("no_clears", text)
}
