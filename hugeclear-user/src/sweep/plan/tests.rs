//! What is asked for against what recorded kernels offer.

use std::collections::BTreeSet;

use clap::Parser;

use super::*;
use crate::facts::recorded::{facts, tree};

fn offer(kernel: &str) -> Offer {
    Offer::read(tree(kernel).path(), &facts(kernel))
}

/// The plan of a command line, without `hugeclear-trace sweep`.
fn plan(line: &str, offer: &Offer) -> Result<Plan, Error> {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let words = ["sweep"].into_iter().chain(line.split_whitespace());
    let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    Plan::new(&line.args, offer)
}

fn combinations(plan: &Plan) -> Vec<String> {
    let planned = plan.combinations.iter();
    planned
        .map(|planned| planned.combination.to_string())
        .collect()
}

fn refused(plan: &Plan) -> Vec<String> {
    plan.refused.iter().map(ToString::to_string).collect()
}

/// The changes as `file value`, each file by the end of its path.
fn changes(planned: &Planned) -> Vec<String> {
    let changes = planned.changes.iter();
    changes
        .map(|Change { path, value }| {
            let short = path.strip_prefix("/sys/kernel/mm/transparent_hugepage");
            format!("{} {value}", short.unwrap_or(path).display())
        })
        .collect()
}

#[test]
fn every_combination_runs_once_a_round_in_an_order_that_can_be_repeated() {
    let plan = plan(
        "--preempt none,full --page-size 64K,1M,2M thp --configure",
        &offer("6.12"),
    )
    .unwrap();
    assert_eq!(plan.combinations.len(), 6);
    let order = plan.order(4, 7);
    for round in order.chunks(6) {
        assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 6, "{round:?}");
    }
    assert_eq!(order.len(), 24);
    assert_eq!(plan.order(4, 7), order);
    assert_ne!(plan.order(4, 8), order);
    assert_ne!(order[..6], order[6..12], "rounds have orders of their own");
}

#[test]
fn models_that_a_kernel_lacks_are_named_and_the_others_run() {
    for (kernel, runs, lacks) in [
        ("6.1", &["none", "voluntary", "full"][..], &["lazy"][..]),
        ("6.12", &["none", "voluntary", "full"], &["lazy"]),
        ("6.18", &["none", "voluntary", "full", "lazy"], &[]),
        ("7.3", &["full", "lazy"], &["none", "voluntary"]),
        ("6.12-rt", &["full", "lazy"], &["none", "voluntary"]),
    ] {
        let plan = plan(
            "--preempt none,voluntary,full,lazy hugetlb --size 2M --configure",
            &offer(kernel),
        )
        .unwrap();
        let named: Vec<String> = runs
            .iter()
            .map(|model| format!("preempt {model}"))
            .collect();
        assert_eq!(combinations(&plan), named, "{kernel}");
        let only = match kernel {
            "6.12-rt" => "full, lazy, laziest".to_owned(),
            _ => runs.join(", "),
        };
        let named: Vec<String> = (lacks.iter())
            .map(|model| format!("preempt {model}: this kernel has only {only}"))
            .collect();
        assert_eq!(refused(&plan), named, "{kernel}");
        let planned = &plan.combinations[0];
        let last = planned.changes.last().unwrap();
        assert_eq!(last.path, Path::new("/sys/kernel/debug/sched/preempt"));
        assert_eq!(last.value, runs[0]);
    }
}

