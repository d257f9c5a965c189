//! Where threads run, and where their memory comes from.

use nix::errno::Errno;

use super::Error;

/// Confines this thread, and those that it creates, to these CPUs; to none if there are none.
///
/// By libc: `nix::sched::CpuSet` ends at CPU 1023, and with more possible CPUs the kernel refuses to
/// fill one.
pub(super) fn run_on(cpus: &[u32]) -> Result<(), Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mask = mask(cpus);
    let bytes = size_of_val(&mask[..]);
    // SAFETY: the mask is valid for reads of `bytes`.
    let result = unsafe { libc::sched_setaffinity(0, bytes, mask.as_ptr().cast()) };
    Errno::result(result)
        .map(drop)
        .map_err(|error| Error::SystemCall {
            call: "sched_setaffinity",
            what: format!("CPUs {cpus:?}"),
            error,
            hint: "; are they outside this process's cpuset?",
        })
}

/// Gives this thread, and those that it creates, memory of this node only, as `numactl -m`.
pub(super) fn take_memory_from(node: u32) -> Result<(), Error> {
    let mask = mask(&[node]);
    // The kernel takes the number of bits to be one more than it is (get_nodes, mm/mempolicy.c).
    let bits = mask.len() * u64::BITS as usize + 1;
    // SAFETY: the mask is valid for reads of `bits` less one, rounded up to words.
    let result = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_BIND,
            mask.as_ptr(),
            bits,
        )
    };
    Errno::result(result)
        .map(drop)
        .map_err(|error| Error::SystemCall {
            call: "set_mempolicy",
            what: format!("node {node}"),
            error,
            hint: "; is it outside this process's cpuset, or has it no memory?",
        })
}

/// Numbers as set bits.
fn mask(numbers: &[u32]) -> Vec<u64> {
    let most = numbers.iter().copied().max().unwrap_or(0);
    let mut mask = vec![0_u64; (most / u64::BITS) as usize + 1];
    for number in numbers {
        mask[(number / u64::BITS) as usize] |= 1 << (number % u64::BITS);
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bits() {
        assert_eq!(mask(&[0, 3]), [0b1001]);
        assert_eq!(mask(&[64, 1]), [0b10, 1]);
        assert_eq!(mask(&[1100]).len(), 18);
    }
}
