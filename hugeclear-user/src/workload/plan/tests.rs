//! What is asked for against what there is.

use clap::Parser;

use super::*;
use crate::{
    facts::{HugetlbPool, ThpSize},
    workload::machine::NodePool,
};

const MIB: u64 = 1 << 20;

fn machine(enabled: ThpEnabled, own_64k: ThpEnabled) -> Machine {
    Machine {
        base_page_bytes: 4096,
        thp: Some(Thp {
            enabled: Some(enabled),
            defrag: Some("madvise".to_owned()),
            shmem_enabled: Some("never".to_owned()),
            use_zero_page: Some(true),
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
        shmem_pmd_enabled: Some("inherit".to_owned()),
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
        online: vec![0, 1, 2],
        nodes: vec![
            Node {
                id: 0,
                cpus: vec![0, 1, 2],
                available_bytes: Some(3072 * MIB),
                pools: vec![NodePool {
                    page_size_bytes: 2 * MIB,
                    total_pages: 9,
                    free_pages: 6,
                }],
            },
            Node {
                id: 1,
                cpus: vec![],
                available_bytes: Some(100 * MIB),
                pools: vec![NodePool {
                    page_size_bytes: 2 * MIB,
                    total_pages: 1,
                    free_pages: 0,
                }],
            },
        ],
        has_populate: true,
        has_collapse: true,
    }
}

/// The arguments of a command line, without `hugeclear-trace workload`.
fn args(line: &str) -> Args {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    Line::try_parse_from(["workload"].into_iter().chain(line.split_whitespace()))
        .unwrap_or_else(|error| panic!("{line}: {error}"))
        .args
}

fn plan(line: &str, machine: &Machine) -> Plan {
    Plan::check(&args(line), machine).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn defaults_are_64m_of_the_usual_page() {
    let machine = machine(ThpEnabled::Always, ThpEnabled::Never);
    let thp = plan("thp", &machine);
    assert_eq!((thp.page_size_bytes, thp.pages), (2 * MIB, 32));
    assert_eq!((thp.changes, thp.notes), (vec![], vec![]));
    let gigantic = plan("hugetlb --page-size 1G", &machine);
    assert_eq!(gigantic.pages, 1);
    let zero = plan("zero-page --bench stride --mapping huge", &machine);
    assert_eq!((zero.page_size_bytes, zero.pages), (2 * MIB, 4096));
    let small = plan("zero-page --bench compare --mapping small", &machine);
    assert_eq!((small.page_size_bytes, small.pages), (4096, 2 << 20));
    let iterations = [zero, small].map(|plan| plan.zero_bench.unwrap().iterations);
    assert_eq!(iterations, [1000, 100]);
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
    let old = Machine {
        has_populate: false,
        has_collapse: false,
        ..on.clone()
    };
    let only_pmd = {
        let mut machine = on.clone();
        machine.thp.as_mut().unwrap().sizes.clear();
        machine
    };
    for (line, machine, text) in [
        ("thp --size 0", &on, "--size is 0; nothing would be touched"),
        (
            "thp --size 3M",
            &on,
            "--size `3M` is not a multiple of the page size `2M`; the next one is `4M`",
        ),
        (
            "zero-page --bench compare --mapping huge --size 2M",
            &on,
            "--size `2M` is not a multiple of the page size `4M`; the next one is `4M`",
        ),
        (
            "hugetlb --page-size 4M",
            &on,
            "no hugetlb pages of `4M` on this kernel; there are: 2M, 1G",
        ),
        (
            "mthp --page-size 2M",
            &on,
            "no mthp pages of `2M` on this kernel; there are: 64K",
        ),
        (
            "base --page-size 2M",
            &on,
            "no base pages of `2M` on this kernel; there are: 4K",
        ),
        (
            "thp --cpu 1,7",
            &on,
            "--cpu 7 is not online; online CPUs: 0-2",
        ),
        (
            "thp --node 2",
            &on,
            "node 2 is not online; online nodes: 0-1",
        ),
        (
            "thp --mem-node 2",
            &on,
            "node 2 is not online; online nodes: 0-1",
        ),
        (
            "thp --node 1",
            &on,
            "node 1 has no CPUs to run on; it can be given to --mem-node only",
        ),
        (
            "thp --threads 33",
            &on,
            "--threads 33 is more than the 32 pages to touch; use a larger --size or fewer threads",
        ),
        (
            "thp --touch 2M",
            &on,
            "--touch `2M` is not inside a page of `2M`",
        ),
        (
            "thp --stride 3M",
            &on,
            "--stride `3M` is neither a multiple nor a divisor of the page size `2M`, or is larger than the size `64M`",
        ),
        (
            "thp --stride 128M",
            &on,
            "--stride `128M` is neither a multiple nor a divisor of the page size `2M`, or is larger than the size `64M`",
        ),
        (
            "thp --stride 0",
            &on,
            "--stride `0` is neither a multiple nor a divisor of the page size `2M`, or is larger than the size `64M`",
        ),
        (
            "collapse --touch last",
            &on,
            "--touch is not for `workload collapse`; see hugeclear-trace workload --help",
        ),
        (
            "hugetlb --fragment 50",
            &on,
            "--fragment is not for `workload hugetlb`; see hugeclear-trace workload --help",
        ),
        (
            "zero-page --bench stride",
            &on,
            "zero-page needs --bench compare or stride, and --mapping huge or small",
        ),
    ] {
        let error = Plan::check(&args(line), machine).expect_err(line);
        assert_eq!((error.to_string(), error.usage()), (text.to_owned(), true));
    }
    for (line, machine, text) in [
        (
            "thp",
            &no_thp,
            "this kernel has no transparent huge pages (not built in, as with PREEMPT_RT)",
        ),
        (
            "zero-page --bench stride --mapping huge",
            &no_thp,
            "this kernel has no transparent huge pages (not built in, as with PREEMPT_RT)",
        ),
        (
            "mthp",
            &only_pmd,
            "this kernel has no anonymous huge pages below a PMD (mTHP, since Linux 6.8)",
        ),
        (
            "hugetlb",
            &no_hugetlb,
            "this kernel has no hugetlb pages (CONFIG_HUGETLBFS is off)",
        ),
        (
            "collapse",
            &old,
            "this kernel has no MADV_COLLAPSE (since Linux 6.1)",
        ),
        (
            "populate",
            &old,
            "this kernel has no MADV_POPULATE_WRITE (since Linux 5.14); use --populate-by mmap",
        ),
        (
            "thp",
            &off,
            "transparent huge pages of `2M` are off; pass --configure, or write madvise to /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (
            "thp --no-madvise",
            &on,
            "transparent huge pages of `2M` are off; pass --configure, or write always to /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (
            "mthp",
            &on,
            "transparent huge pages of `64K` are off; pass --configure, or write madvise to /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
        ),
        (
            "shmem",
            &on,
            "transparent huge pages of `2M` are off; pass --configure, or write advise to /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        (
            "hugetlb --size 10M",
            &on,
            "the pool of `2M` pages has 4 to spare, 5 are needed; pass --configure, or write 11 to /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        ),
        (
            "hugetlb --size 2M --mem-node 1",
            &on,
            "the pool of `2M` pages has 0 to spare, 1 are needed; pass --configure, or write 2 to /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
        ),
        (
            "fork-cow --size 6M",
            &on,
            "the pool of `2M` pages has 4 to spare, 6 are needed; pass --configure, or write 12 to /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        ),
        (
            "thp --size 4G",
            &on,
            "4097M are needed, 4G are available; use a smaller --size",
        ),
        (
            "thp --size 128M --mem-node 1",
            &on,
            "129M are needed, 100M are available on node 1; use a smaller --size",
        ),
        (
            "thp --saturate 64",
            &on,
            "4161M are needed, 4G are available; use a smaller --size",
        ),
        (
            "thp --size 18446744073707454464",
            &on,
            "18446744073709551615 are needed, 4G are available; use a smaller --size",
        ),
    ] {
        let error = Plan::check(&args(line), machine).expect_err(line);
        assert_eq!(
            (error.to_string(), error.usage()),
            (text.to_owned(), false),
            "{line}"
        );
    }
}

#[test]
fn configure_changes_what_is_in_the_way_and_no_more() {
    let changes = |line: &str, machine: &Machine| -> Vec<(String, String)> {
        let plan = plan(&format!("{line} --configure"), machine);
        let change = |c: Change| (c.path.display().to_string(), c.value);
        plan.changes.into_iter().map(change).collect()
    };
    let change = |file: &str, value: &str| (format!("/sys/kernel/mm/{file}"), value.to_owned());
    let on = machine(ThpEnabled::Always, ThpEnabled::Never);
    let off = machine(ThpEnabled::Never, ThpEnabled::Never);
    let on_request = machine(ThpEnabled::Madvise, ThpEnabled::Never);
    let top = |value| change("transparent_hugepage/enabled", value);

    assert_eq!(changes("thp", &on), []);
    assert_eq!(changes("thp", &off), [top("madvise")]);
    assert_eq!(changes("thp --no-madvise", &on), []);
    assert_eq!(changes("thp --no-madvise", &on_request), [top("always")]);
    assert_eq!(
        changes("populate --populate-by mmap", &off),
        [top("always")]
    );
    let own = change("transparent_hugepage/hugepages-64kB/enabled", "madvise");
    // The larger size inherits `never`: it is not in the way.
    assert_eq!(changes("mthp", &off), std::slice::from_ref(&own));
    let larger = change("transparent_hugepage/hugepages-2048kB/enabled", "never");
    assert_eq!(changes("mthp", &on), [own, larger.clone()]);
    // Where the size inherits too, switching the top on would switch the larger one on as well.
    let inherits = machine(ThpEnabled::Never, ThpEnabled::Inherit);
    assert_eq!(changes("mthp", &inherits), [top("madvise"), larger]);

    assert_eq!(changes("hugetlb --size 8M", &on), []);
    let pool = |pages| change("hugepages/hugepages-2048kB/nr_hugepages", pages);
    assert_eq!(changes("hugetlb", &on), [pool("38")]);
    assert_eq!(changes("fork-cow", &on), [pool("70")]);

    let shmem = change("transparent_hugepage/shmem_enabled", "advise");
    assert_eq!(changes("shmem", &on), [shmem]);
    for line in [
        "base",
        "collapse",
        "zero-page --bench stride --mapping small",
    ] {
        assert_eq!(changes(line, &off), [], "{line}");
    }
}

#[test]
fn fragmented_memory_needs_faults_that_compact() {
    let with_defrag = |defrag: &str| {
        let mut machine = machine(ThpEnabled::Madvise, ThpEnabled::Never);
        machine.thp.as_mut().unwrap().defrag = Some(defrag.to_owned());
        machine
    };
    for (defrag, change) in [
        ("always", None),
        ("madvise", None),
        ("defer+madvise", None),
        ("defer", Some("madvise")),
        ("never", Some("madvise")),
    ] {
        let machine = with_defrag(defrag);
        let configured = plan("thp --fragment 90 --configure", &machine);
        let values = configured.changes.iter().map(|change| &*change.value);
        assert!(values.eq(change), "{defrag}: {:?}", configured.changes);
        let noted = plan("thp --fragment 90", &machine).notes;
        assert_eq!(noted.len(), usize::from(change.is_some()), "{noted:?}");
        assert_eq!(plan("thp", &machine).notes, [""; 0]);
    }
}

#[test]
fn small_pages_are_allowed_on_request() {
    let off = machine(ThpEnabled::Never, ThpEnabled::Never);
    let small = plan("thp --allow-small --stride 4K", &off);
    assert_eq!(small.notes.len(), 1);
    // Every base page is touched.
    assert_eq!(small.small_bytes(), 2 * MIB);
    assert_eq!(plan("thp --allow-small", &off).small_bytes(), 4096);
}

#[test]
fn a_larger_size_that_would_win_is_noted() {
    let on = machine(ThpEnabled::Always, ThpEnabled::Madvise);
    let notes = plan("mthp", &on).notes;
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("pages of 2M are enabled too"),
        "{}",
        notes[0]
    );
}

#[test]
fn threads_share_all_pages_that_are_touched() {
    let machine = machine(ThpEnabled::Always, ThpEnabled::Never);
    for (line, pages) in [
        ("thp --threads 3", 32),
        ("thp --threads 3 --stride 6M", 11),
        ("thp --threads 5 --stride 64K", 32),
        ("thp --stride 64M", 1),
    ] {
        let plan = plan(line, &machine);
        assert_eq!(plan.touched_pages(), pages, "{line}");
        let shares = plan.shares();
        assert_eq!(shares.len(), plan.threads as usize);
        let joined: Vec<u64> = shares.iter().cloned().flatten().collect();
        assert!(joined.into_iter().eq(0..pages), "{line}: {shares:?}");
        assert!(shares.iter().all(|share| !share.is_empty()), "{shares:?}");
    }
}

#[test]
fn neighbours_are_where_they_should_be() {
    let machine = machine(ThpEnabled::Always, ThpEnabled::Never);
    let on_cpus = plan("thp --cpu 0,2 --saturate 1 --compete 1", &machine);
    assert_eq!(
        (&*on_cpus.cpus, &*on_cpus.saturate_cpus),
        (&[0, 2][..], &[1][..])
    );
    assert_eq!(on_cpus.notes, [""; 0]);
    let on_node = plan("thp --node 0 --saturate 1", &machine);
    assert_eq!(
        (&*on_node.node_cpus, &*on_node.saturate_cpus),
        (&[0, 1, 2][..], &[][..])
    );
    assert_eq!(plan("thp --compete 1", &machine).notes.len(), 1);
}

#[test]
fn each_workload_declares_what_a_trace_must_show() {
    let machine = machine(ThpEnabled::Always, ThpEnabled::Madvise);
    for (line, clears, copies) in [
        ("thp", Some(Cause::ThpFault), false),
        ("mthp", Some(Cause::MthpFault), false),
        ("hugetlb --size 8M", Some(Cause::HugetlbFault), false),
        ("memfd-hugetlb --size 8M", Some(Cause::HugetlbFault), false),
        ("fallocate-hugetlb --size 8M", Some(Cause::Fallocate), false),
        ("fork-cow --size 4M", Some(Cause::HugetlbFault), true),
        ("fork-cow --thp", Some(Cause::ThpFault), false),
        ("populate", Some(Cause::ThpFault), false),
        ("populate --page-size 64K", Some(Cause::MthpFault), false),
        ("shmem --configure", None, false),
        ("collapse", None, false),
        ("base", None, false),
        ("zero-page --bench compare --mapping huge", None, false),
    ] {
        let plan = plan(line, &machine);
        assert_eq!(
            (plan.clear_cause(), plan.copies()),
            (clears, copies),
            "{line}"
        );
    }
}
