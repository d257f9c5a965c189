//! From what was asked and what the machine offers to a plan that can only fail by accident.
//! Pure: nothing is changed here, and tests need no machine.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use hugeclear_ebpf::key::Cause;

use super::{
    Args, Bench, Error, Kind, Machine, PopulateBy, Retouch, Touch, ZeroMapping, machine::Node,
};
use crate::{
    counters::Event,
    facts::{Thp, ThpEnabled, hugetlb, thp},
    settings::Change,
    units::format_bytes,
};

/// Default of `--size`.
const DEFAULT_SIZE_BYTES: u64 = 64 << 20;
/// Default of `--size` of `zero-page`, that of the benchmarks it repeats.
const DEFAULT_ZERO_BYTES: u64 = 8 << 30;
/// Default of `--page-size` of `mthp`.
const DEFAULT_MTHP_BYTES: u64 = 64 << 10;
/// The memory that each thread of `--saturate` writes to.
pub(super) const SATURATE_BYTES: u64 = 64 << 20;
/// Step of `zero-page --bench stride`, as in the benchmark it repeats.
pub(super) const STRIDE_BYTES: u64 = 4096;

/// Where the pages of a workload come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Transparent huge pages of anonymous memory.
    Transparent,
    /// The hugetlb pool.
    Pool,
    /// Transparent huge pages of shared memory.
    Shmem,
    /// Base pages.
    Base,
    /// The huge zero page, or the zero page.
    Zero,
}

/// What is timed, for each page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A byte is written.
    Write,
    /// A byte is read.
    Read,
    /// fallocate(2) of the page.
    Fallocate,
    /// madvise(MADV_COLLAPSE) of the page.
    Collapse,
    /// madvise(MADV_POPULATE_WRITE) of the page.
    Populate,
    /// mmap(MAP_POPULATE) of all pages of a thread at once.
    PopulateAll,
}

/// The microbenchmark that `zero-page` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZeroBench {
    pub(super) bench: Bench,
    pub(super) iterations: u32,
}

/// A checked workload: what [`super::run()`] does.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub(super) kind: Kind,
    pub(super) origin: Origin,
    pub(super) step: Step,
    pub(super) page_size_bytes: u64,
    pub(super) base_page_bytes: u64,
    /// Pages that are mapped in each run.
    pub(super) pages: u64,
    /// Whether one page is what a PMD maps: only those have an account per mapping.
    pub(super) pmd_mapped: bool,
    /// Whether transparent huge pages are asked for by madvise.
    pub(super) madvise: bool,
    pub(super) zero_bench: Option<ZeroBench>,
    pub(super) touch: Touch,
    pub(super) stride_bytes: u64,
    pub(super) seed: u64,
    pub(super) retouch: Option<Retouch>,
    pub(super) repeat: u32,
    pub(super) duration: Option<Duration>,
    pub(super) rate: Option<f64>,
    pub(super) threads: u32,
    /// CPUs that the threads are pinned to, in turn; empty: not pinned.
    pub(super) cpus: Vec<u32>,
    /// CPUs that the process is confined to; empty: not confined.
    pub(super) node_cpus: Vec<u32>,
    pub(super) mem_node: Option<u32>,
    pub(super) fragment_percent: Option<u8>,
    pub(super) compete: u32,
    pub(super) saturate: u32,
    /// CPUs that threads which saturate memory are confined to; empty: not confined.
    pub(super) saturate_cpus: Vec<u32>,
    pub(super) counters: Vec<Event>,
    /// Settings to change for the time of the run, in this order.
    pub(super) changes: Vec<Change>,
    /// What the user should know about the numbers.
    pub(super) notes: Vec<String>,
}

