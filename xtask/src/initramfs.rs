//! The file system of a guest, as cpio archives for the kernel to unpack.
//!
//! Two archives, one behind the other: the [`Base`] with pid 1, busybox and hugeclear-trace, made
//! once per process, and a small one per guest with its command and the files added to it. Not
//! compressed: 30 MB more of it did not make a boot measurably longer, and decompressing is slow
//! work for an emulated CPU.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::Write as _,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail, ensure};
use cpio::newc::{Builder, ModeFileType, trailer};

use crate::{
    binaries,
    protocol::{COMMAND_FILE, MOUNTS},
};

/// Where hugeclear-trace lies in a guest.
const HUGECLEAR_TRACE: &str = "/usr/bin/hugeclear-trace";
/// Where a guest has the executables added to it, unless the caller says otherwise.
const ADDED_EXECUTABLES: &str = "/usr/local/bin";

/// What programs expect to find: root, and a user without rights.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// The part of the file system that all guests of a process share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Base(Arc<[u8]>);

impl Base {
    /// Builds hugeclear-trace from this workspace, and the base with it.
    ///
    /// # Errors
    /// If a build fails or busybox is missing.
    pub fn build() -> Result<Self> {
        Self::with_binary(&binaries::build_hugeclear_trace()?)
    }

    /// The base with a hugeclear-trace that is already built, at `binary`.
    ///
    /// # Errors
    /// If `binary` cannot be read, pid 1 does not build, or busybox is missing.
    pub fn with_binary(binary: &Path) -> Result<Self> {
        let init = binaries::build_guest_init()?;
        let mut archive = Archive::default();
        // Pid 1 starts with its console open only if this exists before devtmpfs is mounted.
        archive.console("/dev/console")?;
        archive.file("/init", 0o755, &read(&init)?)?;
        archive.file("/etc/passwd", 0o644, PASSWD.as_bytes())?;
        archive.file("/etc/group", 0o644, GROUP.as_bytes())?;
        archive.directory("/root")?;
        add_busybox(&mut archive)?;
        add_with_libraries(&mut archive, binary, HUGECLEAR_TRACE)?;
        Ok(Self(archive.finish()?.into()))
    }

    /// The archive.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A file of the host to put into a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Where it is on the host.
    pub host: PathBuf,
    /// Where it shall be in the guest; by default in /usr/local/bin if it can be executed, else
    /// in /.
    pub guest: Option<String>,
}

/// The second archive: the command, and the files added to one guest.
pub(crate) fn command_archive<S: AsRef<OsStr>>(command: &[S], added: &[Added]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.file(COMMAND_FILE, 0o644, &command_bytes(command)?)?;
    for Added { host, guest } in added {
        let guest = match guest {
            Some(path) => path.clone(),
            None => default_place(host)?,
        };
        check_place(&guest)?;
        add_with_libraries(&mut archive, host, &guest)?;
    }
    archive.finish()
}

/// Each argument of `command`, followed by a NUL.
fn command_bytes<S: AsRef<OsStr>>(command: &[S]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for argument in command {
        let argument = argument.as_ref().as_bytes();
        ensure!(
            !argument.contains(&0),
            "an argument of the command contains a NUL"
        );
        bytes.extend(argument);
        bytes.push(0);
    }
    ensure!(!bytes.is_empty(), "there is no command to run in the guest");
    Ok(bytes)
}

fn default_place(host: &Path) -> Result<String> {
    let name = host
        .file_name()
        .and_then(OsStr::to_str)
        .with_context(|| format!("cannot add `{}`: it has no plain name", host.display()))?;
    let directory = if mode(host)? & 0o111 != 0 {
        ADDED_EXECUTABLES
    } else {
        ""
    };
    Ok(format!("{directory}/{name}"))
}

/// Refuses a place where the guest would not see the file.
fn check_place(guest: &str) -> Result<()> {
    ensure!(
        guest.starts_with('/') && !guest.ends_with('/'),
        "cannot add a file as `{guest}`: name its full path in the guest"
    );
    for mount in MOUNTS {
        ensure!(
            !Path::new(guest).starts_with(mount.target),
            "cannot add a file as `{guest}`: the guest mounts {} on {}",
            mount.kind,
            mount.target
        );
    }
    Ok(())
}

/// Adds the busybox of this host, with a link for each of its tools.
fn add_busybox(archive: &mut Archive) -> Result<()> {
    let missing = "a static busybox is needed for guests; `cargo xtask setup` installs it";
    let busybox = find_busybox().context(missing)?;
    let bytes = read(&busybox)?;
    archive.file("/bin/busybox", 0o755, &bytes)?;

    let output = Command::new(&busybox)
        .arg("--list-full")
        .output()
        .with_context(|| format!("cannot run {}", busybox.display()))?;
    for tool in String::from_utf8_lossy(&output.stdout).lines() {
        if tool != "bin/busybox" {
            archive.symlink(&format!("/{tool}"), "/bin/busybox")?;
        }
    }
    Ok(())
}

/// A busybox on the PATH that needs no libraries.
pub(crate) fn find_busybox() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join("busybox"))
        .find(|file| file.is_file() && libraries(file).is_ok_and(|libraries| libraries.is_empty()))
}

