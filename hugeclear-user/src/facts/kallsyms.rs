//! Names of the kernel's code addresses.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use super::symbols::{for_each_line, kallsyms_line};

/// The functions of the running kernel, its modules and its BPF programs. Some 3 MiB.
#[derive(Debug, Default)]
pub struct Kallsyms {
    /// By address: where the name begins in `names`, and its bytes.
    symbols: Vec<(u64, u32, u16)>,
    names: String,
}

impl Kallsyms {
    /// Reads `/proc/kallsyms` below `root`. Empty if the kernel hides the addresses.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(root: &Path) -> io::Result<Self> {
        Self::parse(File::open(root.join("proc/kallsyms"))?)
    }

    fn parse(file: impl Read) -> io::Result<Self> {
        let mut found = Self::default();
        for_each_line(BufReader::with_capacity(1 << 16, file), |line| {
            found.add(line);
            true
        })?;
        // Stable: of several names of one address, the first in the kernel's order.
        found.symbols.sort_by_key(|(address, ..)| *address);
        found.symbols.dedup_by_key(|(address, ..)| *address);
        found.symbols.shrink_to_fit();
        found.names.shrink_to_fit();
        Ok(found)
    }

    /// Adds a line's symbol, if it is a function with an address.
    fn add(&mut self, line: &[u8]) {
        // `ffffffffc0001000 t name\t[module]`
        let module = line.iter().position(|byte| *byte == b'\t');
        let (line, module) = line.split_at(module.unwrap_or(line.len()));
        let Some((address, b't' | b'T' | b'w' | b'W', name)) = kallsyms_line(line) else {
            return;
        };
        let address = std::str::from_utf8(address)
            .ok()
            .and_then(|address| u64::from_str_radix(address, 16).ok())
            .filter(|address| *address != 0);
        let (Some(address), Ok(start)) = (address, u32::try_from(self.names.len())) else {
            return;
        };
        self.names.push_str(&String::from_utf8_lossy(name));
        if !module.is_empty() {
            self.names.push(' ');
            self.names
                .push_str(&String::from_utf8_lossy(module.trim_ascii()));
        }
        let length = self.names.len() - start as usize;
        let length = u16::try_from(length).expect("the kernel's names have at most 512 bytes");
        self.symbols.push((address, start, length));
    }

    /// Whether no address has a name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The frames of a stack of return addresses, innermost first: `symbol+0x1a`,
    /// `symbol+0x1a [module]`, or the bare address. Without those at its start that are of the BPF
    /// programs which took the stack.
    #[must_use]
    pub fn frames(&self, stack: &[u64]) -> Vec<String> {
        let ours = |address: &u64| self.name(*address).is_some_and(|(name, _)| is_bpf(name));
        let skipped = stack.iter().take_while(|address| ours(address)).count();
        let rest = &stack[skipped..];
        rest.iter().map(|address| self.frame(*address)).collect()
    }

    fn frame(&self, address: u64) -> String {
        match self.name(address) {
            Some((name, offset)) => match name.split_once(' ') {
                Some((name, module)) => format!("{name}+{offset:#x} {module}"),
                None => format!("{name}+{offset:#x}"),
            },
            None => format!("{address:#x}"),
        }
    }

    /// The symbol that begins at or before `address`, and how far it is from there.
    fn name(&self, address: u64) -> Option<(&str, u64)> {
        let after = self
            .symbols
            .partition_point(|(start, ..)| *start <= address);
        let (symbol, start, length) = *self.symbols.get(after.checked_sub(1)?)?;
        let start = start as usize;
        let name = &self.names[start..start + usize::from(length)];
        Some((name, address - symbol))
    }
}

fn is_bpf(name: &str) -> bool {
    name.ends_with(" [bpf]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
ffffffff81000100 T second
ffffffff81000000 T first
ffffffff81000000 t first_alias
ffffffff81000180 d data
ffffffffc0001000 t of_module\t[ext4]
ffffffffc0002000 t bpf_trampoline_1\t[bpf]
";

    #[test]
    fn addresses_have_the_name_that_begins_before_them() {
        let symbols = Kallsyms::parse(KALLSYMS.as_bytes()).unwrap();
        let stack = [
            0xffff_ffff_c000_2010,
            0xffff_ffff_8100_0000,
            0xffff_ffff_8100_01a4,
            0xffff_ffff_c000_1001,
            0xffff_ffff_c000_2fff,
            0x1000,
        ];
        let expected = [
            "first+0x0",
            "second+0xa4",
            "of_module+0x1 [ext4]",
            "bpf_trampoline_1+0xfff [bpf]",
            "0x1000",
        ];
        assert_eq!(symbols.frames(&stack), expected);
    }

    #[test]
    fn hidden_addresses_stay_numbers() {
        let hidden = "0000000000000000 T first\n0000000000000000 T second\n";
        let symbols = Kallsyms::parse(hidden.as_bytes()).unwrap();
        assert!(symbols.is_empty());
        assert_eq!(symbols.frames(&[0x10]), ["0x10"]);
    }
}
