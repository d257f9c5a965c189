//! Runs one command on one kernel, in an emulated machine, and says how it ended.

use std::{
    ffi::OsStr,
    fmt,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

pub use crate::protocol::Status;
use crate::{
    console::Console,
    initramfs::{Added, Base, command_archive},
    protocol::{Frame, read_hello},
    qemu::{Clock, Machine, Ports},
};

/// How long a guest may take by default, from its start to the end of the command.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// CPUs of a guest by default.
pub const DEFAULT_CPUS: u32 = 2;
/// Memory of a guest by default. A kernel with 512 MiB or less turns THP off.
pub const DEFAULT_MEMORY_MIB: u32 = 2048;

/// Once the kernel has said that it is broken: time for the rest of what it has to say.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// An emulated machine, to be described and then run once.
///
/// ```no_run
/// # fn main() -> anyhow::Result<()> {
/// use xtask::{initramfs::Base, vm::Guest};
///
/// let base = Base::build()?; // once per process
/// let outcome = Guest::new(&base, "/boot/vmlinuz")
///     .append("init_on_alloc=0")
///     .run(&["hugeclear-trace", "doctor"])?;
/// assert!(outcome.status.success(), "{outcome}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Guest {
    base: Base,
    machine: Machine,
    added: Vec<Added>,
    timeout: Duration,
}

/// What a command did in a guest.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the command ended.
    pub status: Status,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
    /// What the kernel wrote to its console.
    pub console: String,
    /// From the start of QEMU to the end of the command.
    pub elapsed: Duration,
}

/// The end of a command whose output was streamed.
#[derive(Clone, Debug)]
pub struct Ended {
    /// How the command ended.
    pub status: Status,
    /// What the kernel wrote to its console.
    pub console: String,
    /// From the start of QEMU to the end of the command.
    pub elapsed: Duration,
}

/// Which of the command's outputs bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The guest, not the command, went wrong: it did not boot, panicked, hung or took too long.
#[derive(Clone, Debug)]
pub struct Trouble {
    what: String,
    console_tail: String,
}

impl std::error::Error for Trouble {}

impl fmt::Display for Trouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, console_tail } = self;
        if console_tail.is_empty() {
            return write!(formatter, "{what}; its console is empty");
        }
        let tail = console_tail.trim_end();
        write!(formatter, "{what}; its console ends with:\n{tail}")
    }
}

impl fmt::Display for Outcome {
    /// All of it, for the message of a failed test.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            status,
            stdout,
            stderr,
            console,
            elapsed,
        } = self;
        writeln!(formatter, "{status:?} after {elapsed:.1?}")?;
        let stdout = String::from_utf8_lossy(stdout);
        let stderr = String::from_utf8_lossy(stderr);
        for (name, text) in [
            ("stdout", &*stdout),
            ("stderr", &*stderr),
            ("console", console),
        ] {
            writeln!(formatter, "--- {name}\n{}", text.trim_end())?;
        }
        Ok(())
    }
}

