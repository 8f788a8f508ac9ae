//! Owns machine descriptions: the TOML files of `targets/` and a user's own. Every number that a pass may know about a
//! machine stands in such a file and nowhere else.

use serde::{Deserialize, Serialize};

/// A machine that plans are made for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// What `--target` calls it.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// `cpu`, or a GPU architecture.
    pub arch: String,
    /// Logical ranks.
    pub ranks: u32,
    /// Default of `--max-batch`.
    pub max_batch: u64,
    /// Tokens of a prefill step.
    pub chunk: u64,
}

/// A target that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TargetError {
    /// Not a valid description; the message names the key.
    #[error("{0}")]
    Schema(String),
    /// No shipped target has this name.
    #[error("there is no target `{name}`; shipped targets: {known}. A path ending in .toml names a file of your own")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// This version compiles for one CPU rank only.
    #[error("target `{0}` needs {1}; this version of glmc compiles for one `cpu` rank")]
    Unsupported(String, String),
}

/// The shipped descriptions.
const SHIPPED: &[&str] = &[include_str!("../targets/cpu.toml")];

impl Target {
    /// Parses a description; errors name the key.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let t: Target = toml::from_str(text).map_err(|e| TargetError::Schema(e.message().to_owned()))?;
        let bad = |key: &str, why: &str| Err(TargetError::Schema(format!("key `{key}`: {why}")));
        if t.name.is_empty() {
            return bad("name", "must not be empty");
        }
        if !(1..=16).contains(&t.ranks) {
            return bad("ranks", "must be 1 to 16");
        }
        if t.max_batch == 0 || t.max_batch > 1024 {
            return bad("max_batch", "must be 1 to 1024");
        }
        if t.chunk == 0 || t.chunk > 65536 {
            return bad("chunk", "must be 1 to 65536");
        }
        Ok(t)
    }

    /// All shipped targets.
    pub fn shipped() -> Vec<Target> {
        SHIPPED.iter().filter_map(|t| Target::parse(t).ok()).collect()
    }

    /// The shipped target called `name`.
    pub fn named(name: &str) -> Result<Self, TargetError> {
        let all = Target::shipped();
        let known = all.iter().map(|t| t.name.clone()).collect::<Vec<_>>().join(", ");
        all.into_iter().find(|t| t.name == name).ok_or(TargetError::Unknown { name: name.into(), known })
    }

    /// Refuses what this version cannot compile for, before anything else is done.
    pub fn check_supported(&self) -> Result<(), TargetError> {
        if self.arch != "cpu" {
            return Err(TargetError::Unsupported(self.name.clone(), format!("arch `{}`", self.arch)));
        }
        if self.ranks != 1 {
            return Err(TargetError::Unsupported(self.name.clone(), format!("{} ranks", self.ranks)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_target_parses() {
        assert_eq!(Target::shipped().len(), SHIPPED.len());
    }

    #[test]
    fn schema_errors_name_the_key() {
        let good = SHIPPED[0];
        assert!(Target::parse(&good.replace("ranks = 1", "ranks = 0")).unwrap_err().to_string().contains("ranks"));
        assert!(Target::parse(&format!("{good}\ncores = 3")).unwrap_err().to_string().contains("cores"));
        assert!(Target::parse(&good.replace("chunk = 512", "")).unwrap_err().to_string().contains("chunk"));
        assert!(matches!(Target::named("9x-abacus"), Err(TargetError::Unknown { .. })));
    }
}
