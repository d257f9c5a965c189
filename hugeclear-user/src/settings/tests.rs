use std::{
    env,
    os::unix::process::ExitStatusExt as _,
    process::{self, Command},
};

use nix::sys::signal::{Signal, raise};
use tempfile::TempDir;

use super::*;

/// Set for a test that is run again as a child, to where it finds its files.
const CHILD: &str = "HUGECLEAR_TEST_CHILD";

/// Settings as plain files, which take literally what is written, and the directory of the list.
struct Machine {
    dir: TempDir,
    paths: Vec<PathBuf>,
}

impl Machine {
    fn new(values: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = (0..values.len())
            .map(|number| dir.path().join(number.to_string()))
            .collect();
        let machine = Self { dir, paths };
        for (number, value) in values.iter().enumerate() {
            machine.set(number, value);
        }
        machine
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn list(&self) -> PathBuf {
        self.run_dir().join("settings.json")
    }

    fn change(&self, number: usize, value: &str) -> Change {
        Change {
            path: self.paths[number].clone(),
            value: value.to_owned(),
        }
    }

    fn apply(&self, changes: &[Change]) -> Result<Applied, Error> {
        Applied::apply_in(&self.run_dir(), changes)
    }

    /// As something else would.
    fn set(&self, number: usize, value: &str) {
        fs::write(&self.paths[number], format!("{value}\n")).unwrap();
    }

    fn value(&self, number: usize) -> String {
        current(&self.paths[number]).unwrap()
    }

    /// What the next start says.
    fn repair(&self) -> Vec<String> {
        let name = format!("{}/", self.dir.path().display());
        repair_in(&self.run_dir())
            .into_iter()
            .map(|outcome| outcome.map_or_else(|e| e.to_string(), |repaired| repaired.to_string()))
            .map(|line| line.replace(&name, ""))
            .collect()
    }

    /// A run that is killed once it has made the changes: the calling test again, as a child.
    fn killed(&self, test: &str, changes: &[Change]) {
        fs::write(
            self.dir.path().join("changes"),
            serde_json::to_vec(changes).unwrap(),
        )
        .unwrap();
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("settings::tests::{test}")])
            .env(CHILD, self.dir.path())
            .output()
            .unwrap()
            .status;
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }
}

/// In the child: makes the changes and is killed. In the test itself: nothing.
fn die_if_child() {
    let Some(dir) = env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let changes: Vec<Change> =
        serde_json::from_slice(&fs::read(dir.join("changes")).unwrap()).unwrap();
    let _applied = Applied::apply_in(&dir.join("run"), &changes).unwrap();
    raise(Signal::SIGKILL).unwrap();
}

#[test]
fn a_setting_is_changed_and_put_back() {
    let machine = Machine::new(&["always madvise [never]", "0", "none (voluntary) full lazy"]);
    let changes = [
        machine.change(0, "madvise"),
        machine.change(1, "8"),
        machine.change(2, "full"),
    ];
    let applied = machine.apply(&changes).unwrap();
    assert_eq!(machine.value(0), "madvise");
    assert_eq!(machine.value(1), "8");
    assert_eq!(machine.value(2), "full");
    applied.put_back().unwrap();
    assert_eq!(machine.value(0), "never");
    assert_eq!(machine.value(1), "0");
    assert_eq!(machine.value(2), "voluntary");
    assert!(!machine.list().exists());
}

#[test]
fn settings_are_switched_again_and_again_and_end_as_they_began() {
    let machine = Machine::new(&["always madvise [never]", "0", "none (voluntary) full lazy"]);
    let mut applied = machine.apply(&[]).unwrap();
    for (changes, values) in [
        (vec![machine.change(2, "full")], ["never", "0", "full"]),
        (
            vec![machine.change(0, "always"), machine.change(2, "none")],
            ["always", "0", "none"],
        ),
        (
            vec![machine.change(2, "voluntary")],
            ["never", "0", "voluntary"],
        ),
        (vec![machine.change(1, "8")], ["never", "8", "voluntary"]),
        (vec![], ["never", "0", "voluntary"]),
        (
            vec![machine.change(0, "madvise")],
            ["madvise", "0", "voluntary"],
        ),
    ] {
        applied.switch_in(&machine.run_dir(), &changes).unwrap();
        assert_eq!([0, 1, 2].map(|number| machine.value(number)), values);
    }
    applied.put_back().unwrap();
    assert_eq!(machine.value(0), "never");
    assert!(!machine.list().exists());
}