#[test]
fn where_nothing_is_left_one_line_says_why() {
    let old = offer("5.10");
    let error = plan("--preempt full thp", &old).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing to run: this kernel cannot switch its preemption model \
         (CONFIG_PREEMPT_DYNAMIC is off): there is no /sys/kernel/debug/sched/preempt"
    );
    assert!(!error.usage());
    let mut unmounted = facts("6.12");
    unmounted.debugfs = None;
    let unmounted = Offer::read(tree("6.12").path(), &unmounted);
    let error = plan("--preempt none,full thp", &unmounted).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing to run: the preemption model is switched in debugfs, which is not mounted; \
         mount it with `mount -t debugfs debugfs /sys/kernel/debug`"
    );
    let error = plan("--defrag never hugetlb", &offer("6.12-rt"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no transparent huge pages"), "{error}");
}

#[test]
fn each_combination_changes_what_it_needs() {
    let line =
        "--page-size 64K,2M --thp madvise,never --preempt full thp --size 4M --configure --cpu 0";
    let plan = plan(line, &offer("6.12")).unwrap();
    let planned: Vec<(String, String)> = (plan.combinations.iter())
        .map(|planned| (planned.words.join(" "), changes(planned).join(", ")))
        .collect();
    let preempt = "/sys/kernel/debug/sched/preempt full";
    let expected = [
        // 2M inherits the setting at the top, and would be preferred.
        ("thp --size 4M --cpu 0 --repeat=1 --json --page-size=64K", format!("hugepages-64kB/enabled madvise, hugepages-2048kB/enabled never, enabled madvise, {preempt}")),
        // 64K has a setting of its own.
        ("thp --size 4M --cpu 0 --repeat=1 --json --page-size=64K", format!("hugepages-64kB/enabled madvise, enabled never, {preempt}")),
        ("thp --size 4M --cpu 0 --repeat=1 --json --page-size=2M", format!("enabled madvise, {preempt}")),
        ("thp --size 4M --cpu 0 --repeat=1 --json --page-size=2M --allow-small", format!("enabled never, {preempt}")),
    ]
    .map(|(words, changes)| (words.to_owned(), changes));
    assert_eq!(planned, expected);
}

#[test]
fn options_of_the_workload_that_are_the_sweeps_are_refused() {
    let offer = offer("6.18");
    for (line, option) in [
        ("thp --repeat 3", "--repeat"),
        ("thp --json", "--json"),
        ("--page-size 2M thp --page-size 2M", "--page-size"),
        ("--touch first thp --touch=last", "--touch"),
    ] {
        let error = plan(line, &offer).unwrap_err();
        assert!(
            error.usage()
                && error
                    .to_string()
                    .starts_with(&format!("{option} is not for the workload")),
            "{line}: {error}"
        );
    }
    plan("--touch last thp --page-size 2M", &offer).unwrap();
    for (line, what) in [
        ("thp --wrong", "--wrong"),
        ("--touch nowhere thp", "nowhere"),
        ("treasure", "treasure"),
    ] {
        let error = plan(line, &offer).unwrap_err();
        assert!(
            matches!(error, Error::Words(_)) && error.to_string().contains(what),
            "{line}: {error}"
        );
    }
}

#[test]
fn what_the_workload_refuses_is_named_once() {
    let offer = offer("6.18");
    // Also where one of the models is refused anyway.
    for kernel in ["6.18", "7.3"] {
        let error = plan("--preempt none,full thp --size 3M", &self::offer(kernel)).unwrap_err();
        assert!(error.usage(), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("--size `3M` is not a multiple"), "{said}");
    }

    let plan = plan("--page-size 2M,3M --preempt none,full thp", &offer).unwrap();
    assert_eq!(
        combinations(&plan),
        ["page-size 2M, preempt none", "page-size 2M, preempt full"]
    );
    let refused = refused(&plan);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].starts_with("page-size 3M: no thp pages of `3M`"),
        "{refused:?}"
    );
}

#[test]
fn a_value_asked_for_twice_runs_once() {
    let plan = plan("--touch first,last,first thp", &offer("6.18")).unwrap();
    assert_eq!(combinations(&plan), ["touch first", "touch last"]);
}

#[test]
fn nothing_varied_is_one_combination() {
    let plan = plan("thp --size 4M", &offer("6.18")).unwrap();
    assert_eq!(combinations(&plan), [""]);
    assert_eq!(plan.combinations[0].changes, []);
}
