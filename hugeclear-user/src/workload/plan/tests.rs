//! What is asked for against what there is.

use super::*;
use crate::facts::ThpSize;

const MIB: u64 = 1 << 20;

fn machine(enabled: ThpEnabled, own_64k: ThpEnabled) -> Machine {
    Machine {
        thp: Some(Thp {
            enabled: Some(enabled),
            defrag: None,
            shmem_enabled: None,
            use_zero_page: None,
            pmd_size_bytes: Some(2 * MIB),
            sizes: vec![
                ThpSize {
                    bytes: 64 << 10,
                    enabled: Some(own_64k),
                },
                ThpSize {
                    bytes: 2 * MIB,
                    enabled: Some(ThpEnabled::Inherit),
                },
            ],
        }),
        hugetlb: [2 * MIB, 1024 * MIB]
            .map(|page_size_bytes| HugetlbPool {
                page_size_bytes,
                total_pages: 10,
                free_pages: 6,
                reserved_pages: 2,
                surplus_pages: 0,
                overcommit_pages: Some(0),
            })
            .into(),
        available_bytes: Some(4096 * MIB),
        hugetlb_default_bytes: Some(2 * MIB),
        online: vec![0, 1],
    }
}

fn args(kind: Kind) -> Args {
    Args {
        kind,
        page_size: None,
        size: None,
        cpu: None,
        repeat: 1,
        configure: false,
        json: false,
    }
}

fn refusal(args: &Args, machine: &Machine) -> (String, bool) {
    let error = Plan::check(args, machine).expect_err("refused");
    (error.to_string(), error.usage())
}

#[test]
fn defaults_are_64m_of_the_usual_page() {
    let machine = machine(ThpEnabled::Always, ThpEnabled::Never);
    let plan = Plan::check(&args(Kind::Thp), &machine).unwrap();
    assert_eq!((plan.page_size_bytes, plan.pages), (2 * MIB, 32));
    assert_eq!((plan.changes, plan.notes), (vec![], vec![]));
    let gigantic = Args {
        page_size: Some(1 << 30),
        ..args(Kind::Hugetlb)
    };
    assert_eq!(Plan::check(&gigantic, &machine).unwrap().pages, 1);
}

#[test]
fn what_cannot_be_is_refused_in_one_line_before_anything_runs() {
    let on = machine(ThpEnabled::Madvise, ThpEnabled::Never);
    let off = machine(ThpEnabled::Never, ThpEnabled::Never);
    let no_thp = Machine {
        thp: None,
        ..on.clone()
    };
    let no_hugetlb = Machine {
        hugetlb: vec![],
        ..on.clone()
    };
    let thp = || args(Kind::Thp);
    let hugetlb = || args(Kind::Hugetlb);
    for (args, machine, text, usage) in [
        (
            Args {
                size: Some(0),
                ..thp()
            },
            &on,
            "--size is 0; nothing would be touched",
            true,
        ),
        (
            Args {
                size: Some(3 * MIB),
                ..thp()
            },
            &on,
            "--size `3M` is not a multiple of the page size `2M`; the next one is `4M`",
            true,
        ),
        (
            Args {
                page_size: Some(4 * MIB),
                ..hugetlb()
            },
            &on,
            "no hugetlb pages of `4M` on this kernel; there are: 2M, 1G",
            true,
        ),
        (
            Args {
                cpu: Some(7),
                ..thp()
            },
            &on,
            "--cpu 7 is not online; online CPUs: 0-1",
            true,
        ),
        (
            thp(),
            &no_thp,
            "this kernel has no transparent huge pages (not built in, as with PREEMPT_RT); use `workload hugetlb`",
            false,
        ),
        (
            hugetlb(),
            &no_hugetlb,
            "this kernel has no hugetlb pages (CONFIG_HUGETLBFS is off); use `workload thp`",
            false,
        ),
        (
            thp(),
            &off,
            "transparent huge pages of `2M` are off; pass --configure, or write madvise to /sys/kernel/mm/transparent_hugepage/enabled",
            false,
        ),
        (
            Args {
                page_size: Some(64 << 10),
                ..thp()
            },
            &on,
            "transparent huge pages of `64K` are off; pass --configure, or write madvise to /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
            false,
        ),
        (
            Args {
                size: Some(10 * MIB),
                ..hugetlb()
            },
            &on,
            "the pool of `2M` pages has 4 to spare, 5 are needed; pass --configure, or write 11 to /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            false,
        ),
        (
            Args {
                size: Some(4096 * MIB),
                ..thp()
            },
            &on,
            "4097M are needed, 4G are available; use a smaller --size",
            false,
        ),
        (
            Args {
                size: Some(u64::MAX - (2 * MIB - 1)),
                repeat: 10_000,
                ..thp()
            },
            &on,
            "18446744073709551615 are needed, 4G are available; use a smaller --size",
            false,
        ),
    ] {
        assert_eq!(
            refusal(&args, machine),
            (text.to_owned(), usage),
            "{args:?}"
        );
    }
}

#[test]
fn configure_changes_what_is_in_the_way_and_no_more() {
    let changes = |args: Args, machine: &Machine| -> Vec<(String, String)> {
        let plan = Plan::check(
            &Args {
                configure: true,
                ..args
            },
            machine,
        )
        .unwrap();
        let change = |c: Change| (c.path.display().to_string(), c.value);
        plan.changes.into_iter().map(change).collect()
    };
    let change = |file: &str, value: &str| (format!("/sys/kernel/mm/{file}"), value.to_owned());
    let small = Args {
        page_size: Some(64 << 10),
        ..args(Kind::Thp)
    };
    let on = machine(ThpEnabled::Always, ThpEnabled::Never);
    let off = machine(ThpEnabled::Never, ThpEnabled::Never);

    assert_eq!(changes(args(Kind::Thp), &on), []);
    let top = change("transparent_hugepage/enabled", "madvise");
    assert_eq!(changes(args(Kind::Thp), &off), [top]);
    let own = change("transparent_hugepage/hugepages-64kB/enabled", "madvise");
    // The larger size inherits `never`: it is not in the way.
    assert_eq!(changes(small.clone(), &off), std::slice::from_ref(&own));
    let larger = change("transparent_hugepage/hugepages-2048kB/enabled", "never");
    assert_eq!(changes(small.clone(), &on), [own, larger.clone()]);
    // Where the size inherits too, switching the top on would switch the larger one on as well.
    let inherits = machine(ThpEnabled::Never, ThpEnabled::Inherit);
    let top = change("transparent_hugepage/enabled", "madvise");
    assert_eq!(changes(small, &inherits), [top, larger]);

    assert_eq!(
        changes(
            Args {
                size: Some(8 * MIB),
                ..args(Kind::Hugetlb)
            },
            &on
        ),
        []
    );
    let pool = change("hugepages/hugepages-2048kB/nr_hugepages", "38");
    assert_eq!(changes(args(Kind::Hugetlb), &on), [pool]);
}

#[test]
fn a_larger_size_that_would_win_is_noted() {
    let on = machine(ThpEnabled::Always, ThpEnabled::Madvise);
    let plan = Plan::check(
        &Args {
            page_size: Some(64 << 10),
            ..args(Kind::Thp)
        },
        &on,
    )
    .unwrap();
    assert_eq!(plan.notes.len(), 1);
    assert!(
        plan.notes[0].starts_with("pages of 2M are enabled too"),
        "{}",
        plan.notes[0]
    );
}
