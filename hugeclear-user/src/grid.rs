//! Tables of words and numbers for people.

use tabled::{
    builder::Builder,
    settings::{Alignment, Padding, Style, object::Columns},
};

/// A column: its title, and whether it holds words, not numbers.
pub(crate) type Column = (&'static str, bool);

/// Lays out records below their titles, numbers to the right.
pub(crate) fn grid(
    columns: &[(&str, bool)],
    records: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut builder = Builder::default();
    builder.push_record(columns.iter().map(|(title, _)| *title));
    for record in records {
        builder.push_record(record);
    }
    let mut table = builder.build();
    table.with(Style::blank()).with(Padding::new(0, 1, 0, 0));
    for (index, (_, is_word)) in columns.iter().enumerate() {
        if !is_word {
            table.modify(Columns::one(index), Alignment::right());
        }
    }
    trimmed(&table.to_string())
}

/// Without the spaces at the ends of lines.
pub(crate) fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}
