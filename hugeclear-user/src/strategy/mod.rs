//! How this kernel clears a huge page: what the facts say, and what is seen of one page.
//!
//! [`measure`] faults one huge page of its own while [`crate::probes::pieces`] follows it, `classify`
//! names what came out, and [`plot`] draws it.

mod classify;
pub mod plot;

use std::{fmt, num::NonZeroUsize, path::Path};

use hugeclear_ebpf::piece::{Event, Kind};
use serde::Serialize;

use crate::{
    facts::{Facts, HugetlbPool, Strategies, Strategy, Switch, ThpEnabled, clear_sites},
    probes::{
        pieces::{Follow, PieceTracer},
        tracer,
    },
    units::format_bytes,
    workload::memory::Mapping,
};

/// Functions that hold the instructions that clear where the compiler did not inline them into the clear
/// function.
const HELPERS: [&str; 4] = [
    "process_huge_page",
    "clear_subpage",
    "clear_gigantic_page",
    "clear_contig_highpages",
];

/// The page allocator's clearing, where it is a function: 7.2, 7.0, 5.10.
const ALLOCATOR_FUNCTIONS: [&str; 3] = [
    "clear_highpages_kasan_tagged",
    "kernel_init_pages",
    "kernel_init_free_pages",
];

/// Which page to fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The sub-page to touch.
    pub touch: Touch,
    /// Take a page of this size from the hugetlb pool. `None`: an anonymous page, or a hugetlb page
    /// where there is none to be seen.
    pub hugetlb_bytes: Option<u64>,
}

/// A sub-page of a huge page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// The first.
    First,
    /// The one at half the page.
    Middle,
    /// The last.
    Last,
    /// The one of this number, from 0.
    Page(u64),
}

impl Touch {
    /// Reads `first`, `middle`, `last` or a number.
    ///
    /// # Errors
    /// What is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "first" => Ok(Self::First),
            "middle" => Ok(Self::Middle),
            "last" => Ok(Self::Last),
            number => number.parse().map(Self::Page).map_err(|_| {
                "write first, middle, last, or the number of a sub-page, from 0".to_owned()
            }),
        }
    }

    /// The number of the sub-page in a page of `pages`.
    pub(crate) fn sub_page(self, pages: u64) -> Result<u64, String> {
        match self {
            Self::First => Ok(0),
            Self::Middle => Ok(pages / 2),
            Self::Last => Ok(pages - 1),
            Self::Page(number) if number < pages => Ok(number),
            Self::Page(number) => Err(format!(
                "there is no sub-page {number} in a page of {pages}; the last is {}",
                pages - 1
            )),
        }
    }
}

/// What the facts say, what was seen, and whether they agree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StrategyReport {
    /// By the facts; `None` where they do not tell.
    pub from_facts: Option<Strategies>,
    /// As seen.
    pub measured: Option<Measured>,
    /// Why nothing was seen.
    pub not_measured: Option<String>,
    /// Whether both are the same; `None` if one of them is missing.
    pub agree: Option<bool>,
}

/// One huge page that was cleared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// How.
    pub name: Name,
    /// The function that cleared it.
    pub function: String,
    /// What the page was for.
    pub page: PageKind,
    /// Its bytes.
    pub page_size_bytes: u64,
    /// The sub-page whose touch caused the fault.
    pub touched_sub_page: u64,
    /// The sub-page that the clear function was told; some kernels tell it the first for hugetlb. `None`:
    /// the function is not told.
    pub hint_sub_page: Option<u64>,
    /// From the entry of the function to its return, the probes included.
    pub duration_ns: u64,
    /// The pieces, in the order in which they were cleared.
    pub pieces: Vec<Piece>,
    /// When the kernel could have rescheduled, in ns from the function's entry.
    pub resched_points_ns: Vec<u64>,
    /// Events that found no room in the buffer.
    pub dropped: u64,
}

/// The name of what was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Name {
    /// A strategy.
    Known(Strategy),
    /// None of them, and why.
    Unknown(String),
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        match name {
            Name::Known(strategy) => strategy.name().to_owned(),
            Name::Unknown(why) => format!("unknown: {why}"),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(strategy) => strategy.fmt(f),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// What a huge page is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// A transparent huge page.
    Anonymous,
    /// From the hugetlb pool.
    Hugetlb,
}

