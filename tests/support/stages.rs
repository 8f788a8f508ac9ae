//! Runs the stage that a text test names, and holds it to what every stage promises: the verifier accepts the result,
//! a second run of an idempotent pass changes nothing, and with any amount of fuel the meaning stays what it was.

use glmc_ir::graph::{Function, Module};
use glmc_ir::interp::Arith;
use glmc_ir::interp::plan::PlanInterp;
use glmc_ir::interp::ranks::RankInterp;
use glmc_ir::plan::{PhaseKind, Plan};
use glmc_ir::tensor::{EvalError, Tensor};
use glmc_ir::text::{print_module, print_plan};
use glmc_ir::ty::SymValues;
use glmc_ir::verify::plan::verify_plan;
use glmc_ir::verify::verify_module;
use glmc_passes::lower;
use glmc_passes::pass::{Choices, PassCx};
use glmc_passes::pipeline;
use glmc_passes::schedule::{self, EntryInfo};
use glmc_passes::shard::{self, Shard};

use crate::run::{Files, Rng, all_differ, machine, operands, run_global, wrap};

/// Relative difference that Real arithmetic may show.
pub(crate) const REAL: f64 = 1e-9;
/// Inputs tried for each function and amount of fuel.
const SEEDS: u64 = 12;
/// Seeds by which optional rewrites are made or not.
const SHUFFLES: u64 = 6;

/// The stages that a file may name, and so the folders that must hold files.
pub(crate) fn names() -> Vec<&'static str> {
    pipeline::STAGES.into_iter().filter(|s| *s != pipeline::LIFT).collect()
}

/// The snapshot of `stage` on a verified module.
pub(crate) fn run(stage: &str, m: &Module) -> Result<String, String> {
    match stage {
        "lower" => {
            compiled(m)?;
            let lowered = lower::lower(m, &mut PassCx::new(None)).map_err(|d| d.to_string())?;
            Ok(lower::print_lowered(m, &lowered))
        }
        "schedule" => compiled(m).map(|p| print_plan(&p)),
        _ => rewritten(stage, m).map(|m| print_module(&m)),
    }
}

/// The module after a module pass, with every amount of fuel tried.
fn rewritten(name: &str, m: &Module) -> Result<Module, String> {
    // Placement has nothing to do on one rank.
    let on = machine(if name == shard::NAME { "8x-cpu" } else { "cpu" });
    let pass = pipeline::passes(&on).into_iter().find(|p| p.name() == name);
    let pass = pass.ok_or_else(|| format!("there is no pass `{name}`"))?;
    let with = |fuel, m: &Module| {
        let mut cx = PassCx::new(fuel);
        let after = pass.run(m, &mut cx).map_err(|d| format!("`{name}`: {d}"))?;
        verify_module(&after).map_err(|e| format!("after `{name}` with fuel {fuel:?}: {e}"))?;
        Ok::<_, String>((after, cx))
    };
    let (after, cx) = with(None, m)?;
    match name == shard::NAME {
        true => placed(m, &[2, 3, 4, 8, 16], &[false, true])?,
        false => placed(&after, &[2, 4, 8], &[true])?,
    };
    for fuel in 0..=cx.rewrites {
        let (after, cx) = with(Some(fuel), m)?;
        let at = |e: String| format!("`{name}` with fuel {fuel}: {e}");
        let other = |f: &&Function| match after.func_named(&f.name) {
            Some(id) => !comparable(f, &after.funcs[id]),
            None => f.entry,
        };
        if let Some(f) = m.funcs.values().find(|f| (f.entry || !pass.moves_boundaries()) && other(f)) {
            return Err(at(format!("@{} takes or gives something else", f.name)));
        }
        equivalent(m, &after, true).map_err(at)?;
        for v in &cx.variants {
            let func = |m: &Module, name: &str| m.func_named(name).ok_or(format!("there is no @{name}"));
            let (of, made) = (func(m, &v.of)?, func(&after, &v.entry)?);
            same((m, &m.funcs[of]), (&after, &after.funcs[made]), true).map_err(at)?;
        }
    }
    // Any part of what it does: where rewrites stand alone, and where some of a group are missing.
    for seed in 0..SHUFFLES {
        let choices = Choices { shuffle: Some(seed), ..Choices::default() };
        let mut cx = PassCx::new(choices);
        let after = pass.run(m, &mut cx).map_err(|d| format!("`{name}` shuffled by {seed}: {d}"))?;
        let at = |e: String| format!("`{name}` shuffled by {seed}: {e}");
        verify_module(&after).map_err(|e| at(e.to_string()))?;
        equivalent(m, &after, true).map_err(at)?;
    }
    if pass.idempotent() && with(None, &after)?.0.compacted() != after.compacted() {
        return Err(format!("`{name}` changes its own result"));
    }
    Ok(after)
}

