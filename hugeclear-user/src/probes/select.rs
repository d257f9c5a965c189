//! Chooses the probe set from the facts. Pure: whether the kernel accepts a probe is seen when it is
//! attached.

use std::fmt;

use clap::ValueEnum;
use hugeclear_ebpf::{
    config::{AddressFrom, Pair, Role, SizeFrom},
    key::Site,
};
use serde::Serialize;

use super::catalog::{self, Around, Function};
use crate::{facts::Facts, notes::Note};

/// A way to attach the programs of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// BPF trampoline: the cheapest, since 5.5, needs BTF.
    Fentry,
    /// kprobe and kretprobe.
    Kprobe,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
        })
    }
}

/// How clears in the page allocator are looked for, where the kernel makes them there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AllocatorMode {
    /// By the narrowest probe that costs ordinary allocations nothing.
    #[default]
    Auto,
    /// By the probe nearest to the clearing, though it also fires on ordinary allocations.
    Exact,
    /// Not at all.
    Off,
}

/// What the user asked of the probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The only method to use.
    pub method: Option<Method>,
    /// How to trace the allocator.
    pub allocator: AllocatorMode,
    /// Whether to trace the faults around clears too, with their parts.
    pub faults: bool,
}

/// A function to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Full name of the symbol.
    pub function: String,
    /// Programs to attach.
    pub pair: Pair,
    /// What it clears; `None` for a function around clears.
    pub clear: Option<Clear>,
    /// Methods to try, best first. Never empty.
    pub methods: Vec<Method>,
}

/// The clearing that a probe records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clear {
    /// Site under which clears are recorded.
    pub site: Site,
    /// Where the page size is found.
    pub size_from: SizeFrom,
    /// Where the address that faulted is found.
    pub address_from: AddressFrom,
    /// Whether the first argument points to the page.
    pub page_is_arg1: bool,
    /// Address that the third argument must have.
    pub only_function: Option<u64>,
    /// Whether the duration includes more than the clear.
    pub derived: bool,
}

/// How clears in the allocator are traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// Not at all: the kernel does not clear there, or it was not asked for, or it cannot be.
    Untraced,
    /// By a probe of its own.
    Probe {
        /// The probe.
        probe: Probe,
        /// Whether only calls inside an open fault count.
        in_fault: bool,
    },
    /// As the time from the entry of the fault to the entry of the clear function: the kernel
    /// zeroes twice.
    BeforeClear,
}

/// A method, or a function, that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The function.
    pub function: String,
    /// The method; `None`: none at all.
    pub method: Option<Method>,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.method {
            Some(method) => write!(f, "{} by {method}: {}", self.function, self.reason),
            None => write!(f, "{}: {}", self.function, self.reason),
        }
    }
}

/// What to attach on this kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSet {
    /// Probes on the clear functions.
    pub clears: Vec<Probe>,
    /// Probe on the function that copies.
    pub copies: Option<Probe>,
    /// How the allocator's clears are traced.
    pub allocator: Allocator,
    /// Probes on the faults around clears, and on what else asks for huge pages.
    pub faults: Vec<Probe>,
    /// Whether the faults are recorded, and each clear's cause.
    pub records_faults: bool,
    /// Probes on what a fault may have to wait for.
    pub parts: Vec<Probe>,
    /// Probe on what makes the huge zero page.
    pub huge_zero_page: Option<HugeZeroPage>,
    /// Probe on the switch of the preemption model.
    pub preempt_switch: Option<Probe>,
    /// What cannot be used, and why.
    pub refusals: Vec<Refusal>,
    /// What the user should know of this choice.
    pub notes: Vec<Note>,
}

/// How the clear of the huge zero page is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugeZeroPage {
    /// The probe.
    pub probe: Probe,
    /// Address of the kernel's pointer to that page.
    pub pointer: u64,
}

/// Which clears in the allocator a probe set sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorReach {
    /// None.
    Nothing,
    /// Those of PMD-sized pages.
    Thp,
    /// Those of every size.
    EverySize,
}

