//! Loads of the hugetlb pool.

use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, RawFd},
        unix::fs::FileExt as _,
    },
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use nix::libc;
use serde_json::{Value, json};

use super::{
    HUGE,
    area::{Area, check},
    in_child,
    kernel::{Setting, Vmstat, smaps},
};

/// A child writes to the private pages that its parent has filled: each is copied.
pub(crate) fn fork_cow(count: usize) -> Result<Value> {
    let _pool = Setting::pool(HUGE, 2 * count)?;
    let area = Area::hugetlb(count * HUGE, HUGE)?;
    area.write(HUGE);
    let mapped = smaps(&area, "Private_Hugetlb")? / HUGE;
    ensure!(mapped == count, "{mapped} pages of {count}");
    in_child(|| {
        area.write(HUGE);
        // Its own now, no longer shared with the parent.
        Ok(smaps(&area, "Private_Hugetlb")? == count * HUGE)
    })?;
    Ok(json!({"hugetlb_faults": count, "clears": count, "copies": count}))
}

/// fallocate(2) of a file of hugetlbfs, and then touches, which find the pages there.
pub(crate) fn fallocate(count: usize) -> Result<Value> {
    let _pool = Setting::pool(HUGE, count)?;
    let target = c"/run/hugetlbfs";
    let directory = Path::new("/run/hugetlbfs");
    fs::create_dir_all(directory)?;
    // SAFETY: the strings end with a zero and outlive the call.
    let done = unsafe {
        let kind = c"hugetlbfs".as_ptr();
        let options = c"pagesize=2M".as_ptr();
        libc::mount(kind, target.as_ptr(), kind, 0, options.cast())
    };
    check(done, "mount of hugetlbfs")?;
    let path = directory.join("file");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .context("a file of hugetlbfs")?;
    allocate(&file, count)?;
    let area = Area::file(count * HUGE, &file)?;
    ensure!(area.read(HUGE) == 0, "pages that are not zero");
    drop((area, file));
    fs::remove_file(&path)?;
    // SAFETY: as above.
    check(unsafe { libc::umount(target.as_ptr()) }, "umount")?;
    Ok(json!({"fallocate_clears": count, "hugetlb_faults": 0, "clears": count}))
}

/// A memfd of huge pages: half of it by fallocate(2), the other half by touches.
pub(crate) fn memfd(count: usize) -> Result<Value> {
    let _pool = Setting::pool(HUGE, count)?;
    let file = create_memfd(count)?;
    let half = count / 2;
    allocate(&file, half)?;
    let area = Area::file(count * HUGE, &file)?;
    area.write(HUGE);
    Ok(json!({"fallocate_clears": half, "hugetlb_faults": count - half, "clears": count}))
}

/// A memfd of huge pages that a driver pins (udmabuf) before anyone has touched them.
pub(crate) fn pinned(count: usize) -> Result<Value> {
    /// `struct udmabuf_create` of linux/udmabuf.h.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    /// `_IOW('u', 0x42, struct udmabuf_create)`.
    const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;

    let _pool = Setting::pool(HUGE, count)?;
    let file = create_memfd(count)?;
    // SAFETY: no pointers are passed.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    check(sealed, "F_ADD_SEALS")?;
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")
        .context("/dev/udmabuf")?;
    let create = Create {
        memfd: u32::try_from(file.as_raw_fd())?,
        flags: 0,
        offset: 0,
        size: (count * HUGE) as u64,
    };
    // SAFETY: the argument is the structure that this request reads.
    let buffer: RawFd =
        unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    check(buffer, "UDMABUF_CREATE")?;
    // SAFETY: it was just opened for us, and nobody else knows it.
    let buffer = unsafe { File::from_raw_fd(buffer) };
    // Read, not mapped: a mapping would reserve as many pages again.
    for page in 0..count {
        let mut bytes = [1; 64];
        file.read_exact_at(&mut bytes, (page * HUGE) as u64)?;
        ensure!(bytes == [0; 64], "page {page} is not zero");
    }
    drop(buffer);
    Ok(json!({"memfd_clears": count, "hugetlb_faults": 0, "clears": count}))
}

/// The pool grows and shrinks: no fault, and nothing that a fault would clear.
pub(crate) fn pool_growth(count: usize) -> Result<Value> {
    let before = Vmstat::now()?;
    drop(Setting::pool(HUGE, count)?);
    Ok(json!({"hugetlb_faults": 0, "clears": 0, "vmstat": before.growth()?}))
}

fn create_memfd(count: usize) -> Result<File> {
    let flags = libc::MFD_HUGETLB | libc::MFD_HUGE_2MB | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero and outlives the call.
    let descriptor = unsafe { libc::memfd_create(c"load".as_ptr(), flags) };
    check(descriptor, "memfd_create(MFD_HUGETLB)")?;
    // SAFETY: it was just opened for us, and nobody else knows it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len((count * HUGE) as u64)?;
    Ok(file)
}

fn allocate(file: &File, count: usize) -> Result<()> {
    let bytes = i64::try_from(count * HUGE)?;
    // SAFETY: no pointers are passed.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) };
    check(done, "fallocate")
}
