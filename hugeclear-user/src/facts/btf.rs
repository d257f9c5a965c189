//! Type information of the running kernel (BTF): the struct offsets and functions we need.
//!
//! A reader of our own rather than a crate: btfparse 1.3.9 builds maps of every name and takes
//! 140 ms and 60 MB natively for a 5.5 MB BTF (seconds in an emulated guest); here one pass over the
//! types does. Format: Documentation/bpf/btf.rst. Knows nothing of BPF programs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{source::Source, symbols::INTERESTING};

/// The kernel's BTF, without the leading `/`.
const PATH: &str = "sys/kernel/btf/vmlinux";

/// What the kernel's BTF says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Btf {
    /// Whether `/sys/kernel/btf/vmlinux` exists; fentry and fexit need it.
    pub present: bool,
    /// Offsets of struct members.
    pub offsets: Offsets,
    /// Numbers that the kernel was built with.
    pub constants: Constants,
    /// Those of the interesting functions ([`INTERESTING`]) that BTF describes.
    pub functions: Vec<BtfFunction>,
}

/// A function that BTF describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BtfFunction {
    /// Name as BTF has it.
    pub name: String,
    /// Number of parameters.
    pub parameters: u32,
}

/// Numbers that the kernel was built with; `None`: BTF does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constants {
    /// Position of the memory node in the flags of a page: `NODES_PGSHIFT` where no section is in them
    /// (`CONFIG_SPARSEMEM_VMEMMAP`). From the length of `zonelist._zonerefs`, which is
    /// `MAX_NUMNODES * __MAX_NR_ZONES + 1`. 64: there is one node only, and no such bits.
    pub node_shift: Option<u32>,
    /// `THP_FAULT_FALLBACK` of `enum vm_event_item`.
    pub thp_fault_fallback: Option<u32>,
    /// `THP_FAULT_FALLBACK_CHARGE` of `enum vm_event_item` (since 5.8).
    pub thp_fault_fallback_charge: Option<u32>,
}

/// Offsets in bytes from the start of the struct; `None`: this kernel has no such member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    /// `folio._flags_1` where its low 8 bits are the order (6.6 and later). `None` where the order
    /// has a field of its own: 6.1 has a `_flags_1` too, without the order in it.
    pub folio_flags_1: Option<u32>,
    /// `folio._folio_order`, u8 (5.18 to 6.5).
    pub folio_order: Option<u32>,
    /// `page.compound_order`, u8, valid in the SECOND page of the compound page (5.10 to 6.5): add
    /// [`Offsets::page_size_of`] to it when starting from the head page.
    pub page_compound_order: Option<u32>,
    /// `folio._nr_pages`, u32 (6.14 and later) or `folio._folio_nr_pages` (before).
    pub folio_nr_pages: Option<u32>,
    /// `folio.flags`, unsigned long (since 6.18 the only member of a struct).
    pub folio_flags: Option<u32>,
    /// `task_struct.sched_info.run_delay`, unsigned long long, nanoseconds.
    pub task_run_delay: Option<u32>,
    /// `task_struct.nvcsw`, unsigned long.
    pub task_nvcsw: Option<u32>,
    /// `task_struct.nivcsw`, unsigned long.
    pub task_nivcsw: Option<u32>,
    /// `task_struct.pid`, 32 bits: the thread's number.
    pub task_pid: Option<u32>,
    /// `task_struct.thread_info.cpu` (5.16 and later) or `task_struct.cpu`, 32 bits.
    pub task_cpu: Option<u32>,
    /// `task_struct.comm`, 16 bytes.
    pub task_comm: Option<u32>,
    /// `task_struct.flags`, 32 bits.
    pub task_flags: Option<u32>,
    /// `sizeof(struct page)`, bytes.
    pub page_size_of: Option<u32>,
    /// `vm_fault.address`, unsigned long.
    pub fault_address: Option<u32>,
    /// `vm_fault.flags`, 32 bits.
    pub fault_flags: Option<u32>,
}

