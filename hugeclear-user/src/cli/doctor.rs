//! What can be traced on this machine, what is missing, and what to do about it.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use anyhow::Result;
use serde::Serialize;

use super::args::DoctorArgs;
use crate::{
    facts::{Facts, Switch},
    notes::{self, Note},
    probes::{
        config::Request,
        keys::{Layout, MEMORY_LIMIT_BYTES},
        select::{self, ProbeSet, Refusal, Wanted},
        tracer::{AttachedProbe, TraceError, Tracer},
    },
    settings,
    strategy::{self, StrategyReport, Wanted as WantedPage, plot},
    term, units,
};

/// What `doctor` found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// All facts.
    facts: Facts,
    /// Probes that were attached for a moment; `None`: not tried, see `obstacle`.
    attached: Option<Vec<AttachedProbe>>,
    /// Why nothing can be traced now.
    obstacle: Option<String>,
    /// Whether that is for want of privileges.
    obstacle_is_privilege: bool,
    /// Functions to try, from the facts alone.
    candidates: Vec<String>,
    /// What was refused, and why.
    refusals: Vec<Refusal>,
    /// Memory that the maps of a trace take, in bytes.
    map_memory_bytes: u64,
    /// Keys with a block of their own, on each CPU.
    keys: usize,
    notes: Vec<Note>,
    /// What is missing, what that costs, and how to get it.
    advice: Vec<String>,
    /// How one huge page was cleared, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<StrategyReport>,
}

