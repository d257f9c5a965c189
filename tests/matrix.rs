//! Boots every kernel of the matrix for every scenario; the checks are in the guest (`guest/`).
//!
//! `cargo xtask test` runs two guests at a time. Those that compare durations have a clock that counts
//! instructions, which a busy host does not disturb.

use std::{iter::repeat, path::Path, process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use libtest_mimic::{Arguments, Failed, Trial};
use xtask::{
    initramfs::{Added, Base},
    matrix::{Entry, Matrix, Refresh, Resolved},
    vm::Guest,
};

/// The checks, built as a static binary.
const CHECKS: &str = env!("CARGO_BIN_EXE_guest");

/// A guest is emulated, and two share the machine with whatever else runs.
const TIMEOUT: Duration = Duration::from_secs(600);

fn main() -> Result<ExitCode> {
    let arguments = Arguments::from_args();
    let resolved = Matrix::load()?.resolve(Refresh::WhenStale)?;
    xtask::matrix::check(&resolved)?;
    // Listing needs no binary.
    let base = if arguments.list {
        None
    } else {
        Some(Base::build()?)
    };
    let trials = resolved
        .iter()
        .enumerate()
        .flat_map(|(index, kernel)| {
            let is_first_or_last = index == 0 || index + 1 == resolved.len();
            trials(kernel, base.as_ref(), is_first_or_last)
        })
        .collect();
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// What to boot, and what to check there.
struct Cell {
    name: String,
    append: String,
    /// Whether the clock counts instructions.
    icount: bool,
    memory_mib: u32,
    nodes: u32,
    /// Arguments of the checks, each of which runs if those before it have passed.
    checks: Vec<Vec<String>>,
}

fn trials(resolved: &Resolved, base: Option<&Base>, is_first_or_last: bool) -> Vec<Trial> {
    let Resolved { entry, kernel } = resolved;
    cells(entry, is_first_or_last)
        .into_iter()
        .map(|cell| {
            let name = format!("{}::{}", entry.name, cell.name);
            match (kernel, base) {
                (Ok(kernel), Some(base)) => {
                    let (kernel, base) = (kernel.vmlinuz.clone(), base.clone());
                    Trial::test(name, move || run(&base, &kernel, &cell).map_err(failed))
                }
                (Ok(_), None) => Trial::test(name, || Ok(())),
                (Err(reason), _) => {
                    eprintln!("{name} is skipped: {reason}");
                    Trial::test(name, || Ok(())).with_ignored_flag(true)
                }
            }
        })
        .collect()
}

fn failed(error: anyhow::Error) -> Failed {
    format!("{error:#}").into()
}

fn cells(entry: &Entry, is_first_or_last: bool) -> Vec<Cell> {
    let expected = |init_on_alloc: bool| -> Vec<String> {
        let mut expected: Vec<String> = [
            ("--site", &entry.site),
            ("--strategy", &entry.strategy),
            ("--allocator-strategy", &entry.allocator_strategy),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value.clone()])
        .collect();
        let flags = [
            (entry.allocator_instead, "--allocator-instead"),
            (init_on_alloc, "--init-on-alloc"),
            (entry.no_thp.is_some(), "--no-thp"),
        ];
        expected.extend(
            flags
                .iter()
                .filter(|(set, _)| *set)
                .map(|(_, flag)| (*flag).to_owned()),
        );
        expected
    };
    let checks = |scenario: &str, init_on_alloc, more: &[&str]| {
        let more = more.iter().map(|word| (*word).to_owned());
        [scenario.to_owned()]
            .into_iter()
            .chain(expected(init_on_alloc))
            .chain(more)
            .collect()
    };
    let cell = |name: &str, append: &str, checks| Cell {
        name: name.to_owned(),
        append: append.to_owned(),
        icount: false,
        memory_mib: 3072,
        nodes: 1,
        checks: vec![checks],
    };

    const NO_INIT: &str = "init_on_alloc=0";
    // A 1 GiB page can be had for sure only at boot.
    const GIGANTIC: &str = "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=0";
    // What filters do depends on the kernel in nothing but the way that it is probed.
    let filters: &[&str] = if is_first_or_last {
        &["--filters"]
    } else {
        &[]
    };
    let mut cells = vec![
        cell(
            "counts",
            &format!("{NO_INIT} {GIGANTIC}"),
            checks("counts", false, filters),
        ),
        cell(
            "counts_init_on_alloc",
            &format!("init_on_alloc=1 {GIGANTIC}"),
            checks("counts", true, &[]),
        ),
        cell("lifecycle", NO_INIT, checks("lifecycle", false, &[])),
    ];

    // The only kernel here that takes the number from its command line.
    if entry.name == "6.1" {
        // The second is beyond what is kept in slots.
        for cpus in ["512", "1100"] {
            let append = format!("{NO_INIT} possible_cpus={cpus}");
            let checks = checks("many-cpus", false, &["--cpus", cpus]);
            cells.push(cell(&format!("cpus_{cpus}"), &append, checks));
        }
    }

    // On 5.10 function_graph loses a function while fentry holds it.
    let method = if entry.name == "5.10" {
        "kprobe"
    } else {
        "fentry"
    };
    let models: Vec<&str> = entry.preempt.iter().map(|model| model.name()).collect();
    let switch = models.join(",");
    let mut durations = vec!["--method", method];
    if !models.is_empty() {
        durations.extend(["--models", &switch]);
    }
    let mut durations = Cell {
        icount: true,
        ..cell(
            "durations",
            &format!("{NO_INIT} {GIGANTIC}"),
            checks("durations", false, &durations),
        )
    };
    // Those without models to choose from, with the old ones, with the old and lazy, with the new ones.
    if is_first_or_last || ["6.1", "6.18"].contains(&&*entry.name) {
        durations.checks.push(checks("impact", false, &[]));
    }
    cells.push(durations);

    // Kernels differ in where they clear, not in what is made of it.
    let is_chosen = is_first_or_last || entry.name == "6.12";
    let causes = |init_on_alloc: bool| {
        let methods: &[&str] = if is_chosen && !init_on_alloc {
            &["--methods", "fentry,kprobe"]
        } else {
            &["--methods", "fentry"]
        };
        checks("causes", init_on_alloc, methods)
    };
    let mut all_causes = cell("causes", NO_INIT, causes(false));
    if is_chosen {
        all_causes.checks.push(checks("events", false, &[]));
    }
    cells.push(all_causes);
    if is_chosen {
        cells.push(cell(
            "causes_init_on_alloc",
            "init_on_alloc=1",
            causes(true),
        ));
        cells.push(cell("workloads", NO_INIT, checks("workloads", false, &[])));
        cells.push(Cell {
            nodes: 2,
            memory_mib: 2048,
            ..cell("nodes", NO_INIT, checks("nodes", false, &[]))
        });
        // Little, so that it is soon used up; and enough for the kernel to have huge pages.
        cells.push(Cell {
            memory_mib: 640,
            icount: true,
            ..cell("parts", NO_INIT, checks("parts", false, &[]))
        });
    }

    // The old models, the old and lazy, the new ones.
    if ["6.12", "6.19", "7.3"].contains(&&*entry.name) {
        let checks = checks("sweep", false, &["--models", &switch]);
        cells.push(cell("sweep", NO_INIT, checks));
    }
    for (model, methods) in models
        .iter()
        .zip(["fentry,kprobe"].into_iter().chain(repeat("fentry")))
    {
        let models = ["--model", model, "--switch", &switch, "--methods", methods];
        let checks = checks("models", false, &models);
        cells.push(cell(
            &format!("preempt_{model}"),
            &format!("{NO_INIT} preempt={model}"),
            checks,
        ));
    }
    if models.is_empty() {
        let models = ["--model", "none-or-voluntary", "--methods", "fentry,kprobe"];
        cells.push(cell(
            "preempt_fixed",
            NO_INIT,
            checks("models", false, &models),
        ));
    }
    cells
}

fn run(base: &Base, kernel: &Path, cell: &Cell) -> Result<()> {
    let mut guest = Guest::new(base, kernel)
        .append(&cell.append)
        .memory_mib(cell.memory_mib)
        .numa(cell.nodes)
        .add_file(Added {
            host: CHECKS.into(),
            guest: Some("/checks".to_owned()),
        })
        .timeout(TIMEOUT);
    if cell.icount {
        guest = guest.icount();
    }
    let outcome = guest.run(&["sh", "-c", &commands(cell)])?;
    if !outcome.status.success() {
        bail!("{outcome}");
    }
    // How close the durations were.
    eprint!("{}", String::from_utf8_lossy(&outcome.stdout));
    Ok(())
}

/// A line of shell that runs the checks one after the other.
fn commands(cell: &Cell) -> String {
    let commands: Vec<String> = cell
        .checks
        .iter()
        .map(|arguments| format!("/checks {}", arguments.join(" ")))
        .collect();
    commands.join(" && ")
}
