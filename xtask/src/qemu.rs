//! QEMU: the arguments for a guest, and the process with its two ports.
//!
//! Guests are emulated (TCG), so that they run where there is no KVM. `thread=single` on purpose:
//! under `thread=multi` about one boot in 25 dies while the kernel patches its own text.

use std::{
    ffi::OsString,
    io::Read as _,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use nix::sys::{memfd, prctl, signal::Signal};

/// The emulator, looked up on the PATH.
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";

/// How to tell QEMU what to emulate.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Kernel image.
    pub(crate) kernel: PathBuf,
    /// Added to the kernel's command line.
    pub(crate) append: Vec<String>,
    /// CPUs, at least 1.
    pub(crate) cpus: u32,
    /// Memory of all nodes together.
    pub(crate) memory_mib: u32,
    /// NUMA nodes; 1 for a machine without NUMA.
    pub(crate) nodes: u32,
    /// Whether the guest's clock counts instructions.
    pub(crate) clock: Clock,
}

/// What the guest's clock follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The host's clock.
    Host,
    /// One nanosecond per instruction, whatever the host does meanwhile: durations repeat to
    /// about 10 instructions. Idle time is skipped.
    Instructions,
}

impl Machine {
    /// QEMU's arguments. The data port is expected on its file descriptor 0, the console on 1.
    fn arguments(&self, initrd: &Path) -> Vec<OsString> {
        let Self {
            kernel,
            append,
            cpus,
            memory_mib,
            nodes,
            clock,
        } = self;
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-nodefaults", "-no-user-config", "-display", "none"]);
        add(&["-no-reboot", "-cpu", "max", "-accel", "tcg,thread=single"]);
        if *clock == Clock::Instructions {
            add(&["-icount", "shift=0,sleep=off"]);
        }
        add(&["-smp", &cpus.to_string(), "-m", &format!("{memory_mib}M")]);
        if *nodes > 1 {
            for node in 0..*nodes {
                let size = share(*memory_mib, *nodes, node);
                let first_cpu: u32 = (0..node).map(|node| share(*cpus, *nodes, node)).sum();
                let cpus = (first_cpu..first_cpu + share(*cpus, *nodes, node))
                    .map(|cpu| format!(",cpus={cpu}"))
                    .collect::<String>();
                add(&[
                    "-object",
                    &format!("memory-backend-ram,id=m{node},size={size}M"),
                    "-numa",
                    &format!("node,nodeid={node},memdev=m{node}{cpus}"),
                ]);
            }
        }
        // Two ports on two interrupts: more would have to share one, which ISA does badly.
        add(&["-chardev", "socket,id=console,fd=1"]);
        add(&["-serial", "chardev:console"]);
        add(&["-chardev", "socket,id=data,fd=0"]);
        add(&["-serial", "chardev:data"]);
        // On a busy host the emulated timer can be late, and the kernel's check of it ends in a panic.
        let mut command_line = String::from("console=ttyS0 quiet panic=-1 no_timer_check");
        for word in append {
            command_line.push(' ');
            command_line.push_str(word);
        }
        add(&["-append", &command_line, "-kernel"]);
        arguments.push(kernel.into());
        arguments.push("-initrd".into());
        arguments.push(initrd.into());
        arguments
    }

    /// Starts the guest with `initrd` as its initramfs. The guest ends when the returned value is
    /// dropped, and at the latest with the calling thread.
    pub(crate) fn start(&self, initrd: &[&[u8]]) -> Result<Qemu> {
        // In memory and found through our own /proc: nothing is left behind, however we end.
        let mut file = std::fs::File::from(
            memfd::memfd_create(c"initramfs", memfd::MFdFlags::MFD_CLOEXEC)
                .context("cannot make a file in memory for the initramfs")?,
        );
        for part in initrd {
            std::io::Write::write_all(&mut file, part)
                .context("cannot write the initramfs to memory")?;
        }
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());

        let (data, data_of_qemu) = UnixStream::pair()?;
        let (console, console_of_qemu) = UnixStream::pair()?;
        let mut command = Command::new(PROGRAM);
        command
            .args(self.arguments(Path::new(&path)))
            .stdin(Stdio::from(OwnedFd::from(data_of_qemu)))
            .stdout(Stdio::from(OwnedFd::from(console_of_qemu)))
            .stderr(Stdio::piped());
        // SAFETY: between fork and exec only prctl(2) is called, which is a plain system call.
        unsafe {
            command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        let mut child = command.spawn().with_context(|| {
            format!("cannot start {PROGRAM}; `cargo xtask setup` installs what is missing")
        })?;
        // QEMU's ends live on in `command`, and then no reader would see their end.
        drop(command);

        let stderr = child.stderr.take();
        let complaints = thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stderr) = stderr {
                // What can be read of a process that is about to end is enough.
                let _ = stderr.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).trim().to_owned()
        });
        Ok(Qemu {
            child,
            ports: Some(Ports { console, data }),
            complaints: Some(complaints),
            _initrd: file,
        })
    }
}

