//! Reading kernel memory at an address of kallsyms, through `/proc/kcore`.
//!
//! Used for what the kernel tells nowhere else: the preemption mode without debugfs, and static
//! keys. Needs `CAP_SYS_RAWIO`; refused under lockdown=confidentiality.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use object::{
    Endianness, elf,
    read::elf::{FileHeader, ProgramHeader},
};

/// The ELF core image of the running kernel, without the leading `/`.
pub(super) const PATH: &str = "proc/kcore";

/// An open view of kernel memory.
#[derive(Debug)]
pub struct KernelMemory {
    file: File,
    segments: Vec<Segment>,
    endian: Endianness,
}

/// A part of kernel memory and where it is in the file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    size_bytes: u64,
    offset: u64,
}

impl KernelMemory {
    /// Opens `/proc/kcore` below `root` and reads its segment table.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_RAWIO` or under lockdown, `NotFound` on a kernel without
    /// `CONFIG_PROC_KCORE`, `InvalidData` if the file is no 64-bit ELF image.
    pub fn open(root: &Path) -> io::Result<Self> {
        let file = File::open(root.join(PATH))?;
        let (segments, endian) = segments(&file)?;
        Ok(Self {
            file,
            segments,
            endian,
        })
    }

    /// Reads the aligned 32-bit word at a kernel address, as this machine would.
    ///
    /// # Errors
    /// `NotFound` if no segment holds the address; the kernel's error (`EFAULT`) else.
    pub fn read_u32(&self, address: u64) -> io::Result<u32> {
        let mut bytes = [0; size_of::<u32>()];
        self.read(address, &mut bytes)?;
        Ok(match self.endian {
            Endianness::Little => u32::from_le_bytes(bytes),
            Endianness::Big => u32::from_be_bytes(bytes),
        })
    }

    /// Fills `bytes` from a kernel address.
    ///
    /// # Errors
    /// As [`KernelMemory::read_u32`].
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let offset = self
            .segments
            .iter()
            .find_map(|segment| segment.file_offset(address, bytes.len() as u64))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("kernel address {address:#x} is in no segment of /{PATH}"),
                )
            })?;
        self.file.read_exact_at(bytes, offset)
    }
}

impl Segment {
    /// Where in the file `size_bytes` from `address` are, if all of them are in this segment.
    fn file_offset(self, address: u64, size_bytes: u64) -> Option<u64> {
        let from_start = address.checked_sub(self.address)?;
        let end = from_start.checked_add(size_bytes)?;
        if end > self.size_bytes {
            return None;
        }
        self.offset.checked_add(from_start)
    }
}

fn segments(file: &File) -> io::Result<(Vec<Segment>, Endianness)> {
    let invalid = |error: object::Error| io::Error::new(io::ErrorKind::InvalidData, error);
    // The header first: it tells how long the table is. kcore must not be read to its end.
    let mut head = vec![0; size_of::<elf::FileHeader64<Endianness>>()];
    file.read_exact_at(&mut head, 0)?;
    let (table_start, table_bytes) = {
        let header = elf::FileHeader64::<Endianness>::parse(&*head).map_err(invalid)?;
        let endian = header.endian().map_err(invalid)?;
        let entry = u64::from(header.e_phentsize.get(endian));
        (
            header.e_phoff.get(endian),
            entry * u64::from(header.e_phnum.get(endian)),
        )
    };
    // At most 65535 entries of 65535 bytes; the kernel's are tens of 56.
    const MAX_HEAD: u64 = 1 << 20;
    let end = table_start
        .checked_add(table_bytes)
        .filter(|end| *end <= MAX_HEAD)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "segment table out of range"))?;
    head.resize(usize::try_from(end).unwrap_or_default().max(head.len()), 0);
    file.read_exact_at(&mut head, 0)?;

    let header = elf::FileHeader64::<Endianness>::parse(&*head).map_err(invalid)?;
    let endian = header.endian().map_err(invalid)?;
    let segments = header
        .program_headers(endian, &*head)
        .map_err(invalid)?
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .map(|segment| Segment {
            address: segment.p_vaddr(endian),
            size_bytes: segment.p_memsz(endian),
            offset: segment.p_offset(endian),
        })
        .collect();
    Ok((segments, endian))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: Segment = Segment {
        address: 0xffff_ffff_8100_0000,
        size_bytes: 0x1000,
        offset: 0x4000,
    };

    #[test]
    fn an_address_is_found_only_if_the_whole_word_is_inside() {
        for (address, offset) in [
            (0xffff_ffff_8100_0000, Some(0x4000)),
            (0xffff_ffff_8100_0ffc, Some(0x4ffc)),
            (0xffff_ffff_8100_0ffd, None),
            (0xffff_ffff_80ff_fffc, None),
            (u64::MAX, None),
        ] {
            assert_eq!(SEGMENT.file_offset(address, 4), offset, "{address:#x}");
        }
    }
}