impl Plan {
    /// Checks what was asked against what there is.
    ///
    /// # Errors
    /// Everything of [`Error`] that can be known before anything runs.
    pub fn check(args: &Args, machine: &Machine) -> Result<Self, Error> {
        options_fit(args)?;
        let kind = args.kind;
        let origin = origin(args);
        let step = step(args, machine)?;
        let page_size_bytes = page_size(args, origin, machine)?;
        let default_bytes = match kind {
            Kind::ZeroPage => DEFAULT_ZERO_BYTES,
            Kind::Thp
            | Kind::Mthp
            | Kind::Hugetlb
            | Kind::Shmem
            | Kind::MemfdHugetlb
            | Kind::FallocateHugetlb
            | Kind::ForkCow
            | Kind::Collapse
            | Kind::Populate
            | Kind::Base => DEFAULT_SIZE_BYTES.max(page_size_bytes),
        };
        let size_bytes = args.size.unwrap_or(default_bytes);
        if size_bytes == 0 {
            return Err(Error::ZeroSize);
        }
        // Two halves of whole pages.
        let unit_bytes = match kind {
            Kind::ZeroPage => 2 * page_size_bytes,
            Kind::Thp
            | Kind::Mthp
            | Kind::Hugetlb
            | Kind::Shmem
            | Kind::MemfdHugetlb
            | Kind::FallocateHugetlb
            | Kind::ForkCow
            | Kind::Collapse
            | Kind::Populate
            | Kind::Base => page_size_bytes,
        };
        if !size_bytes.is_multiple_of(unit_bytes) {
            return Err(Error::NotWholePages {
                size_bytes,
                page_size_bytes: unit_bytes,
            });
        }
        let mut plan = Self {
            kind,
            origin,
            step,
            page_size_bytes,
            base_page_bytes: machine.base_page_bytes,
            pages: size_bytes / page_size_bytes,
            pmd_mapped: machine.thp.as_ref().and_then(|thp| thp.pmd_size_bytes)
                == Some(page_size_bytes),
            // A new mapping has no advice, and MAP_POPULATE fills it at once.
            madvise: !args.no_madvise && step != Step::PopulateAll,
            zero_bench: args.bench.map(|bench| ZeroBench {
                bench,
                iterations: args.iterations.unwrap_or(match bench {
                    Bench::Compare => 100,
                    Bench::Stride => 1000,
                }),
            }),
            touch: touch(args, page_size_bytes)?,
            stride_bytes: stride(args, page_size_bytes, size_bytes)?,
            seed: args.seed,
            retouch: args.retouch,
            repeat: args.repeat,
            duration: args.duration,
            rate: args.rate,
            threads: args.threads,
            cpus: Vec::new(),
            node_cpus: Vec::new(),
            mem_node: args.mem_node,
            fragment_percent: args.fragment,
            compete: args.compete,
            saturate: args.saturate,
            saturate_cpus: Vec::new(),
            counters: args.counters.0.clone(),
            changes: Vec::new(),
            notes: Vec::new(),
        };
        if u64::from(plan.threads) > plan.touched_pages() {
            return Err(Error::TooManyThreads {
                threads: plan.threads,
                pages: plan.touched_pages(),
            });
        }
        plan.place(args, machine)?;
        let new_bytes = plan.settings(args, machine)?;
        plan.memory(machine, new_bytes)?;
        Ok(plan)
    }

    /// Bytes of a run's mapping.
    pub(super) fn size_bytes(&self) -> u64 {
        self.pages.saturating_mul(self.page_size_bytes)
    }

    /// Bytes from one touched page to the next.
    pub(super) fn pitch_bytes(&self) -> u64 {
        self.stride_bytes.max(self.page_size_bytes)
    }

    /// Pages that one pass over the memory touches.
    pub(super) fn touched_pages(&self) -> u64 {
        self.size_bytes().div_ceil(self.pitch_bytes())
    }

    /// The touched pages of each thread, by number.
    pub(super) fn shares(&self) -> Vec<Range<u64>> {
        let (threads, pages) = (u64::from(self.threads), self.touched_pages());
        let bound = |thread: u64| {
            let bound = u128::from(thread) * u128::from(pages) / u128::from(threads);
            u64::try_from(bound).expect("a bound is at most the number of pages")
        };
        (0..threads)
            .map(|thread| bound(thread)..bound(thread + 1))
            .collect()
    }