/// Adds `host` as `guest`, and the shared libraries that it needs under their own paths.
fn add_with_libraries(archive: &mut Archive, host: &Path, guest: &str) -> Result<()> {
    archive.file(guest, mode(host)?, &read(host)?)?;
    for library in libraries(host)? {
        let guest = library
            .to_str()
            .with_context(|| format!("library {} has no plain name", library.display()))?;
        archive.file(guest, 0o755, &read(&library)?)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The permission bits of a plain file.
fn mode(path: &Path) -> Result<u32> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot add {}", path.display()))?;
    ensure!(
        metadata.is_file(),
        "cannot add {}: only plain files can be added to a guest",
        path.display()
    );
    Ok(metadata.permissions().mode() & 0o7777)
}

/// The shared libraries of `program` and its dynamic linker, as `ldd` finds them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    if !read(program)?.starts_with(b"\x7fELF") {
        return Ok(Vec::new());
    }
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .context("cannot run ldd")?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        if complaint.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        bail!("ldd on {}: {}", program.display(), complaint.trim());
    }
    parse_ldd(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cannot add {}", program.display()))
}

/// The paths in the output of `ldd`.
fn parse_ldd(output: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in output.lines() {
        let (name, path) = match line.split_once("=>") {
            Some((name, path)) => (name.trim(), path.trim()),
            None => (line.trim(), line.trim()),
        };
        if path.starts_with("not found") {
            bail!("its shared library {name} is not on this host");
        }
        // What has no path is the kernel's own (linux-vdso) or a remark ("statically linked").
        if path.starts_with('/') {
            let path = path.rsplit_once(" (").map_or(path, |(path, _address)| path);
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}

/// A cpio archive in the making. Paths are absolute; missing directories are made.
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<String>,
}

impl Archive {
    fn file(&mut self, path: &str, mode: u32, contents: &[u8]) -> Result<()> {
        self.entry(path, ModeFileType::Regular, mode, contents, (0, 0))
    }

    fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(
            path,
            ModeFileType::Symlink,
            0o777,
            target.as_bytes(),
            (0, 0),
        )
    }

    fn directory(&mut self, path: &str) -> Result<()> {
        self.entry(path, ModeFileType::Directory, 0o755, &[], (0, 0))
    }

    /// The character device 5, 1: the console.
    fn console(&mut self, path: &str) -> Result<()> {
        self.entry(path, ModeFileType::Char, 0o600, &[], (5, 1))
    }

    fn entry(
        &mut self,
        path: &str,
        kind: ModeFileType,
        mode: u32,
        contents: &[u8],
        device: (u32, u32),
    ) -> Result<()> {
        // Two programs may bring the same library.
        if !self.paths.insert(path.to_owned()) {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/')
            && !parent.is_empty()
        {
            self.directory(parent)?;
        }
        let size = u32::try_from(contents.len())
            .with_context(|| format!("{path} is too large for an initramfs"))?;
        let mut writer = Builder::new(path.trim_start_matches('/'))
            .mode(mode)
            .set_mode_file_type(kind)
            .rdev_major(device.0)
            .rdev_minor(device.1)
            .write(&mut self.bytes, size);
        writer.write_all(contents)?;
        writer.finish()?;
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        let mut bytes = trailer(self.bytes)?;
        // The kernel looks for the next archive at a multiple of four.
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use cpio::newc::Reader;

    use super::*;

    /// Name, mode and contents of each entry.
    fn unpack(mut archive: &[u8]) -> Vec<(String, u32, String)> {
        let mut entries = Vec::new();
        loop {
            let mut reader = Reader::new(archive).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut contents = String::new();
            reader.read_to_string(&mut contents).unwrap();
            entries.push((name, mode, contents));
            archive = reader.finish().unwrap();
        }
    }

    #[test]
    fn an_archive_holds_each_path_once_and_parents_first() {
        let mut archive = Archive::default();
        archive.console("/dev/console").unwrap();
        archive.file("/usr/bin/a", 0o755, b"abc").unwrap();
        archive.symlink("/usr/bin/b", "/usr/bin/a").unwrap();
        archive.file("/usr/bin/a", 0o755, b"again").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);

        let entry = |name: &str, mode, contents: &str| (name.to_owned(), mode, contents.to_owned());
        assert_eq!(
            unpack(&bytes),
            [
                entry("dev", 0o040_755, ""),
                entry("dev/console", 0o020_600, ""),
                entry("usr", 0o040_755, ""),
                entry("usr/bin", 0o040_755, ""),
                entry("usr/bin/a", 0o100_755, "abc"),
                entry("usr/bin/b", 0o120_777, "/usr/bin/a"),
            ]
        );
    }

    #[test]
    fn arguments_reach_the_guest_unchanged() {
        let bytes = command_bytes(&["sh", "-c", "echo \"a b\"\n", ""]).unwrap();
        assert_eq!(bytes, b"sh\0-c\0echo \"a b\"\n\0\0");
        assert!(command_bytes(&["a\0b"]).is_err());
        assert!(command_bytes::<&str>(&[]).is_err());
    }

    #[test]
    fn ldd_lines_give_paths() {
        let output = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f23)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f22)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f24)\n";
        assert_eq!(
            parse_ldd(output).unwrap(),
            [
                "/lib/x86_64-linux-gnu/libz.so.1",
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
            .map(PathBuf::from)
        );
        assert!(parse_ldd("\tstatically linked\n").unwrap().is_empty());

        let error = parse_ldd("\tlibodd.so.1 => not found\n").unwrap_err();
        assert!(error.to_string().contains("libodd.so.1"));
    }

    #[test]
    fn a_file_is_not_added_where_the_guest_cannot_see_it() {
        check_place("/usr/local/bin/tool").unwrap();
        check_place("/tmpfile").unwrap();
        for place in ["/tmp/tool", "/proc/x", "relative", "/directory/"] {
            assert!(check_place(place).is_err(), "{place}");
        }
    }
}
