//! Pass `saturate`. Owns the algebraic optimisation of functions, one e-graph a function, and so one a phase and layer
//! kind. Never places a value on a rank, never orders launches.
//!
//! Before: the lift's text, decode by decode and product by product. After: the cheapest program that the rules
//! ([`rules`]) prove equal to it, by the cost it is given ([`cost`]).
//!
//! - The language is the op table ([`lang`]): an e-node is an op with its attributes, and nothing matches on a single
//!   op. An op with several results is one node of tuple type with a `get` for each, so it is costed once. The type of
//!   an e-class is its data ([`analysis`]); merging unequal types is an error that names the rule.
//! - State never enters ([`skeleton`]): what touches it, and calls, stay in order; their plain operands are e-classes.
//! - Rules are data over small patterns ([`pattern`]), checked when the pass is made. Fusions are proposals: a launch
//!   is taken where the e-graph holds its contract's whole meaning ([`saturate::meaning`]), so it is right by the
//!   contract's definition. `fused` is one launch as an op.
//! - Extraction ([`extract`]) is greedy over the graph cost with a local search, and gives the k cheapest distinct
//!   programs: whoever places values on ranks may find another one cheaper than the first.
//! - Token counts are constants in decode functions and the bound in prefill; other symbols take nominal values, in
//!   costs only. Every rule holds for all values.

pub mod analysis;
pub mod cost;
pub mod extract;
pub mod lang;
#[cfg(test)]
mod oracle;
pub mod pattern;
pub mod rules;
pub mod saturate;
pub mod skeleton;

use std::collections::BTreeMap;

use egg::Id;
use glmc_ir::diag::Diagnostic;
use glmc_ir::graph::{Function, Module};

use crate::pass::{Answer, Pass, PassCx};
use cost::{Cost, Machine};
use extract::Problem;
use rules::{Checked, Rule};
use saturate::End;
use skeleton::Skeleton;

/// What the pass is called.
pub const NAME: &str = "saturate";
/// How many programs are handed on.
pub const BEST: usize = 4;

/// A program that is equal to a function.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// It.
    pub function: Function,
    /// Predicted seconds of one call.
    pub cost: f64,
    /// The rules that made it, with the number of nodes of each.
    pub rules: BTreeMap<&'static str, usize>,
    /// Named values that rules made, with the rules that led to them in order.
    pub made: BTreeMap<String, Vec<&'static str>>,
}

/// What saturation found for one function.
#[derive(Clone, PartialEq, Debug)]
pub struct Saturated {
    /// The function.
    pub name: String,
    /// Distinct programs, the cheapest first; never empty.
    pub best: Vec<Program>,
    /// Predicted seconds as it was.
    pub before: f64,
    /// How it ended.
    pub end: End,
    /// Rounds of matching.
    pub rounds: usize,
    /// E-nodes at the end.
    pub nodes: usize,
}

impl Saturated {
    /// The same with what an earlier saturation of the function found.
    fn after(mut self, first: &Saturated) -> Saturated {
        self.before = first.before;
        for p in &mut self.best {
            for (rule, n) in first.best.iter().flat_map(|b| &b.rules) {
                *p.rules.entry(*rule).or_default() += n;
            }
            for (value, rules) in first.best.iter().flat_map(|b| &b.made) {
                let later = p.made.remove(value).unwrap_or_default();
                let later = later.into_iter().filter(|r| !rules.contains(r));
                p.made.insert(value.clone(), rules.iter().copied().chain(later.collect::<Vec<_>>()).collect());
            }
        }
        self
    }
}

/// The rules, checked.
#[derive(Clone, Debug)]
pub struct Saturator {
    rules: Vec<Checked>,
}

impl Saturator {
    /// With these rules.
    ///
    /// # Errors
    /// `bad-pattern`: see [`rules::check`].
    pub fn new(rules: &[Rule]) -> Result<Self, Diagnostic> {
        Ok(Saturator { rules: rules::check(rules)? })
    }

    /// The `k` cheapest programs equal to `f` by the rules. `choose` is asked before each rewrite.
    ///
    /// # Errors
    /// `rule-type`: a wrong rule, named.
    pub fn function(
        &self,
        m: &Module,
        f: &Function,
        cost: &dyn Cost,
        k: usize,
        choose: &mut dyn FnMut() -> Answer,
    ) -> Result<Saturated, Diagnostic> {
        let (s, mut g) = Skeleton::of(m, f)?;
        let lost = || Diagnostic::new("broken-extraction", format!("@{} has no program", f.name));
        let plain = Problem::new(&g, &s, cost);
        let as_it_was = plain.best(1).into_iter().next().ok_or_else(lost)?;
        let (end, rounds) = saturate::saturate(&mut g, &self.rules, choose)?;
        let problem = Problem::new(&g, &s, cost);
        let mut best = Vec::new();
        for c in problem.best(k) {
            let chosen = |id: Id| problem.node(&g, &c, id);
            let function = s.rebuild(m, &g, &chosen)?;
            let ruled = |class: &egg::EClass<lang::ENode, analysis::Data>| {
                let rules = g.analysis.chain(problem.node(&g, &c, class.id)?.line);
                let (_, name) = class.data.name.as_ref()?;
                (!rules.is_empty()).then(|| (name.to_string(), rules))
            };
            let made = g.classes().filter_map(ruled).collect();
            best.push(Program { function, cost: c.cost, rules: problem.rules(&c), made });
        }
        if best.is_empty() {
            return Err(lost());
        }
        let nodes = g.total_number_of_nodes();
        Ok(Saturated { name: f.name.clone(), best, before: as_it_was.cost, end, rounds, nodes })
    }
}

/// The pass with its machine; see the module's page.
#[derive(Clone, Debug)]
pub struct Saturate {
    saturator: Result<Saturator, Diagnostic>,
    machine: Machine,
}

impl Saturate {
    /// For a machine.
    pub fn new(machine: Machine) -> Self {
        Saturate { saturator: Saturator::new(&rules::all()), machine }
    }
}

impl Pass for Saturate {
    fn name(&self) -> &'static str {
        NAME
    }

    fn why(&self) -> &'static str {
        "the cheapest program that algebra proves equal, before anything is placed"
    }

    fn idempotent(&self) -> bool {
        // Search from another start may find a cheaper program.
        false
    }

    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic> {
        let saturator = self.saturator.as_ref().map_err(Clone::clone)?;
        let mut machine = self.machine.clone();
        machine.syms = machine.nominal(m);
        let mut out = m.clone();
        for (id, f) in m.funcs.iter() {
            let found = saturator.function(m, f, &machine, BEST, &mut || cx.answer())?;
            if !matches!(found.end, End::Saturated | End::Fuel) {
                tracing::warn!(function = found.name, end = ?found.end, nodes = found.nodes, "saturation was cut short");
            }
            out.funcs[id] = found.best[0].function.clone();
            let first = cx.specialised.iter().find(|s| s.name == found.name);
            let found = match first {
                Some(first) => found.after(first),
                None => found,
            };
            cx.saturated.push(found);
        }
        Ok(out.compacted())
    }
}
