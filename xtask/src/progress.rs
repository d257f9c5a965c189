//! Progress on stderr of what takes longer than a person likes to wait without a word.

use std::{
    io::{IsTerminal as _, stderr},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

/// How long a step may take before it is told of.
const PATIENCE: Duration = Duration::from_secs(2);

/// A step under way. Shown until it is dropped, as a spinner with the seconds that have passed;
/// where stderr is no terminal, as one line. A quick step is not shown.
pub(crate) struct Step(Option<Display>);

/// The thread that shows a step, and what ends it when dropped.
struct Display {
    step: Sender<()>,
    thread: JoinHandle<()>,
}

impl Step {
    /// Starts showing that `what` is being done.
    pub(crate) fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let (step, end_of_step) = mpsc::channel();
        let thread = thread::spawn(move || show(what, &end_of_step));
        Self(Some(Display { step, thread }))
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(Display { step, thread }) = self.0.take() {
            drop(step);
            // The spinner must be gone before anything else is printed.
            let _ = thread.join();
        }
    }
}

fn show(what: String, end_of_step: &Receiver<()>) {
    if end_of_step.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    if !stderr().is_terminal() {
        eprintln!("{what}");
        return;
    }
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
        .expect("the template is well-formed");
    let bar = ProgressBar::new_spinner()
        .with_style(style)
        .with_message(what)
        .with_elapsed(PATIENCE);
    bar.enable_steady_tick(Duration::from_millis(200));
    // Nothing is ever sent: this returns when the step is dropped.
    let _ = end_of_step.recv();
    bar.finish_and_clear();
}