#[test]
fn nothing_is_created_where_nothing_is_changed() {
    let machine = Machine::new(&["8"]);
    machine.apply(&[]).unwrap().put_back().unwrap();
    let same = machine.apply(&[machine.change(0, "8")]).unwrap();
    same.put_back().unwrap();
    assert!(machine.repair().is_empty());
    assert!(!machine.run_dir().exists());
}

#[test]
fn an_error_on_the_way_puts_back_what_was_changed() {
    let machine = Machine::new(&["0"]);
    let missing = Change {
        path: machine.dir.path().join("missing"),
        value: "1".to_owned(),
    };
    let error = machine
        .apply(&[machine.change(0, "8"), missing.clone()])
        .unwrap_err();
    assert!(matches!(error, Error::Read { path, .. } if path == missing.path));
    assert_eq!(machine.value(0), "0");
    assert!(!machine.list().exists());
}

#[test]
fn one_file_changed_twice_ends_as_it_began() {
    let machine = Machine::new(&["0"]);
    let twice = [machine.change(0, "8"), machine.change(0, "9")];
    machine.apply(&twice).unwrap().put_back().unwrap();
    assert_eq!(machine.value(0), "0");
}

#[test]
fn a_setting_that_does_not_come_back_is_an_error_and_stays_in_the_list() {
    let machine = Machine::new(&["0", "0"]);
    let applied = machine
        .apply(&[machine.change(0, "8"), machine.change(1, "8")])
        .unwrap();
    fs::remove_file(&machine.paths[1]).unwrap();
    let error = applied.put_back().unwrap_err();
    assert!(matches!(error, Error::NotPutBack { path, .. } if path == machine.paths[1]));
    assert_eq!(machine.value(0), "0");

    machine.set(1, "8");
    assert_eq!(
        machine.repair(),
        ["put back 1 to `0`, which a run that was killed had left at `8`"]
    );
}

