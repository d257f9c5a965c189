//! From what was asked and what the machine offers to a plan that can only fail by accident. Pure.

use std::path::Path;

use clap::ValueEnum as _;

use super::{
    Args, Backing, Error, Kind, Primitive, Strategy, machine::Machine, strategy::PAGE_BYTES,
};
use crate::facts::hugetlb;

/// Offset of the second pass if the size of the L1 data cache is not known: that of the thread in which
/// the strategy was proposed.
const DEFAULT_OFFSET_BYTES: u64 = 32 << 10;

/// Bytes that are cleared by default with each strategy and primitive.
const DEFAULT_TOTAL_BYTES: u64 = 4 << 30;

/// A checked lab.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) regions: Vec<RegionPlan>,
    pub(super) primitives: Vec<&'static Primitive>,
    /// What the processor lacks.
    pub(super) missing: Vec<&'static Primitive>,
    pub(super) backing: Backing,
    pub(super) warmup: u32,
    pub(super) evict: bool,
    pub(super) cpu: u32,
    pub(super) seed: u64,
}

/// What is done with a region of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegionPlan {
    pub(super) bytes: usize,
    /// The sub-page of the fault.
    pub(super) hint: usize,
    pub(super) strategies: Vec<Strategy>,
    pub(super) repeat: u32,
    /// Page size of the pool, of [`Backing::Hugetlb`].
    pub(super) hugetlb_bytes: Option<u64>,
}

impl RegionPlan {
    pub(super) fn pages(&self) -> usize {
        self.bytes / PAGE_BYTES
    }
}

impl Plan {
    /// Checks what was asked against what there is.
    ///
    /// # Errors
    /// Everything of [`Error`] that can be known before anything runs.
    pub fn check(args: &Args, machine: &Machine) -> Result<Self, Error> {
        let cpu = args.cpu.unwrap_or(machine.current_cpu);
        if !machine.online.contains(&cpu) {
            return Err(Error::NoSuchCpu {
                cpu,
                online: machine.online.clone(),
            });
        }
        let (primitives, missing) = primitives(args)?;
        let regions = args
            .size
            .iter()
            .map(|bytes| region(args, machine, *bytes))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            regions,
            primitives,
            missing,
            backing: args.backing,
            warmup: args.warmup,
            evict: args.evict,
            cpu,
            seed: args.seed,
        })
    }
}

type Primitives = Vec<&'static Primitive>;

/// Those to use, and those that are wanted but not there.
fn primitives(args: &Args) -> Result<(Primitives, Primitives), Error> {
    let (mut present, mut missing) = (Vec::new(), Vec::new());
    for primitive in Primitive::all() {
        let is_named = args.primitive.iter().any(|name| name == primitive.name);
        if !is_named && !args.primitive.is_empty() {
            continue;
        }
        match primitive.missing() {
            None => present.push(primitive),
            Some(why) if is_named => {
                return Err(Error::Missing {
                    name: primitive.name,
                    why,
                });
            }
            Some(_) => missing.push(primitive),
        }
    }
    Ok((present, missing))
}

fn region(args: &Args, machine: &Machine, size_bytes: u64) -> Result<RegionPlan, Error> {
    let bytes = whole_pages("--size", size_bytes)?;
    let pages = size_bytes / PAGE_BYTES as u64;
    let hint = args
        .touch
        .sub_page(pages)
        .map_err(|why| Error::Touch { size_bytes, why })?;
    let strategies = strategies(args, machine, bytes)?;
    if strategies.is_empty() {
        return Err(Error::NoStrategy { size_bytes });
    }
    let hugetlb_bytes = match args.backing {
        Backing::Hugetlb => Some(pool(machine, size_bytes)?),
        Backing::Thp | Backing::Base => {
            if let Some(available_bytes) = machine.available_bytes
                && available_bytes < size_bytes
            {
                return Err(Error::NotEnoughMemory {
                    needed_bytes: size_bytes,
                    available_bytes,
                });
            }
            None
        }
    };
    let repeat = args.repeat.unwrap_or_else(|| {
        u32::try_from((DEFAULT_TOTAL_BYTES / size_bytes).clamp(10, 100)).expect("at most 100")
    });
    Ok(RegionPlan {
        bytes,
        hint: usize::try_from(hint).expect("a sub-page of the region"),
        strategies,
        repeat,
        hugetlb_bytes,
    })
}

