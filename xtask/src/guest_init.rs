//! Pid 1 of a guest: mounts what a command may need, runs it, sends what it says and how it ended
//! over the data port, and turns the machine off. See `protocol`.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStringExt as _,
            fs::{OpenOptionsExt as _, symlink},
            process::CommandExt as _,
        },
    },
    process::{ChildStderr, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    mount::MsFlags,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        reboot::{RebootMode, reboot},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        socket::{AddressFamily, SockFlag, SockType, socket},
        termios::{self, SetArg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, sethostname},
};
use xtask::protocol::{COMMAND_FILE, DATA_PORT, Frame, HELLO, MAX_PAYLOAD, MOUNTS, PATH, Status};

/// Bytes still taken from a pipe after the command has ended: more than any pipe holds by
/// default. Background processes of the command may write on for ever.
const DRAIN_BYTES: usize = 1024 * 1024;

fn main() {
    // Without a port there is nobody to tell but the console, which the host shows on failure.
    if let Err(error) = serve() {
        eprintln!("guest-init: {error:#}");
    }
    // Pid 1 must not return: the kernel would panic.
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("guest-init: cannot turn the machine off: {error}");
}

fn serve() -> Result<()> {
    for mount in MOUNTS {
        make_mount(mount.kind, mount.target)?;
    }
    // On a host, udev makes these.
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, link).with_context(|| format!("linking {link}"))?;
    }
    let mut port = open_port()?;
    port.write_all(HELLO)?;
    let last = match run(&mut port) {
        Ok(status) => Frame::Ended(status),
        Err(error) => Frame::Failed(format!("{error:#}")),
    };
    last.write(&mut port)?;
    termios::tcdrain(&port).context("draining the data port")
}

fn make_mount(kind: &str, target: &str) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("making {target}"))?;
    nix::mount::mount(
        Some(kind),
        target,
        Some(kind),
        MsFlags::empty(),
        None::<&str>,
    )
    .with_context(|| format!("mounting {kind} on {target}"))
}

/// Opens the data port for bytes: no echo, no translation of line ends.
fn open_port() -> Result<File> {
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(DATA_PORT)
        .with_context(|| format!("opening {DATA_PORT}"))?;
    let mut settings = termios::tcgetattr(&port)?;
    termios::cfmakeraw(&mut settings);
    termios::tcsetattr(&port, SetArg::TCSANOW, &settings)?;
    Ok(port)
}

/// Runs the command and sends its output until it ends.
fn run(port: &mut File) -> Result<Status> {
    sethostname("guest")?;
    raise_loopback()?;

    let bytes = fs::read(COMMAND_FILE).with_context(|| format!("reading {COMMAND_FILE}"))?;
    let mut arguments = split_arguments(bytes).into_iter();
    let program = arguments.next().context("there is no command to run")?;

    // Blocked, so that the end of a child shows up in `poll`. The command starts unblocked.
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block()?;
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;

    let mut command = Command::new(&program);
    // SAFETY: it only sets the signal mask of the new process, which may be done after a fork.
    unsafe { command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) };
    let spawned = command
        .args(arguments)
        .env_clear()
        .envs([
            ("PATH", PATH),
            ("HOME", "/root"),
            ("USER", "root"),
            ("TERM", "dumb"),
        ])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        // What a shell says and returns: this is no trouble of the guest's own.
        Err(error) => {
            let message = format!("guest: cannot run `{}`: {error}\n", program.display());
            Frame::Stderr(message.into()).write(port)?;
            let found = error.kind() != io::ErrorKind::NotFound;
            return Ok(Status::Exited(if found { 126 } else { 127 }));
        }
    };
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let mut stdout = child.stdout.take().map(Output::stdout).transpose()?;
    let mut stderr = child.stderr.take().map(Output::stderr).transpose()?;

    let mut status = None;
    while status.is_none() {
        let mut waiting = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        waiting.extend(stdout.iter().map(Output::poll));
        waiting.extend(stderr.iter().map(Output::poll));
        match poll(&mut waiting, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => bail!("waiting for the command: {error}"),
        }
        while signals.read_signal()?.is_some() {}
        status = reap(pid)?;
        let limit = if status.is_some() {
            DRAIN_BYTES
        } else {
            MAX_PAYLOAD
        };
        forward(&mut stdout, port, limit)?;
        forward(&mut stderr, port, limit)?;
    }
    status.context("the command has no status")
}

/// Takes the status of every child that has ended, orphans too; returns that of `command`.
fn reap(command: Pid) -> Result<Option<Status>> {
    let mut status = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => {
                status = Some(Status::Exited(u8::try_from(code)?));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                status = Some(Status::Killed(u8::try_from(signal as i32)?));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => bail!("waiting for children: {error}"),
        }
    }
}

/// Our end of the command's stdout or stderr, and the frame that carries it.
struct Output {
    pipe: File,
    frame: fn(Vec<u8>) -> Frame,
}

impl Output {
    fn stdout(pipe: ChildStdout) -> Result<Self> {
        Self::new(OwnedFd::from(pipe).into(), Frame::Stdout)
    }

    fn stderr(pipe: ChildStderr) -> Result<Self> {
        Self::new(OwnedFd::from(pipe).into(), Frame::Stderr)
    }

    fn new(pipe: File, frame: fn(Vec<u8>) -> Frame) -> Result<Self> {
        // Only our end: the command's writes still block when the pipe is full.
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { pipe, frame })
    }

    fn poll(&self) -> PollFd<'_> {
        PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)
    }
}

/// Sends what the pipe holds, up to about `limit` bytes; drops the pipe at its end.
fn forward(output: &mut Option<Output>, port: &mut File, limit: usize) -> Result<()> {
    let mut sent = 0;
    let mut buffer = vec![0; MAX_PAYLOAD];
    while sent < limit
        && let Some(Output { pipe, frame }) = output
    {
        match pipe.read(&mut buffer) {
            Ok(0) => *output = None,
            Ok(length) => {
                frame(buffer[..length].to_vec()).write(port)?;
                sent += length;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading from the command"),
        }
    }
    Ok(())
}

/// The arguments in `bytes`, each of which ends with a NUL.
fn split_arguments(bytes: Vec<u8>) -> Vec<OsString> {
    let mut arguments: Vec<_> = bytes
        .split(|&byte| byte == 0)
        .map(|argument| OsString::from_vec(argument.to_vec()))
        .collect();
    // Behind the last NUL.
    arguments.pop();
    arguments
}

/// Turns the loopback interface on, as every host has it.
fn raise_loopback() -> Result<()> {
    nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);

    let any = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(b"lo") {
        *to = (*from).cast_signed();
    }
    let up = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING)?;
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: up },
    };
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives here, and the socket is open.
    unsafe { set_interface_flags(any.as_raw_fd(), &raw const request) }
        .context("turning the loopback interface on")?;
    Ok(())
}
