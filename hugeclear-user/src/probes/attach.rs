//! Attaching: the one place that loads programs and holds their links.

use std::os::fd::AsFd as _;

use aya::{
    Btf, Ebpf,
    programs::{
        BtfTracePoint, FEntry, FExit, KProbe, Program, ProgramError, fentry::FEntryLink,
        fexit::FExitLink, kprobe::KProbeLink, tp_btf::BtfTracePointLink,
    },
};
use hugeclear_ebpf::config::Pair;

use super::{
    program_info,
    select::{Method, Probe},
};
use crate::facts::Facts;

/// A program that is attached while this lives.
pub(super) struct Attachment {
    /// Name of the program in the object.
    program: &'static str,
    link: Option<Link>,
}

/// Held for its drop, which detaches.
#[expect(dead_code, reason = "links are owned for the sake of their drop")]
enum Link {
    Fentry(FEntryLink),
    Fexit(FExitLink),
    Kprobe(KProbeLink),
    Tracepoint(BtfTracePointLink),
}

impl Attachment {
    /// Detaches the program; it stays loaded.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    /// Runs of the program that the kernel skipped; `None` if it does not count them.
    pub(super) fn skipped(&self, ebpf: &Ebpf) -> Option<u64> {
        let fd = ebpf.program(self.program)?.fd().ok()?;
        program_info::recursion_misses(fd.as_fd()).ok()?
    }
}

/// Names of a pair's programs: fentry, fexit, kprobe, kretprobe. As in `hugeclear-ebpf/src/main.rs`.
const fn programs(pair: Pair) -> [&'static str; 4] {
    macro_rules! names {
        ($name:literal) => {
            [
                concat!($name, "_fentry"),
                concat!($name, "_fexit"),
                concat!($name, "_kprobe"),
                concat!($name, "_kretprobe"),
            ]
        };
    }
    match pair {
        Pair::Clear => names!("clear"),
        Pair::ClearGigantic => names!("gigantic"),
        Pair::Allocator => names!("allocator"),
        Pair::Copy => names!("copy"),
        Pair::HugeZeroPage => names!("zero_page"),
        Pair::ThpFault => names!("thp"),
        Pair::AnonFault => names!("anon"),
        Pair::HugetlbFault => names!("hugetlb"),
        Pair::Fallocate => names!("fallocate"),
        Pair::Memfd => names!("memfd"),
        Pair::Compaction => names!("compaction"),
        Pair::Reclaim => names!("reclaim"),
        Pair::CgroupReclaim => names!("cgroup_reclaim"),
        Pair::WriteFault => names!("write"),
    }
}

/// Attaches both programs of a pair: the exit first, so that no clear is seen to begin whose end
/// cannot be seen.
pub(super) fn attach_pair(
    ebpf: &mut Ebpf,
    btf: Option<&Btf>,
    probe: &Probe,
    method: Method,
) -> Result<[Attachment; 2], ProgramError> {
    let [fentry, fexit, kprobe, kretprobe] = programs(probe.pair);
    let (entry, exit) = match method {
        Method::Fentry => (fentry, fexit),
        Method::Kprobe => (kprobe, kretprobe),
    };
    load(ebpf, btf, entry, &probe.function)?;
    load(ebpf, btf, exit, &probe.function)?;
    let exit = attach(ebpf, exit, &probe.function)?;
    let entry = attach(ebpf, entry, &probe.function)?;
    Ok([entry, exit])
}

/// Attaches the program that follows switches of the preemption model.
pub(super) fn attach_preempt_switch(
    ebpf: &mut Ebpf,
    btf: Option<&Btf>,
    probe: &Probe,
    method: Method,
) -> Result<Attachment, ProgramError> {
    let program = match method {
        Method::Fentry => "preempt_fexit",
        Method::Kprobe => "preempt_kretprobe",
    };
    load(ebpf, btf, program, &probe.function)?;
    attach(ebpf, program, &probe.function)
}

/// The scheduler's tracepoints and their programs, in the order in which to attach them: no task is seen
/// to begin to wait whose end cannot be seen.
pub(super) const SCHED_IMPACT: [(&str, &str); 4] = [
    ("sched_switch", "impact_switch"),
    ("sched_migrate_task", "impact_migrate"),
    ("sched_wakeup_new", "impact_wakeup_new"),
    ("sched_wakeup", "impact_wakeup"),
];