fn strategies(args: &Args, machine: &Machine, bytes: usize) -> Result<Vec<Strategy>, Error> {
    let kinds = if args.strategy.is_empty() {
        Kind::value_variants()
    } else {
        &args.strategy
    };
    let mut strategies = Vec::new();
    for kind in kinds {
        match kind {
            Kind::OneShot => strategies.push(Strategy::OneShot),
            Kind::Forward => strategies.push(Strategy::Forward),
            Kind::Reverse => strategies.push(Strategy::Reverse),
            Kind::Converging => strategies.push(Strategy::Converging),
            Kind::TwoPass => strategies.push(Strategy::TwoPass {
                offset_bytes: two_pass_offset(args, machine)?,
            }),
            Kind::Chunked => {
                for chunk in &args.chunk {
                    let chunk = whole_pages("--chunk", *chunk)?;
                    if chunk < bytes {
                        strategies.push(Strategy::Chunked { bytes: chunk });
                    }
                }
            }
            Kind::Ranges => strategies.push(Strategy::Ranges),
        }
    }
    Ok(strategies)
}

fn two_pass_offset(args: &Args, machine: &Machine) -> Result<usize, Error> {
    match (args.two_pass_offset, machine.l1d_bytes()) {
        // From the fault itself.
        (Some(0), _) => Ok(0),
        (Some(bytes), _) => whole_pages("--two-pass-offset", bytes),
        (None, Some(bytes)) if bytes.is_multiple_of(PAGE_BYTES as u64) => {
            whole_pages("--two-pass-offset", bytes)
        }
        (None, Some(_) | None) => whole_pages("--two-pass-offset", DEFAULT_OFFSET_BYTES),
    }
}

fn whole_pages(option: &'static str, bytes: u64) -> Result<usize, Error> {
    if bytes == 0 {
        return Err(Error::Zero { option });
    }
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_multiple_of(PAGE_BYTES))
        .ok_or(Error::NotWholePages { option, bytes })
}

