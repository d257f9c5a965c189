//! Follows one huge page of this thread while it is cleared, piece by piece.
//!
//! Apart from the trace: its programs fire at every piece, 512 times for 2 MiB on older kernels, and
//! live for one fault.

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, RingBuf},
    programs::{KProbe, ProgramError},
};
use hugeclear_ebpf::piece::Event;

use super::{attach, config::OBJECT, select::Method};
use crate::facts::{
    Facts,
    clear_sites::{ClearSite, Length},
};

/// The programs are attached while this lives.
pub struct PieceTracer {
    ebpf: Ebpf,
}

/// What to follow.
#[derive(Debug, Clone, Copy)]
pub struct Follow<'a> {
    /// The function that clears.
    pub function: &'a str,
    /// The instructions with which it does.
    pub sites: &'a [ClearSite],
    /// The kernel's `cond_resched`, where it is a function.
    pub resched: Option<&'a str>,
    /// The thread to follow, as the initial namespace numbers it.
    pub thread: u32,
    /// How many events to have room for.
    pub events: u64,
}

impl PieceTracer {
    /// Attaches to everything that `follow` names.
    ///
    /// # Errors
    /// What was refused and why, in words.
    pub fn attach(facts: &Facts, follow: &Follow<'_>) -> Result<Self, String> {
        const HEADER_BYTES: u64 = 8;
        let room = follow
            .events
            .saturating_mul(size_of::<Event>() as u64 + HEADER_BYTES);
        let room = u32::try_from(room.next_power_of_two())
            .map_err(|_| format!("{} events need too much memory", follow.events))?;
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .override_global("PIECE_THREAD", &follow.thread, true)
            .map_max_entries("PIECES", room)
            // Only a trace needs it.
            .map_max_entries("STARTS", 1)
            .load(OBJECT)
            .map_err(|error| format!("the kernel refuses the object or its maps: {error}"))?;
        let mut attach = |program, function: &str, offset| {
            attach(&mut ebpf, program, function, offset).map_err(|error| {
                log::debug!("{program} at {function}+{offset:#x}: {error:?}");
                let reason = attach::reason(&error, Method::Kprobe, facts);
                format!("{function}+{offset:#x} cannot be probed: {reason}")
            })
        };
        for site in follow.sites {
            let program = match site.length {
                Length::Page => "piece_page",
                Length::Bytes => "piece_bytes",
                Length::Words => "piece_words",
            };
            attach(program, &site.function, site.offset)?;
        }
        if let Some(resched) = follow.resched {
            attach("piece_resched", resched, 0)?;
        }
        attach("piece_exit", follow.function, 0)?;
        attach("piece_enter", follow.function, 0)?;
        Ok(Self { ebpf })
    }

    /// Detaches, and returns the events in the order in which they happened, and the number of those
    /// that found no room.
    ///
    /// # Errors
    /// If the maps cannot be read, in words.
    pub fn end(mut self) -> Result<(Vec<Event>, u64), String> {
        let maps = (
            self.ebpf.take_map("PIECES"),
            self.ebpf.take_map("PIECES_DROPPED"),
        );
        // The programs with their links. The thread that they follow is this one: none is running.
        drop(self.ebpf);
        let (Some(pieces), Some(dropped)) = maps else {
            return Err("the object lacks the maps of the pieces".to_owned());
        };
        let of_map = |error: aya::maps::MapError| format!("reading the pieces: {error}");
        let mut pieces = RingBuf::try_from(pieces).map_err(of_map)?;
        let dropped: Array<_, u64> = Array::try_from(dropped).map_err(of_map)?;
        let mut events = Vec::new();
        while let Some(item) = pieces.next() {
            events.extend(event(&item));
        }
        let dropped = dropped.get(&0, 0).map_err(of_map)?;
        Ok((events, dropped))
    }
}

impl std::fmt::Debug for PieceTracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PieceTracer").finish_non_exhaustive()
    }
}

fn event(bytes: &[u8]) -> Option<Event> {
    let (words, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let [ns, kind, address, count] = words else {
        return None;
    };
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    Some(Event {
        ns: word(ns),
        kind: word(kind),
        address: word(address),
        count: word(count),
    })
}

/// Attaches a program, which may be attached elsewhere already.
fn attach(
    ebpf: &mut Ebpf,
    name: &'static str,
    function: &str,
    offset: u64,
) -> Result<(), ProgramError> {
    let program = ebpf
        .program_mut(name)
        .expect("the object is built from the same source tree");
    let program: &mut KProbe = program.try_into()?;
    match program.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
        Err(error) => return Err(error),
    }
    program.attach(function, offset)?;
    Ok(())
}
