//! The terminal: the only place that asks what stdout is.

use std::io::{self, IsTerminal as _, Write};

use indicatif::{ProgressBar, ProgressStyle};

/// Prints reports that replace one another on a terminal.
#[derive(Debug, Default)]
pub struct Refresh {
    lines: usize,
}

impl Refresh {
    /// Replaces what was shown last by `text`, cut to the terminal's size.
    ///
    /// # Errors
    /// Those of writing.
    pub fn show(&mut self, out: &mut dyn Write, text: &str) -> io::Result<()> {
        let (width, height) = size();
        // One line stays free for the cursor.
        let lines: Vec<String> = text
            .lines()
            .take(height.saturating_sub(1).max(1))
            .map(|line| line.chars().take(width).collect())
            .collect();
        self.clear(out)?;
        for line in &lines {
            writeln!(out, "{line}")?;
        }
        self.lines = lines.len();
        out.flush()
    }

    /// Takes away what was shown last.
    ///
    /// # Errors
    /// Those of writing.
    pub fn clear(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.lines > 0 {
            // Up to the first line, and erase from there on.
            write!(out, "\x1b[{}A\x1b[J", self.lines)?;
            self.lines = 0;
        }
        Ok(())
    }
}

/// A progress bar of `length` steps on stderr, if that is a terminal.
#[must_use]
pub fn progress(length: u64, label: &str) -> ProgressBar {
    const TEMPLATE: &str = "{msg} {wide_bar} {percent} % {elapsed} (about {eta} left)";
    let style = ProgressStyle::with_template(TEMPLATE).expect("the template is well-formed");
    let bar = ProgressBar::new(length).with_style(style);
    bar.with_message(label.to_owned())
}

/// Whether stdout is a terminal.
#[must_use]
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether stderr is a terminal.
#[must_use]
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Columns to fill: those of the terminal on stdout, else of the environment's `COLUMNS`, else 80.
#[must_use]
pub fn columns() -> usize {
    if stdout_is_terminal() {
        return size().0;
    }
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .unwrap_or(80)
}

/// Columns and lines of the terminal on stdout.
fn size() -> (usize, usize) {
    terminal_size::terminal_size_of(io::stdout()).map_or((80, 24), |(width, height)| {
        (usize::from(width.0), usize::from(height.0))
    })
}