impl ProbeSet {
    /// Every probe but that on the switch of the preemption model, in the order in which to attach them:
    /// what is around a clear before the clear, so that none is found without it.
    pub fn probes(&self) -> impl Iterator<Item = &Probe> {
        let allocator = match &self.allocator {
            Allocator::Probe { probe, .. } => Some(probe),
            Allocator::Untraced | Allocator::BeforeClear => None,
        };
        let zero_page = self.huge_zero_page.as_ref().map(|page| &page.probe);
        self.faults
            .iter()
            .chain(&self.parts)
            .chain(zero_page)
            .chain(allocator)
            .chain(&self.clears)
            .chain(&self.copies)
    }

    /// Which clears in the allocator it sees, once the pairs of which `is_attached` are attached.
    #[must_use]
    pub fn allocator_reach(&self, is_attached: impl Fn(Pair) -> bool) -> AllocatorReach {
        let sees_thp = match self.allocator {
            Allocator::Untraced => false,
            Allocator::Probe {
                in_fault: false, ..
            } => is_attached(Pair::Allocator),
            Allocator::Probe { in_fault: true, .. } => {
                is_attached(Pair::Allocator) && is_attached(Pair::ThpFault)
            }
            Allocator::BeforeClear => is_attached(Pair::Clear) && is_attached(Pair::ThpFault),
        };
        match sees_thp {
            false => AllocatorReach::Nothing,
            true if is_attached(Pair::AnonFault) => AllocatorReach::EverySize,
            true => AllocatorReach::Thp,
        }
    }
}

/// Chooses the probe set.
#[must_use]
pub fn select(facts: &Facts, wanted: &Wanted) -> ProbeSet {
    let mut refusals = Vec::new();
    let mut notes = Vec::new();

    let mut clears: Vec<Probe> = first_of(facts, wanted, catalog::OUTER_CLEARS, &mut refusals)
        .into_iter()
        .collect();
    if clears.is_empty() {
        clears = catalog::INNER_CLEARS
            .iter()
            .filter_map(|function| probe_of(facts, wanted, function, &mut refusals))
            .collect();
    }

    let copies = first_of(facts, wanted, catalog::COPIES, &mut refusals);

    let allocator = allocator(facts, wanted, &mut refusals, &mut notes);
    let for_allocator = match &allocator {
        Allocator::Untraced => false,
        Allocator::Probe { in_fault, .. } => *in_fault,
        Allocator::BeforeClear => true,
    };
    let mut around = Vec::new();
    if facts.thp.is_some() && (for_allocator || wanted.faults) {
        around.push(catalog::THP_FAULT);
        if facts.symbols.has(catalog::ALLOCATION_OF_THP.name) {
            around.push(catalog::WRITE_FAULT);
        }
        if mthp_is_enabled(facts) {
            around.push(catalog::ANON_FAULT);
        }
    }
    let mut parts = Vec::new();
    let mut huge_zero_page = None;
    if wanted.faults {
        around.extend(catalog::ASKERS);
        let parts_of_fault = catalog::PARTS.iter();
        parts.extend(
            parts_of_fault.filter_map(|part| probe_around(facts, wanted, part, &mut refusals)),
        );
        huge_zero_page = find_huge_zero_page(facts, wanted, &mut refusals);
        if facts.thp.is_some() && huge_zero_page.is_none() {
            notes.push(Note::new(
                "huge_zero_page_unseen",
                "the clear of the huge zero page, once per boot, is not seen: where it is made \
                 cannot be traced on this kernel",
            ));
        }
    }
    let mut faults = Vec::new();
    for around in &around {
        let probe = probe_around(facts, wanted, around, &mut refusals);
        match &probe {
            Some(_) if around.pair == Pair::AnonFault => {
                notes.push(note_of_every_fault(wanted.faults));
            }
            // One that another version has is no news.
            None if wanted.faults && facts.symbols.variants(around.name).next().is_some() => {
                notes.push(Note::new(
                    "cause_untraced",
                    format!(
                        "{} cannot be traced here: clears inside it have the cause `other`; \
                         hugeclear-trace doctor says why",
                        around.name
                    ),
                ));
            }
            Some(_) | None => {}
        }
        faults.extend(probe);
    }

    // Under RT the model is `rt` whatever the mode is.
    let preempt_switch = (facts.preempt.modes.iter())
        .any(|mode| mode.model != facts.preempt.model)
        .then(|| found(facts, wanted, catalog::PREEMPT_SWITCH, 1, &mut refusals))
        .flatten()
        .map(|found| Probe {
            function: found.function,
            pair: Pair::Clear,
            clear: None,
            methods: found.methods,
        });

    ProbeSet {
        clears,
        copies,
        allocator,
        faults,
        records_faults: wanted.faults,
        parts,
        huge_zero_page,
        preempt_switch,
        refusals,
        notes,
    }
}

