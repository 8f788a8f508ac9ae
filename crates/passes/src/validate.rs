//! Owns translation validation: every pass is run again on a small stand-in of the module at hand, and what stands after
//! it must compute what stood before, in Real arithmetic. `glmc compile --check` is this.
//!
//! A model of full size cannot be interpreted, its functions can: [`shrink`] keeps their ops, element types and
//! structure, and takes one layer of each kind. Saturation and placement decide by the costs of the sizes that the small
//! ones stand for. So saturation takes the rewrites of the real compilation ([`Checked::rules`] says which, for the caller to
//! compare), and placement splits what small blocks let it. Scheduling decides anew. What a pass leaves as it was is not run
//! again.

mod numbers;
mod ran;
pub mod shrink;

use std::collections::BTreeMap;
use std::fmt;

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, Module};
use glmc_ir::interp::Arith;
use glmc_ir::interp::plan::PlanInterp;
use glmc_ir::plan::{FORMAT, Limits, Model, Plan, Target};
use glmc_ir::shard_map::rank_count;
use glmc_ir::tensor::{EvalError, Tensor};
use glmc_ir::verify::verify_module;
use serde::Serialize;

use crate::egraph::cost::Machine;
use crate::lower;
use crate::pass::{Choices, Pass, PassCx, Variant};
use crate::pipeline;
use crate::schedule::{self, EntryInfo};
use numbers::{Size, Stored};
use ran::{Named, Ran};

/// The relative difference that Real arithmetic may show: sums in another order.
pub const REAL: f64 = 1e-9;
/// Operands tried for each function.
const SEEDS: u64 = 2;
/// Tokens of a step where their number is a symbol.
const TOKENS: u64 = 3;
/// Positions that came before a step: with a single position to see, attention would not depend on its scores.
const EARLIER: u64 = 2;

/// What was compared after one pass.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Checked {
    /// The pass.
    pub pass: String,
    /// Functions that were run before and after, or entries of the plan.
    pub functions: usize,
    /// Functions that the pass left as they were, with all that they call: they give what they gave.
    pub unchanged: usize,
    /// Runs compared.
    pub comparisons: usize,
    /// The largest difference, as a share of the result's size.
    pub worst: f64,
    /// By function, the rules that made the program that was checked; of saturation only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, BTreeMap<String, usize>>,
}

/// A pass that changed what a function computes, or that could not be checked.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub struct Different {
    /// The pass.
    pub pass: String,
    /// The function.
    pub function: String,
    /// How.
    pub why: String,
}

impl fmt::Display for Different {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pass `{}` changes @{}: {}", self.pass, self.function, self.why)
    }
}

/// Checks the pipeline of `machine` on a stand-in of `lifted`; one entry a stage, in order.
///
/// # Errors
/// See [`with_passes`].
pub fn check(
    lifted: &Module,
    entries: &[EntryInfo],
    machine: &Machine,
    choices: impl Into<Choices>,
) -> Result<Vec<Checked>, Different> {
    let at = |d: Diagnostic| different("lift", "module", d.to_string());
    let (small, sizes) = shrink::shrink(lifted).map_err(at)?;
    let machine = machine.clone().standing_for(sizes.inverse(), lifted);
    checked(&small, entries, &pipeline::passes(&machine), choices.into(), Some(&machine))
}

fn different(pass: &str, function: &str, why: impl Into<String>) -> Different {
    Different { pass: pass.into(), function: function.into(), why: why.into() }
}

/// Checks each of `passes` on `m`, which must be small, then lowering and scheduling.
///
/// # Errors
/// A pass that fails, whose result the verifier refuses, or after which a function gives other numbers; a function that
/// gives no numbers at all, so that nothing was checked.
pub fn with_passes(
    m: &Module,
    entries: &[EntryInfo],
    passes: &[Box<dyn Pass>],
    choices: impl Into<Choices>,
) -> Result<Vec<Checked>, Different> {
    checked(m, entries, passes, choices.into(), None)
}

