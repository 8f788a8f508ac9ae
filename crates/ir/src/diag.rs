//! Owns diagnostics: one error with a stable kebab-case code, where it is, and how to mend it.
//! Never decides what is wrong; verifiers, type rules and the parser do.

use std::fmt;

use serde::Serialize;

/// One finding of a type rule, a verifier or the parser.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Diagnostic {
    /// Stable kebab-case code, documented where it is raised.
    pub code: &'static str,
    /// What is wrong, with the values that disagree.
    pub message: String,
    /// Where: `@func %value`, `phase decode_1 step 12`, `line 3`; empty if the whole module is meant.
    pub at: String,
    /// What to do, if there is something to do.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A finding without a place yet.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic { code, message: message.into(), at: String::new(), help: None }
    }

    /// The same at a place.
    pub fn at(mut self, at: impl Into<String>) -> Self {
        self.at = at.into();
        self
    }

    /// The same with a way out.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.message)?;
        if !self.at.is_empty() {
            write!(f, "\n  at {}", self.at)?;
        }
        if let Some(h) = &self.help {
            write!(f, "\n  help: {h}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// Several findings; displays all of them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", .0.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// `Ok` when nothing was found.
    pub fn into_result(self) -> Result<(), Diagnostics> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}
