//! What the kernel tells of a loaded program that aya does not pass on.

use std::{
    io,
    mem::offset_of,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_prog_info};

/// How often the kernel skipped the program because it was already running on that CPU; `None` on
/// kernels before 5.12, which do not count. (BPF_OBJ_GET_INFO_BY_FD, `bpf_prog_info.recursion_misses`.)
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // SAFETY: structures of integers and unions of integers; all zero is valid.
    let (mut info, mut attr): (bpf_prog_info, bpf_attr) = unsafe { std::mem::zeroed() };
    attr.info.bpf_fd = program.as_raw_fd().unsigned_abs();
    attr.info.info_len = size_of_val(&info) as u32;
    attr.info.info = (&raw mut info) as u64;
    // SAFETY: the kernel writes at most `info_len` bytes to `info`, and both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            bpf_cmd::BPF_OBJ_GET_INFO_BY_FD,
            &raw mut attr,
            size_of_val(&attr),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // The kernel says how much of the structure it knows.
    // SAFETY: the call has written this member of the union.
    let known = unsafe { attr.info.info_len } as usize;
    let end = offset_of!(bpf_prog_info, recursion_misses) + size_of_val(&info.recursion_misses);
    Ok((known >= end).then_some(info.recursion_misses))
}