impl Guest {
    /// A guest that boots `kernel` (a bzImage) with the file system `base`.
    pub fn new(base: &Base, kernel: impl Into<PathBuf>) -> Self {
        Self {
            base: base.clone(),
            machine: Machine {
                kernel: kernel.into(),
                append: Vec::new(),
                cpus: DEFAULT_CPUS,
                memory_mib: DEFAULT_MEMORY_MIB,
                nodes: 1,
                clock: Clock::Host,
            },
            added: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Adds to the kernel's command line.
    #[must_use]
    pub fn append(mut self, words: impl Into<String>) -> Self {
        self.machine.append.push(words.into());
        self
    }

    /// Sets the number of CPUs.
    #[must_use]
    pub fn smp(mut self, cpus: u32) -> Self {
        self.machine.cpus = cpus;
        self
    }

    /// Sets the memory of all nodes together, in MiB.
    #[must_use]
    pub fn memory_mib(mut self, memory: u32) -> Self {
        self.machine.memory_mib = memory;
        self
    }

    /// Splits memory and CPUs over so many NUMA nodes.
    #[must_use]
    pub fn numa(mut self, nodes: u32) -> Self {
        self.machine.nodes = nodes;
        self
    }

    /// Lets the guest's clock count instructions, on one CPU: durations repeat.
    #[must_use]
    pub fn icount(mut self) -> Self {
        self.machine.clock = Clock::Instructions;
        self.machine.cpus = 1;
        self
    }

    /// Puts a file of the host into the guest, with the shared libraries it needs.
    #[must_use]
    pub fn add_file(mut self, added: Added) -> Self {
        self.added.push(added);
        self
    }

    /// Sets how long the guest may take, boot included.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Boots the guest, runs `command` in it as root and collects what it says.
    ///
    /// # Errors
    /// [`Trouble`] if the guest went wrong, other errors if it could not be started. A command
    /// that fails is no error.
    pub fn run<S: AsRef<OsStr>>(&self, command: &[S]) -> Result<Outcome> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let ended = self.run_streaming(command, |stream, bytes| {
            match stream {
                Stream::Stdout => stdout.extend(bytes),
                Stream::Stderr => stderr.extend(bytes),
            }
            Ok(())
        })?;
        let Ended {
            status,
            console,
            elapsed,
        } = ended;
        Ok(Outcome {
            status,
            stdout,
            stderr,
            console,
            elapsed,
        })
    }

    /// As [`Guest::run`], but hands what the command says to `sink` as it comes.
    ///
    /// # Errors
    /// Those of [`Guest::run`], and those of `sink`, which end the guest.
    pub fn run_streaming<S: AsRef<OsStr>>(
        &self,
        command: &[S],
        mut sink: impl FnMut(Stream, &[u8]) -> Result<()>,
    ) -> Result<Ended> {
        let Self {
            base,
            machine,
            added,
            timeout,
        } = self;
        check(machine)?;
        let command = command_archive(command, added)?;

        let started = Instant::now();
        let mut qemu = machine.start(&[base.bytes(), &command])?;
        let events = listen(qemu.take_ports()?);

        let mut deadline = started + *timeout;
        let mut console = Console::default();
        let mut booted = false;
        let mut last = None;
        let end = loop {
            let event = events.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            match event {
                Ok(Event::Console(bytes)) => {
                    console.push(&bytes);
                    if console.trouble().is_some() {
                        deadline = deadline.min(Instant::now() + LAST_WORDS);
                    }
                }
                Ok(Event::Booted) => booted = true,
                Ok(Event::Frame(Frame::Stdout(bytes))) => sink(Stream::Stdout, &bytes)?,
                Ok(Event::Frame(Frame::Stderr(bytes))) => sink(Stream::Stderr, &bytes)?,
                Ok(Event::Frame(frame @ (Frame::Ended(_) | Frame::Failed(_)))) => {
                    last = Some(frame);
                    break End::Verdict;
                }
                Err(RecvTimeoutError::Timeout) => break End::Deadline,
                Ok(Event::DataEnded) | Err(RecvTimeoutError::Disconnected) => break End::Gone,
            }
        };
        let elapsed = started.elapsed();

        // With the verdict everything has been said: there is no need to wait for power-off.
        let (exit, complaints) = qemu.stop()?;
        for event in events {
            if let Event::Console(bytes) = event {
                console.push(&bytes);
            }
        }

        let name = kernel_name(&machine.kernel);
        let what = match (console.trouble(), last, end) {
            (Some(line), ..) => format!("the kernel of guest {name} broke down: `{line}`"),
            (None, Some(Frame::Ended(status)), _) => {
                return Ok(Ended {
                    status,
                    console: console.text(),
                    elapsed,
                });
            }
            (None, Some(Frame::Failed(why)), _) => {
                format!("guest {name} could not run the command: {why}")
            }
            (None, _, End::Deadline) if booted => format!(
                "the command did not end within {timeout:?} in guest {name}; give it more time or \
                 find out what it waits for"
            ),
            (None, _, End::Deadline) => {
                format!("guest {name} did not boot within {timeout:?}; give it more time")
            }
            (None, _, End::Verdict | End::Gone) if complaints.is_empty() => {
                format!("guest {name} ended without a verdict ({exit})")
            }
            (None, _, End::Verdict | End::Gone) => {
                format!("QEMU could not run guest {name} ({exit}): {complaints}")
            }
        };
        Err(Trouble {
            what,
            console_tail: console.tail(),
        }
        .into())
    }
}

/// Why we stopped listening to a guest.
enum End {
    /// The last frame came.
    Verdict,
    /// The time is up.
    Deadline,
    /// The data port ended, or carries something else than frames.
    Gone,
}

/// Refuses a machine that QEMU or the kernel could not run, with a clearer word than theirs.
fn check(machine: &Machine) -> Result<()> {
    let Machine {
        kernel,
        append: _,
        cpus,
        memory_mib,
        nodes,
        clock,
    } = machine;
    ensure!(
        kernel.is_file(),
        "there is no kernel image {}",
        kernel.display()
    );
    ensure!(*cpus > 0 && *nodes > 0, "a guest needs a CPU and a node");
    ensure!(
        *clock == Clock::Host || *cpus == 1,
        "a guest whose clock counts instructions has one CPU, not {cpus}"
    );
    ensure!(
        memory_mib / nodes >= 128,
        "{memory_mib} MiB are too little for a guest with {nodes} node(s)"
    );
    Ok(())
}

/// What a guest is called in errors: the release, where the cache's folder has it.
fn kernel_name(kernel: &Path) -> String {
    let folder = kernel.parent().and_then(Path::file_name);
    let name = match kernel.file_name() {
        Some(name) if name == "vmlinuz" => folder.unwrap_or(name),
        Some(name) => name,
        None => kernel.as_os_str(),
    };
    name.to_string_lossy().into_owned()
}

/// Something a guest said.
enum Event {
    Console(Vec<u8>),
    Booted,
    Frame(Frame),
    DataEnded,
}

/// Listens to both ports. The events end when QEMU has closed them.
fn listen(ports: Ports) -> mpsc::Receiver<Event> {
    let Ports { console, data } = ports;
    let (to_us, events) = mpsc::channel();
    let to_us_too = to_us.clone();
    thread::spawn(move || listen_to_console(console, &to_us));
    thread::spawn(move || listen_to_data(data, &to_us_too));
    events
}

fn listen_to_console(mut port: impl std::io::Read, events: &Sender<Event>) {
    let mut buffer = [0; 4096];
    // An error is the end of QEMU too; nobody listens any more if sending fails.
    while let Ok(length @ 1..) = port.read(&mut buffer) {
        if events
            .send(Event::Console(buffer[..length].into()))
            .is_err()
        {
            return;
        }
    }
}

fn listen_to_data(port: impl std::io::Read, events: &Sender<Event>) {
    let mut port = std::io::BufReader::new(port);
    // Sending fails once nobody listens any more, and then the port is about to end anyhow.
    if read_hello(&mut port).is_ok() {
        let _ = events.send(Event::Booted);
        while let Ok(frame) = Frame::read(&mut port) {
            let _ = events.send(Event::Frame(frame));
        }
    }
    let _ = events.send(Event::DataEnded);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_called_by_its_release() {
        let cached = Path::new("/cache/kernels/linux-image-6.1_6.1.9-1/vmlinuz");
        assert_eq!(kernel_name(cached), "linux-image-6.1_6.1.9-1");
        let named = Path::new("/boot/vmlinuz-6.1");
        assert_eq!(kernel_name(named), "vmlinuz-6.1");
    }

    #[test]
    fn trouble_shows_the_console() {
        let trouble = Trouble {
            what: "guest 6.1 ended".into(),
            console_tail: "    a\n    b\n".into(),
        };
        assert_eq!(
            trouble.to_string(),
            "guest 6.1 ended; its console ends with:\n    a\n    b"
        );
    }
}