/// On so many ranks, on a slow link and on one that costs nothing (`free`), the ranks compute what the whole does.
fn placed(m: &Module, ranks: &[u32], free: &[bool]) -> Result<(), String> {
    let base = machine("8x-cpu");
    for ranks in ranks.iter().copied() {
        for free in free.iter().copied() {
            let mut on = base.clone();
            on.target.ranks = ranks;
            if let Some(l) = on.target.link.as_mut().filter(|_| free) {
                (l.latency_s, l.bytes_per_s, on.target.device.launch_s) = (1e-12, 1e18, 1e-12);
            }
            let (after, report) =
                Shard::new(on).place(m, &mut PassCx::new(None)).map_err(|d| format!("{ranks} ranks: {d}"))?;
            let at = |e: String| format!("on {ranks} ranks, free {free}: {e}\n{}", print_module(&after));
            if report.cut {
                return Err(at("the search was cut".into()));
            }
            verify_module(&after).map_err(|e| at(e.to_string()))?;
            for (id, f) in after.funcs.iter() {
                let cases: Vec<_> = (0..SEEDS).filter_map(|seed| crate::sharded::whole(&after, id, seed)).collect();
                if cases.is_empty() {
                    return Err(at(format!("@{} has no answer on any random operands", f.name)));
                }
                for (syms, args, want) in cases {
                    let weights = crate::values::Weights(&after, crate::values::Floats::Real);
                    let got = RankInterp::new(&after, Arith::Real, syms, &weights).run(id, args);
                    let got = got.map_err(|e| at(e.to_string()))?;
                    if let Some(d) = crate::values::differ(&got, &want, REAL) {
                        return Err(at(format!("@{}: {d}", f.name)));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Symbol values up to 3.
fn small(m: &Module, rng: &mut Rng) -> SymValues {
    SymValues(m.syms.iter().map(|(s, n)| (s.clone(), 1 + rng.below(3.min(*n as usize)) as u64)).collect())
}

/// Whether `g` takes and gives what `f` does, or some of it.
fn comparable(f: &Function, g: &Function) -> bool {
    let params = |f: &Function| f.params.iter().map(|p| f.value_name(*p)).collect::<Vec<_>>();
    let (takes, takes_now) = (params(f), params(g));
    takes_now.iter().all(|name| takes.contains(name))
        && g.results.iter().all(|(name, _)| f.results.iter().any(|(n, _)| n == name))
}

/// Every function that takes and gives the same before and after gives it on random operands, and every entry does; how
/// many comparisons were made. `all` demands one of each function.
pub(crate) fn equivalent(before: &Module, after: &Module, all: bool) -> Result<usize, String> {
    let mut total = 0;
    for f in before.funcs.values() {
        match after.func_named(&f.name) {
            // What was moved between functions shows in those that call them.
            Some(id) if f.entry || comparable(f, &after.funcs[id]) => {
                total += same((before, f), (after, &after.funcs[id]), all)?
            }
            Some(_) => {}
            None if f.entry => return Err(format!("@{} is gone", f.name)),
            None => {}
        }
    }
    Ok(total)
}

/// A function of `before` and one of `after` give the same on random operands: those and results of one name are one.
/// What `after` lacks must be what nothing reads.
fn same((before, f): (&Module, &Function), (after, g): (&Module, &Function), all: bool) -> Result<usize, String> {
    let files = Files::synth(before);
    let named = |f: &Function, all: Vec<Tensor>| -> Vec<(String, Tensor)> {
        f.params.iter().map(|p| f.value_name(*p)).zip(all).collect()
    };
    let mut answered = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng(seed);
        let mut syms = small(after, &mut rng);
        for (s, _) in &before.syms {
            // What counts one thing has one value.
            let tight = after.syms.keys().filter(|t| t.base() == *s).filter_map(|t| syms.get(t)).min();
            let n = tight.ok_or("a symbol is gone")?;
            after.syms.keys().filter(|t| t.base() == *s).for_each(|t| syms.0[t] = n);
        }
        let args = operands(f, &syms, &mut rng, seed as usize % 3);
        let by_name = named(f, args.clone());
        // Random ids may lie outside what they index; then there is nothing to compare.
        let Ok(want) = run_global(before, &f.name, &files, &syms, args) else { continue };
        let mut own = Vec::new();
        for p in &g.params {
            let name = g.value_name(*p);
            let (_, t) = by_name.iter().find(|(n, _)| *n == name).ok_or(format!("@{}: %{name} is new", g.name))?;
            own.push(t.clone());
        }
        let got = run_global(after, &g.name, &files, &syms, own).map_err(|e| format!("@{}: {e}", g.name))?;
        let mut kept = Vec::new();
        for ((name, v), t) in f.results.iter().zip(want) {
            if g.result_named(name).is_some() {
                kept.push(t);
            } else if f.entry && !f.ty(*v).state {
                return Err(format!("@{}: its result {name} is gone", g.name));
            }
        }
        if let Some(d) = all_differ(&got, &kept, REAL) {
            return Err(format!("@{} on seed {seed}: {d}", g.name));
        }
        answered += 1;
    }
    if answered == 0 && all {
        return Err(format!("@{} has no answer on any random operands", f.name));
    }
    Ok(answered)
}

/// Plans of a sharded module's entries for every mesh of 1, 2, 4 and 8 ranks: verified, and the ranks, each with its own
/// arena, compute what the module means. The number of steps compared.
pub(crate) fn plans_on_ranks(m: &Module) -> Result<usize, String> {
    let mut total = 0;
    for n in [1, 2, 4, 8] {
        for mesh in crate::sharded::meshes(m, n) {
            let on = crate::sharded::on_mesh(m, &mesh)?;
            let at = |e: String| format!("plan on {mesh:?}: {e}");
            let plan = compiled(&on).map_err(at)?;
            if u64::from(plan.target.ranks) != n {
                return Err(at(format!("{} ranks", plan.target.ranks)));
            }
            total += 1;
        }
    }
    Ok(total)
}

/// The plan of the module's entries; with every amount of fuel it computes what the module means.
fn compiled(m: &Module) -> Result<Plan, String> {
    let files = Files::synth(m);
    let entry = |f: &Function| EntryInfo { func: f.name.clone(), kind: PhaseKind::Prefill, tokens: 1 };
    let entries: Vec<EntryInfo> = m.entries().map(|(_, f)| entry(f)).collect();
    if entries.is_empty() {
        return Err("a file of this stage needs an entry".into());
    }
    let with = |choices: Choices| {
        let fuel = choices.fuel.or(choices.shuffle);
        let mut cx = PassCx::new(choices);
        let lowered = lower::lower(m, &mut cx).map_err(|d| d.to_string())?;
        let scheduled =
            schedule::schedule_for(m, &lowered, &entries, &machine("8x-cpu"), &mut cx).map_err(|d| d.to_string())?;
        let plan = wrap(m, scheduled, &files);
        verify_plan(&plan).map_err(|e| format!("with {fuel:?} (fuel or seed): {e}\n{}", print_plan(&plan)))?;
        Ok::<_, String>((plan, cx.rewrites))
    };
    let (plan, rewrites) = with(Choices::default())?;
    let shuffled = (0..SHUFFLES).map(|seed| Choices { shuffle: Some(seed), ..Choices::default() });
    for choices in (0..=rewrites).map(|n| Choices::from(Some(n))).chain(shuffled) {
        let (plan, _) = with(choices.clone())?;
        for (_, f) in m.entries() {
            match same_as_plan(m, f, &plan, &files) {
                Ok(0) => return Err(format!("@{}: no answer on any random operands", f.name)),
                Ok(_) => {}
                Err(e) => return Err(format!("@{} with {choices:?}: {e}", f.name)),
            }
        }
    }
    Ok(plan)
}

/// Two steps of entry `f`, caches carried: the module's and the plan's results are the same; how many were compared.
pub(crate) fn same_as_plan(m: &Module, f: &Function, plan: &Plan, files: &Files) -> Result<usize, String> {
    let mut answered = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng(seed);
        let text = |e: EvalError| e.to_string();
        let mut interp = PlanInterp::new(plan, Arith::Real, files).map_err(text)?;
        let none = SymValues::default();
        let mut pools: Vec<(String, Tensor)> = Vec::new();
        for p in f.params.iter().filter(|p| f.ty(**p).state) {
            pools.push((f.value_name(*p), Tensor::poison(f.ty(*p), &none).map_err(text)?));
        }
        for _ in 0..2 {
            let syms = small(m, &mut rng);
            let mut args = operands(f, &syms, &mut rng, seed as usize % 3);
            let plain: Vec<Tensor> =
                f.params.iter().zip(&args).filter(|(p, _)| !f.ty(**p).state).map(|(_, t)| t.clone()).collect();
            let mut states = pools.iter();
            for (p, t) in f.params.iter().zip(&mut args).filter(|(p, _)| f.ty(**p).state) {
                let (_, pool) = states.next().ok_or_else(|| format!("no pool for {p}"))?;
                *t = pool.clone();
            }
            let phase = plan.phase(&f.name).ok_or("the plan lacks the entry")?;
            let want = run_global(m, &f.name, files, &syms, args);
            let got = interp.run(phase, &syms, &plain);
            let Ok(want) = want else {
                if got.is_ok() {
                    return Err(format!("seed {seed}: the plan answers where the module does not"));
                }
                break;
            };
            let got = got.map_err(text)?;
            let (mut values, mut next) = (Vec::new(), Vec::new());
            for ((name, v), t) in f.results.iter().zip(want) {
                if f.ty(*v).state { next.push((name.clone(), t)) } else { values.push(t) }
            }
            if let Some(d) = all_differ(&got, &values, REAL) {
                return Err(format!("seed {seed}: {d}"));
            }
            for (name, pool) in &mut pools {
                let new = next.iter().find(|(n, _)| n == name).ok_or_else(|| format!("pool {name} is not returned"))?;
                *pool = new.1.clone();
            }
            answered += 1;
        }
    }
    Ok(answered)
}
