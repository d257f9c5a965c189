//! Where reports and events go, and in what form.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd as _, OwnedFd},
    process::Stdio,
};

use anyhow::{Context as _, Result};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
};

use super::args::TraceArgs;
use crate::{
    report::{self, Report},
    term::{self, Refresh},
    window::Event,
};

/// Texts that may wait to be written. Few: the ring buffer is the place for events to wait, where those
/// that find no room are counted.
const QUEUE: usize = 4;

/// Where reports and events go, and in what form.
///
/// A thread of its own writes them, so that a reader who does not read keeps nobody from detaching.
pub(super) struct Output {
    queue: mpsc::Sender<Vec<u8>>,
    writer: JoinHandle<io::Result<()>>,
    /// What it is, for messages.
    pub(super) name: String,
    is_file: bool,
    json: bool,
    events: bool,
    /// Whether a table is renewed in place until the end.
    pub(super) refreshes: bool,
    refresh: Refresh,
}

impl Output {
    /// Only within the event loop.
    pub(super) fn open(args: &TraceArgs) -> Result<Self> {
        let to: Box<dyn Write + Send> = match &args.output {
            Some(path) => Box::new(
                File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?,
            ),
            None => Box::new(io::stdout()),
        };
        let is_file = args.output.is_some();
        // A table that is renewed in place would wipe out what a command prints to the same terminal.
        let is_shared = !args.command.is_empty() && term::stderr_is_terminal();
        let refreshes = !is_file
            && !args.json
            && !args.events
            && args.interval.is_none()
            && !is_shared
            && term::stdout_is_terminal();
        let (queue, texts) = mpsc::channel(QUEUE);
        Ok(Self {
            queue,
            writer: spawn_blocking(|| write_all(to, texts)),
            name: args.output.as_ref().map_or_else(
                || "to stdout".to_owned(),
                |path| format!("`{}`", path.display()),
            ),
            is_file,
            json: args.json,
            events: args.events,
            refreshes,
            refresh: Refresh::default(),
        })
    }

    /// Stdout of the traced command: ours carries only our data.
    pub(super) fn for_command(&self) -> Result<Stdio> {
        if self.is_file {
            return Ok(Stdio::inherit());
        }
        let stderr: OwnedFd = io::stderr()
            .as_fd()
            .try_clone_to_owned()
            .context("cannot duplicate stderr")?;
        Ok(stderr.into())
    }

    /// Waits until a text can be handed over without waiting.
    pub(super) async fn room(&self) {
        // An error says that nothing can be written any more: `failed` tells.
        let _ = self.queue.reserve().await;
    }

    /// Waits until nothing can be written any more.
    pub(super) async fn failed(&self) {
        self.queue.closed().await;
    }

    /// Renews the table on the terminal.
    pub(super) async fn refresh(&mut self, report: &Report) {
        let mut text = Vec::new();
        self.refresh
            .show(&mut text, &report::table(report))
            .expect("memory can be written");
        self.write(text).await;
    }

    /// Prints a report to stay.
    pub(super) async fn print(&mut self, report: &Report) {
        let mut text = Vec::new();
        self.refresh
            .clear(&mut text)
            .expect("memory can be written");
        if self.json {
            text.extend(report::json(report).into_bytes());
        } else {
            if self.events {
                // Apart from the lines above.
                text.push(b'\n');
            }
            text.extend(report::table(report).into_bytes());
        }
        self.write(text).await;
    }

    /// Prints what the columns of events hold.
    pub(super) async fn print_event_titles(&self) {
        if !self.json {
            self.write(report::EVENT_TITLES.into()).await;
        }
    }

    /// Appends an event, in the form that was asked for, to a text that is to be written.
    pub(super) fn add_event(&self, event: &Event, origin_ns: u64, text: &mut String) {
        if self.json {
            report::event_json(event, text);
        } else {
            report::event_text(event, origin_ns, text);
        }
    }

    /// Hands over a text, after those before it.
    pub(super) async fn write(&self, text: Vec<u8>) {
        // An error says that nothing can be written any more: `finish` tells why.
        let _ = self.queue.send(text).await;
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) async fn finish(self) -> io::Result<()> {
        let Self { queue, writer, .. } = self;
        drop(queue);
        writer.await?
    }
}

fn write_all(mut to: Box<dyn Write + Send>, mut texts: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(text) = texts.blocking_recv() {
        to.write_all(&text)?;
        // What is handed over at once is flushed at once: the last events seen, or a whole report.
        to.flush()?;
    }
    Ok(())
}