/// The part of `total` that node `node` of `nodes` gets; the first nodes get the remainder.
fn share(total: u32, nodes: u32, node: u32) -> u32 {
    total / nodes + u32::from(node < total % nodes)
}

/// Our ends of a guest's serial ports.
pub(crate) struct Ports {
    /// What the kernel says.
    pub(crate) console: UnixStream,
    /// The frames of pid 1.
    pub(crate) data: UnixStream,
}

/// A running guest. Dropping it kills it.
pub(crate) struct Qemu {
    child: Child,
    ports: Option<Ports>,
    complaints: Option<JoinHandle<String>>,
    _initrd: std::fs::File,
}

impl Qemu {
    /// The ports, once.
    pub(crate) fn take_ports(&mut self) -> Result<Ports> {
        self.ports.take().context("the ports are already taken")
    }

    /// Kills the guest if it still runs; returns QEMU's status and what it said on stderr.
    pub(crate) fn stop(&mut self) -> Result<(ExitStatus, String)> {
        self.child.kill().context("cannot stop QEMU")?;
        let status = self.child.wait().context("cannot wait for QEMU")?;
        let complaints = self
            .complaints
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default();
        Ok((status, complaints))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Nothing is left to do for a process that cannot be killed or waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            kernel: "/boot/vmlinuz".into(),
            append: Vec::new(),
            cpus: 2,
            memory_mib: 2048,
            nodes: 1,
            clock: Clock::Host,
        }
    }

    fn line(machine: &Machine) -> String {
        machine
            .arguments(Path::new("/initrd"))
            .join(std::ffi::OsStr::new(" "))
            .into_string()
            .unwrap()
    }

    #[test]
    fn a_plain_machine() {
        assert_eq!(
            line(&machine()),
            "-nodefaults -no-user-config -display none -no-reboot -cpu max \
             -accel tcg,thread=single -smp 2 -m 2048M \
             -chardev socket,id=console,fd=1 -serial chardev:console \
             -chardev socket,id=data,fd=0 -serial chardev:data \
             -append console=ttyS0 quiet panic=-1 no_timer_check -kernel /boot/vmlinuz -initrd /initrd"
        );
    }

    #[test]
    fn the_command_line_of_the_kernel_is_one_argument() {
        let machine = Machine {
            append: vec!["init_on_alloc=0".into(), "preempt=full quiet".into()],
            clock: Clock::Instructions,
            cpus: 1,
            ..machine()
        };
        let arguments = machine.arguments(Path::new("/initrd"));
        let append = arguments.iter().position(|word| word == "-append").unwrap();
        assert_eq!(
            arguments[append + 1],
            "console=ttyS0 quiet panic=-1 no_timer_check init_on_alloc=0 preempt=full quiet"
        );
        assert!(line(&machine).contains("-icount shift=0,sleep=off -smp 1"));
    }

    #[test]
    fn nodes_share_memory_and_cpus() {
        let two = line(&Machine {
            nodes: 2,
            memory_mib: 4096,
            ..machine()
        });
        assert!(
            two.contains(
                "-object memory-backend-ram,id=m0,size=2048M -numa node,nodeid=0,memdev=m0,cpus=0 \
                 -object memory-backend-ram,id=m1,size=2048M -numa node,nodeid=1,memdev=m1,cpus=1"
            ),
            "{two}"
        );

        let uneven = line(&Machine {
            nodes: 3,
            memory_mib: 1000,
            cpus: 4,
            ..machine()
        });
        assert!(uneven.contains("size=334M -numa node,nodeid=0,memdev=m0,cpus=0,cpus=1"));
        assert!(uneven.contains("size=333M -numa node,nodeid=2,memdev=m2,cpus=3"));

        let more_nodes_than_cpus = line(&Machine {
            nodes: 3,
            ..machine()
        });
        assert!(more_nodes_than_cpus.contains("nodeid=2,memdev=m2 -chardev"));
    }
}
