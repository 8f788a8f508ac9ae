//! Owns translation validation: every pass is run again on a small stand-in of the module at hand, and what stands after
//! it must compute what stood before, in Real arithmetic. `glmc compile --check` is this.
//!
//! A model of full size cannot be interpreted, its functions can: [`shrink`] keeps their ops, element types and
//! structure, and takes one layer of each kind. Saturation decides by the costs of the sizes that the small ones stand
//! for, so it takes the rewrites of the real compilation; [`Checked::rules`] says which, for the caller to compare.
//! Placement and scheduling decide anew.

mod numbers;
pub mod shrink;

use std::collections::BTreeMap;
use std::fmt;

use glmc_ir::diag::Diagnostic;
use glmc_ir::graph::{Function, Module};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::Interp;
use glmc_ir::interp::plan::PlanInterp;
use glmc_ir::interp::ranks::RankInterp;
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
use numbers::{In, Stored};

/// The relative difference that Real arithmetic may show: sums in another order.
pub const REAL: f64 = 1e-9;
/// Operands tried for each function.
const SEEDS: u64 = 2;
/// Tokens of a step where their number is a symbol.
const TOKENS: u64 = 3;

/// What was compared after one pass.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Checked {
    /// The pass.
    pub pass: String,
    /// Functions that were run before and after, or entries of the plan.
    pub functions: usize,
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
    for pass in passes {
        let name = pass.name();
        let after = pass.run(&module, &mut cx).map_err(|d| different(name, "module", d.to_string()))?;
        verify_module(&after).map_err(|e| different(name, "module", e.to_string()))?;
        let mut checked = equal(pass.as_ref(), &module, &after)?;
        let mut added = cx.variants.iter().filter(|v| module.func_named(&v.entry).is_none());
        added.try_for_each(|v| variant(name, &module, &after, v, &mut checked))?;
        for s in cx.saturated.drain(..) {
            let rules = s.best.first().map(|b| &b.rules).into_iter().flatten();
            checked.rules.insert(s.name.clone(), rules.map(|(r, n)| ((*r).to_owned(), *n)).collect());
        }
        out.push(checked);
        module = after;
    }
    let entries = pipeline::with_variants(entries, &cx);
    out.push(plan(&module, &entries, machine, &mut cx)?);
    Ok(out)
}

/// Named results of a function.
type Named = Vec<(String, Tensor)>;

/// What the function called `name` of `m` gives, at as many tokens as `n`.
fn run(m: &Module, name: &str, stored: &Stored, n: u64, seed: u64) -> Result<Named, EvalError> {
    let id = m.func_named(name).ok_or_else(|| EvalError::new("it is gone"))?;
    let f = &m.funcs[id];
    let syms = numbers::symbols(m, n);
    let args = numbers::operands(f, &syms, seed)?;
    let weights = In(m, stored);
    let results = if m.mesh.is_empty() {
        Interp::new(m, Arith::Real, syms, &weights).run(id, args)
    } else {
        RankInterp::new(m, Arith::Real, syms, &weights).run(id, args)
    };
    Ok(f.results.iter().map(|(name, _)| name.clone()).zip(results?).collect())
}

/// Runs a function of `before` and one of `after` and compares what both return under one name. Results that `after` lacks
/// must be ones that may go: a pool that nothing reads, or what no call of a function uses.
fn same(
    pass: &str,
    stored: &Stored,
    (before, f): (&Module, &Function),
    (after, g): (&Module, &Function),
    out: &mut Checked,
) -> Result<(), Different> {
    let bad = |why: String| different(pass, &g.name, why);
    let n = numbers::tokens(before, f, TOKENS).min(numbers::tokens(after, g, TOKENS));
    let may_go = |name: &String| !f.entry || f.result_named(name).is_some_and(|v| f.ty(v).state);
    let mut numbers = false;
    for seed in 0..SEEDS {
        let want = run(before, &f.name, stored, n, seed).map_err(|e| bad(format!("before: {e}")))?;
        let got = run(after, &g.name, stored, n, seed).map_err(|e| bad(format!("after: {e}")))?;
        let names: Vec<&String> = got.iter().map(|(name, _)| name).collect();
        if let Some((lost, _)) = want.iter().find(|(name, _)| !names.contains(&name) && !may_go(name)) {
            return Err(bad(format!("its result `{lost}` is gone")));
        }
        let want: Named = want.into_iter().filter(|(name, _)| names.contains(&name)).collect();
        if !want.iter().map(|(name, _)| name).eq(names) {
            return Err(bad("its results have other names, or another order".into()));
        }
        let values = |all: Named| all.into_iter().map(|(_, t)| t).collect::<Vec<_>>();
        let (got, want) = (values(got), values(want));
        compare(out, &got, &want).map_err(bad)?;
        numbers |= numbers::has_numbers(&want);
    }
    if !numbers {
        return Err(bad("it gives no numbers, so nothing was checked".into()));
    }
    out.functions += 1;
    Ok(())
}

