//! What the user should know beside the numbers.

use serde::{Deserialize, Serialize};

use crate::{
    facts::{Facts, PreemptModel, ThpEnabled},
    probes::{
        catalog,
        select::{AllocatorReach, Method},
        tracer::AttachedProbe,
    },
    window::Losses,
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
    if facts.btf.offsets.task_run_delay.is_none() {
        notes.push(Note::new(
            "no_sched_info",
            "this kernel does not tell how long a task waited for a CPU (no sched_info in BTF): waiting is \
             part of the durations, and of what the faults were made of",
        ));
    }
    if facts.privileges.initial_pid_namespace == Some(false) {
        notes.push(Note::new(
            "pid_namespace",
            "in a container: process numbers are the host's, -p takes them too, and the tracer's own \
             clears cannot be left out",
        ));
    }
    notes
}

/// What to do about losses that the other method would not have.
#[must_use]
pub fn of_losses(losses: &Losses, probes: &[AttachedProbe]) -> Option<Note> {
    let skipped = losses.programs_skipped.unwrap_or(0);
    let by = |method: Method| {
        probes
            .iter()
            .any(|probe| probe.method == method.to_string())
    };
    if skipped > 0 && by(Method::Fentry) {
        return Some(Note::new(
            "programs_skipped",
            format!(
                "the kernel skipped {skipped} runs of fentry programs, because one was preempted on \
                 that CPU in the middle of a run; --method kprobe costs more and cannot be preempted"
            ),
        ));
    }
    if losses.entries_without_exit > 0 && by(Method::Kprobe) {
        return Some(Note::new(
            "kretprobe_exhausted",
            "a kretprobe can follow only so many calls at once, which may be why exits were missed; \
             fentry has no such limit",
        ));
    }
    None
}

/// That faults of sizes that were not enabled when the trace began are missing.
#[must_use]
pub fn of_unseen_faults(
    records_faults: bool,
    mthp_faults: u64,
    probes: &[AttachedProbe],
) -> Option<Note> {
    let is_traced = probes
        .iter()
        .any(|probe| probe.function == catalog::ANON_FAULT.name);
    (records_faults && mthp_faults > 0 && !is_traced).then(|| {
        Note::new(
            "mthp_faults_unseen",
            format!(
                "the machine had {mthp_faults} mTHP faults (anon_fault_alloc), which were not traced, \
                 so that their clears have the cause `other`: no mTHP size was enabled when the trace \
                 began; start it again"
            ),
        )
    })
}

/// What was seen of the machine during a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Clears that were recorded.
    pub clears: u64,
    /// PMD-sized anonymous faults by the kernel's own count.
    pub thp_faults: u64,
    /// Smaller huge-page faults (mTHP), likewise.
    pub mthp_faults: u64,
    /// Clears of the tracer itself.
    pub own_clears: u64,
    /// Whether the user asked for some clears only.
    pub filtered: bool,
    /// Which clears in the page allocator were traced.
    pub allocator: AllocatorReach,
    /// Whether the page allocator zeroes what it hands out; `None`: not known.
    pub init_on_alloc: Option<bool>,
    /// Setting of anonymous THP; `None`: not built in.
    pub thp_enabled: Option<ThpEnabled>,
}

/// What the kernel counted and the trace may not have seen, and why; or why there was nothing.
#[must_use]
pub fn of_unseen(seen: &Seen) -> Option<Note> {
    let (thp, mthp) = (seen.thp_faults, seen.mthp_faults);
    let zeroes_in_allocator = seen.init_on_alloc != Some(false);
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
        let why = match seen.thp_enabled {
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
        format!("no huge page has been faulted in{why}")
    };
    Some(Note::new("no_clears", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Seen = Seen {
        clears: 0,
        thp_faults: 0,
        mthp_faults: 0,
        own_clears: 0,
        filtered: false,
        allocator: AllocatorReach::Nothing,
        init_on_alloc: Some(false),
        thp_enabled: Some(ThpEnabled::Always),
    };

    fn text(seen: &Seen) -> String {
        of_unseen(seen).map_or_else(String::new, |note| note.text)
    }

    #[test]
    fn silence_has_its_reason() {
        assert_eq!(text(&NOTHING), "no huge page has been faulted in");
        let off = Seen {
            thp_enabled: Some(ThpEnabled::Never),
            ..NOTHING
        };
        assert!(text(&off).contains("THP is off"));

        let unexplained = Seen {
            thp_faults: 3,
            ..NOTHING
        };
        assert!(text(&unexplained).contains("please report this kernel"));
        let filtered = Seen {
            filtered: true,
            ..unexplained
        };
        assert!(text(&filtered).contains("no clear matched the filters"));
        // The tracer's own faults are no news.
        let own = Seen {
            own_clears: 3,
            ..unexplained
        };
        assert!(text(&own).contains("no huge page has been faulted in"));
    }

    #[test]
    fn what_the_allocator_cleared_out_of_sight_is_told_even_beside_clears() {
        let seen = Seen {
            init_on_alloc: Some(true),
            clears: 5,
            thp_faults: 2,
            mthp_faults: 7,
            allocator: AllocatorReach::Thp,
            ..NOTHING
        };
        assert!(text(&seen).contains("7 mTHP faults"));
        let every_size = Seen {
            allocator: AllocatorReach::EverySize,
            ..seen
        };
        assert_eq!(of_unseen(&every_size), None);
    }

    #[test]
    fn losses_name_the_method_without_them() {
        let probes = |method: Method| {
            [AttachedProbe {
                site: None,
                function: String::new(),
                method: method.to_string(),
                derived: false,
            }]
        };
        let code =
            |losses: &Losses, method| of_losses(losses, &probes(method)).map(|note| note.code);
        let skipped = Losses {
            programs_skipped: Some(2),
            ..Losses::default()
        };
        assert_eq!(
            code(&skipped, Method::Fentry).as_deref(),
            Some("programs_skipped")
        );
        let missed = Losses {
            entries_without_exit: 2,
            ..Losses::default()
        };
        assert_eq!(
            code(&missed, Method::Kprobe).as_deref(),
            Some("kretprobe_exhausted")
        );
        assert_eq!(code(&Losses::default(), Method::Fentry), None);
    }
}
