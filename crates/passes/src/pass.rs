//! Owns what a pass is and what it may use: [`Pass`], [`PassCx`]. Never owns the order of passes.

use std::time::Duration;

use glmc_ir::diag::{Diagnostic, Diagnostics};
use glmc_ir::graph::Module;

use crate::egraph::Saturated;

/// A named rewrite of a module that keeps its meaning.
pub trait Pass {
    /// Kebab-case: CLI name, dump suffix, test folder, timing row.
    fn name(&self) -> &'static str;

    /// What it does, in one sentence.
    fn why(&self) -> &'static str;

    /// Whether a second run changes nothing.
    fn idempotent(&self) -> bool;

    /// Rewrites `m`.
    ///
    /// # Errors
    /// A module that the pass cannot handle; the driver adds the pass's name.
    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic>;
}

/// An entry that does what another does for some of its steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The added entry.
    pub entry: String,
    /// The one that it stands beside.
    pub of: String,
}

/// What passes share: the fuel of heuristic choices, and what was counted.
#[derive(Debug, Default)]
pub struct PassCx {
    fuel: Option<u64>,
    /// Rewrites made so far.
    pub rewrites: u64,
    /// Entries that passes added, in order.
    pub variants: Vec<Variant>,
    /// What rules made of functions before saturation.
    pub specialised: Vec<Saturated>,
    /// What saturation found, function by function.
    pub saturated: Vec<Saturated>,
    /// Where everything was placed, on several ranks.
    pub sharded: Option<crate::shard::report::Report>,
}

impl PassCx {
    /// A context whose heuristic choices stop after `fuel` of them; `None` never stops. Bisecting `fuel` finds the
    /// rewrite that breaks a model.
    pub fn new(fuel: Option<u64>) -> Self {
        PassCx {
            fuel,
            rewrites: 0,
            variants: Vec::new(),
            specialised: Vec::new(),
            saturated: Vec::new(),
            sharded: None,
        }
    }

    /// Whether an optional rewrite may be made; counts it if so.
    pub fn choose(&mut self) -> bool {
        if self.fuel.is_some_and(|f| self.rewrites >= f) {
            return false;
        }
        self.rewrites += 1;
        true
    }
}

/// A pass that failed, or left behind what the verifier refuses.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PassError {
    /// The pass cannot handle the module.
    #[error("pass `{pass}`: {error}")]
    Failed {
        /// Which pass.
        pass: String,
        /// Why.
        error: Diagnostic,
    },
    /// The verifier refuses what stands after the pass.
    #[error("the verifier refuses the result of `{pass}`:\n{errors}")]
    Invalid {
        /// Which pass.
        pass: String,
        /// All findings.
        errors: Diagnostics,
    },
}

/// One row of the timing report.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The pass, or `verify`.
    pub name: String,
    /// Wall time.
    pub time: Duration,
}