impl PageKind {
    /// For people and programs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Hugetlb => "hugetlb",
        }
    }
}

/// Sub-pages that are cleared at one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// When, in ns from the function's entry.
    pub start_ns: u64,
    /// The first of them.
    pub sub_page: u64,
    /// How many.
    pub pages: u64,
}

/// What to fault, and what to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    function: String,
    page: PageKind,
    page_size_bytes: u64,
    is_allocator: bool,
    expected: Option<Strategy>,
}

/// Faults one huge page and reports how it was cleared.
#[must_use]
pub fn measure(facts: &Facts, wanted: &Wanted) -> StrategyReport {
    let (measured, expected) = match plan(facts, wanted.hugetlb_bytes) {
        Ok(plan) => (follow(facts, &plan, wanted.touch), plan.expected),
        Err(reason) => (Err(reason), None),
    };
    let (measured, not_measured) = match measured {
        Ok(measured) => (Some(measured), None),
        Err(reason) => (None, Some(reason)),
    };
    StrategyReport {
        from_facts: facts.strategies(),
        agree: measured
            .as_ref()
            .zip(expected)
            .map(|(measured, expected)| measured.name == Name::Known(expected)),
        measured,
        not_measured,
    }
}

/// Chooses page and function, or says why there is nothing to choose.
fn plan(facts: &Facts, hugetlb_bytes: Option<u64>) -> Result<Plan, String> {
    if facts.machine != "x86_64" {
        return Err(format!(
            "only x86_64 is decoded, and this is {}",
            facts.machine
        ));
    }
    tracer::check_privileges(facts).map_err(|error| error.to_string())?;
    let strategies = facts.strategies();
    let function = ["folio_zero_user", "clear_huge_page"]
        .into_iter()
        .find(|name| facts.symbols.has(name))
        .ok_or("no function that clears is in /proc/kallsyms")?;
    let by_function = |page, page_size_bytes: u64| Plan {
        function: function.to_owned(),
        page,
        page_size_bytes,
        is_allocator: false,
        expected: strategies
            .map(|strategies| strategies.function_for(page_size_bytes / facts.page_size_bytes)),
    };
    if let Some(bytes) = hugetlb_bytes {
        let pool = facts
            .hugetlb
            .iter()
            .find(|pool| pool.page_size_bytes == bytes);
        return match pool {
            Some(pool) if pool.available_pages() > 0 => {
                Ok(by_function(PageKind::Hugetlb, pool.page_size_bytes))
            }
            Some(pool) => Err(no_free_page(pool)),
            None => Err(format!(
                "this machine has no hugetlb pages of {}",
                format_bytes(bytes)
            )),
        };
    }
    let thp_bytes = facts.thp.as_ref().and_then(|thp| {
        let bytes = thp.pmd_size_bytes?;
        (thp.anonymous(bytes)? != ThpEnabled::Never).then_some(bytes)
    });
    let why_no_thp = match thp_bytes {
        None if facts.thp.is_none() => "this kernel has no transparent huge pages",
        None => "transparent huge pages are off",
        Some(bytes) if strategies.is_some_and(|strategies| strategies.allocator_instead) => {
            let allocator = ALLOCATOR_FUNCTIONS.into_iter().find(|name| {
                facts.symbols.has(name) && facts.symbols.traceable(name) != Some(false)
            });
            if let Some(allocator) = allocator {
                return Ok(Plan {
                    function: allocator.to_owned(),
                    page: PageKind::Anonymous,
                    page_size_bytes: bytes,
                    is_allocator: true,
                    expected: strategies.and_then(|strategies| strategies.allocator),
                });
            }
            "the allocator clears anonymous pages (init_on_alloc), and cannot be probed here"
        }
        Some(bytes) => return Ok(by_function(PageKind::Anonymous, bytes)),
    };
    let free = facts.hugetlb.iter().find(|pool| pool.available_pages() > 0);
    match (free, facts.hugetlb.first()) {
        (Some(pool), _) => Ok(by_function(PageKind::Hugetlb, pool.page_size_bytes)),
        (None, Some(pool)) => Err(format!("{why_no_thp}, and {}", no_free_page(pool))),
        (None, None) => Err(format!("{why_no_thp}, nor has it hugetlb pages")),
    }
}

