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

/// Sizes that a lift bakes into types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiftOptions {
    /// Longest sequence: the bound of the symbol `S`.
    pub ctx: u64,
    /// Most sequences decoded at once: the largest decode bucket.
    pub max_batch: u64,
    /// Rows of each cache pool.
    pub cache_rows: u64,
    /// Tokens of a prefill step: the bound of the symbols `T` and `R`.
    pub chunk: u64,
}

impl LiftOptions {
    /// Powers of two up to `max_batch`, and `max_batch` itself.
    pub fn decode_buckets(&self) -> Vec<u64> {
        let mut buckets: Vec<u64> =
            std::iter::successors(Some(1u64), |n| n.checked_mul(2)).take_while(|n| *n < self.max_batch).collect();
        buckets.push(self.max_batch.max(1));
        buckets
    }
}

/// An entry function of a lifted module that a phase is to be made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub func: String,
    /// What it is for.
    pub kind: glmc_ir::plan::PhaseKind,
    /// Tokens of a step: exactly (decode) or at most (prefill).
    pub tokens: u64,
}

/// A lifted model.
#[derive(Debug, Clone, PartialEq)]
pub struct Lifted {
    /// The graph.
    pub module: glmc_ir::graph::Module,
    /// The entries that phases are made of; a draft head's is in the module only.
    pub entries: Vec<Entry>,
}

fn missing(set: &GgufSet) -> InputError {
    set.key_error("key-missing", KEY, "is missing: this is not a model file, or not its first part")
}