fn checked(
    m: &Module,
    entries: &[EntryInfo],
    passes: &[Box<dyn Pass>],
    choices: Choices,
    machine: Option<&Machine>,
) -> Result<Vec<Checked>, Different> {
    let mut module = m.clone();
    let mut cx = PassCx::new(choices);
    cx.phases = Some(entries.iter().map(|e| e.func.clone()).collect());
    let mut out = Vec::new();
    let mut ran = Ran::default();
    // Passes keep where weights lie, and their numbers depend on that alone.
    let stored = Stored::of(m);
    for pass in passes {
        let name = pass.name();
        let after = pass.run(&module, &mut cx).map_err(|d| different(name, "module", d.to_string()))?;
        verify_module(&after).map_err(|e| different(name, "module", e.to_string()))?;
        let mut both = Both {
            pass: name,
            stored: &stored,
            before: &module,
            after: &after,
            ran,
            runs: Ran::default(),
            out: empty(name),
        };
        both.equal(pass.moves_boundaries())?;
        let mut added = cx.variants.iter().filter(|v| module.func_named(&v.entry).is_none());
        added.try_for_each(|v| both.variant(v))?;
        let mut checked = both.out;
        ran = both.runs;
        for s in cx.saturated.drain(..) {
            let rules = s.best.first().map(|b| &b.rules).into_iter().flatten();
            checked.rules.insert(s.name.clone(), rules.map(|(r, n)| ((*r).to_owned(), *n)).collect());
        }
        out.push(checked);
        module = after;
    }
    let entries = pipeline::with_variants(entries, &cx);
    out.push(plan(&module, &entries, machine, &mut cx, (&stored, &mut ran))?);
    Ok(out)
}

fn empty(pass: &str) -> Checked {
    Checked { pass: pass.into(), functions: 0, unchanged: 0, comparisons: 0, worst: 0.0, rules: BTreeMap::new() }
}

/// A module and what a pass made of it, with what was run of both.
struct Both<'a> {
    pass: &'a str,
    stored: &'a Stored,
    before: &'a Module,
    after: &'a Module,
    ran: Ran,
    runs: Ran,
    out: Checked,
}

impl Both<'_> {
    /// Every function that is on both sides gives the same; every entry is.
    fn equal(&mut self, moves_boundaries: bool) -> Result<(), Different> {
        // A placed function may have several forms, and operands in parts: its entries show them.
        let placed = self.before.mesh.is_empty() && !self.after.mesh.is_empty();
        let after = self.after;
        // So it is with functions that take or give something else now.
        let moved = |f: &Function| {
            let other = after.func_named(&f.name).map(|id| &after.funcs[id]);
            moves_boundaries && !other.is_some_and(|g| g.same_boundary(f))
        };
        for f in self.before.funcs.values().filter(|f| f.entry || !placed && !moved(f)) {
            match after.func_named(&f.name) {
                Some(id) => self.same(f, &after.funcs[id])?,
                None if f.entry => return Err(different(self.pass, &f.name, "it is gone")),
                None => {}
            }
        }
        Ok(())
    }

    /// An entry that a pass added gives what the one that it stands beside does, within its own bounds.
    fn variant(&mut self, v: &Variant) -> Result<(), Different> {
        let (Some(of), Some(made)) = (self.before.func_named(&v.of), self.after.func_named(&v.entry)) else {
            return Err(different(self.pass, &v.entry, format!("it, or @{}, is not there", v.of)));
        };
        self.same(&self.before.funcs[of], &self.after.funcs[made])
    }

    /// Runs a function of `before` and one of `after` and compares what both return under one name. Results that `after`
    /// lacks must be ones that may go: a pool that nothing reads, or what no call of a function uses.
    fn same(&mut self, f: &Function, g: &Function) -> Result<(), Different> {
        if ran::meaning(self.before, f) == ran::meaning(self.after, g) {
            self.runs.keep(&mut self.ran, &g.name);
            self.out.unchanged += 1;
            return Ok(());
        }
        let bad = |why: String| different(self.pass, &g.name, why);
        let n = Size::of(self.before, f, TOKENS, EARLIER).min(Size::of(self.after, g, TOKENS, EARLIER));
        let may_go = |name: &String| !f.entry || f.result_named(name).is_some_and(|v| f.ty(v).state);
        let mut numbers = false;
        for seed in 0..SEEDS {
            let want =
                self.ran.run(self.before, &f.name, self.stored, n, seed).map_err(|e| bad(format!("before: {e}")))?;
            let got =
                self.runs.run(self.after, &g.name, self.stored, n, seed).map_err(|e| bad(format!("after: {e}")))?;
            let names: Vec<&String> = got.iter().map(|(name, _)| name).collect();
            if let Some((lost, _)) = want.iter().find(|(name, _)| !names.contains(&name) && !may_go(name)) {
                return Err(bad(format!("its result `{lost}` is gone")));
            }
            let want: Vec<&(String, Tensor)> = want.iter().filter(|(name, _)| names.contains(&name)).collect();
            if !want.iter().map(|(name, _)| name).eq(names) {
                return Err(bad("its results have other names, or another order".into()));
            }
            let want: Vec<&Tensor> = want.into_iter().map(|(_, t)| t).collect();
            compare(&mut self.out, &values(got), &want).map_err(bad)?;
            numbers |= numbers::has_numbers(&want);
        }
        if !numbers {
            return Err(bad("it gives no numbers, so nothing was checked".into()));
        }
        self.out.functions += 1;
        Ok(())
    }
}

