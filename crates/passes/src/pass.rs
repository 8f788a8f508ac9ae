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

    /// Whether it may change what functions take and give. Entries stay as they are.
    fn moves_boundaries(&self) -> bool {
        false
    }

    /// Rewrites `m`.
    ///
    /// # Errors
    /// A module that the pass cannot handle; the driver adds the pass's name.
    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic>;
}

/// What is settled of a compilation's choices before it begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choices {
    /// Optional choices stop after so many; `None` never stops. Bisecting it finds the rewrite that breaks a model.
    pub fuel: Option<u64>,
    /// Every optional choice is taken or not by this seed: what passes make together must be right in any part.
    pub shuffle: Option<u64>,
    /// Only what is taken is worked out, not what else there was.
    pub brief: bool,
    /// Named decisions and the candidates to take. `cut:layer.q_a` is one decision, `cut` all whose names begin so.
    pub forced: Vec<(String, String)>,
}

impl From<Option<u64>> for Choices {
    fn from(fuel: Option<u64>) -> Self {
        Choices { fuel, ..Choices::default() }
    }
}

/// The answer to an optional choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is made, and counted.
    Yes,
    /// This one is not.
    No,
    /// Fuel is out: none is made any more.
    Never,
}

/// The answer to a named decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The pass takes what it finds best.
    Free,
    /// Fuel is out: the pass does nothing.
    Plain,
    /// This candidate, asked for.
    Forced {
        /// Its index.
        candidate: usize,
        /// Whether this decision was named, and not all of its kind.
        exact: bool,
    },
}

/// An entry that does what another does for some of its steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The added entry.
    pub entry: String,
    /// The one that it stands beside.
    pub of: String,
}

/// What passes share: what is settled of heuristic choices, and what was counted.
#[derive(Debug, Default)]
pub struct PassCx {
    choices: Choices,
    /// Optional choices asked for so far.
    asked: u64,
    /// Whether each forced choice has met its decision.
    met: Vec<bool>,
    /// Rewrites made so far.
    pub rewrites: u64,
    /// The entries that become phases; none: all do. What others need is no part of a plan's memory.
    pub phases: Option<Vec<String>>,
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
    /// A context with what is settled of its choices: all of it, or the fuel alone.
    pub fn new(choices: impl Into<Choices>) -> Self {
        let choices = choices.into();
        let met = vec![false; choices.forced.len()];
        PassCx { choices, met, ..PassCx::default() }
    }

    /// Whether only what is taken is asked for.
    pub fn brief(&self) -> bool {
        self.choices.brief
    }

    /// Whether an optional rewrite may be made; counts it if so.
    pub fn choose(&mut self) -> bool {
        self.answer() == Answer::Yes
    }

    /// The same, telling a refusal from the end of fuel.
    pub fn answer(&mut self) -> Answer {
        if self.choices.fuel.is_some_and(|f| self.rewrites >= f) {
            return Answer::Never;
        }
        self.asked += 1;
        if self.choices.shuffle.is_some_and(|seed| mixed(seed, self.asked) & 1 == 0) {
            return Answer::No;
        }
        self.rewrites += 1;
        Answer::Yes
    }

    /// The decision `name` (`KIND:PLACE`) among `candidates`: what was asked for, the nearest name first, else as
    /// [`PassCx::choose`].
    ///
    /// # Errors
    /// `no-candidate`: what was asked for is none of them.
    pub fn decide(&mut self, name: &str, candidates: &[&str]) -> Result<Choice, Diagnostic> {
        let kind = name.split(':').next().unwrap_or(name);
        let forced = &self.choices.forced;
        let mut taken: Option<(usize, bool)> = None;
        for (i, (asked, _)) in forced.iter().enumerate().filter(|(_, (asked, _))| asked == name || asked == kind) {
            self.met[i] = true;
            if asked == name || taken.is_none_or(|(_, exact)| !exact) {
                taken = Some((i, asked == name));
            }
        }
        let Some((i, exact)) = taken else {
            return Ok(if self.choose() { Choice::Free } else { Choice::Plain });
        };
        let asked = &forced[i].1;
        let Some(candidate) = candidates.iter().position(|c| c == asked) else {
            let m = format!("`{name}={asked}`: there is no such candidate; there are {}", candidates.join(", "));
            return Err(Diagnostic::new("no-candidate", m));
        };
        Ok(Choice::Forced { candidate, exact })
    }

    /// Whether entry `name` becomes a phase, or was added beside one that does.
    pub fn is_phase(&self, name: &str) -> bool {
        let of = self.variants.iter().find(|v| v.entry == name).map_or(name, |v| &v.of);
        self.phases.as_ref().is_none_or(|p| p.iter().any(|n| n == of))
    }

    /// Whether `candidate` was asked for in decisions of a kind.
    pub fn asks(&self, kind: &str, candidate: &str) -> bool {
        let of = |name: &str| name.split(':').next() == Some(kind);
        self.choices.forced.iter().any(|(name, c)| of(name) && c == candidate)
    }

    /// Holds what was asked for to what was decided.
    ///
    /// # Errors
    /// `no-decision`: a name that no decision had.
    pub fn all_met(&self) -> Result<(), Diagnostic> {
        let Some(i) = self.met.iter().position(|m| !m) else { return Ok(()) };
        let (name, candidate) = &self.choices.forced[i];
        Err(Diagnostic::new("no-decision", format!("`{name}={candidate}`: nothing of this name was decided")))
    }
}

/// Random bits of a seed and a number (the finaliser of SplitMix64).
fn mixed(seed: u64, n: u64) -> u64 {
    let x = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
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
