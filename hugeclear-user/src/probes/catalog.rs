//! The sites as data. To support a new place where a kernel clears, add a row here.

use hugeclear_ebpf::{
    config::{AddressFrom, Pair, SizeFrom},
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
    /// Where the address that faulted is found.
    pub address_from: AddressFrom,
    /// Whether the first argument points to the page that is cleared, or copied to.
    pub page_is_arg1: bool,
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
    address_from: AddressFrom::Argument,
    page_is_arg1: true,
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
        address_from: AddressFrom::Fault,
        page_is_arg1: false,
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

/// The functions that copy a huge page: the first that exists.
pub const COPIES: &[Function] = &[
    Function {
        name: "copy_user_large_folio",
        site: Site::CopyUserLargeFolio,
        pair: Pair::Copy,
        address_from: AddressFrom::Argument,
        versions: "6.4 and later",
        ..CLEAR
    },
    Function {
        name: "copy_user_huge_page",
        site: Site::CopyUserHugePage,
        pair: Pair::Copy,
        size_from: SizeFrom::PagesArg5,
        address_from: AddressFrom::Argument,
        versions: "until 6.3",
        ..CLEAR
    },
];

const ALLOCATOR: Function = Function {
    site: Site::Allocator,
    pair: Pair::Allocator,
    address_from: AddressFrom::Fault,
    ..CLEAR
};

const ALLOCATION: Function = Function {
    page_is_arg1: false,
    derived: true,
    ..ALLOCATOR
};

/// The allocation of a PMD-sized anonymous folio, called for such faults only.
pub const ALLOCATION_OF_THP: Function = Function {
    name: "vma_alloc_anon_folio_pmd",
    size_from: SizeFrom::Pmd,
    address_from: AddressFrom::Argument,
    versions: "6.18 and later, maybe from 6.13 on",
    ..ALLOCATION
};

/// The allocation of an anonymous folio of any order: the first that exists.
pub const ALLOCATIONS_OF_ANY_ORDER: &[Function] = &[
    Function {
        name: "vma_alloc_folio_noprof",
        size_from: SizeFrom::OrderArg2,
        every_allocation: true,
        versions: "6.10 and later",
        ..ALLOCATION
    },
    Function {
        name: "vma_alloc_folio",
        size_from: SizeFrom::OrderArg2,
        every_allocation: true,
        versions: "5.19 to 6.9",
        ..ALLOCATION
    },
    Function {
        name: "alloc_pages_vma",
        size_from: SizeFrom::OrderArg2,
        every_allocation: true,
        versions: "until 5.18",
        ..ALLOCATION
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

/// A function that does not clear, but tells something of the clears in it, or of their faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// Name in the kernel.
    pub name: &'static str,
    /// Programs that trace it.
    pub pair: Pair,
    /// Number of its parameters: an fexit program finds what the function returns after them.
    pub parameters: u32,
}

/// The fault of a PMD-sized anonymous page.
pub const THP_FAULT: Around = Around {
    name: "do_huge_pmd_anonymous_page",
    pair: Pair::ThpFault,
    parameters: 1,
};

/// The fault of every other anonymous page, mTHP included.
pub const ANON_FAULT: Around = Around {
    name: "do_anonymous_page",
    pair: Pair::AnonFault,
    parameters: 1,
};

/// The fault of a write to the huge zero page. Where [`ALLOCATION_OF_THP`] exists, it allocates and clears
/// a huge page; before, it splits the mapping.
pub const WRITE_FAULT: Around = Around {
    name: "do_huge_pmd_wp_page",
    pair: Pair::WriteFault,
    parameters: 1,
};

/// Everything else that asks for huge pages.
pub const ASKERS: [Around; 3] = [
    Around {
        name: "hugetlb_fault",
        pair: Pair::HugetlbFault,
        parameters: 4,
    },
    Around {
        name: "hugetlbfs_fallocate",
        pair: Pair::Fallocate,
        parameters: 4,
    },
    Around {
        name: "memfd_alloc_folio",
        pair: Pair::Memfd,
        parameters: 2,
    },
];

/// What a fault may have to wait for.
pub const PARTS: [Around; 3] = [
    Around {
        name: "try_to_compact_pages",
        pair: Pair::Compaction,
        parameters: 6,
    },
    Around {
        name: "try_to_free_pages",
        pair: Pair::Reclaim,
        parameters: 4,
    },
    // The number of its parameters changes; of what it is given and returns nothing is read.
    Around {
        name: "try_to_free_mem_cgroup_pages",
        pair: Pair::CgroupReclaim,
        parameters: 1,
    },
];

/// The function in which the huge zero page is made, and the variable that points to it: the first of
/// which both exist. Since 6.12, and before.
pub const HUGE_ZERO_PAGES: [(Around, &str); 2] = [
    (
        Around {
            name: "mm_get_huge_zero_folio",
            pair: Pair::HugeZeroPage,
            parameters: 1,
        },
        "huge_zero_folio",
    ),
    (
        Around {
            name: "mm_get_huge_zero_page",
            pair: Pair::HugeZeroPage,
            parameters: 1,
        },
        "huge_zero_page",
    ),
];

/// The function that switches the preemption model at run time (kernel/sched/core.c).
pub const PREEMPT_SWITCH: &str = "sched_dynamic_update";
