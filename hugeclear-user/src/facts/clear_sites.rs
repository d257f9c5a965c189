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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::{any, prop, proptest};

    use super::*;

    /// Recorded functions, each with its address and text, and the primitives.
    fn recorded(name: &str) -> (Vec<(u64, Vec<u8>)>, Vec<Primitive>) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/clear_sites")
            .join(format!("{name}.txt"));
        let (mut functions, mut primitives) = (Vec::<(u64, Vec<u8>)>::new(), Vec::new());
        for line in fs::read_to_string(file).unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| u64::from_str_radix(word, 16).unwrap();
            let mut primitive = |word, length| {
                let address = number(word);
                primitives.push(Primitive { address, length });
            };
            match *words {
                ["function", _, word] => functions.push((number(word), Vec::new())),
                ["page", word] => primitive(word, Length::Page),
                ["bytes", word] => primitive(word, Length::Bytes),
                [hex] => functions.last_mut().unwrap().1.extend(
                    (0..hex.len())
                        .step_by(2)
                        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()),
                ),
                _ => panic!("{line}"),
            }
        }
        (functions, primitives)
    }

    #[test]
    fn sites_are_found_in_the_text_of_real_kernels() {
        use Length::{Bytes, Page, Words};
        // Checked against objdump.
        for (name, expected) in [
            // clear_subpage, which clear_huge_page calls, and the loop for gigantic pages.
            ("5.10", &[&[(0x36, Page)][..], &[(0x158, Page)]][..]),
            (
                "6.12",
                &[&[
                    (0x99, Page),
                    (0xe1, Page),
                    (0x12b, Page),
                    (0x15b, Page),
                    (0x1bd, Page),
                ]],
            ),
            ("7.0-allocator", &[&[(0x3a, Bytes)]]),
            // As a processor with erms, with rep_good only, and with neither runs it.
            ("7.3", &[&[(0x1ec, Bytes)]]),
            ("7.3-words", &[&[(0x1f0, Words)]]),
            ("7.3-unrolled", &[&[(0x1ec, Bytes)]]),
        ] {
            let (functions, primitives) = recorded(name);
            let sites: Vec<Vec<(u64, Length)>> = functions
                .iter()
                .map(|(address, text)| in_text(text, *address, &primitives).collect())
                .collect();
            assert_eq!(sites, expected, "{name}");
        }
    }

    #[test]
    fn a_call_of_something_else_is_no_site() {
        let (functions, mut primitives) = recorded("6.12");
        for primitive in &mut primitives {
            primitive.address += 1;
        }
        for (address, text) in functions {
            assert_eq!(in_text(&text, address, &primitives).count(), 0);
        }
    }

    #[test]
    fn nothing_is_found_without_addresses() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(
            root.path().join("proc/kallsyms"),
            "0000000000000000 T folio_zero_user\n",
        )
        .unwrap();
        let error = find(root.path(), &["folio_zero_user".to_owned()]).unwrap_err();
        assert!(error.contains("addresses are hidden"), "{error}");
    }

    proptest! {
        #[test]
        fn noise_is_never_a_panic(text in prop::collection::vec(any::<u8>(), 0..200), address: u64) {
            let primitives = [Primitive { address, length: Length::Page }];
            for (offset, _) in in_text(&text, address, &primitives) {
                assert!(offset < text.len() as u64);
            }
        }
    }
}
