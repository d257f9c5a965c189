//! The traced call, whichever way the program was attached.

use aya_ebpf::{
    EbpfContext,
    helpers::bpf_probe_read_kernel,
    programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext},
};

/// A call of a traced function.
pub(crate) trait Call: EbpfContext {
    /// Whether [`Call::argument`] works at the entry and at the exit of the function. It does not at
    /// a kretprobe: the registers have changed.
    const ARGUMENTS_AT_EXIT: bool;

    /// Argument `N`, counted from 1; 0 where there are no arguments.
    ///
    /// A constant, because the verifier refuses a computed offset into the context.
    fn argument<const N: usize>(&self) -> u64;

    /// The member at `offset` of the structure that argument 1 points to; 0 if it cannot be read.
    fn member_of_argument1<T: Copy + Default>(&self, offset: usize) -> T;

    /// What the function returned; it has `N` parameters, and is not `void`. 0 at an entry.
    fn returned<const N: usize>(&self) -> u64;

    /// Whether the function returned a null pointer, whatever its number of parameters; since 5.17.
    fn returned_null(&self) -> bool;
}

/// A plain load: the verifier trusts the arguments of fentry and fexit programs, and knows the offset,
/// so no call of a helper is needed.
macro_rules! tracing_call {
    ($context:ty, $returned:expr, $returned_null:expr) => {
        impl Call for $context {
            const ARGUMENTS_AT_EXIT: bool = true;

            #[inline(always)]
            fn argument<const N: usize>(&self) -> u64 {
                self.arg(N - 1)
            }

            #[inline(always)]
            fn member_of_argument1<T: Copy + Default>(&self, offset: usize) -> T {
                let structure: *const u8 = self.arg(0);
                // SAFETY: the verifier checks the access against the structure's BTF; the kernel
                // turns a fault into zero.
                unsafe { structure.add(offset).cast::<T>().read_volatile() }
            }

            #[inline(always)]
            fn returned<const N: usize>(&self) -> u64 {
                let returned: fn(&Self, usize) -> u64 = $returned;
                returned(self, N)
            }

            #[inline(always)]
            fn returned_null(&self) -> bool {
                let returned_null: fn(&Self) -> bool = $returned_null;
                returned_null(self)
            }
        }
    };
}
tracing_call!(FEntryContext, |_, _| 0, |_| false);
// After the arguments, for as long as the kernel has had fexit; bpf_get_func_ret is newer.
tracing_call!(
    FExitContext,
    |call, parameters| call.arg(parameters),
    |call| call.ret::<u64>() == Ok(0)
);

impl Call for ProbeContext {
    const ARGUMENTS_AT_EXIT: bool = false;

    #[inline(always)]
    fn argument<const N: usize>(&self) -> u64 {
        self.arg(N - 1).unwrap_or(0)
    }

    #[inline(always)]
    fn member_of_argument1<T: Copy + Default>(&self, offset: usize) -> T {
        let structure: *const u8 = self.arg(0).unwrap_or(core::ptr::null());
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(structure.wrapping_add(offset).cast::<T>()) }
            .unwrap_or_default()
    }

    #[inline(always)]
    fn returned<const N: usize>(&self) -> u64 {
        0
    }

    #[inline(always)]
    fn returned_null(&self) -> bool {
        false
    }
}

impl Call for RetProbeContext {
    const ARGUMENTS_AT_EXIT: bool = false;

    #[inline(always)]
    fn argument<const N: usize>(&self) -> u64 {
        0
    }

    #[inline(always)]
    fn member_of_argument1<T: Copy + Default>(&self, _offset: usize) -> T {
        T::default()
    }

    #[inline(always)]
    fn returned<const N: usize>(&self) -> u64 {
        self.ret()
    }

    #[inline(always)]
    fn returned_null(&self) -> bool {
        self.ret::<u64>() == 0
    }
}
