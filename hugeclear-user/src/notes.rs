//! What the user should know beside the numbers.

use serde::{Deserialize, Serialize};

use crate::{
    facts::{Facts, HugeFaults, PreemptModel, ThpEnabled},
    probes::select::AllocatorReach,
};

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

/// What was seen of the machine during a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Clears that were recorded.
    pub clears: u64,
    /// Anonymous huge-page faults by the kernel's own count.
    pub faults: HugeFaults,
    /// Clears of the tracer itself.
    pub own_clears: u64,
    /// Whether the user asked for some clears only.
    pub filtered: bool,
    /// Which clears in the page allocator were traced.
    pub allocator: AllocatorReach,
}

/// What the kernel counted and the trace may not have seen, and why; or why there was nothing.
#[must_use]
pub fn of_unseen(facts: &Facts, seen: &Seen) -> Option<Note> {
    let HugeFaults { thp, mthp } = seen.faults;
    let zeroes_in_allocator = facts.init_on_alloc.on != Some(false);
    let unseen = |faults: u64, size: &str, counter: &str, remedy: &str| {
        Note::new(
            "allocator_unseen",
            format!(
                "the machine had {faults} {size} faults ({counter}); with init_on_alloc the page \
                 allocator zeroes their pages, which was not traced: {remedy}"
            ),
        )
    };
    if zeroes_in_allocator && seen.allocator == AllocatorReach::Nothing && thp > 0 {
        return Some(unseen(thp, "THP", "thp_fault_alloc", "see the notes above"));
    }
    if zeroes_in_allocator && seen.allocator != AllocatorReach::EverySize && mthp > 0 {
        let remedy = "no mTHP size was enabled when the trace began; start it again";
        return Some(unseen(mthp, "mTHP", "anon_fault_alloc", remedy));
    }
    if seen.clears > 0 {
        return None;
    }

    let enabled = facts.thp.as_ref().and_then(|thp| thp.enabled);
    let foreign = (thp + mthp).saturating_sub(seen.own_clears);
    let text = if foreign > 0 && seen.filtered {
        format!(
            "no clear matched the filters; the machine had {foreign} anonymous huge-page faults"
        )
    } else if foreign > 0 {
        format!(
            "the machine had {foreign} anonymous huge-page faults (thp_fault_alloc), but no clear was \
             seen: please report this kernel, with the output of hugeclear-trace doctor --json"
        )
    } else {
        let why = match enabled {
            Some(ThpEnabled::Never) => {
                ": THP is off (/sys/kernel/mm/transparent_hugepage/enabled is never), and no hugetlb \
                 page was asked for"
            }
            Some(ThpEnabled::Madvise) => {
                ": THP is for memory that asks with madvise(MADV_HUGEPAGE), none did, and no hugetlb \
                 page was asked for"
            }
            Some(ThpEnabled::Always | ThpEnabled::Inherit) | None => "",
        };
        format!("no huge page was faulted{why}")
    };
    Some(Note::new("no_clears", text))
}
