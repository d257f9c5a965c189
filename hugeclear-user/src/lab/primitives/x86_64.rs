//! x86_64. Arguments come in `rdi` and `rsi`, the direction flag is clear (System V ABI).

use std::arch::{
    is_x86_feature_detected, naked_asm,
    x86_64::{__cpuid, _mm_clflush, _mm_mfence},
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

/// Writes the lines of a range back to memory and drops them from all caches.
///
/// # Safety
/// The range must be mapped.
pub(in super::super) unsafe fn flush(start: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: inside the range.
        unsafe { _mm_clflush(start.add(offset)) };
    }
    // SAFETY: a fence, after which the lines are out.
    unsafe { _mm_mfence() };
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

    use super::*;

    /// Instructions from the function's first to its `ret`, or to a jump out of it.
    fn decode(function: usize) -> Vec<Instruction> {
        const MOST_BYTES: usize = 256;
        // SAFETY: machine code of this program. That it goes on for so long after the function is true
        // of a text section that ends with the C library's.
        let code = unsafe { std::slice::from_raw_parts(function as *const u8, MOST_BYTES) };
        let mut instructions = Vec::new();
        for instruction in Decoder::with_ip(64, code, function as u64, DecoderOptions::AMD) {
            assert!(!instruction.is_invalid(), "{instructions:?}");
            instructions.push(instruction);
            let leaves = match instruction.flow_control() {
                FlowControl::Return | FlowControl::IndirectBranch => true,
                FlowControl::UnconditionalBranch => !(function..function + MOST_BYTES)
                    .contains(&(instruction.near_branch_target() as usize)),
                _ => false,
            };
            if leaves {
                return instructions;
            }
        }
        panic!("the function does not end: {instructions:?}");
    }

    fn code_of(name: &str) -> Vec<Instruction> {
        let primitive = PRIMITIVES.iter().find(|primitive| primitive.name == name);
        decode(primitive.expect("it is in the table").clear as usize)
    }

    /// Bytes that an instruction stores, if it stores.
    fn stored_bytes(instruction: &Instruction) -> Option<usize> {
        match instruction.mnemonic() {
            // Its memory operand is implied.
            Mnemonic::Clzero => Some(LINE_BYTES),
            _ if instruction.op_count() > 0
                && instruction.op0_kind() == iced_x86::OpKind::Memory =>
            {
                Some(instruction.memory_size().size())
            }
            _ => None,
        }
    }

    #[test]
    fn loops_store_as_their_names_say() {
        for (name, mnemonic, store_bytes, is_fenced) in [
            ("avx2", Mnemonic::Vmovdqa, 32, false),
            ("avx512", Mnemonic::Vmovdqa64, 64, false),
            ("movnti", Mnemonic::Movnti, 8, true),
            ("nt-avx2", Mnemonic::Vmovntdq, 32, true),
            ("nt-avx512", Mnemonic::Vmovntdq, 64, true),
            ("clzero", Mnemonic::Clzero, LINE_BYTES, true),
        ] {
            let code = code_of(name);
            let jump = code
                .iter()
                .position(|i| i.mnemonic() == Mnemonic::Jne)
                .unwrap_or_else(|| panic!("{name} has no loop"));
            let target = code[jump].near_branch_target();
            let start = code.iter().position(|i| i.ip() == target).unwrap();
            let (body, after) = (&code[start..jump], &code[jump + 1..]);

            let stores: Vec<&Instruction> =
                body.iter().filter(|i| stored_bytes(i).is_some()).collect();
            assert!(!stores.is_empty(), "{name} stores nothing");
            let mut next = 0;
            for store in &stores {
                assert_eq!(store.mnemonic(), mnemonic, "{name}");
                assert_eq!(stored_bytes(store), Some(store_bytes), "{name}");
                if mnemonic != Mnemonic::Clzero {
                    assert_eq!(store.memory_base(), Register::RDI, "{name}");
                    assert_eq!(store.memory_displacement64(), next, "{name}");
                }
                next += store_bytes as u64;
            }
            // What is stored is what the address grows by, and what the count shrinks by.
            let step = |mnemonic| {
                let found = body.iter().find(|i| i.mnemonic() == mnemonic);
                found.expect("the loop counts").immediate(1)
            };
            assert_eq!(step(Mnemonic::Add), next, "{name}");
            assert_eq!(step(Mnemonic::Sub), next, "{name}");
            let has_fence = after.iter().any(|i| i.mnemonic() == Mnemonic::Sfence);
            assert_eq!(has_fence, is_fenced, "{name}");
        }
    }

    #[test]
    fn string_stores_are_repeated() {
        for (name, code, unit_bytes) in [
            ("rep-stosb", Code::Stosb_m8_AL, 1),
            ("rep-stosq", Code::Stosq_m64_RAX, 8),
        ] {
            let instructions = code_of(name);
            let stores: Vec<&Instruction> = instructions
                .iter()
                .filter(|i| stored_bytes(i).is_some())
                .collect();
            assert_eq!(stores.len(), 1, "{name}");
            assert_eq!(stores[0].code(), code, "{name}");
            assert!(stores[0].has_rep_prefix(), "{name}");
            assert_eq!(stored_bytes(stores[0]), Some(unit_bytes), "{name}");
        }
    }

    #[test]
    fn memset_is_the_c_library_s() {
        let instructions = code_of("memset");
        assert!(
            !instructions.iter().any(|i| i.has_rep_prefix()),
            "inlined: {instructions:?}"
        );
        let call = instructions
            .iter()
            .find(|i| match i.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall | FlowControl::IndirectBranch => true,
                // The tail call of an optimised build.
                FlowControl::UnconditionalBranch => i.ip() == instructions.last().unwrap().ip(),
                _ => false,
            })
            .expect("it calls");
        let mut target = target_of(call);
        // Through the table of functions that are chosen at the start of the program.
        while let [.., jump] = &decode_stub(target)[..] {
            target = target_of(jump);
        }
        let symbol = symbol_at(target);
        assert!(symbol.contains("memset"), "{symbol}");
    }

    /// Where a call or jump goes.
    fn target_of(branch: &Instruction) -> u64 {
        if branch.is_ip_rel_memory_operand() {
            // SAFETY: a slot of this program's table of addresses.
            unsafe { *(branch.ip_rel_memory_address() as *const u64) }
        } else {
            branch.near_branch_target()
        }
    }

    /// The instructions of a stub, which does nothing but jump through memory; none of a function.
    fn decode_stub(function: u64) -> Vec<Instruction> {
        const MOST_BYTES: usize = 16;
        // SAFETY: machine code of this program.
        let code = unsafe { std::slice::from_raw_parts(function as *const u8, MOST_BYTES) };
        let instructions: Vec<Instruction> =
            Decoder::with_ip(64, code, function, DecoderOptions::NONE)
                .into_iter()
                .take(2)
                .collect();
        let is_jump = |i: &Instruction| {
            i.flow_control() == FlowControl::IndirectBranch && i.is_ip_rel_memory_operand()
        };
        match &instructions[..] {
            [jump, _] if is_jump(jump) => vec![*jump],
            [mark, jump] if mark.mnemonic() == Mnemonic::Endbr64 && is_jump(jump) => {
                instructions.clone()
            }
            _ => Vec::new(),
        }
    }

    /// Names of what this program's symbol table has at an address.
    fn symbol_at(address: u64) -> String {
        use object::{Object as _, ObjectSymbol as _};
        let file = std::fs::read("/proc/self/exe").unwrap();
        let elf = object::File::parse(&*file).unwrap();
        // SAFETY: reads a number of the process.
        let entry = unsafe { libc::getauxval(libc::AT_ENTRY) };
        // The program was moved by as much as its entry was.
        let address = address - (entry - elf.entry());
        elf.symbols()
            .filter(|symbol| symbol.address() == address)
            .filter_map(|symbol| Some(symbol.name().ok()?.to_owned()))
            .collect::<Vec<_>>()
            .join(", ")
    }
}