fn no_free_page(pool: &HugetlbPool) -> String {
    let bytes = pool.page_size_bytes;
    format!(
        "no hugetlb page of {} is free: echo {} > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
        format_bytes(bytes),
        pool.total_pages + 1,
        bytes / 1024
    )
}

/// Faults the page and follows it.
fn follow(facts: &Facts, plan: &Plan, touch: Touch) -> Result<Measured, String> {
    if facts.privileges.initial_pid_namespace == Some(false) {
        return Err(
            "in a container the kernel numbers this thread otherwise; run it on the host"
                .to_owned(),
        );
    }
    let page_bytes = facts.page_size_bytes;
    let pages = plan.page_size_bytes / page_bytes;
    let touched = touch.sub_page(pages)?;

    let mut functions = vec![plan.function.clone()];
    if !plan.is_allocator {
        let helpers = HELPERS
            .into_iter()
            .flat_map(|name| facts.symbols.variants(name));
        functions.extend(helpers.map(|symbol| symbol.name.clone()));
    }
    let sites = clear_sites::find(Path::new("/"), &functions)?;
    log::info!("clears at {sites:?}");

    let bytes = NonZeroUsize::new(plan.page_size_bytes as usize).ok_or("a page of no size")?;
    let map = || {
        let mapping = match plan.page {
            PageKind::Anonymous => Mapping::transparent(bytes, bytes.get()),
            PageKind::Hugetlb => Mapping::hugetlb(bytes, plan.page_size_bytes),
        };
        mapping.map_err(|error| error.to_string())
    };
    // For each fault the pieces and a point to reschedule before each; and what else this thread does.
    const FAULTS: u64 = 2;
    const OTHER_EVENTS: u64 = 4096;
    let tracer = PieceTracer::attach(
        facts,
        &Follow {
            function: &plan.function,
            sites: &sites,
            resched: ["__cond_resched", "_cond_resched"]
                .into_iter()
                .find(|name| facts.symbols.has(name)),
            thread: nix::unistd::gettid().as_raw().cast_unsigned(),
            events: FAULTS * 2 * pages + OTHER_EVENTS,
        },
    )?;
    // The first run of the probes and of all that they call is slow, and would distort the picture.
    map()?.touch((touched * page_bytes) as usize);
    let mut mapping = map()?;
    let before_ns = monotonic_ns();
    mapping.touch((touched * page_bytes) as usize);
    let after_ns = monotonic_ns();
    let (events, dropped) = tracer.end()?;

    let start = mapping.address() as u64;
    let ours = |event: &Event| {
        if plan.is_allocator {
            // A number of pages, as an int.
            event.count & u64::from(u32::MAX) == pages
        } else {
            (start..start + plan.page_size_bytes).contains(&event.count)
        }
    };
    let events: Vec<Event> = events
        .into_iter()
        .filter(|event| (before_ns..=after_ns).contains(&event.ns))
        .collect();
    let call = Call::of(&events, ours).ok_or_else(|| no_call(plan, &facts.init_on_alloc))?;
    let pieces = call.pieces(plan.page_size_bytes, page_bytes)?;
    let hint = (!plan.is_allocator).then(|| (call.enter.count - start) / page_bytes);
    let name = if dropped > 0 {
        Name::Unknown(format!("{dropped} events found no room"))
    } else {
        classify::classify(&pieces, pages, hint, plan.expected)
    };
    Ok(Measured {
        name,
        function: plan.function.clone(),
        page: plan.page,
        page_size_bytes: plan.page_size_bytes,
        touched_sub_page: touched,
        hint_sub_page: hint,
        duration_ns: call.exit_ns - call.enter.ns,
        pieces,
        resched_points_ns: call.resched_points_ns(),
        dropped,
    })
}

fn no_call(plan: &Plan, init_on_alloc: &Switch) -> String {
    let cause = match plan.page {
        PageKind::Anonymous if init_on_alloc.on.is_none() => {
            "the kernel gave small pages, or its allocator clears (init_on_alloc is not known)"
        }
        PageKind::Anonymous => "the kernel had no huge page to give; try again",
        PageKind::Hugetlb => "please report this kernel, with the output of doctor --json",
    };
    format!("the fault did not call {}: {cause}", plan.function)
}

