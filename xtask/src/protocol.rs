//! What the host and pid 1 of a guest agree on: where the command lies in the initramfs, which
//! file systems are mounted, and the frames on the data port.
//!
//! One serial port carries everything that the command says, in frames. So no byte of it can mix
//! with the console, the order of stdout and stderr is kept, and once the verdict has arrived
//! nothing that was said before it can be missing.

use std::io::{self, Read, Write};

/// The command to run, as bytes: each argument followed by a NUL, which no argument can contain.
pub const COMMAND_FILE: &str = "/etc/guest/command";

/// The guest's end of the data port. The first port, `ttyS0`, is the console.
pub const DATA_PORT: &str = "/dev/ttyS1";

/// What the command finds in PATH.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Sent once before the first frame. The kernel writes to the port when it looks for a UART, so
/// the host skips all that comes before this.
pub const HELLO: &[u8] = b"\0hugeclear-trace guest 1\n";

/// The largest payload of a frame, in bytes: what one read from the command's pipe may give.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// A file system that pid 1 mounts before it runs the command.
#[derive(Clone, Copy, Debug)]
pub struct Mount {
    /// Type, as in /proc/filesystems.
    pub kind: &'static str,
    /// Where to.
    pub target: &'static str,
}

/// The file systems of a guest, in the order they are mounted.
pub const MOUNTS: [Mount; 11] = [
    mount("devtmpfs", "/dev"),
    mount("devpts", "/dev/pts"),
    mount("tmpfs", "/dev/shm"),
    mount("proc", "/proc"),
    mount("sysfs", "/sys"),
    mount("debugfs", "/sys/kernel/debug"),
    mount("tracefs", "/sys/kernel/tracing"),
    mount("cgroup2", "/sys/fs/cgroup"),
    mount("bpf", "/sys/fs/bpf"),
    mount("tmpfs", "/tmp"),
    mount("tmpfs", "/run"),
];

const fn mount(kind: &'static str, target: &'static str) -> Mount {
    Mount { kind, target }
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It returned this exit status.
    Exited(u8),
    /// This signal killed it.
    Killed(u8),
}

impl Status {
    /// Whether the exit status is 0.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The exit status a shell would give: 128 + signal for a killed command.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => signal.saturating_add(128),
        }
    }
}

/// One message from the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes that the command wrote to stdout.
    Stdout(Vec<u8>),
    /// Bytes that the command wrote to stderr.
    Stderr(Vec<u8>),
    /// The command ended; the last frame.
    Ended(Status),
    /// Pid 1 could not do its work, and says why; the last frame.
    Failed(String),
}

impl Frame {
    /// Writes the frame: its kind (1 byte), the payload's length (4 bytes, little-endian), the
    /// payload.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        let status;
        let (kind, payload): (u8, &[u8]) = match self {
            Self::Stdout(bytes) => (1, bytes),
            Self::Stderr(bytes) => (2, bytes),
            Self::Ended(Status::Exited(code)) => {
                status = [*code];
                (3, &status)
            }
            Self::Ended(Status::Killed(signal)) => {
                status = [*signal];
                (4, &status)
            }
            Self::Failed(why) => (5, why.as_bytes()),
        };
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(payload.len() + 5);
        frame.push(kind);
        frame.extend(length.to_le_bytes());
        frame.extend(payload);
        writer.write_all(&frame)
    }

    /// Reads one frame, as [`Frame::write`] writes it.
    ///
    /// # Errors
    /// Those of `reader`, `UnexpectedEof` at its end, `InvalidData` for bytes that are no frame.
    pub fn read(reader: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; 5];
        reader.read_exact(&mut header)?;
        let [kind, length @ ..] = header;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_PAYLOAD {
            return Err(invalid(format!("a frame of {length} bytes")));
        }
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload)?;
        match (kind, payload.as_slice()) {
            (1, _) => Ok(Self::Stdout(payload)),
            (2, _) => Ok(Self::Stderr(payload)),
            (3, &[code]) => Ok(Self::Ended(Status::Exited(code))),
            (4, &[signal]) => Ok(Self::Ended(Status::Killed(signal))),
            (5, text) => Ok(Self::Failed(String::from_utf8_lossy(text).into_owned())),
            (_, payload) => Err(invalid(format!(
                "a frame of kind {kind} with {} bytes",
                payload.len()
            ))),
        }
    }
}

/// Reads up to and including [`HELLO`].
///
/// # Errors
/// Those of `reader`, `UnexpectedEof` if [`HELLO`] never comes.
pub fn read_hello(reader: &mut impl Read) -> io::Result<()> {
    let mut seen = Vec::new();
    while !seen.ends_with(HELLO) {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        seen.extend(byte);
    }
    Ok(())
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_port() {
        let frames = [
            Frame::Stdout(vec![0, b'\n', b'\r', 0xff]),
            Frame::Stderr(Vec::new()),
            Frame::Stdout(vec![7; MAX_PAYLOAD]),
            Frame::Failed("no /proc".into()),
            Frame::Ended(Status::Exited(7)),
            Frame::Ended(Status::Killed(9)),
        ];
        let mut port = b"noise from probing\0hugeclear".to_vec();
        port.extend(HELLO);
        for frame in &frames {
            frame.write(&mut port).unwrap();
        }

        let mut port = port.as_slice();
        read_hello(&mut port).unwrap();
        for frame in &frames {
            assert_eq!(Frame::read(&mut port).unwrap(), *frame);
        }
        let end = Frame::read(&mut port).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bytes in [
            &[9, 0, 0, 0, 0][..],
            &[3, 0, 0, 0, 0],
            &[1, 0xff, 0xff, 0xff, 0xff],
        ] {
            let error = Frame::read(&mut &*bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    #[test]
    fn a_killed_command_ends_as_in_a_shell() {
        assert_eq!(Status::Exited(3).code(), 3);
        assert_eq!(Status::Killed(15).code(), 143);
        assert!(Status::Exited(0).success() && !Status::Killed(0).success());
    }
}