    /// Bytes of the buffer that holds the latencies of one pass.
    pub(super) fn latency_bytes(&self) -> u64 {
        self.touched_pages().saturating_mul(size_of::<u64>() as u64)
    }

    /// Bytes that a page which could not be had is replaced by, as far as it was touched.
    pub(super) fn small_bytes(&self) -> u64 {
        let touches = self.page_size_bytes.div_ceil(self.stride_bytes).max(1);
        self.page_size_bytes
            .min(touches.saturating_mul(self.base_page_bytes))
    }

    /// Why the kernel clears pages of this workload, if it does where it can be traced.
    pub(super) fn clear_cause(&self) -> Option<Cause> {
        match (self.kind, self.origin) {
            (Kind::FallocateHugetlb, _) => Some(Cause::Fallocate),
            (Kind::Collapse, _) => None,
            (_, Origin::Pool) => Some(Cause::HugetlbFault),
            (_, Origin::Transparent) if self.pmd_mapped => Some(Cause::ThpFault),
            (_, Origin::Transparent) => Some(Cause::MthpFault),
            (_, Origin::Shmem | Origin::Base | Origin::Zero) => None,
        }
    }

    /// Whether the kernel copies each page where it can be traced: private hugetlb pages. A huge page of
    /// anonymous memory is split, and base pages are copied (do_huge_pmd_wp_page, 5.8 to 7.3).
    pub(super) fn copies(&self) -> bool {
        self.kind == Kind::ForkCow && self.origin == Origin::Pool
    }

