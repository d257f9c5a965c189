//! x86_64. Arguments come in `rdi` and `rsi`, the direction flag is clear (System V ABI).

use std::arch::{
    asm, is_x86_feature_detected, naked_asm,
    x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_mfence},
};

use super::{Primitive, memset, never_missing};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

pub(super) static PRIMITIVES: [Primitive; 9] = [
    Primitive {
        name: "memset",
        what: "memset(3) of the C library",
        missing: never_missing,
        clear: memset,
    },
    Primitive {
        name: "rep-stosb",
        what: "rep stosb",
        missing: never_missing,
        clear: rep_stosb,
    },
    Primitive {
        name: "rep-stosq",
        what: "rep stosq",
        missing: never_missing,
        clear: rep_stosq,
    },
    Primitive {
        name: "avx2",
        what: "vmovdqa, 32 bytes a store",
        missing: missing_avx2,
        clear: avx2,
    },
    Primitive {
        name: "avx512",
        what: "vmovdqa64, 64 bytes a store",
        missing: missing_avx512,
        clear: avx512,
    },
    Primitive {
        name: "movnti",
        what: "movnti, 8 bytes a store, non-temporal",
        missing: never_missing,
        clear: movnti,
    },
    Primitive {
        name: "nt-avx2",
        what: "vmovntdq, 32 bytes a store, non-temporal",
        missing: missing_avx2,
        clear: nt_avx2,
    },
    Primitive {
        name: "nt-avx512",
        what: "vmovntdq, 64 bytes a store, non-temporal",
        missing: missing_avx512,
        clear: nt_avx512,
    },
    Primitive {
        name: "clzero",
        what: "clzero, a cache line a store, non-temporal",
        missing: missing_clzero,
        clear: clzero,
    },
];

fn missing_avx2() -> Option<&'static str> {
    (!is_x86_feature_detected!("avx2")).then_some("this processor has no AVX2")
}

fn missing_avx512() -> Option<&'static str> {
    (!is_x86_feature_detected!("avx512f")).then_some("this processor has no AVX-512")
}

/// AMD64 Architecture Programmer's Manual, volume 3, appendix E.4: Fn8000_0008_EBX, bit 0.
fn missing_clzero() -> Option<&'static str> {
    const LEAF: u32 = 0x8000_0008;
    let has = __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).ebx & 1 != 0;
    (!has).then_some("this processor has no CLZERO, which AMD's have since Zen")
}

#[unsafe(naked)]
unsafe extern "C" fn rep_stosb(start: *mut u8, bytes: usize) {
    naked_asm!("mov rcx, rsi", "xor eax, eax", "rep stosb", "ret")
}