fn values(of: &Named) -> Vec<&Tensor> {
    of.iter().map(|(_, t)| t).collect()
}

fn compare(out: &mut Checked, got: &[&Tensor], want: &[&Tensor]) -> Result<(), String> {
    let d = numbers::apart(got, want);
    out.comparisons += 1;
    out.worst = out.worst.max(d);
    if d <= REAL {
        Ok(())
    } else {
        Err(format!("results differ by {d:.1e} of their size, at most {REAL:e} are allowed"))
    }
}

/// The plan of the entries gives what the module gives.
fn plan(
    m: &Module,
    entries: &[EntryInfo],
    machine: Option<&Machine>,
    cx: &mut PassCx,
    (stored, ran): (&Stored, &mut Ran),
) -> Result<Checked, Different> {
    const STAGE: &str = pipeline::SCHEDULE;
    let at = |d: Diagnostic| different(STAGE, "module", d.to_string());
    let lowered = lower::lower(m, cx).map_err(at)?;
    let s = match machine {
        Some(on) => schedule::schedule_for(m, &lowered, entries, on, cx),
        None => schedule::schedule(m, &lowered, entries),
    };
    let s = s.map_err(at)?;
    let ranks = rank_count(&m.mesh).and_then(|n| u32::try_from(n).ok()).unwrap_or(1);
    let plan = Plan {
        format: FORMAT,
        producer: String::new(),
        target: Target { name: String::new(), arch: String::new(), ranks },
        model: Model {
            arch: String::new(),
            name: String::new(),
            layers: 0,
            vocab: 0,
            trained_ctx: 0,
            stop: Vec::new(),
            suppress: Vec::new(),
        },
        limits: Limits { ctx: 1, max_batch: 1, cache_rows: 1, chunk: 1 },
        mesh: m.mesh.clone(),
        files: Vec::new(),
        weights: s.weights,
        states: s.states,
        phases: s.phases,
    };
    let mut out = empty(STAGE);
    for e in entries {
        let bad = |why: String| different(STAGE, &e.func, why);
        let (Some(id), Some(phase)) = (m.func_named(&e.func), plan.phase(&e.func)) else {
            return Err(bad("the plan lacks it".into()));
        };
        let f = &m.funcs[id];
        let n = Size::of(m, f, TOKENS, EARLIER);
        let syms = n.symbols(m);
        for seed in 0..SEEDS {
            let text = |e: EvalError| bad(e.to_string());
            let want = ran.run(m, &f.name, stored, n, seed).map_err(text)?;
            let args = numbers::operands(f, &syms, seed).map_err(text)?;
            let pool = |name: &str| {
                let at = f.params.iter().position(|p| f.ty(*p).state && f.value_name(*p) == name)?;
                Some(args[at].clone())
            };
            let interp = PlanInterp::new(&plan, Arith::Real, stored).and_then(|i| i.with_states(pool));
            let mut interp = interp.map_err(text)?;
            let plain = f.params.iter().zip(&args).filter(|(p, _)| !f.ty(**p).state).map(|(_, t)| t.clone());
            let mut got = interp.run(phase, &syms, &plain.collect::<Vec<_>>()).map_err(text)?.into_iter();
            let pools = interp.states().map_err(text)?;
            let of = |(name, v): &(String, Value)| match f.ty(*v).state {
                true => pools.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone()),
                false => got.next(),
            };
            let got: Vec<Tensor> = f.results.iter().filter_map(of).collect();
            compare(&mut out, &got.iter().collect::<Vec<_>>(), &values(want)).map_err(bad)?;
        }
        out.functions += 1;
    }
    Ok(out)
}
