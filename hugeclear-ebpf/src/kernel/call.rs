//! The traced call, whichever way the program was attached.

use aya_ebpf::{
    helpers::bpf_probe_read_kernel,
    programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext},
};

/// A call of a traced function.
pub(crate) trait Call {
    /// Whether [`Call::argument`] works at the entry and at the exit of the function. It does not at
    /// a kretprobe: the registers have changed.
    const ARGUMENTS_AT_EXIT: bool;

    /// Argument `N`, counted from 1; 0 where there are no arguments.
    ///
    /// A constant, because the verifier refuses a computed offset into the context.
    fn argument<const N: usize>(&self) -> u64;

    /// The byte at `offset` of the structure that argument 1 points to.
    fn byte_of_argument1(&self, offset: usize) -> u8;
}

macro_rules! tracing_call {
    ($context:ty) => {
        impl Call for $context {
            const ARGUMENTS_AT_EXIT: bool = true;

            #[inline(always)]
            fn argument<const N: usize>(&self) -> u64 {
                self.arg(N - 1)
            }

            /// A plain load: the verifier trusts the arguments of fentry and fexit programs, and
            /// knows the offset, so no call of a helper is needed.
            #[inline(always)]
            fn byte_of_argument1(&self, offset: usize) -> u8 {
                let structure: *const u8 = self.arg(0);
                // SAFETY: the verifier checks the access against the structure's BTF; the kernel
                // turns a fault into zero.
                unsafe { structure.add(offset).read_volatile() }
            }
        }
    };
}
tracing_call!(FEntryContext);
tracing_call!(FExitContext);

impl Call for ProbeContext {
    const ARGUMENTS_AT_EXIT: bool = false;

    #[inline(always)]
    fn argument<const N: usize>(&self) -> u64 {
        self.arg(N - 1).unwrap_or(0)
    }

    #[inline(always)]
    fn byte_of_argument1(&self, offset: usize) -> u8 {
        let structure: *const u8 = self.arg(0).unwrap_or(core::ptr::null());
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(structure.wrapping_add(offset)) }.unwrap_or(0)
    }
}

impl Call for RetProbeContext {
    const ARGUMENTS_AT_EXIT: bool = false;

    #[inline(always)]
    fn argument<const N: usize>(&self) -> u64 {
        0
    }

    #[inline(always)]
    fn byte_of_argument1(&self, _offset: usize) -> u8 {
        0
    }
}