/// The largest page size of which a pool has enough for the region.
fn pool(machine: &Machine, size_bytes: u64) -> Result<u64, Error> {
    let needed = |page_bytes: u64| size_bytes.div_ceil(page_bytes);
    let smallest = machine.hugetlb.first().ok_or(Error::NoHugetlb)?;
    machine
        .hugetlb
        .iter()
        .rev()
        .filter(|pool| pool.page_size_bytes <= size_bytes.max(smallest.page_size_bytes))
        .find(|pool| pool.available_pages() >= needed(pool.page_size_bytes))
        .map(|pool| pool.page_size_bytes)
        .ok_or_else(|| {
            // The one that is easiest to grow at run time.
            let pool = machine
                .hugetlb
                .iter()
                .find(|pool| Some(pool.page_size_bytes) == machine.hugetlb_default_bytes)
                .unwrap_or(smallest);
            let needed = needed(pool.page_size_bytes);
            let available = pool.available_pages();
            Error::PoolTooSmall {
                page_size_bytes: pool.page_size_bytes,
                available,
                needed,
                total_needed: pool.total_pages + needed.saturating_sub(available),
                path: Path::new("/").join(hugetlb::DIR).join(format!(
                    "hugepages-{}kB/nr_hugepages",
                    pool.page_size_bytes / 1024
                )),
            }
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        facts::{Cpu, HugetlbPool},
        lab::Cache,
    };

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn machine() -> Machine {
        let pool = |page_size_bytes, total_pages, free_pages| HugetlbPool {
            page_size_bytes,
            total_pages,
            free_pages,
            reserved_pages: 0,
            surplus_pages: 0,
            overcommit_pages: None,
        };
        Machine {
            release: None,
            cpu: Cpu {
                model: None,
                vendor: None,
                flags: Vec::new(),
                online: vec![0, 1],
                possible: Some(2),
            },
            current_cpu: 1,
            online: vec![0, 1],
            caches: vec![Cache {
                level: 1,
                bytes: 48 << 10,
            }],
            available_bytes: Some(8 << 30),
            pmd_bytes: Some(2 << 20),
            hugetlb: vec![pool(2 << 20, 10, 4), pool(1 << 30, 1, 1)],
            hugetlb_default_bytes: Some(2 << 20),
        }
    }

    fn args(line: &str) -> Args {
        let words = ["lab"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words)
            .unwrap_or_else(|error| panic!("{line}: {error}"))
            .args
    }

    fn check(line: &str) -> Result<Plan, Error> {
        Plan::check(&args(line), &machine())
    }

    fn names(line: &str) -> Vec<String> {
        let plan = check(line).unwrap();
        let strategies = plan.regions[0].strategies.iter();
        strategies.map(ToString::to_string).collect()
    }

    #[test]
    fn by_default_all_is_measured() {
        let plan = check("").unwrap();
        assert_eq!((plan.cpu, plan.regions.len()), (1, 1));
        assert_eq!(
            plan.primitives.len() + plan.missing.len(),
            Primitive::all().len()
        );
        let region = &plan.regions[0];
        assert_eq!(
            (region.bytes, region.hint, region.repeat),
            (2 << 20, 256, 100)
        );
        assert_eq!(
            names(""),
            [
                "one-shot",
                "forward",
                "reverse",
                "converging",
                "two-pass 48K",
                "chunked 32K",
                "chunked 256K",
                "ranges"
            ]
        );
    }

    #[test]
    fn options_choose() {
        assert_eq!(names("--strategy ranges,one-shot"), ["ranges", "one-shot"]);
        assert_eq!(
            names("--strategy chunked --chunk 4K,1M,4M"),
            ["chunked 4K", "chunked 1M"]
        );
        assert_eq!(
            names("--strategy two-pass --two-pass-offset 0"),
            ["two-pass 0"]
        );
        let plan = check("--primitive memset --size 64K,1G --touch last --cpu 0").unwrap();
        assert_eq!(
            (plan.primitives.len(), plan.missing.len(), plan.cpu),
            (1, 0, 0)
        );
        let regions = plan.regions.iter().map(|of| (of.bytes, of.hint, of.repeat));
        assert!(regions.eq([(64 << 10, 15, 100), (1 << 30, (1 << 18) - 1, 10)]));
        assert_eq!(check("--size 64M").unwrap().regions[0].repeat, 64);
    }

    #[test]
    fn pools_are_used_by_what_they_have() {
        let pool = |size: &str| {
            check(&format!("--backing hugetlb --size {size}"))
                .map(|plan| plan.regions[0].hugetlb_bytes)
        };
        assert_eq!(pool("8M").unwrap(), Some(2 << 20));
        assert_eq!(pool("64K").unwrap(), Some(2 << 20));
        assert_eq!(pool("1G").unwrap(), Some(1 << 30));
        assert_eq!(
            pool("10M").unwrap_err().to_string(),
            "--backing hugetlb: the pool of `2M` pages has 4 to spare, 5 are needed; write 11 to \
             /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages, or use --backing thp"
        );
    }

    #[test]
    fn what_cannot_be_is_said_in_one_line() {
        for (line, said, usage) in [
            ("--size 0", "--size is 0; nothing would be cleared", true),
            (
                "--size 5000",
                "--size `5000` is not a multiple of `4K`; the next one is `8K`",
                true,
            ),
            (
                "--size 1T",
                "--size `1T` does not fit: `8G` are available; use a smaller --size",
                false,
            ),
            ("--chunk 0", "--chunk is 0; nothing would be cleared", true),
            (
                "--two-pass-offset 100",
                "--two-pass-offset `100` is not a multiple of `4K`; the next one is `4K`",
                true,
            ),
            (
                "--touch 512",
                "--touch, for --size `2M`: there is no sub-page 512 in a page of 512; the last is 511",
                true,
            ),
            (
                "--cpu 7",
                "--cpu 7 is not online; online CPUs: [0, 1]",
                true,
            ),
            (
                "--strategy chunked --chunk 2M",
                "--strategy leaves nothing to do: no --chunk is smaller than --size `2M`",
                true,
            ),
        ] {
            let error = check(line).unwrap_err();
            assert_eq!(
                (&*error.to_string(), error.usage()),
                (said, usage),
                "{line}"
            );
        }
    }

    #[test]
    fn an_unknown_offset_is_that_of_the_thread() {
        let mut machine = machine();
        machine.caches.clear();
        let plan = Plan::check(&args("--strategy two-pass"), &machine).unwrap();
        assert_eq!(
            plan.regions[0].strategies,
            [Strategy::TwoPass {
                offset_bytes: 32 << 10
            }]
        );
    }
}
