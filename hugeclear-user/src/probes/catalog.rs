//! The sites as data. To support a new place where a kernel clears, add a row here.

use hugeclear_ebpf::{
    config::{Pair, SizeFrom},
    key::Site,
};

/// A kernel function that clears a page, or contains its clearing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Name in the kernel.
    pub name: &'static str,
    /// Site under which its calls are recorded.
    pub site: Site,
    /// Programs that trace it.
    pub pair: Pair,
    /// Where the size of the page is found.
    pub size_from: SizeFrom,
    /// Only calls whose third argument is this function are clears.
    pub only_function: Option<&'static str>,
    /// Whether its duration includes more than the clear.
    pub derived: bool,
    /// Whether it is also called for ordinary pages, so that a probe costs every allocation.
    pub every_allocation: bool,
    /// Whether interrupts call it too, in the middle of a task's own call. Only fentry, which knows the
    /// arguments at the exit, can then tell the calls apart.
    pub in_interrupts: bool,
    /// Kernels that have it, and what else one should know.
    pub versions: &'static str,
}

const CLEAR: Function = Function {
    name: "",
    site: Site::FolioZeroUser,
    pair: Pair::Clear,
    size_from: SizeFrom::FolioOrder,
    only_function: None,
    derived: false,
    every_allocation: false,
    in_interrupts: false,
    versions: "",
};

/// The clear functions: the first that a kernel has contains all the others.
pub const OUTER_CLEARS: &[Function] = &[
    Function {
        name: "folio_zero_user",
        versions: "6.11 and later",
        ..CLEAR
    },
    Function {
        name: "clear_huge_page",
        site: Site::ClearHugePage,
        size_from: SizeFrom::PagesArg3,
        versions: "until 6.10",
        ..CLEAR
    },
];

/// What the functions above call: traced where a compiler has inlined the function above but not
/// these. `process_huge_page` also copies; its third argument says which.
pub const INNER_CLEARS: &[Function] = &[
    Function {
        name: "process_huge_page",
        site: Site::ProcessHugePage,
        size_from: SizeFrom::PagesArg2,
        only_function: Some("clear_subpage"),
        versions: "5.0 to 6.19; inlined in Debian's kernels",
        ..CLEAR
    },
    Function {
        name: "clear_gigantic_page",
        site: Site::ClearGiganticPage,
        pair: Pair::ClearGigantic,
        size_from: SizeFrom::PagesArg3,
        versions: "until 6.19; inlined in Debian's kernels",
        ..CLEAR
    },
];

const ALLOCATOR: Function = Function {
    site: Site::Allocator,
    pair: Pair::Allocator,
    ..CLEAR
};

/// The allocation of a PMD-sized anonymous folio, called for such faults only.
pub const ALLOCATION_OF_THP: Function = Function {
    name: "vma_alloc_anon_folio_pmd",
    size_from: SizeFrom::Pmd,
    derived: true,
    versions: "6.18 and later, maybe from 6.13 on",
    ..ALLOCATOR
};

/// The allocation of an anonymous folio of any order: the first that exists.
pub const ALLOCATIONS_OF_ANY_ORDER: &[Function] = &[
    Function {
        name: "vma_alloc_folio_noprof",
        size_from: SizeFrom::OrderArg2,
        derived: true,
        every_allocation: true,
        versions: "6.10 and later",
        ..ALLOCATOR
    },
    Function {
        name: "vma_alloc_folio",
        size_from: SizeFrom::OrderArg2,
        derived: true,
        every_allocation: true,
        versions: "5.19 to 6.9",
        ..ALLOCATOR
    },
    Function {
        name: "alloc_pages_vma",
        size_from: SizeFrom::OrderArg2,
        derived: true,
        every_allocation: true,
        versions: "until 5.18",
        ..ALLOCATOR
    },
];

/// The allocator's own clearing: the first that exists. Inlined from 6.1 to 6.19.
pub const ALLOCATOR_CLEARS: &[Function] = &[
    Function {
        name: "clear_highpages_kasan_tagged",
        size_from: SizeFrom::PagesArg2,
        every_allocation: true,
        in_interrupts: true,
        versions: "7.2 and later",
        ..ALLOCATOR
    },
    Function {
        name: "kernel_init_pages",
        size_from: SizeFrom::PagesArg2,
        every_allocation: true,
        in_interrupts: true,
        versions: "7.0 and 7.1; inlined from 6.1 to 6.19",
        ..ALLOCATOR
    },
    Function {
        name: "kernel_init_free_pages",
        size_from: SizeFrom::PagesArg2,
        every_allocation: true,
        in_interrupts: true,
        versions: "5.3 to 5.19",
        ..ALLOCATOR
    },
];

/// A fault inside which the allocator may clear a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name in the kernel.
    pub name: &'static str,
    /// Programs that trace it.
    pub pair: Pair,
}

/// The fault of a PMD-sized anonymous page.
pub const THP_FAULT: Fault = Fault {
    name: "do_huge_pmd_anonymous_page",
    pair: Pair::ThpFault,
};

/// The fault of every other anonymous page, mTHP included.
pub const ANON_FAULT: Fault = Fault {
    name: "do_anonymous_page",
    pair: Pair::AnonFault,
};

/// The function that switches the preemption model at run time (kernel/sched/core.c).
pub const PREEMPT_SWITCH: &str = "sched_dynamic_update";