fn allocator(
    facts: &Facts,
    wanted: &Wanted,
    refusals: &mut Vec<Refusal>,
    notes: &mut Vec<Note>,
) -> Allocator {
    if facts.thp.is_none() || facts.init_on_alloc.on == Some(false) {
        return Allocator::Untraced;
    }
    if facts.init_on_alloc.on.is_none() {
        notes.push(Note::new(
            "init_on_alloc_unknown",
            "it cannot be told whether the page allocator zeroes pages (init_on_alloc); clears \
             there are not traced. Root can read it from /proc/kcore",
        ));
        return Allocator::Untraced;
    }
    if wanted.allocator == AllocatorMode::Off {
        notes.push(Note::new(
            "allocator_off",
            "init_on_alloc is on and --allocator off was given: what the page allocator clears is \
             not shown",
        ));
        return Allocator::Untraced;
    }

    let zeroes_once = facts.symbols.has(catalog::ALLOCATION_OF_THP.name);
    let any_order = || {
        catalog::ALLOCATOR_CLEARS
            .iter()
            .chain(catalog::ALLOCATIONS_OF_ANY_ORDER)
    };
    let chosen = match wanted.allocator {
        AllocatorMode::Exact => first_of(facts, wanted, any_order(), refusals),
        AllocatorMode::Auto | AllocatorMode::Off if !zeroes_once => {
            notes.push(Note::new(
                "zeroed_twice",
                "init_on_alloc is on and this kernel zeroes an anonymous huge page twice: in the \
                 page allocator and again in the clear function. Both are shown; the allocator's \
                 duration is derived: from the entry of the fault to the entry of the clear \
                 function, allocation included",
            ));
            return Allocator::BeforeClear;
        }
        AllocatorMode::Auto | AllocatorMode::Off if mthp_is_enabled(facts) => {
            first_of(facts, wanted, catalog::ALLOCATIONS_OF_ANY_ORDER, refusals)
        }
        AllocatorMode::Auto | AllocatorMode::Off => {
            probe_of(facts, wanted, &catalog::ALLOCATION_OF_THP, refusals)
        }
    };
    let Some(probe) = chosen else {
        notes.push(Note::new(
            "allocator_untraced",
            "init_on_alloc is on, but no function that shows the page allocator's clearing can be \
             traced on this kernel; hugeclear-trace doctor says why",
        ));
        return Allocator::Untraced;
    };
    let row = any_order().find(|row| probe.function == row.name);
    if row.is_some_and(|row| row.every_allocation) {
        notes.push(Note::new(
            "every_allocation",
            format!(
                "the probe on {} also fires on ordinary page allocations and costs each a few \
                 hundred instructions",
                probe.function
            ),
        ));
    }
    if probe.clear.is_some_and(|clear| clear.derived) {
        notes.push(Note::new(
            "allocator_derived",
            format!(
                "init_on_alloc is on: the page allocator zeroes anonymous huge pages. Its duration \
                 is derived: that of {}, allocation included",
                probe.function
            ),
        ));
    }
    Allocator::Probe {
        probe,
        in_fault: row.is_some(),
    }
}

/// What the probe on `do_anonymous_page` costs, and why it is there.
fn note_of_every_fault(records_faults: bool) -> Note {
    let (why, remedy) = if records_faults {
        ("faults are traced and an mTHP size is enabled", "")
    } else {
        (
            "an mTHP size is enabled and the allocator zeroes",
            "; --allocator off avoids it",
        )
    };
    Note::new(
        "every_fault",
        format!(
            "{why}: the probe on do_anonymous_page costs every anonymous page fault a few hundred \
             instructions{remedy}"
        ),
    )
}