    /// Decides which CPUs run what.
    fn place(&mut self, args: &Args, machine: &Machine) -> Result<(), Error> {
        let node = |id: u32| {
            let node = machine.nodes.iter().find(|node| node.id == id);
            node.ok_or_else(|| Error::NoSuchNode {
                node: id,
                online: machine.nodes.iter().map(|node| node.id).collect(),
            })
        };
        if let Some(cpus) = &args.cpu {
            if let Some(cpu) = cpus.0.iter().find(|cpu| !machine.online.contains(cpu)) {
                return Err(Error::NoSuchCpu {
                    cpu: *cpu,
                    online: machine.online.clone(),
                });
            }
            self.cpus.clone_from(&cpus.0);
        }
        if let Some(id) = args.node {
            let Node { cpus, .. } = node(id)?;
            if cpus.is_empty() {
                return Err(Error::NodeWithoutCpus { node: id });
            }
            self.node_cpus.clone_from(cpus);
        }
        if let Some(id) = args.mem_node {
            node(id)?;
        }
        let taken = [&self.cpus[..], &self.node_cpus].concat();
        if !taken.is_empty() {
            let others = machine.online.iter().filter(|cpu| !taken.contains(cpu));
            self.saturate_cpus = others.copied().collect();
        }
        if self.compete > 0 && taken.is_empty() {
            self.notes.push(
                "--compete without --cpu or --node: the scheduler may keep the spinners away from the workload"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Plans the settings; bytes of memory that a run or the pool takes.
    fn settings(&mut self, args: &Args, machine: &Machine) -> Result<u64, Error> {
        let size_bytes = self.size_bytes();
        // Page tables that map base pages: 8 bytes for each.
        let table_bytes = size_bytes / self.base_page_bytes * 8;
        let thp = machine.thp.as_ref().ok_or(Error::NotBuiltIn {
            origin: "transparent huge pages (not built in, as with PREEMPT_RT)",
        });
        match self.origin {
            Origin::Transparent if self.kind == Kind::Collapse => {
                thp?;
                Ok(size_bytes + table_bytes + u64::from(self.threads) * self.page_size_bytes)
            }
            Origin::Transparent => {
                self.transparent(thp?, args)?;
                Ok(size_bytes)
            }
            Origin::Pool => self.pool(machine, args.configure),
            Origin::Shmem => {
                self.shmem(thp?, machine, args)?;
                Ok(size_bytes)
            }
            Origin::Base => Ok(size_bytes + table_bytes),
            Origin::Zero => {
                if self.pmd_mapped {
                    let thp = thp?;
                    self.transparent(thp, args)?;
                    self.huge_zero_page(thp, args)?;
                }
                Ok(table_bytes)
            }
        }
    }

    /// Whether there is memory for it.
    fn memory(&self, machine: &Machine, new_bytes: u64) -> Result<(), Error> {
        let buffers = u64::from(self.saturate).saturating_mul(SATURATE_BYTES);
        let needed_bytes = new_bytes
            .saturating_add(self.latency_bytes())
            .saturating_add(buffers);
        let node = self
            .mem_node
            .and_then(|id| machine.nodes.iter().find(|node| node.id == id));
        let available_bytes = [
            machine.available_bytes,
            node.and_then(|node| node.available_bytes),
        ];
        match available_bytes.into_iter().flatten().min() {
            Some(available_bytes) if needed_bytes > available_bytes => {
                Err(Error::NotEnoughMemory {
                    needed_bytes,
                    available_bytes,
                    node: self.mem_node,
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The settings to change for the time of the run, in this order.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    fn transparent(&mut self, thp: &Thp, args: &Args) -> Result<(), Error> {
        let dir = Path::new("/").join(thp::DIR);
        let size_file = |bytes: u64| dir.join(format!("hugepages-{}kB/enabled", bytes / 1024));
        let page_size_bytes = self.page_size_bytes;
        let own = thp.sizes.iter().find(|size| size.bytes == page_size_bytes);
        // An inherited `never` is changed at the top, or the size would no longer inherit after.
        let path = match own.and_then(|size| size.enabled) {
            None | Some(ThpEnabled::Inherit) => dir.join("enabled"),
            Some(ThpEnabled::Always | ThpEnabled::Madvise | ThpEnabled::Never) => {
                size_file(page_size_bytes)
            }
        };
        let needs = if self.madvise {
            ThpEnabled::Madvise
        } else {
            ThpEnabled::Always
        };
        let is_off = match thp.anonymous(page_size_bytes) {
            Some(ThpEnabled::Never) => true,
            Some(ThpEnabled::Madvise) => !self.madvise,
            Some(ThpEnabled::Always | ThpEnabled::Inherit) | None => false,
        };
        let mut top_is_on = thp.enabled != Some(ThpEnabled::Never);
        if is_off && args.configure {
            top_is_on |= path == dir.join("enabled");
            self.change(path, needs.as_str());
        } else if is_off && args.allow_small {
            self.notes.push(format!(
                "pages of {} are off, so the memory is small pages",
                format_bytes(page_size_bytes)
            ));
        } else if is_off {
            return Err(Error::ThpOff {
                page_size_bytes,
                needs: needs.as_str(),
                path,
            });
        }
        self.direct_compaction(thp, args.configure);
        if self.origin == Origin::Zero {
            return Ok(());
        }
        // The fault takes the largest enabled size that fits (alloc_anon_folio, mm/memory.c).
        let larger = thp.sizes.iter().filter(|size| {
            size.bytes > page_size_bytes
                && match size.enabled {
                    Some(ThpEnabled::Always | ThpEnabled::Madvise) => true,
                    Some(ThpEnabled::Inherit) => top_is_on,
                    Some(ThpEnabled::Never) | None => false,
                }
        });
        for size in larger {
            if args.configure {
                self.change(size_file(size.bytes), ThpEnabled::Never.as_str());
            } else {
                self.notes.push(format!(
                    "pages of {} are enabled too, and the kernel prefers the largest size that fits; --configure switches them off for the run",
                    format_bytes(size.bytes)
                ));
            }
        }
        Ok(())
    }

    /// In fragmented memory a fault makes a huge page only if `defrag` lets it compact.
    fn direct_compaction(&mut self, thp: &Thp, configure: bool) {
        let compacts = match thp.defrag.as_deref() {
            Some("madvise" | "defer+madvise") => self.madvise,
            Some("never" | "defer") => false,
            Some(_) | None => true,
        };
        if self.fragment_percent.is_none() || compacts {
            return;
        }
        let path = Path::new("/").join(thp::DIR).join("defrag");
        let needs = if self.madvise { "madvise" } else { "always" };
        if configure {
            self.change(path, needs);
        } else {
            self.notes.push(format!(
                "faults do not compact here, so they get small pages; --configure writes {needs} to {} for the run",
                path.display()
            ));
        }
    }

    fn shmem(&mut self, thp: &Thp, machine: &Machine, args: &Args) -> Result<(), Error> {
        let dir = Path::new("/").join(thp::DIR);
        let top = (dir.join("shmem_enabled"), thp.shmem_enabled.as_deref());
        let own_file = format!("hugepages-{}kB/shmem_enabled", self.page_size_bytes / 1024);
        let own = (dir.join(own_file), machine.shmem_pmd_enabled.as_deref());
        // Since 6.11 each size has its own; before, and where it says so, the top one holds.
        let (path, setting) = match own.1 {
            Some("inherit") | None => top,
            Some(_) => own,
        };
        match setting {
            Some("never" | "deny") if args.configure => self.change(path, "advise"),
            Some("never" | "deny") if args.allow_small => self.notes.push(
                "huge pages of shared memory are off, so the memory is small pages".to_owned(),
            ),
            Some("never" | "deny") => {
                return Err(Error::ThpOff {
                    page_size_bytes: self.page_size_bytes,
                    needs: "advise",
                    path,
                });
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    fn huge_zero_page(&mut self, thp: &Thp, args: &Args) -> Result<(), Error> {
        if thp.use_zero_page != Some(false) {
            return Ok(());
        }
        let path = Path::new("/").join(thp::DIR).join("use_zero_page");
        if !args.configure {
            return Err(Error::ZeroPageOff { path });
        }
        self.change(path, "1");
        Ok(())
    }

    /// Plans the pool; bytes of memory that it must grow by.
    fn pool(&mut self, machine: &Machine, configure: bool) -> Result<u64, Error> {
        let page_size_bytes = self.page_size_bytes;
        // Parent and child have one each in the end.
        let copies = if self.copies() { 2 } else { 1 };
        let needed = self.pages.saturating_mul(copies);
        let pool = machine
            .hugetlb
            .iter()
            .find(|pool| pool.page_size_bytes == page_size_bytes)
            .ok_or(NO_HUGETLB)?;
        let name = format!("hugepages-{}kB/nr_hugepages", page_size_bytes / 1024);
        let whole = (
            pool.total_pages,
            pool.available_pages(),
            Path::new("/").join(hugetlb::DIR).join(&name),
        );
        let (total, available, path) = match self.mem_node {
            None => whole,
            Some(id) => {
                let node = machine.nodes.iter().find(|node| node.id == id);
                let own = node.and_then(|node| {
                    let pools = node.pools.iter();
                    pools
                        .copied()
                        .find(|pool| pool.page_size_bytes == page_size_bytes)
                });
                match own {
                    Some(own) => (
                        own.total_pages,
                        own.free_pages.min(whole.1),
                        PathBuf::from(format!(
                            "/sys/devices/system/node/node{id}/hugepages/{name}"
                        )),
                    ),
                    // A kernel without NUMA.
                    None => whole,
                }
            }
        };
        let missing = needed.saturating_sub(available);
        if missing == 0 {
            return Ok(0);
        }
        let total_needed = total.saturating_add(missing);
        if !configure {
            return Err(Error::PoolTooSmall {
                page_size_bytes,
                available,
                needed,
                total_needed,
                path,
            });
        }
        self.change(path, &total_needed.to_string());
        Ok(missing.saturating_mul(page_size_bytes))
    }

    fn change(&mut self, path: PathBuf, value: &str) {
        self.changes.push(Change {
            path,
            value: value.to_owned(),
        });
    }
}

const NO_HUGETLB: Error = Error::NotBuiltIn {
    origin: "hugetlb pages (CONFIG_HUGETLBFS is off)",
};

/// Whether options that mean something to some kinds only were given to those.
fn options_fit(args: &Args) -> Result<(), Error> {
    let kind = args.kind;
    let is = |kinds: &[Kind]| kinds.contains(&kind);
    let transparent = &[Kind::Thp, Kind::Mthp, Kind::Populate][..];
    // Where pages do not come one by one by touches, or only in one way.
    let touches = !is(&[Kind::FallocateHugetlb, Kind::Collapse, Kind::Populate]);
    let zero = is(&[Kind::ZeroPage]);
    let compacts = is(transparent) || is(&[Kind::Shmem, Kind::Collapse]);
    let checks = [
        (args.thp, "--thp", is(&[Kind::ForkCow])),
        (args.no_madvise, "--no-madvise", is(transparent)),
        (
            args.allow_small,
            "--allow-small",
            is(transparent) || is(&[Kind::Shmem]),
        ),
        (
            args.populate_by.is_some(),
            "--populate-by",
            is(&[Kind::Populate]),
        ),
        (args.bench.is_some(), "--bench", zero),
        (args.mapping.is_some(), "--mapping", zero),
        (args.iterations.is_some(), "--iterations", zero),
        (args.touch != Touch::First, "--touch", touches),
        (args.stride.is_some(), "--stride", touches && !zero),
        (args.retouch.is_some(), "--retouch", !zero),
        (args.fragment.is_some(), "--fragment", compacts),
        (args.duration.is_some(), "--duration", !zero),
    ];
    let unfit = checks.iter().find(|(given, _, fits)| *given && !fits);
    if let Some((_, option, _)) = unfit {
        return Err(Error::NotForKind { option, kind });
    }
    if zero && (args.bench.is_none() || args.mapping.is_none()) {
        return Err(Error::NoBench);
    }
    Ok(())
}

fn origin(args: &Args) -> Origin {
    match args.kind {
        Kind::ForkCow if args.thp => Origin::Transparent,
        Kind::Thp | Kind::Mthp | Kind::Collapse | Kind::Populate => Origin::Transparent,
        Kind::Hugetlb | Kind::MemfdHugetlb | Kind::FallocateHugetlb | Kind::ForkCow => Origin::Pool,
        Kind::Shmem => Origin::Shmem,
        Kind::Base => Origin::Base,
        Kind::ZeroPage => Origin::Zero,
    }
}

fn step(args: &Args, machine: &Machine) -> Result<Step, Error> {
    match args.kind {
        Kind::Thp
        | Kind::Mthp
        | Kind::Hugetlb
        | Kind::Shmem
        | Kind::MemfdHugetlb
        | Kind::ForkCow
        | Kind::Base => Ok(Step::Write),
        Kind::ZeroPage => Ok(Step::Read),
        Kind::FallocateHugetlb => Ok(Step::Fallocate),
        Kind::Collapse if machine.has_collapse => Ok(Step::Collapse),
        Kind::Collapse => Err(Error::NoSuchCall {
            call: "MADV_COLLAPSE",
            since: "6.1",
            instead: "",
        }),
        Kind::Populate => match args.populate_by {
            Some(PopulateBy::Mmap) => Ok(Step::PopulateAll),
            Some(PopulateBy::Madvise) | None if machine.has_populate => Ok(Step::Populate),
            Some(PopulateBy::Madvise) | None => Err(Error::NoSuchCall {
                call: "MADV_POPULATE_WRITE",
                since: "5.14",
                instead: "; use --populate-by mmap",
            }),
        },
    }
}

/// The page size asked for or the default, if this kernel has it for this kind.
fn page_size(args: &Args, origin: Origin, machine: &Machine) -> Result<u64, Error> {
    let kind = args.kind;
    let thp = || {
        machine.thp.as_ref().ok_or(Error::NotBuiltIn {
            origin: "transparent huge pages (not built in, as with PREEMPT_RT)",
        })
    };
    let pmd_only = || -> Result<_, Error> {
        let pmd_bytes = thp()?.pmd_size_bytes;
        Ok((pmd_bytes.into_iter().collect(), pmd_bytes))
    };
    let (offered, default): (Vec<u64>, Option<u64>) = match kind {
        Kind::Thp | Kind::Populate => (thp()?.offered_bytes(), thp()?.pmd_size_bytes),
        Kind::Mthp => {
            let thp = thp()?;
            let sizes = thp.offered_bytes().into_iter();
            let below = sizes.filter(|bytes| Some(*bytes) != thp.pmd_size_bytes);
            (below.collect(), Some(DEFAULT_MTHP_BYTES))
        }
        Kind::Shmem | Kind::Collapse => pmd_only()?,
        Kind::ForkCow if origin == Origin::Transparent => pmd_only()?,
        Kind::Hugetlb | Kind::MemfdHugetlb | Kind::FallocateHugetlb | Kind::ForkCow => {
            let pools = machine.hugetlb.iter().map(|pool| pool.page_size_bytes);
            let pools: Vec<u64> = pools.collect();
            if pools.is_empty() {
                return Err(NO_HUGETLB);
            }
            (pools, machine.hugetlb_default_bytes)
        }
        Kind::ZeroPage if args.mapping == Some(ZeroMapping::Huge) => pmd_only()?,
        Kind::ZeroPage | Kind::Base => {
            (vec![machine.base_page_bytes], Some(machine.base_page_bytes))
        }
    };
    let page_size_bytes = args
        .page_size
        .or(default)
        .or_else(|| offered.last().copied());
    match page_size_bytes {
        Some(bytes) if offered.contains(&bytes) => Ok(bytes),
        Some(page_size_bytes) if !offered.is_empty() => Err(Error::NoSuchPageSize {
            kind,
            page_size_bytes,
            offered,
        }),
        Some(_) | None => Err(Error::NotBuiltIn {
            origin: match kind {
                Kind::Mthp => "anonymous huge pages below a PMD (mTHP, since Linux 6.8)",
                Kind::Thp
                | Kind::Hugetlb
                | Kind::Shmem
                | Kind::MemfdHugetlb
                | Kind::FallocateHugetlb
                | Kind::ForkCow
                | Kind::Collapse
                | Kind::ZeroPage
                | Kind::Populate
                | Kind::Base => "huge pages of a known size",
            },
        }),
    }
}

fn touch(args: &Args, page_size_bytes: u64) -> Result<Touch, Error> {
    match args.touch {
        Touch::Offset(offset_bytes) if offset_bytes >= page_size_bytes => {
            Err(Error::TouchOutside {
                offset_bytes,
                page_size_bytes,
            })
        }
        touch @ (Touch::First | Touch::Middle | Touch::Last | Touch::Random | Touch::Offset(_)) => {
            Ok(touch)
        }
    }
}

fn stride(args: &Args, page_size_bytes: u64, size_bytes: u64) -> Result<u64, Error> {
    let stride_bytes = args.stride.unwrap_or(page_size_bytes);
    let fits = stride_bytes > 0
        && stride_bytes <= size_bytes
        && (stride_bytes.is_multiple_of(page_size_bytes)
            || page_size_bytes.is_multiple_of(stride_bytes));
    if fits {
        Ok(stride_bytes)
    } else {
        Err(Error::StrideDoesNotFit {
            stride_bytes,
            page_size_bytes,
            size_bytes,
        })
    }
}

#[cfg(test)]
mod tests;
