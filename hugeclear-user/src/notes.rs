//! What the user should know beside the numbers.

use serde::{Deserialize, Serialize};

/// A remark about a result, shown with it and part of its JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Stable name, for programs.
    pub code: String,
    /// One sentence or two, for people.
    pub text: String,
}

impl Note {
    /// A note.
    #[must_use]
    pub fn new(code: &str, text: impl Into<String>) -> Self {
        Self { code: code.to_owned(), text: text.into() }
    }
}