/// Every function that is on both sides gives the same; every entry is.
fn equal(by: &dyn Pass, before: &Module, after: &Module) -> Result<Checked, Different> {
    let pass = by.name();
    let stored = Stored::of(before);
    let mut out = Checked { pass: pass.into(), functions: 0, comparisons: 0, worst: 0.0, rules: BTreeMap::new() };
    // A placed function may have several forms, and operands in parts: its entries show them.
    let placed = before.mesh.is_empty() && !after.mesh.is_empty();
    // So it is with functions that take or give something else now.
    let moved = |f: &Function| {
        let other = after.func_named(&f.name).map(|id| &after.funcs[id]);
        by.moves_boundaries() && !other.is_some_and(|g| g.same_boundary(f))
    };
    for f in before.funcs.values().filter(|f| f.entry || !placed && !moved(f)) {
        match after.func_named(&f.name) {
            Some(id) => same(pass, &stored, (before, f), (after, &after.funcs[id]), &mut out)?,
            None if f.entry => return Err(different(pass, &f.name, "it is gone")),
            None => {}
        }
    }
    Ok(out)
}

/// An entry that a pass added gives what the one that it stands beside does, within its own bounds.
fn variant(pass: &str, before: &Module, after: &Module, v: &Variant, out: &mut Checked) -> Result<(), Different> {
    let (Some(of), Some(made)) = (before.func_named(&v.of), after.func_named(&v.entry)) else {
        return Err(different(pass, &v.entry, format!("it, or @{}, is not there", v.of)));
    };
    same(pass, &Stored::of(before), (before, &before.funcs[of]), (after, &after.funcs[made]), out)
}

fn compare(out: &mut Checked, got: &[Tensor], want: &[Tensor]) -> Result<(), String> {
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
fn plan(m: &Module, entries: &[EntryInfo], machine: Option<&Machine>, cx: &mut PassCx) -> Result<Checked, Different> {
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
    let stored = Stored::of(m);
    let mut out = Checked { pass: STAGE.into(), functions: 0, comparisons: 0, worst: 0.0, rules: BTreeMap::new() };
    for e in entries {
        let bad = |why: String| different(STAGE, &e.func, why);
        let (Some(id), Some(phase)) = (m.func_named(&e.func), plan.phase(&e.func)) else {
            return Err(bad("the plan lacks it".into()));
        };
        let f = &m.funcs[id];
        let n = numbers::tokens(m, f, TOKENS);
        let syms = numbers::symbols(m, n);
        for seed in 0..SEEDS {
            let text = |e: EvalError| bad(e.to_string());
            let want = run(m, &f.name, &stored, n, seed).map_err(text)?;
            let values = f.results.iter().zip(want).filter(|((_, v), _)| !f.ty(*v).state).map(|(_, (_, t))| t);
            let want: Vec<Tensor> = values.collect();
            let args = numbers::operands(f, &syms, seed).map_err(text)?;
            let plain = f.params.iter().zip(args).filter(|(p, _)| !f.ty(**p).state).map(|(_, t)| t);
            let params: Vec<Tensor> = plain.collect();
            let mut interp = PlanInterp::new(&plan, Arith::Real, &stored).map_err(text)?;
            let got = interp.run(phase, &syms, &params).map_err(text)?;
            compare(&mut out, &got, &want).map_err(bad)?;
        }
        out.functions += 1;
    }
    Ok(out)
}
