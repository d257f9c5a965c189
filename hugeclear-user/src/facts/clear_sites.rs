//! The instructions with which the running kernel clears, found in its text.
//!
//! The primitives that clear (`clear_page_erms` and the like) cannot be probed, but their callers can,
//! also in the middle. Which instruction it is depends on the build and, since the kernel patches
//! itself (alternatives), on the processor: so the text is read as it runs, from `/proc/kcore`.

use std::path::Path;

use iced_x86::{Code, Decoder, DecoderOptions};

use super::{
    kernel_memory::{self, KernelMemory},
    source::Source,
    symbols::each_symbol,
};

/// Primitives that clear one page, at the address in rdi.
const PAGE_PRIMITIVES: [&str; 4] = [
    "clear_page_erms",
    "clear_page_rep",
    "clear_page_orig",
    "clear_page",
];

/// The primitive that clears as many bytes as rcx says, at the address in rdi.
const BYTES_PRIMITIVE: &str = "__clear_pages_unrolled";

/// No function that clears is longer; some are 1 KiB.
const MAX_FUNCTION_BYTES: u64 = 1 << 16;

/// How much an instruction clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Length {
    /// One base page.
    Page,
    /// As many bytes as the count register says.
    Bytes,
    /// As many 64-bit words as the count register says.
    Words,
}

/// An instruction that clears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearSite {
    /// The function that holds it.
    pub function: String,
    /// Bytes from the function's start.
    pub offset: u64,
    /// How much it clears.
    pub length: Length,
}

/// The address of a primitive.
#[derive(Debug, Clone, Copy)]
struct Primitive {
    address: u64,
    length: Length,
}

/// The instructions in these functions of the kernel below `root` that clear, of all symbols of these
/// full names.
///
/// # Errors
/// Why they cannot be found, in words.
pub fn find(root: &Path, functions: &[String]) -> Result<Vec<ClearSite>, String> {
    let mut source = Source::new(root);
    let mut addresses = Vec::new();
    let mut found = Vec::new();
    let mut primitives = Vec::new();
    each_symbol(&mut source, |address, name| {
        if address == 0 {
            return;
        }
        addresses.push(address);
        if functions.iter().any(|function| function == name) {
            found.push((name.to_owned(), address));
        }
        if PAGE_PRIMITIVES.contains(&name) {
            primitives.push(Primitive {
                address,
                length: Length::Page,
            });
        }
        if name == BYTES_PRIMITIVE {
            primitives.push(Primitive {
                address,
                length: Length::Bytes,
            });
        }
    });
    if found.is_empty() {
        return Err(
            "kernel addresses are hidden (/proc/kallsyms): run as root, or set kernel.kptr_restrict=0"
                .to_owned(),
        );
    }
    let memory = KernelMemory::open(root).map_err(|error| {
        format!(
            "the kernel's text cannot be read (/{}: {error})",
            kernel_memory::PATH
        )
    })?;
    addresses.sort_unstable();
    let mut sites = Vec::new();
    for (function, address) in found {
        let next = addresses.partition_point(|other| *other <= address);
        let bytes = addresses
            .get(next)
            .map_or(MAX_FUNCTION_BYTES, |next| next - address)
            .min(MAX_FUNCTION_BYTES);
        let mut text = vec![0; bytes as usize];
        memory
            .read(address, &mut text)
            .map_err(|error| format!("the text of {function} cannot be read: {error}"))?;
        sites.extend(
            in_text(&text, address, &primitives).map(|(offset, length)| ClearSite {
                function: function.clone(),
                offset,
                length,
            }),
        );
    }
    if sites.is_empty() {
        return Err(format!(
            "no instruction that clears was found in {}: the kernel's build is not known",
            functions.join(", ")
        ));
    }
    Ok(sites)
}

/// Offsets of the instructions that clear in the text of a function at `address`.
fn in_text(
    text: &[u8],
    address: u64,
    primitives: &[Primitive],
) -> impl Iterator<Item = (u64, Length)> {
    Decoder::with_ip(64, text, address, DecoderOptions::NONE)
        .into_iter()
        .filter_map(move |instruction| {
            let length = match instruction.code() {
                Code::Call_rel32_64 => {
                    let target = instruction.near_branch_target();
                    primitives
                        .iter()
                        .find(|primitive| primitive.address == target)?
                        .length
                }
                Code::Stosb_m8_AL if instruction.has_rep_prefix() => Length::Bytes,
                Code::Stosq_m64_RAX if instruction.has_rep_prefix() => Length::Words,
                _ => return None,
            };
            Some((instruction.ip() - address, length))
        })
}