#[unsafe(naked)]
unsafe extern "C" fn rep_stosq(start: *mut u8, bytes: usize) {
    naked_asm!(
        "mov rcx, rsi",
        "shr rcx, 3",
        "xor eax, eax",
        "rep stosq",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn avx2(start: *mut u8, bytes: usize) {
    naked_asm!(
        "vpxor xmm0, xmm0, xmm0",
        "2:",
        "vmovdqa ymmword ptr [rdi], ymm0",
        "vmovdqa ymmword ptr [rdi + 32], ymm0",
        "vmovdqa ymmword ptr [rdi + 64], ymm0",
        "vmovdqa ymmword ptr [rdi + 96], ymm0",
        "add rdi, 128",
        "sub rsi, 128",
        "jnz 2b",
        "vzeroupper",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn avx512(start: *mut u8, bytes: usize) {
    naked_asm!(
        "vpxor xmm0, xmm0, xmm0",
        "2:",
        "vmovdqa64 zmmword ptr [rdi], zmm0",
        "vmovdqa64 zmmword ptr [rdi + 64], zmm0",
        "add rdi, 128",
        "sub rsi, 128",
        "jnz 2b",
        "vzeroupper",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn movnti(start: *mut u8, bytes: usize) {
    naked_asm!(
        "xor eax, eax",
        "2:",
        "movnti qword ptr [rdi], rax",
        "movnti qword ptr [rdi + 8], rax",
        "movnti qword ptr [rdi + 16], rax",
        "movnti qword ptr [rdi + 24], rax",
        "movnti qword ptr [rdi + 32], rax",
        "movnti qword ptr [rdi + 40], rax",
        "movnti qword ptr [rdi + 48], rax",
        "movnti qword ptr [rdi + 56], rax",
        "add rdi, 64",
        "sub rsi, 64",
        "jnz 2b",
        "sfence",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn nt_avx2(start: *mut u8, bytes: usize) {
    naked_asm!(
        "vpxor xmm0, xmm0, xmm0",
        "2:",
        "vmovntdq ymmword ptr [rdi], ymm0",
        "vmovntdq ymmword ptr [rdi + 32], ymm0",
        "vmovntdq ymmword ptr [rdi + 64], ymm0",
        "vmovntdq ymmword ptr [rdi + 96], ymm0",
        "add rdi, 128",
        "sub rsi, 128",
        "jnz 2b",
        "sfence",
        "vzeroupper",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn nt_avx512(start: *mut u8, bytes: usize) {
    naked_asm!(
        "vpxor xmm0, xmm0, xmm0",
        "2:",
        "vmovntdq zmmword ptr [rdi], zmm0",
        "vmovntdq zmmword ptr [rdi + 64], zmm0",
        "add rdi, 128",
        "sub rsi, 128",
        "jnz 2b",
        "sfence",
        "vzeroupper",
        "ret",
    )
}

/// Its stores are ordered as little as other non-temporal ones, hence the fence.
#[unsafe(naked)]
unsafe extern "C" fn clzero(start: *mut u8, bytes: usize) {
    naked_asm!(
        "mov rax, rdi",
        "2:",
        "clzero",
        "add rax, 64",
        "sub rsi, 64",
        "jnz 2b",
        "sfence",
        "ret",
    )
}

/// Reads a range by ascending addresses, 8 bytes at a time. Both numbers are multiples of 4096.
///
/// # Safety
/// The range must be mapped.
#[unsafe(naked)]
pub(in super::super) unsafe extern "C" fn read(start: *const u8, bytes: usize) {
    naked_asm!(
        "2:",
        "mov rax, qword ptr [rdi]",
        "mov rax, qword ptr [rdi + 8]",
        "mov rax, qword ptr [rdi + 16]",
        "mov rax, qword ptr [rdi + 24]",
        "mov rax, qword ptr [rdi + 32]",
        "mov rax, qword ptr [rdi + 40]",
        "mov rax, qword ptr [rdi + 48]",
        "mov rax, qword ptr [rdi + 56]",
        "add rdi, 64",
        "sub rsi, 64",
        "jnz 2b",
        "ret",
    )
}

/// Writes the lines of a range back to memory and drops them from all caches.
///
/// # Safety
/// The range must be mapped.
pub(in super::super) unsafe fn flush(start: *const u8, bytes: usize) {
    let has_clflushopt = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 23 != 0;
    for offset in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: inside the range, and the processor has it.
        unsafe {
            let line = start.add(offset);
            if has_clflushopt {
                // Unlike clflush it does not wait for the one before.
                asm!("clflushopt byte ptr [{}]", in(reg) line, options(nostack));
            } else {
                _mm_clflush(line);
            }
        }
    }
    // SAFETY: a fence, after which the lines are out.
    unsafe { _mm_mfence() };
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
    use object::{Object as _, ObjectSymbol as _};

    use super::*;

    /// More than any function here has.
    const MOST_BYTES: usize = 256;

    /// Instructions from an address on.
    fn code_at(address: usize) -> impl Iterator<Item = Instruction> {
        // SAFETY: machine code of this program. That it goes on for so long is true of a text section
        // that ends with the C library's.
        let code = unsafe { std::slice::from_raw_parts(address as *const u8, MOST_BYTES) };
        // AMD's decoder options know clzero.
        Decoder::with_ip(64, code, address as u64, DecoderOptions::AMD).into_iter()
    }

    fn function(name: &str) -> usize {
        let primitive = PRIMITIVES.iter().find(|primitive| primitive.name == name);
        primitive.expect("it is in the table").clear as usize
    }

    /// The instructions of a function up to its `ret`.
    fn code_of(name: &str) -> Vec<Instruction> {
        let mut code = Vec::new();
        for instruction in code_at(function(name)) {
            assert!(!instruction.is_invalid(), "{name}: {code:?}");
            code.push(instruction);
            if instruction.mnemonic() == Mnemonic::Ret {
                return code;
            }
        }
        panic!("{name} does not end: {code:?}");
    }

    fn stores(instruction: &Instruction) -> bool {
        let to = instruction.op0_kind();
        // The memory operand of clzero is implied.
        matches!(to, OpKind::Memory | OpKind::MemoryESRDI)
            || instruction.mnemonic() == Mnemonic::Clzero
    }

    #[test]
    fn loops_store_as_their_names_say() {
        for (name, code, store_bytes, is_fenced) in [
            ("avx2", Code::VEX_Vmovdqa_ymmm256_ymm, 32, false),
            ("avx512", Code::EVEX_Vmovdqa64_zmmm512_k1z_zmm, 64, false),
            ("movnti", Code::Movnti_m64_r64, 8, true),
            ("nt-avx2", Code::VEX_Vmovntdq_m256_ymm, 32, true),
            ("nt-avx512", Code::EVEX_Vmovntdq_m512_zmm, 64, true),
            ("clzero", Code::Clzeroq, LINE_BYTES as u64, true),
        ] {
            let instructions = code_of(name);
            let jump = instructions
                .iter()
                .position(|i| i.mnemonic() == Mnemonic::Jne)
                .unwrap_or_else(|| panic!("{name} has no loop"));
            let target = instructions[jump].near_branch_target();
            let start = instructions.iter().position(|i| i.ip() == target).unwrap();
            let body = &instructions[start..jump];
            let (before, after) = (&instructions[..start], &instructions[jump + 1..]);

            let mut stored = 0;
            for store in body.iter().filter(|i| stores(i)) {
                assert_eq!(store.code(), code, "{name}");
                if code != Code::Clzeroq {
                    assert_eq!(store.memory_base(), Register::RDI, "{name}");
                    assert_eq!(store.memory_displacement64(), stored, "{name}");
                }
                stored += store_bytes;
            }
            // What is stored is what the address grows by, and what the count shrinks by.
            let step = |mnemonic| {
                let found = body.iter().find(|i| i.mnemonic() == mnemonic);
                found.expect("the loop counts").immediate(1)
            };
            assert!(stored > 0, "{name}");
            assert_eq!(step(Mnemonic::Add), stored, "{name}");
            assert_eq!(step(Mnemonic::Sub), stored, "{name}");
            // And nothing is stored outside the loop.
            assert!(!before.iter().chain(after).any(stores), "{name}");
            let has_fence = after.iter().any(|i| i.mnemonic() == Mnemonic::Sfence);
            assert_eq!(has_fence, is_fenced, "{name}");
        }
    }

    #[test]
    fn string_stores_are_repeated() {
        for (name, code) in [
            ("rep-stosb", Code::Stosb_m8_AL),
            ("rep-stosq", Code::Stosq_m64_RAX),
        ] {
            let instructions = code_of(name);
            let found: Vec<&Instruction> = instructions.iter().filter(|i| stores(i)).collect();
            assert_eq!(found.len(), 1, "{name}");
            assert_eq!(found[0].code(), code, "{name}");
            assert!(found[0].has_rep_prefix(), "{name}");
        }
    }

    #[test]
    fn memset_is_the_c_library_s() {
        let memset = function("memset");
        // A call, or in an optimised build a jump to elsewhere; inlined it would have neither.
        let leaves = |i: &Instruction| match i.mnemonic() {
            Mnemonic::Call => true,
            Mnemonic::Jmp => target_of(i).abs_diff(memset) > MOST_BYTES,
            _ => false,
        };
        let call = code_at(memset)
            .take_while(|i| i.mnemonic() != Mnemonic::Ret)
            .find(leaves)
            .expect("it calls");
        let mut target = target_of(&call);
        // Through the stub of a function that is chosen when the program starts.
        while let Some(jump) = code_at(target)
            .find(|i| i.mnemonic() != Mnemonic::Endbr64)
            .filter(|i| i.mnemonic() == Mnemonic::Jmp)
        {
            target = target_of(&jump);
        }
        let symbols = symbols_at(target);
        assert!(symbols.contains("memset"), "`{symbols}`");
    }

    /// Where a call or a jump goes.
    fn target_of(branch: &Instruction) -> usize {
        if branch.is_ip_rel_memory_operand() {
            // SAFETY: an entry of this program's table of addresses.
            unsafe { *(branch.ip_rel_memory_address() as *const usize) }
        } else {
            branch.near_branch_target() as usize
        }
    }

    /// What this program's symbol table calls an address.
    fn symbols_at(address: usize) -> String {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let elf = object::File::parse(&*file).unwrap();
        // SAFETY: reads a number that the kernel gave the process.
        let entry = unsafe { libc::getauxval(libc::AT_ENTRY) };
        // The program was moved by as much as its entry was.
        let address = address as u64 - (entry - elf.entry());
        elf.symbols()
            .filter(|symbol| symbol.address() == address)
            .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
            .collect::<Vec<_>>()
            .join(", ")
    }
}