/// The call of the function that cleared our page.
struct Call<'a> {
    enter: Event,
    exit_ns: u64,
    inside: &'a [Event],
}

impl<'a> Call<'a> {
    /// The first call among `events` that is `ours`.
    fn of(events: &'a [Event], ours: impl Fn(&Event) -> bool) -> Option<Self> {
        let is = |event: &Event, kind: Kind| event.kind == kind as u64;
        let enter = events
            .iter()
            .position(|event| is(event, Kind::Enter) && ours(event))?;
        let after = &events[enter + 1..];
        let exit = after.iter().position(|event| is(event, Kind::Exit))?;
        Some(Self {
            enter: events[enter],
            exit_ns: after[exit].ns,
            inside: &after[..exit],
        })
    }

    fn pieces(&self, size_bytes: u64, page_bytes: u64) -> Result<Vec<Piece>, String> {
        let stores: Vec<(u64, u64, u64)> = self
            .inside
            .iter()
            .filter_map(|event| {
                let bytes = match Kind::from_number(event.kind)? {
                    Kind::Page => page_bytes,
                    Kind::Bytes => event.count,
                    Kind::Words => event.count.checked_mul(8)?,
                    Kind::Enter | Kind::Exit | Kind::Resched => return None,
                };
                // Not a piece of a page: the compiler's own clearing of a variable.
                let is_piece = bytes > 0
                    && bytes.is_multiple_of(page_bytes)
                    && event.address.is_multiple_of(page_bytes);
                is_piece.then_some((event.ns, event.address, bytes))
            })
            .collect();
        let Some(lowest) = stores.iter().map(|(_, address, _)| *address).min() else {
            return Err("the function was called, but none of its stores was seen".to_owned());
        };
        // The kernel maps all memory at a multiple of 1 GiB.
        let start = lowest - lowest % size_bytes;
        stores
            .into_iter()
            .map(|(ns, address, bytes)| {
                let offset = address - start;
                if offset.checked_add(bytes).is_none_or(|end| end > size_bytes) {
                    return Err(format!(
                        "the stores at {address:#x} and {lowest:#x} are not in one huge page"
                    ));
                }
                Ok(Piece {
                    start_ns: ns.saturating_sub(self.enter.ns),
                    sub_page: offset / page_bytes,
                    pages: bytes / page_bytes,
                })
            })
            .collect()
    }

    fn resched_points_ns(&self) -> Vec<u64> {
        self.inside
            .iter()
            .filter(|event| event.kind == Kind::Resched as u64)
            .map(|event| event.ns.saturating_sub(self.enter.ns))
            .collect()
    }
}

