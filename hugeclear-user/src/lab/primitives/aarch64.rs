//! arm64. Arguments come in `x0` and `x1` (AAPCS64).

use std::arch::{asm, naked_asm};

use super::{Primitive, memset, never_missing};

pub(super) static PRIMITIVES: [Primitive; 4] = [
    Primitive {
        name: "memset",
        what: "memset(3) of the C library",
        missing: never_missing,
        clear: memset,
    },
    Primitive {
        name: "dc-zva",
        what: "dc zva, a block of the processor's size a store",
        missing: missing_dc_zva,
        clear: dc_zva,
    },
    Primitive {
        name: "stp",
        what: "stp, 16 bytes a store",
        missing: never_missing,
        clear: stp,
    },
    Primitive {
        name: "stnp",
        what: "stnp, 16 bytes a store, non-temporal",
        missing: never_missing,
        clear: stnp,
    },
];

/// `DCZID_EL0`: bit 4 prohibits `dc zva`; bits 0 to 3 are the logarithm of the block's 4-byte words.
fn missing_dc_zva() -> Option<&'static str> {
    let dczid: u64;
    // SAFETY: a register that user space may read.
    unsafe { asm!("mrs {}, dczid_el0", out(reg) dczid, options(nomem, nostack, pure)) };
    if dczid & 0x10 != 0 {
        Some("the kernel or hypervisor prohibits dc zva (DCZID_EL0.DZP)")
    } else if 4_u64 << (dczid & 0xf) > 4096 {
        Some("its block is larger than a page (DCZID_EL0.BS)")
    } else {
        None
    }
}

#[unsafe(naked)]
unsafe extern "C" fn dc_zva(start: *mut u8, bytes: usize) {
    naked_asm!(
        "mrs x2, dczid_el0",
        "and x2, x2, #15",
        "mov x3, #4",
        "lsl x3, x3, x2",
        "2:",
        "dc zva, x0",
        "add x0, x0, x3",
        "subs x1, x1, x3",
        "b.ne 2b",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn stp(start: *mut u8, bytes: usize) {
    naked_asm!(
        "2:",
        "stp xzr, xzr, [x0]",
        "stp xzr, xzr, [x0, #16]",
        "stp xzr, xzr, [x0, #32]",
        "stp xzr, xzr, [x0, #48]",
        "add x0, x0, #64",
        "subs x1, x1, #64",
        "b.ne 2b",
        "ret",
    )
}

/// As `clear_page` of the kernel where `dc zva` is prohibited (arch/arm64/lib/clear_page.S).
#[unsafe(naked)]
unsafe extern "C" fn stnp(start: *mut u8, bytes: usize) {
    naked_asm!(
        "2:",
        "stnp xzr, xzr, [x0]",
        "stnp xzr, xzr, [x0, #16]",
        "stnp xzr, xzr, [x0, #32]",
        "stnp xzr, xzr, [x0, #48]",
        "add x0, x0, #64",
        "subs x1, x1, #64",
        "b.ne 2b",
        "ret",
    )
}

/// Reads a range by ascending addresses, 16 bytes at a time. Both numbers are multiples of 4096.
///
/// # Safety
/// The range must be mapped.
#[unsafe(naked)]
pub(in super::super) unsafe extern "C" fn read(start: *const u8, bytes: usize) {
    naked_asm!(
        "2:",
        "ldp x2, x3, [x0]",
        "ldp x2, x3, [x0, #16]",
        "ldp x2, x3, [x0, #32]",
        "ldp x2, x3, [x0, #48]",
        "add x0, x0, #64",
        "subs x1, x1, #64",
        "b.ne 2b",
        "ret",
    )
}

/// Writes the lines of a range back to memory and drops them from all caches.
///
/// # Safety
/// The range must be mapped.
pub(in super::super) unsafe fn flush(start: *const u8, bytes: usize) {
    let ctr: u64;
    // SAFETY: a register that Linux lets user space read.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, pure)) };
    // CTR_EL0.DminLine: the logarithm of the smallest line's 4-byte words.
    let line_bytes = 4_usize << (ctr >> 16 & 0xf);
    for offset in (0..bytes).step_by(line_bytes) {
        // SAFETY: inside the range; Linux lets user space do it (SCTLR_EL1.UCI).
        unsafe { asm!("dc civac, {}", in(reg) start.add(offset), options(nostack)) };
    }
    // SAFETY: a barrier, after which the lines are out.
    unsafe { asm!("dsb ish", options(nostack)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the function up to its `ret`, that included.
    fn words(name: &str) -> Vec<u32> {
        const RET: u32 = 0xd65f_03c0;
        let primitive = PRIMITIVES.iter().find(|primitive| primitive.name == name);
        let first = primitive.expect("it is in the table").clear as *const u32;
        let mut words = Vec::new();
        while words.last() != Some(&RET) {
            // SAFETY: a function of this program is read up to its `ret`.
            words.push(unsafe { first.add(words.len()).read() });
        }
        words
    }

    #[test]
    fn loops_store_as_their_names_say() {
        assert!(words("dc-zva").contains(&0xd50b_7420));
        for (name, first) in [("stp", 0xa900_7c1f_u32), ("stnp", 0xa800_7c1f)] {
            // The offset is a number of 8-byte words, from bit 15 on.
            let stores = [0, 1, 2, 3].map(|pair| first | (2 * pair) << 15);
            assert_eq!(words(name)[..4], stores, "{name}");
        }
    }
}