#[test]
fn a_panic_puts_settings_back_before_anything_unwinds() {
    let machine = Machine::new(&["0"]);
    let (dir, changes) = (machine.run_dir(), [machine.change(0, "8")]);
    let panicked = thread::spawn(move || {
        let applied = Applied::apply_in(&dir, &changes).unwrap();
        // With panic=abort no destructor runs; the hook must do.
        std::mem::forget(applied);
        panic!("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    assert_eq!(machine.value(0), "0");
    assert!(!machine.list().exists());
}

#[test]
fn the_start_after_a_kill_puts_back_last_one_first() {
    die_if_child();
    let machine = Machine::new(&["0", "always [never]"]);
    machine.killed(
        "the_start_after_a_kill_puts_back_last_one_first",
        &[
            machine.change(0, "8"),
            machine.change(1, "always"),
            machine.change(0, "9"),
        ],
    );
    assert_eq!(machine.value(0), "9");
    assert_eq!(machine.value(1), "always");
    assert_eq!(
        machine.repair(),
        [
            "put back 1 to `never`, which a run that was killed had left at `always`",
            "put back 0 to `0`, which a run that was killed had left at `9`",
        ]
    );
    assert_eq!(machine.value(0), "0");
    assert_eq!(machine.value(1), "never");
    assert!(machine.repair().is_empty());
    assert!(!machine.list().exists());
}

#[test]
fn changing_settings_after_a_kill_puts_back_first() {
    die_if_child();
    let machine = Machine::new(&["0", "0"]);
    machine.killed(
        "changing_settings_after_a_kill_puts_back_first",
        &[machine.change(0, "8")],
    );
    // Nothing to change, if it were not for the kill.
    let applied = machine.apply(&[machine.change(0, "8")]).unwrap();
    let [Ok(repaired)] = applied.repaired() else {
        panic!("{applied:?}");
    };
    assert_eq!((&*repaired.value, &*repaired.left), ("0", "8"));
    assert_eq!(machine.value(0), "8");
    applied.put_back().unwrap();
    assert_eq!(machine.value(0), "0");
}

#[test]
fn only_one_at_a_time() {
    let machine = Machine::new(&["0", "0"]);
    let first = machine.apply(&[machine.change(0, "8")]).unwrap();
    let error = machine.apply(&[machine.change(1, "8")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "another run has settings changed, process {}; wait until it has ended, or end it",
            process::id()
        )
    );
    // It is alive: nothing is put back under its feet.
    assert!(machine.repair().is_empty());
    assert_eq!(machine.value(0), "8");
    assert_eq!(machine.value(1), "0");
    first.put_back().unwrap();
    machine
        .apply(&[machine.change(1, "8")])
        .unwrap()
        .put_back()
        .unwrap();
}

#[test]
fn a_list_that_makes_no_sense_is_said_and_stays() {
    let machine = Machine::new(&["0"]);
    fs::create_dir(machine.run_dir()).unwrap();
    for text in ["", "{", "[{\"path\": 1}]", "\0\u{ff}"] {
        fs::write(machine.list(), text).unwrap();
        let said = machine.repair();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("run/settings.json, with the settings that a killed run left")
                && said[0].ends_with("; put back what it names, then remove it"),
            "{said:?}"
        );
        assert!(matches!(
            machine.apply(&[machine.change(0, "8")]),
            Err(Error::Corrupt { .. })
        ));
        assert_eq!(fs::read_to_string(machine.list()).unwrap(), text);
        assert_eq!(machine.value(0), "0");
    }
}

#[test]
fn what_cannot_be_repaired_is_said_each_time_and_the_rest_is_repaired() {
    die_if_child();
    let machine = Machine::new(&["0", "0"]);
    machine.killed(
        "what_cannot_be_repaired_is_said_each_time_and_the_rest_is_repaired",
        &[machine.change(0, "8"), machine.change(1, "8")],
    );
    fs::remove_file(&machine.paths[1]).unwrap();
    let gone = "cannot put 1 back to `0`: cannot read 1: No such file or directory (os error 2); \
                write it yourself, or remove run/settings.json to leave it as it is";
    assert_eq!(
        machine.repair(),
        [
            gone,
            "put back 0 to `0`, which a run that was killed had left at `8`"
        ]
    );
    assert_eq!(machine.repair(), [gone]);
    let error = machine.apply(&[machine.change(0, "8")]).unwrap_err();
    assert!(matches!(error, Error::NotPutBack { .. }), "{error}");
    assert_eq!(machine.value(0), "0");
    // The user wrote it, as told.
    machine.set(1, "0");
    assert!(machine.repair().is_empty());
    assert!(!machine.list().exists());
}

#[test]
fn what_something_else_has_changed_since_is_left_and_said_once() {
    die_if_child();
    let machine = Machine::new(&["0"]);
    machine.killed(
        "what_something_else_has_changed_since_is_left_and_said_once",
        &[machine.change(0, "8")],
    );
    machine.set(0, "3");
    assert_eq!(
        machine.repair(),
        [
            "0 was changed to `3` by something else after a run had written `8`, and is left so; it was `0` before"
        ]
    );
    assert_eq!(machine.value(0), "3");
    assert!(machine.repair().is_empty());

    let applied = machine.apply(&[machine.change(0, "8")]).unwrap();
    machine.set(0, "5");
    assert!(matches!(applied.put_back(), Err(Error::ChangedSince { is, .. }) if is == "5"));
    assert_eq!(machine.value(0), "5");
}

#[test]
fn what_the_kernel_made_of_our_write_is_ours() {
    let machine = Machine::new(&["5"]);
    fs::create_dir(machine.run_dir()).unwrap();
    let saved = |shows: Option<&str>| {
        let saved = Saved {
            path: machine.paths[0].clone(),
            was: "0".to_owned(),
            wrote: "8".to_owned(),
            shows: shows.map(str::to_owned),
        };
        fs::write(machine.list(), serde_json::to_vec(&[saved]).unwrap()).unwrap();
    };
    // A pool that grew in part; the kill came after, and before it was read.
    for shows in [Some("5"), None] {
        machine.set(0, "5");
        saved(shows);
        assert_eq!(
            machine.repair(),
            ["put back 0 to `0`, which a run that was killed had left at `5`"]
        );
        assert_eq!(machine.value(0), "0");
    }
}