/// The probe on what makes the huge zero page, where its pointer can be read too.
fn find_huge_zero_page(
    facts: &Facts,
    wanted: &Wanted,
    refusals: &mut Vec<Refusal>,
) -> Option<HugeZeroPage> {
    facts.thp.as_ref()?;
    let mut candidates = catalog::HUGE_ZERO_PAGES.iter();
    let (around, pointer) =
        candidates.find(|(around, _)| facts.symbols.variants(around.name).next().is_some())?;
    let Some(pointer) = facts.symbols.address(pointer) else {
        let reason = format!("the address of {pointer} is not known");
        refusals.push(refuse(around.name, reason));
        return None;
    };
    let probe = probe_around(facts, wanted, around, refusals)?;
    Some(HugeZeroPage { probe, pointer })
}

/// Whether any anonymous page size between a base page and a PMD is switched on.
fn mthp_is_enabled(facts: &Facts) -> bool {
    keys_of_enabled_mthp(facts).next().is_some()
}

/// The enabled mTHP sizes, in bytes.
pub(super) fn keys_of_enabled_mthp(facts: &Facts) -> impl Iterator<Item = u64> {
    facts.thp.iter().flat_map(|thp| {
        thp.offered_bytes().into_iter().filter(|bytes| {
            Some(*bytes) != thp.pmd_size_bytes
                && !matches!(
                    thp.anonymous(*bytes),
                    None | Some(crate::facts::ThpEnabled::Never)
                )
        })
    })
}

fn first_of<'a>(
    facts: &Facts,
    wanted: &Wanted,
    functions: impl IntoIterator<Item = &'a Function>,
    refusals: &mut Vec<Refusal>,
) -> Option<Probe> {
    functions
        .into_iter()
        .find_map(|function| probe_of(facts, wanted, function, refusals))
}

/// The probe on a function around clears, or `None`; and why what cannot be used cannot.
fn probe_around(
    facts: &Facts,
    wanted: &Wanted,
    around: &Around,
    refusals: &mut Vec<Refusal>,
) -> Option<Probe> {
    let mut found = found(facts, wanted, around.name, around.parameters, refusals)?;
    // An fexit program finds what the function returns after its arguments.
    let parameters = facts.btf.function(around.name).map(|btf| btf.parameters);
    if around.pair.role() == Role::Encloses
        && parameters.is_some_and(|parameters| parameters != around.parameters)
    {
        found.methods.retain(|method| *method != Method::Fentry);
        let reason = "its prototype is not the one we know";
        refusals.push(Refusal {
            method: Some(Method::Fentry),
            ..refuse(around.name, reason)
        });
    }
    (!found.methods.is_empty()).then_some(Probe {
        function: found.function,
        pair: around.pair,
        clear: None,
        methods: found.methods,
    })
}

/// The probe on a function of the catalog, or `None`; and why what cannot be used cannot.
fn probe_of(
    facts: &Facts,
    wanted: &Wanted,
    row: &Function,
    refusals: &mut Vec<Refusal>,
) -> Option<Probe> {
    let parameters = match row.size_from {
        SizeFrom::FolioOrder | SizeFrom::Pmd => 1,
        SizeFrom::PagesArg2 | SizeFrom::OrderArg2 => 2,
        SizeFrom::PagesArg3 => 3,
        SizeFrom::PagesArg5 => 5,
    };
    let mut found = found(facts, wanted, row.name, parameters, refusals)?;
    if row.in_interrupts {
        found.methods.retain(|method| *method == Method::Fentry);
        if found.methods.is_empty() {
            let reason = "interrupts call it too, and a kprobe cannot tell their calls apart";
            refusals.push(refuse(row.name, reason));
            return None;
        }
    }
    if row.size_from == SizeFrom::FolioOrder && facts.btf.offsets.folio_flags_1.is_none() {
        refusals.push(refuse(
            row.name,
            "the order of a folio cannot be located (struct folio has no _flags_1 in BTF, or BTF \
             cannot be read)",
        ));
        return None;
    }
    let only_function = match row.only_function {
        None => None,
        Some(argument) => {
            let address = facts.symbols.address(argument);
            if address.is_none() {
                let reason = format!(
                    "it clears and copies, and {argument}, which tells which, has no known address"
                );
                refusals.push(refuse(row.name, reason));
                return None;
            }
            address
        }
    };
    Some(Probe {
        function: found.function,
        pair: row.pair,
        clear: Some(Clear {
            site: row.site,
            size_from: row.size_from,
            address_from: row.address_from,
            page_is_arg1: row.page_is_arg1,
            only_function,
            derived: row.derived,
        }),
        methods: found.methods,
    })
}