impl Btf {
    /// The function as BTF describes it.
    pub fn function(&self, name: &str) -> Option<&BtfFunction> {
        self.functions.iter().find(|function| function.name == name)
    }

    pub(super) fn read(source: &mut Source) -> Self {
        let absent = Self {
            present: false,
            offsets: Offsets::default(),
            constants: Constants::default(),
            functions: Vec::new(),
        };
        if !source.exists(PATH) {
            return absent;
        }
        let Some(bytes) = source.bytes(PATH) else {
            return Self {
                present: true,
                ..absent
            };
        };
        match Types::parse(&bytes) {
            Ok(types) => Self {
                present: true,
                offsets: types.offsets(),
                constants: types.constants(),
                functions: types.functions(),
            },
            Err(why) => {
                source.note(PATH, &why);
                Self {
                    present: true,
                    ..absent
                }
            }
        }
    }
}

mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
    pub(super) const LAST: u32 = ENUM64;
}

/// Structs whose members are wanted.
const STRUCTS: [&[u8]; 5] = [b"folio", b"page", b"task_struct", b"vm_fault", b"zonelist"];

/// Enums whose values are wanted.
const ENUMS: [&[u8]; 2] = [b"vm_event_item", b"zone_type"];

/// How deep anonymous structs and typedefs are followed.
const MAX_DEPTH: u32 = 16;

/// The type section by type id, and the ids found in passing.
struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in `types`; id 1 is the first.
    starts: Vec<u32>,
    structs: [Option<u32>; STRUCTS.len()],
    enums: [Option<u32>; ENUMS.len()],
    functions: Vec<u32>,
}

/// The fixed part of a type: `struct btf_type`.
#[derive(Clone, Copy)]
struct Header {
    name: u32,
    kind: u32,
    members: u32,
    kind_flag: bool,
    /// Size in bytes or a type id, by kind.
    size_or_type: u32,
}

impl<'a> Types<'a> {
    fn parse(btf: &'a [u8]) -> Result<Self, &'static str> {
        const MAGIC: u16 = 0xeb9f;
        const TRUNCATED: &str = "BTF is shorter than its header says";
        if btf.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err("not BTF of this machine's byte order");
        }
        // magic u16, version u8, flags u8, then u32: header length, type offset and length, string
        // offset and length; both offsets count from the end of the header.
        let field = |index: usize| {
            word(btf, index * 4)
                .map(|word| word as usize)
                .ok_or(TRUNCATED)
        };
        let header = field(1)?;
        let section = |start: usize, length: usize| btf.get(header..)?.get(start..)?.get(..length);
        let types = section(field(2)?, field(3)?).ok_or(TRUNCATED)?;
        let strings = section(field(4)?, field(5)?).ok_or(TRUNCATED)?;
        let mut this = Self {
            types,
            strings,
            starts: Vec::new(),
            structs: Default::default(),
            enums: Default::default(),
            functions: Vec::new(),
        };
        this.index()
            .ok_or("BTF has a type that this program does not know")?;
        Ok(this)
    }

    /// The one pass over all types.
    fn index(&mut self) -> Option<()> {
        let wanted: BTreeSet<&[u8]> = INTERESTING.iter().map(|name| name.as_bytes()).collect();
        let mut start = 0;
        while start < self.types.len() {
            self.starts.push(u32::try_from(start).ok()?);
            let id = u32::try_from(self.starts.len()).ok()?;
            let header = Header::at(self.types, start)?;
            match header.kind {
                kind::STRUCT => {
                    let name = self.string(header.name);
                    if let Some(index) = STRUCTS.iter().position(|wanted| *wanted == name) {
                        self.structs[index].get_or_insert(id);
                    }
                }
                kind::ENUM => {
                    let name = self.string(header.name);
                    if let Some(index) = ENUMS.iter().position(|wanted| *wanted == name) {
                        self.enums[index].get_or_insert(id);
                    }
                }
                kind::FUNC if wanted.contains(self.string(header.name)) => self.functions.push(id),
                0 | kind::LAST.. if header.kind != kind::LAST => return None,
                _ => {}
            }
            start += Header::BYTES + header.trailing_bytes();
        }
        Some(())
    }

