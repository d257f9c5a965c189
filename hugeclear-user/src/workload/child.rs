//! The pass of `fork-cow`: a child writes to what its parent has filled.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::AsFd as _,
    time::Instant,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::{ForkResult, fork},
};

use super::{
    Error, Plan,
    account::Account,
    area::Area,
    run::{self, Counted, Pass},
    signals::Signals,
};

/// How often a parent looks for signals while its child works.
const LOOK_MS: u16 = 50;

/// Fills memory, and has a child go over it. The buffer is shared with the child.
pub(super) fn pass(
    plan: &Plan,
    account: &Account,
    buffer: &mut [u64],
    deadline: Option<Instant>,
    signals: &Signals,
    counted: &mut Counted,
) -> Result<Pass, Error> {
    let mut area = Area::new(plan)?;
    area.fill(plan);
    let filled = area
        .pages(plan, &Account::of_parent(plan))?
        .unwrap_or_else(|| plan.touched_pages());
    let work = || run_child(plan, account, &mut area, buffer, deadline, signals);
    counted.during(work).map(|pass| Pass { filled, ..pass })
}

fn run_child(
    plan: &Plan,
    account: &Account,
    area: &mut Area,
    buffer: &mut [u64],
    deadline: Option<Instant>,
    signals: &Signals,
) -> Result<Pass, Error> {
    let failed = |call: &'static str| {
        move |error| Error::SystemCall {
            call,
            what: "a child that writes".to_owned(),
            error,
            hint: "",
        }
    };
    let (mut reader, mut writer) = io::pipe().map_err(|error| Error::Child(error.to_string()))?;
    // SAFETY: the child uses threads, memory and files as any process does; glibc makes its allocator
    // fit for that after a fork, and our other threads hold no lock of ours.
    match unsafe { fork() }.map_err(failed("fork"))? {
        ForkResult::Child => {
            drop(reader);
            let passed = run::pass(plan, account, area, buffer, deadline, signals)
                .map_err(|error| error.to_string());
            let written = serde_json::to_vec(&passed)
                .map_err(io::Error::from)
                .and_then(|text| writer.write_all(&text));
            // No destructors: settings and neighbours are the parent's.
            // SAFETY: nothing of this process is needed any more.
            unsafe { libc::_exit(i32::from(written.is_err())) }
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut text = Vec::new();
            let mut is_told = false;
            loop {
                let mut ready = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
                match poll(&mut ready, PollTimeout::from(LOOK_MS)) {
                    Ok(0) | Err(nix::Error::EINTR) => {}
                    Ok(_) => break,
                    Err(error) => return Err(failed("poll")(error)),
                }
                if signals.seen().is_some() && !is_told {
                    is_told = kill(child, Signal::SIGTERM).is_ok();
                }
            }
            let read = reader.read_to_end(&mut text);
            waitpid(child, None).map_err(failed("waitpid"))?;
            let passed: Result<Pass, String> = read
                .map_err(|error| error.to_string())
                .and_then(|_| serde_json::from_slice(&text).map_err(|error| error.to_string()))
                .and_then(|passed| passed);
            passed.map_err(Error::Child)
        }
    }
}
