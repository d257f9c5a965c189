//! The instructions that a piece is cleared with. The loops are assembly, whole functions of it, so that
//! the compiler can neither drop nor merge a store, and all builds run the same; tests decode them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub(super) use arch::{flush, read};

/// Clears so many bytes from an address on, both multiples of 4096. Stores that bypass the caches are
/// complete when it returns.
pub(super) type Clear = unsafe extern "C" fn(start: *mut u8, bytes: usize);

/// A way to clear.
#[derive(Debug)]
pub struct Primitive {
    /// On the command line and in output.
    pub name: &'static str,
    /// What it does, for people.
    pub what: &'static str,
    /// Why this processor does not have it; `None`: it does.
    missing: fn() -> Option<&'static str>,
    clear: Clear,
}

impl Primitive {
    /// All of this architecture.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &arch::PRIMITIVES
    }

    /// Why this processor does not have it; `None`: it does.
    #[must_use]
    pub fn missing(&self) -> Option<&'static str> {
        (self.missing)()
    }

    /// The function, which only a processor that has it may run.
    pub(super) fn clear(&self) -> Clear {
        self.clear
    }
}

/// Of what every processor has.
fn never_missing() -> Option<&'static str> {
    None
}

/// memset(3): whatever the C library chooses for this length on this processor.
unsafe extern "C" fn memset(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise. The C library is not known to the compiler here: the memory is not
    // its own, so it must make the call.
    unsafe { libc::memset(start.cast(), 0, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clears_all_and_nothing_else() {
        const PAGE: usize = 4096;
        #[repr(align(4096))]
        struct Pages([u8; 4 * PAGE]);
        for primitive in Primitive::all() {
            if let Some(why) = primitive.missing() {
                eprintln!("skipped: {}: {why}", primitive.name);
                continue;
            }
            let mut pages = Box::new(Pages([0xa5; 4 * PAGE]));
            // SAFETY: the range is inside, aligned to a page, and this processor has the instructions.
            unsafe { primitive.clear()(pages.0[PAGE..].as_mut_ptr(), 2 * PAGE) };
            let is = |bytes: &[u8], value| bytes.iter().all(|byte| *byte == value);
            assert!(is(&pages.0[PAGE..3 * PAGE], 0), "{}", primitive.name);
            assert!(is(&pages.0[..PAGE], 0xa5), "{}", primitive.name);
            assert!(is(&pages.0[3 * PAGE..], 0xa5), "{}", primitive.name);
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<&str> = Primitive::all().iter().map(|p| p.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Primitive::all().len());
    }
}
