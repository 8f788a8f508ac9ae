//! Owns the table of architectures: which `general.architecture` values are known, and how each is loaded.
//!
//! It knows no tensor name and no key but `general.architecture`; each architecture's module does.

pub mod glm_dsa;

use crate::error::{InputError, Result, show};
use crate::set::GgufSet;

/// The architectures of this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// GLM-5, GLM-5.1, GLM-5.2 (`glm-dsa`).
    GlmDsa,
}

/// Name in the file, architecture.
const TABLE: &[(&str, Architecture)] = &[(glm_dsa::NAME, Architecture::GlmDsa)];

const KEY: &str = "general.architecture";

/// The architecture of a file.
///
/// # Errors
/// The key is missing (class `model`), or names an architecture that is not supported.
pub fn detect(set: &GgufSet) -> Result<Architecture> {
    let name = set.get_str(KEY)?.ok_or_else(|| missing(set))?;
    TABLE.iter().find(|row| row.0 == name).map(|row| row.1).ok_or_else(|| {
        let known: Vec<&str> = TABLE.iter().map(|row| row.0).collect();
        let what = format!("is '{}'; supported: {}", show(name), known.join(", "));
        set.key_unsupported("architecture", KEY, what)
    })
}

fn missing(set: &GgufSet) -> InputError {
    set.key_error("key-missing", KEY, "is missing: this is not a model file, or not its first part")
}