/// Attaches one of [`SCHED_IMPACT`].
pub(super) fn attach_tracepoint(
    ebpf: &mut Ebpf,
    btf: Option<&Btf>,
    tracepoint: &str,
    program: &'static str,
) -> Result<Attachment, ProgramError> {
    load(ebpf, btf, program, tracepoint)?;
    attach(ebpf, program, tracepoint)
}

fn load(
    ebpf: &mut Ebpf,
    btf: Option<&Btf>,
    name: &'static str,
    function: &str,
) -> Result<(), ProgramError> {
    let missing_btf = || {
        ProgramError::Btf(aya::BtfError::UnknownBtfTypeName {
            type_name: function.to_owned(),
        })
    };
    match program(ebpf, name) {
        Program::FEntry(program) => program.load(function, btf.ok_or_else(missing_btf)?),
        Program::FExit(program) => program.load(function, btf.ok_or_else(missing_btf)?),
        Program::KProbe(program) => program.load(),
        Program::BtfTracePoint(program) => program.load(function, btf.ok_or_else(missing_btf)?),
        other => unreachable!("{name} is a {:?} program", other.prog_type()),
    }
}

fn attach(ebpf: &mut Ebpf, name: &'static str, function: &str) -> Result<Attachment, ProgramError> {
    let link = match program(ebpf, name) {
        Program::FEntry(program) => {
            let id = FEntry::attach(program)?;
            Link::Fentry(program.take_link(id)?)
        }
        Program::FExit(program) => {
            let id = FExit::attach(program)?;
            Link::Fexit(program.take_link(id)?)
        }
        Program::KProbe(program) => {
            let id = KProbe::attach(program, function, 0)?;
            Link::Kprobe(program.take_link(id)?)
        }
        Program::BtfTracePoint(program) => {
            let id = BtfTracePoint::attach(program)?;
            Link::Tracepoint(program.take_link(id)?)
        }
        other => unreachable!("{name} is a {:?} program", other.prog_type()),
    };
    Ok(Attachment {
        program: name,
        link: Some(link),
    })
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Program {
    ebpf.program_mut(name)
        .expect("the object is built from the same source tree")
}

/// Why the kernel refused, in a few words.
pub(super) fn reason(error: &ProgramError, method: Method, facts: &Facts) -> String {
    let errno = |io: &std::io::Error| match io.raw_os_error() {
        // Privileges were checked before: something else forbids it.
        Some(libc::EPERM) => match facts.lockdown.as_deref() {
            Some(mode) if mode != "none" => {
                format!("forbidden on this machine (EPERM; lockdown={mode})")
            }
            Some(_) => {
                "forbidden on this machine (EPERM; by a security module, or seccomp)".to_owned()
            }
            None => "forbidden on this machine (EPERM; by kernel lockdown or a security module: \
                     securityfs, which would tell, is not mounted)"
                .to_owned(),
        },
        Some(libc::ENOENT) => "the kernel does not know the function (ENOENT)".to_owned(),
        Some(libc::EADDRNOTAVAIL) => {
            "several functions have this name, or it cannot be probed (EADDRNOTAVAIL)".to_owned()
        }
        Some(libc::EBUSY) => "not traceable, or held by another tool (EBUSY)".to_owned(),
        Some(libc::EINVAL) => match method {
            Method::Fentry => {
                "this kernel has no fentry, or refuses the program (EINVAL)".to_owned()
            }
            Method::Kprobe => "not traceable (EINVAL)".to_owned(),
        },
        Some(524) => "this architecture has no fentry here (ENOTSUPP)".to_owned(),
        _ => io.to_string(),
    };
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            let log = verifier_log.to_string();
            let tail: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
            let tail = tail[tail.len().saturating_sub(10)..].join(" | ");
            if tail.is_empty() {
                errno(io_error)
            } else {
                format!("refused by the verifier: {tail}")
            }
        }
        ProgramError::SyscallError(error) => errno(&error.io_error),
        ProgramError::KProbeError(error) => {
            format!("this kernel has no kprobes (CONFIG_KPROBE_EVENTS): {error}")
        }
        ProgramError::Btf(error) => format!("not in the kernel's BTF: {error}"),
        other => other.to_string(),
    }
}