    fn functions(&self) -> Vec<BtfFunction> {
        let mut functions: Vec<BtfFunction> = self
            .functions
            .iter()
            .filter_map(|id| {
                let (function, _) = self.get(*id)?;
                let (prototype, _) = self.get(function.size_or_type)?;
                Some(BtfFunction {
                    name: String::from_utf8_lossy(self.string(function.name)).into_owned(),
                    parameters: (prototype.kind == kind::FUNC_PROTO)
                        .then_some(prototype.members)?,
                })
            })
            .collect();
        functions.sort_by(|a, b| a.name.cmp(&b.name));
        functions
    }

    fn offsets(&self) -> Offsets {
        let [folio, page, task, fault, _] = self.structs;
        let member = |of: Option<u32>, path: &[&str]| self.offset_bytes(of?, path);
        let folio_order = member(folio, &["_folio_order"]);
        Offsets {
            folio_flags_1: match folio_order {
                Some(_) => None,
                None => member(folio, &["_flags_1"]),
            },
            folio_order,
            page_compound_order: member(page, &["compound_order"]),
            folio_nr_pages: member(folio, &["_nr_pages"])
                .or_else(|| member(folio, &["_folio_nr_pages"])),
            folio_flags: member(folio, &["flags"]),
            task_run_delay: member(task, &["sched_info", "run_delay"]),
            task_nvcsw: member(task, &["nvcsw"]),
            task_nivcsw: member(task, &["nivcsw"]),
            task_pid: member(task, &["pid"]),
            task_cpu: member(task, &["thread_info", "cpu"]).or_else(|| member(task, &["cpu"])),
            task_comm: member(task, &["comm"]),
            task_flags: member(task, &["flags"]),
            page_size_of: page.and_then(|id| Some(self.get(id)?.0.size_or_type)),
            fault_address: member(fault, &["address"]),
            fault_flags: member(fault, &["flags"]),
        }
    }

    fn constants(&self) -> Constants {
        let [events, zones] = self.enums;
        let event = |name: &[u8]| self.enumerator(events?, name);
        Constants {
            node_shift: zones.and_then(|zones| self.node_shift(zones)),
            thp_fault_fallback: event(b"THP_FAULT_FALLBACK"),
            thp_fault_fallback_charge: event(b"THP_FAULT_FALLBACK_CHARGE"),
        }
    }

    fn node_shift(&self, zones: u32) -> Option<u32> {
        let [.., zonelist] = self.structs;
        let (_, references) = self.member(zonelist?, b"_zonerefs", MAX_DEPTH)?;
        let (array, rest) = self.get(references)?;
        // struct btf_array: type of the elements, type of the index, number of elements.
        let length = word(rest, 8).filter(|_| array.kind == kind::ARRAY)?;
        let zones = self.enumerator(zones, b"__MAX_NR_ZONES")?;
        let nodes = length.checked_sub(1)?.checked_div(zones)?;
        (nodes.is_power_of_two() && nodes * zones + 1 == length).then(|| u64::BITS - nodes.ilog2())
    }

    /// The value of an enumerator of the enum `id`.
    fn enumerator(&self, id: u32, name: &[u8]) -> Option<u32> {
        let (header, values) = self.get(id)?;
        values
            .chunks_exact(8)
            .take(header.members as usize)
            .find_map(|value| (self.string(word(value, 0)?) == name).then(|| word(value, 4))?)
    }