/// Prints the diagnosis. Exit status 0 if this machine can be traced by this user, else 1.
///
/// # Errors
/// Those of writing.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let facts = Facts::read(Path::new("/"));
    let wanted = Wanted {
        method: args.method,
        allocator: args.allocator,
        // All that any option could attach.
        faults: true,
    };
    let mut diagnosis = diagnose(facts, &wanted);
    diagnosis.notes.extend(left_over());
    if args.strategy {
        let wanted = WantedPage {
            touch: args.touch,
            hugetlb_bytes: args.hugetlb,
        };
        let report = strategy::measure(&diagnosis.facts, &wanted);
        diagnosis.notes.extend(disagreement(&report));
        diagnosis.strategy = Some(report);
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &diagnosis)?;
        writeln!(out)?;
    } else {
        out.write_all(text(&diagnosis).as_bytes())?;
    }
    Ok(if diagnosis.obstacle.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn diagnose(facts: Facts, wanted: &Wanted) -> Diagnosis {
    let set = select::select(&facts, wanted);
    let layout = Layout::new(&facts, &set, &Request::default());
    let mut notes = notes::of_machine(&facts);
    let (attached, error, refusals) = match Tracer::attach(&facts, &set, &Request::default()) {
        Ok(tracer) => {
            notes.extend(tracer.notes.iter().cloned());
            (Some(tracer.probes.clone()), None, tracer.refusals.clone())
        }
        Err(error) => {
            notes.extend(set.notes.iter().cloned());
            let refusals = match &error {
                TraceError::NoSite { refusals, .. } => refusals.clone(),
                TraceError::NotPermitted { .. } | TraceError::Load(_) => set.refusals.clone(),
            };
            (None, Some(error), refusals)
        }
    };
    Diagnosis {
        advice: advice(&facts),
        candidates: candidates(&set),
        map_memory_bytes: layout.memory_bytes(),
        keys: layout.keys.len(),
        attached,
        obstacle: error.as_ref().map(ToString::to_string),
        obstacle_is_privilege: matches!(error, Some(TraceError::NotPermitted { .. })),
        refusals,
        notes,
        strategy: None,
        facts,
    }
}

/// That a run was killed with settings changed.
fn left_over() -> Option<Note> {
    let text = match settings::left_over() {
        Ok(settings) if settings.is_empty() => return None,
        Ok(settings) => {
            let each: Vec<String> = settings.iter().map(ToString::to_string).collect();
            format!(
                "a run that was killed left settings changed, which the next hugeclear-trace workload \
                 or sweep puts back: {}",
                each.join(", ")
            )
        }
        Err(error) => error.to_string(),
    };
    Some(Note::new("settings_left_changed", text))
}

/// That what was seen is not what the facts say.
fn disagreement(report: &StrategyReport) -> Option<Note> {
    let measured = report.measured.as_ref()?;
    (report.agree == Some(false)).then(|| {
        Note::new(
            "strategy_disagrees",
            format!(
                "this kernel does not clear as its symbols say, but: {}; please report it, with the \
                 output of hugeclear-trace doctor --strategy --json",
                measured.name
            ),
        )
    })
}

fn candidates(set: &ProbeSet) -> Vec<String> {
    let probes = set.probes().chain(&set.preempt_switch);
    probes
        .map(|probe| {
            let methods: Vec<String> = probe.methods.iter().map(ToString::to_string).collect();
            format!("{} by {}", probe.function, methods.join(", else "))
        })
        .collect()
}

/// What is missing on the machine, each with its cost and its remedy.
fn advice(facts: &Facts) -> Vec<String> {
    let mut advice = Vec::new();
    let mut say = |missing: bool, text: &str| {
        if missing {
            advice.push(text.to_owned());
        }
    };
    let privileges = &facts.privileges;
    let may_load = privileges.has("CAP_SYS_ADMIN")
        || privileges.has("CAP_BPF") && privileges.has("CAP_PERFMON");
    say(
        !may_load,
        "no CAP_BPF and CAP_PERFMON: nothing can be traced; run with sudo",
    );
    say(
        !facts.btf.present,
        "no /sys/kernel/btf/vmlinux: no fentry, which is cheaper than kprobe, and no page sizes from \
         6.11 on; it comes with CONFIG_DEBUG_INFO_BTF=y",
    );
    say(
        facts.kprobes == Some(false),
        "no kprobes: nothing to fall back to where fentry is refused; they come with \
         CONFIG_KPROBE_EVENTS=y",
    );
    say(
        facts.symbols.addresses_hidden,
        "kernel addresses are hidden: the preemption model cannot be followed and init_on_alloc not \
         be read; run as root (CAP_SYSLOG), or set kernel.kptr_restrict=0",
    );
    say(
        facts.tracefs.is_none(),
        "tracefs is not mounted: which functions can be traced is found out by trying; \
         mount -t tracefs tracefs /sys/kernel/tracing",
    );
    let lockdown = facts.lockdown.as_deref();
    say(
        lockdown == Some("confidentiality"),
        "lockdown=confidentiality: BPF may not read kernel memory, so nothing can be traced; boot \
         without lockdown=confidentiality, or without secure boot",
    );
    say(
        lockdown == Some("integrity"),
        "lockdown=integrity: some kernels then refuse fentry and kprobe; if all were refused above, \
         boot without lockdown, or without secure boot",
    );
    say(
        facts.thp.is_none(),
        "no transparent huge pages in this kernel: only hugetlb pages are cleared",
    );
    advice
}

fn text(diagnosis: &Diagnosis) -> String {
    let Diagnosis {
        facts,
        attached,
        obstacle,
        obstacle_is_privilege: _,
        candidates,
        refusals,
        map_memory_bytes,
        keys,
        notes,
        advice,
        strategy,
    } = diagnosis;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let mut line = |label: &str, value: &str| {
        let _ = writeln!(out, "{label:<14}{value}");
    };
    let or_unknown = |value: Option<&str>| value.unwrap_or("unknown").to_owned();

    line(
        "kernel",
        &format!("{} {} ({})", facts.release, facts.machine, facts.version),
    );
    line(
        "preemption",
        &format!("{} (from {})", facts.preempt.model, facts.preempt.source),
    );
    let strategies = facts.strategies().map(|strategies| strategies.to_string());
    line("strategy", &or_unknown(strategies.as_deref()));
    line(
        "CPU",
        &format!(
            "{}; {} online of {} possible; {}",
            or_unknown(facts.cpu.model.as_deref()),
            facts.cpu.online.len(),
            facts
                .cpu
                .possible
                .map_or("unknown".to_owned(), |cpus| cpus.to_string()),
            facts.cpu.flags.join(" ")
        ),
    );
    for node in &facts.numa.nodes {
        line("node", &format!("{}: {} CPUs", node.id, node.cpus.len()));
    }
    match &facts.thp {
        None => line("THP", "not built in"),
        Some(thp) => {
            let sizes: Vec<String> = thp
                .sizes
                .iter()
                .map(|size| {
                    let enabled = size.enabled.map_or("unknown", |enabled| enabled.as_str());
                    format!("{} {enabled}", units::format_bytes(size.bytes))
                })
                .collect();
            let sizes = if sizes.is_empty() {
                String::new()
            } else {
                format!("; {}", sizes.join(", "))
            };
            let enabled = thp.enabled.map(|enabled| enabled.as_str());
            line(
                "THP",
                &format!(
                    "{}, defrag {}{sizes}",
                    or_unknown(enabled),
                    or_unknown(thp.defrag.as_deref())
                ),
            );
        }
    }
    for pool in &facts.hugetlb {
        line(
            "hugetlb",
            &format!(
                "{}: {} pages, {} free",
                units::format_bytes(pool.page_size_bytes),
                pool.total_pages,
                pool.free_pages
            ),
        );
    }
    line("init_on_alloc", &switch(&facts.init_on_alloc));
    line("init_on_free", &switch(&facts.init_on_free));
    line("lockdown", &or_unknown(facts.lockdown.as_deref()));
    line(
        "maps",
        &format!(
            "{:.1} MiB of at most {} MiB, for {keys} keys",
            *map_memory_bytes as f64 / f64::from(1 << 20),
            MEMORY_LIMIT_BYTES >> 20
        ),
    );
    match attached {
        Some(probes) => {
            for probe in probes {
                let site = probe.site.map_or("around clears", |site| site.name());
                let derived = if probe.derived { ", derived" } else { "" };
                line(
                    "attached",
                    &format!("{} by {} ({site}{derived})", probe.function, probe.method),
                );
            }
        }
        None => {
            for candidate in candidates {
                line("would try", candidate);
            }
        }
    }
    for refusal in refusals {
        line("refused", &refusal.to_string());
    }
    for unread in &facts.unread {
        line("unread", &format!("{}: {}", unread.path, unread.why));
    }
    for note in notes {
        line("note", &note.text);
    }
    for advice in advice {
        line("advice", advice);
    }
    line(
        "verdict",
        &obstacle
            .clone()
            .unwrap_or_else(|| "this machine can be traced".to_owned()),
    );
    if let Some(report) = strategy {
        out += &picture(report, term::columns());
    }
    out
}

/// How the page was cleared, drawn.
fn picture(report: &StrategyReport, columns: usize) -> String {
    let Some(measured) = &report.measured else {
        let why = report.not_measured.as_deref().unwrap_or_default();
        return format!("{:<14}not measured: {why}\n", "measured");
    };
    let legend = plot::legend(measured).join("\n      ");
    format!(
        "{:<14}{}\n\n{}      {legend}\n",
        "measured",
        plot::headline(measured),
        plot::plot(measured, columns)
    )
}

fn switch(switch: &Switch) -> String {
    let state = match switch.on {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown",
    };
    format!("{state} (from {})", switch.source)
}