/// The clock of the events.
fn monotonic_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::recorded::facts;

    #[test]
    fn touches_are_sub_pages() {
        for (text, sub_page) in [
            ("first", Ok(0)),
            ("middle", Ok(256)),
            ("last", Ok(511)),
            ("7", Ok(7)),
            (
                "512",
                Err("there is no sub-page 512 in a page of 512; the last is 511".to_owned()),
            ),
        ] {
            assert_eq!(
                Touch::parse(text).unwrap().sub_page(512),
                sub_page,
                "{text}"
            );
        }
        for bad in ["", "-1", "begin", "1.5"] {
            assert!(Touch::parse(bad).is_err(), "{bad}");
        }
    }

    /// Function and page that are followed by default, on the recorded kernels (with 8 free hugetlb
    /// pages).
    #[test]
    fn what_is_followed() {
        let plan = |name: &str, init_on_alloc: bool| {
            let mut facts = facts(name);
            facts.init_on_alloc.on = Some(init_on_alloc);
            plan(&facts, None)
        };
        for (name, init_on_alloc, function, page, expected) in [
            (
                "5.10",
                false,
                "clear_huge_page",
                PageKind::Anonymous,
                Strategy::PagesConverging,
            ),
            (
                "6.12",
                true,
                "folio_zero_user",
                PageKind::Anonymous,
                Strategy::PagesConverging,
            ),
            (
                "6.12-rt",
                false,
                "folio_zero_user",
                PageKind::Hugetlb,
                Strategy::PagesConverging,
            ),
            (
                "6.18",
                false,
                "folio_zero_user",
                PageKind::Anonymous,
                Strategy::PagesConverging,
            ),
            // The allocator's clearing is inlined.
            (
                "6.18",
                true,
                "folio_zero_user",
                PageKind::Hugetlb,
                Strategy::PagesConverging,
            ),
            (
                "7.0",
                true,
                "kernel_init_pages",
                PageKind::Anonymous,
                Strategy::PagesForward,
            ),
            (
                "7.3",
                false,
                "folio_zero_user",
                PageKind::Anonymous,
                Strategy::RangesNeighbourhoodLast,
            ),
            (
                "7.3",
                true,
                "clear_highpages_kasan_tagged",
                PageKind::Anonymous,
                Strategy::OneRange,
            ),
        ] {
            let plan = plan(name, init_on_alloc).unwrap();
            assert_eq!(
                (&*plan.function, plan.page, plan.expected),
                (function, page, Some(expected)),
                "{name}"
            );
            assert_eq!(plan.page_size_bytes, 2 << 20, "{name}");
        }
    }

    #[test]
    fn why_nothing_can_be_followed() {
        let why = |change: fn(&mut Facts), hugetlb_bytes| {
            let mut facts = facts("6.18");
            change(&mut facts);
            plan(&facts, hugetlb_bytes).unwrap_err()
        };
        let no_pages = |facts: &mut Facts| {
            for pool in &mut facts.hugetlb {
                pool.free_pages = 0;
            }
        };
        assert_eq!(
            why(no_pages, None),
            "the allocator clears anonymous pages (init_on_alloc), and cannot be probed here, and no \
             hugetlb page of 2M is free: echo 9 > \
             /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
        assert!(why(no_pages, Some(2 << 20)).starts_with("no hugetlb page of 2M is free"));
        assert_eq!(
            why(|_| (), Some(4 << 20)),
            "this machine has no hugetlb pages of 4M"
        );
        assert_eq!(
            why(|facts| facts.machine = "aarch64".to_owned(), None),
            "only x86_64 is decoded, and this is aarch64"
        );
    }

    fn event(ns: u64, kind: Kind, address: u64, count: u64) -> Event {
        Event {
            ns,
            kind: kind as u64,
            address,
            count,
        }
    }

    const PAGE: u64 = 0xffff_8880_4020_0000;

    #[test]
    fn the_call_is_ours_and_the_pieces_are_its() {
        let events = [
            event(10, Kind::Enter, 1, 4096),
            event(11, Kind::Page, PAGE - (2 << 20), 0),
            event(12, Kind::Exit, 0, 0),
            event(20, Kind::Resched, 0, 0),
            event(21, Kind::Enter, 2, 8192),
            event(22, Kind::Resched, 0, 0),
            // A variable on the stack.
            event(22, Kind::Words, PAGE + 64, 4),
            event(23, Kind::Words, PAGE + 8192, 512),
            event(24, Kind::Bytes, PAGE, 8192),
            event(25, Kind::Exit, 0, 0),
            event(26, Kind::Page, PAGE, 0),
        ];
        let call = Call::of(&events, |event| event.count == 8192).unwrap();
        assert_eq!((call.enter.ns, call.exit_ns), (21, 25));
        assert_eq!(call.resched_points_ns(), [1]);
        let pieces = call.pieces(2 << 20, 4096).unwrap();
        let expected = [(2, 2, 1), (3, 0, 2)].map(|(start_ns, sub_page, pages)| Piece {
            start_ns,
            sub_page,
            pages,
        });
        assert_eq!(pieces, expected);
        assert!(Call::of(&events[..8], |event| event.count == 8192).is_none());
    }

    #[test]
    fn stores_to_several_pages_are_refused() {
        for stores in [
            [(PAGE, 4096), (PAGE + (2 << 20), 4096)],
            [(PAGE, 4096), (PAGE + 4096, 2 << 20)],
            [(PAGE, 4096), (PAGE, u64::MAX - 4095)],
        ] {
            let mut events = vec![event(0, Kind::Enter, 0, 0)];
            events.extend(stores.map(|(address, bytes)| event(1, Kind::Bytes, address, bytes)));
            events.push(event(2, Kind::Exit, 0, 0));
            let call = Call::of(&events, |_| true).unwrap();
            assert!(call.pieces(2 << 20, 4096).is_err(), "{stores:?}");
        }
    }
}
