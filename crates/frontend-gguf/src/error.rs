//! Owns the one error type of this crate: what is wrong with an input, where, and what to do about it.
//!
//! It never formats more than one line, never repeats hostile text unescaped, and never panics. The codes are stable
//! kebab-case words; a command line renders an error as `error[CLASS/CODE]: PATH: MESSAGE`.

use std::fmt;
use std::path::{Path, PathBuf};

/// What kind of trouble an input is; scripts may depend on these four words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The system gave no bytes: no such file, a directory, not a regular file, no permission.
    Io,
    /// The bytes are not a well-formed GGUF file.
    Format,
    /// Well formed, but a version, byte order, tensor type, architecture or tokenizer this program does not do.
    Unsupported,
    /// A well-formed file whose metadata and tensors do not make one coherent model.
    Model,
}

impl Class {
    /// The lower-case word shown to users.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Io => "io",
            Class::Format => "format",
            Class::Unsupported => "unsupported",
            Class::Model => "model",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refused input. `Display` is one line: the message, which names the key or tensor at fault where there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// The kind of trouble.
    pub class: Class,
    /// A stable kebab-case word for exactly this check.
    pub code: &'static str,
    /// The file at fault (for a split model, the part at fault).
    pub file: PathBuf,
    /// The metadata key or tensor name at fault, escaped and shortened when it is hostile.
    pub subject: Option<String>,
    /// What is wrong and what to do, on one line.
    pub message: String,
}

/// The result type of this crate. The error is boxed by its rarity, not by its size: it is built once per run.
pub type Result<T, E = InputError> = std::result::Result<T, E>;

impl InputError {
    /// Builds an error without a subject. Line breaks and control characters in `message` are escaped.
    pub fn new(class: Class, code: &'static str, file: &Path, message: impl AsRef<str>) -> Self {
        InputError { class, code, file: file.to_path_buf(), subject: None, message: one_line(message.as_ref()) }
    }

    /// Names the key or tensor at fault.
    #[must_use]
    pub fn about(mut self, subject: impl AsRef<str>) -> Self {
        self.subject = Some(show(subject.as_ref()));
        self
    }

    /// Names what was being read, unless the error names something closer.
    #[must_use]
    pub(crate) fn within(self, subject: &str) -> Self {
        if self.subject.is_some() { self } else { self.about(subject) }
    }

    /// The whole line a command prints: `error[CLASS/CODE]: PATH: MESSAGE`.
    pub fn line(&self) -> String {
        format!("error[{}/{}]: {}: {}", self.class, self.code, one_line(&self.file.display().to_string()), self.message)
    }
}

/// Text from a file, made safe to print: control characters escaped, at most 96 characters.
pub fn show(text: &str) -> String {
    const LIMIT: usize = 96;
    let mut out: String = text.chars().take(LIMIT).flat_map(escape).collect();
    if text.chars().nth(LIMIT).is_some() {
        out.push_str("...");
    }
    out
}

fn one_line(text: &str) -> String {
    text.chars().flat_map(escape).collect()
}

fn escape(c: char) -> Box<dyn Iterator<Item = char>> {
    if c.is_control() { Box::new(c.escape_default()) } else { Box::new(std::iter::once(c)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_whatever_the_text() {
        let e = InputError::new(Class::Format, "x", Path::new("a\nb"), "bad\nkey \x1b[0m").about("k\r\n");
        assert_eq!(e.line().lines().count(), 1);
        assert!(!e.line().contains('\x1b'));
        assert_eq!(e.subject.as_deref(), Some("k\\r\\n"));
        assert!(show(&"é".repeat(500)).chars().count() < 110);
    }
}