    /// Byte offset of a member path; `None` for bit fields.
    fn offset_bytes(&self, id: u32, path: &[&str]) -> Option<u32> {
        let mut id = id;
        let mut bits = 0_u32;
        for name in path {
            let (member_bits, member_type) = self.member(id, name.as_bytes(), MAX_DEPTH)?;
            bits = bits.checked_add(member_bits)?;
            id = member_type;
        }
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Bit offset and type of a member, looked for in anonymous members too.
    fn member(&self, id: u32, name: &[u8], depth: u32) -> Option<(u32, u32)> {
        let depth = depth.checked_sub(1)?;
        let (header, trailing) = self.get(id)?;
        match header.kind {
            kind::STRUCT | kind::UNION => {}
            kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                return self.member(header.size_or_type, name, depth);
            }
            _ => return None,
        }
        trailing
            .chunks_exact(12)
            .take(header.members as usize)
            .find_map(|member| {
                let (member_name, member_type, offset) =
                    (word(member, 0)?, word(member, 4)?, word(member, 8)?);
                // With the flag the high 8 bits are a bit field's width.
                let bits = if header.kind_flag {
                    offset & 0x00ff_ffff
                } else {
                    offset
                };
                if member_name == 0 {
                    let (inner_bits, inner_type) = self.member(member_type, name, depth)?;
                    return Some((bits.checked_add(inner_bits)?, inner_type));
                }
                (self.string(member_name) == name).then_some((bits, member_type))
            })
    }

    /// A type's fixed part and what follows it.
    fn get(&self, id: u32) -> Option<(Header, &'a [u8])> {
        let start = *self.starts.get((id as usize).checked_sub(1)?)? as usize;
        Some((
            Header::at(self.types, start)?,
            self.types.get(start + Header::BYTES..)?,
        ))
    }

    /// The string at an offset; empty if there is none.
    fn string(&self, offset: u32) -> &'a [u8] {
        let string = self.strings.get(offset as usize..).unwrap_or_default();
        string.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl Header {
    const BYTES: usize = 12;

    fn at(types: &[u8], start: usize) -> Option<Self> {
        let info = word(types, start + 4)?;
        Some(Self {
            name: word(types, start)?,
            kind: (info >> 24) & 0x1f,
            members: info & 0xffff,
            kind_flag: info >> 31 == 1,
            size_or_type: word(types, start + 8)?,
        })
    }

    /// Bytes between this type's fixed part and the next type.
    fn trailing_bytes(self) -> usize {
        let members = self.members as usize;
        match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => members * 12,
            kind::ENUM | kind::FUNC_PROTO => members * 8,
            _ => 0,
        }
    }
}

fn word(bytes: &[u8], start: usize) -> Option<u32> {
    let bytes = bytes.get(start..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::LazyLock};

    use proptest::prelude::*;

    use super::*;
    use crate::facts::recorded;

    static RECORDED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let btf = |name| fs::read(recorded::tree(name).path().join(PATH)).unwrap();
        recorded::NAMES.into_iter().map(btf).collect()
    });

    #[test]
    fn what_is_no_btf_is_refused_with_a_reason() {
        let refused = |bytes: &[u8]| Types::parse(bytes).err();
        assert_eq!(refused(b""), Some("not BTF of this machine's byte order"));
        assert_eq!(
            refused(b"\x7fELF"),
            Some("not BTF of this machine's byte order")
        );
        assert_eq!(
            refused(b"\x9f\xeb\x01\x00\x18"),
            Some("BTF is shorter than its header says")
        );
    }

    proptest! {
        #[test]
        fn damaged_btf_never_panics(
            mut bytes in prop::sample::select(&**RECORDED),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
            length in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(length) = length {
                bytes.truncate(length.index(bytes.len()) + 1);
            }
            if let Ok(types) = Types::parse(&bytes) {
                let _ = (types.offsets(), types.constants(), types.functions());
            }
        }
    }
}
