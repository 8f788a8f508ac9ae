//! Owns `compile --check`: how translation validation of the passes is asked for and shown. Never compares anything.

use std::collections::BTreeMap;

use glmc_ir::graph::Module;
use glmc_passes::egraph::Saturated;
use glmc_passes::egraph::cost::Machine;
use glmc_passes::pass::Choices;
use glmc_passes::schedule::EntryInfo;
use glmc_passes::validate::{self, Checked, REAL};
use serde_json::{Value, json};

use crate::error::CliError;

/// Passes that were run again on a small stand-in of the module, and held to the interpreters.
pub(crate) struct Check {
    passes: Vec<Checked>,
    /// Functions for which the stand-in took other rewrites than the module itself.
    others: Vec<String>,
}

/// Validates the pipeline on `lifted`.
pub(crate) fn run(
    lifted: &Module,
    entries: &[EntryInfo],
    machine: &Machine,
    choices: &Choices,
) -> Result<Check, CliError> {
    let passes = validate::check(lifted, entries, machine, choices.clone()).map_err(|e| {
        let subject = Some(format!("{} @{}", e.pass, e.function));
        CliError { subject, ..CliError::usage("translation", e.to_string()).class("verification") }
    })?;
    Ok(Check { passes, others: Vec::new() })
}

impl Check {
    /// Compares the rewrites that were checked with those that were made.
    pub(crate) fn against(mut self, saturated: &[Saturated]) -> Self {
        let checked: BTreeMap<&String, _> = self.passes.iter().flat_map(|c| &c.rules).collect();
        let same = |s: &Saturated| {
            let made = s.best.first().map(|b| &b.rules).into_iter().flatten();
            let made: BTreeMap<String, usize> = made.map(|(r, n)| ((*r).to_owned(), *n)).collect();
            checked.get(&s.name).is_some_and(|c| **c == made)
        };
        self.others = saturated.iter().filter(|s| !same(s)).map(|s| s.name.clone()).collect();
        self
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "tolerance": REAL, "passes": self.passes, "other_rewrites": self.others })
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("  checked in exact arithmetic on small dims, tolerance {REAL:e}:")];
        for c in &self.passes {
            let same = if c.unchanged > 0 { format!(", {} left as they were", c.unchanged) } else { String::new() };
            lines.push(format!(
                "    {:<14} {} functions, {} runs before and after, largest difference {:.0e}{same}",
                c.pass, c.functions, c.comparisons, c.worst
            ));
        }
        lines.push(match self.others.as_slice() {
            [] => "    the rewrites that were checked are those of the plan".to_owned(),
            some => format!("    other rewrites than in the plan were checked in {}", some.join(", ")),
        });
        lines
    }
}