/// A function of this kernel, and the methods worth trying on it: at least one.
struct Found {
    function: String,
    methods: Vec<Method>,
}

/// The one symbol of `name`, or `None`; and why what cannot be used cannot.
fn found(
    facts: &Facts,
    wanted: &Wanted,
    name: &str,
    parameters: u32,
    refusals: &mut Vec<Refusal>,
) -> Option<Found> {
    let function = match symbol(facts, name, parameters) {
        Ok(function) => function,
        Err(reason) => {
            refusals.push(refuse(name, reason));
            return None;
        }
    };
    let obstacles = [
        (Method::Fentry, fentry_obstacle(facts, name, function)),
        (Method::Kprobe, kprobe_obstacle(facts, function)),
    ];
    let mut methods = Vec::new();
    for (method, obstacle) in obstacles {
        match obstacle {
            _ if wanted.method.is_some_and(|only| only != method) => {}
            None => methods.push(method),
            Some(reason) => {
                refusals.push(Refusal {
                    method: Some(method),
                    ..refuse(name, reason)
                });
            }
        }
    }
    (!methods.is_empty()).then(|| Found {
        function: function.to_owned(),
        methods,
    })
}

/// The full name of the one symbol of `name`.
///
/// Nothing is attached by guess: of several symbols of one name none is taken, and a variant that
/// the compiler made (`.isra.0`, `.constprop.0`) only if BTF describes the function, which pahole
/// allows only where the arguments are where the prototype has them.
fn symbol<'a>(facts: &'a Facts, name: &'a str, parameters: u32) -> Result<&'a str, String> {
    let symbols = &facts.symbols;
    let btf = facts.btf.function(name);
    let variants: Vec<&str> = symbols.variants(name).map(|symbol| &*symbol.name).collect();
    let function = match variants[..] {
        [] if symbols.read => {
            return Err("not in this kernel (of another version, or inlined)".to_owned());
        }
        [] => name,
        [only] if only == name || btf.is_some() => only,
        [only] => {
            return Err(format!(
                "only {only} exists, and nothing says that its arguments are unchanged"
            ));
        }
        [..] => {
            return Err(format!(
                "{} symbols have this name; none is attached by guess",
                variants.len()
            ));
        }
    };
    if btf.is_some_and(|btf| btf.parameters < parameters) {
        return Err("its prototype is not the one we know".to_owned());
    }
    if symbols.traceable(function) == Some(false) {
        return Err("not traceable (notrace)".to_owned());
    }
    Ok(function)
}

fn fentry_obstacle(facts: &Facts, name: &str, function: &str) -> Option<&'static str> {
    if !facts.btf.present {
        Some("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")
    } else if facts.btf.function(name).is_none() || function != name {
        Some("BTF does not describe it")
    } else {
        None
    }
}

fn kprobe_obstacle(facts: &Facts, function: &str) -> Option<&'static str> {
    if facts.kprobes == Some(false) {
        Some("the kernel has no kprobes (CONFIG_KPROBE_EVENTS)")
    } else if facts.symbols.blacklisted(function) == Some(true) {
        Some("on the kprobe blacklist")
    } else {
        None
    }
}

/// A function that cannot be used at all.
fn refuse(function: &str, reason: impl Into<String>) -> Refusal {
    Refusal {
        function: function.to_owned(),
        method: None,
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests;
