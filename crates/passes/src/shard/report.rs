//! Owns what a search tells people: placements with their costs and what others would cost. Never decides.

use glmc_ir::entities::{FuncId, Value};
use glmc_ir::graph::{Function, InstKind, ValueDef};
use glmc_ir::ty::TensorType;
use serde::{Deserialize, Serialize};

use super::calls::{Search, Solved};
use super::place::Place;
use super::solve::{Move, NARROW};

/// What was decided for a module.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Ranks of the axis.
    pub ranks: u64,
    /// Whether the placement fits the target's memory.
    pub fits: bool,
    /// Whether a limit of the search was hit.
    pub cut: bool,
    /// Bytes of weights and pools that the largest rank keeps.
    pub bytes: u64,
    /// Functions as they were placed, entries and what they call.
    pub functions: Vec<Placed>,
}

/// One function in one placement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Placed {
    /// Its name in the placed module.
    pub name: String,
    /// Predicted seconds of one run.
    pub seconds: f64,
    /// Bytes of weights and pools that it decided on, on the largest rank.
    pub bytes: u64,
    /// Most states of a step of the search.
    pub states: usize,
    /// Whether the search hit a limit in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Its operands, weights and values.
    pub values: Vec<Chosen>,
    /// Its collectives, in order.
    pub collectives: Vec<Collective>,
}

/// Where a value lies.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Chosen {
    /// Its name or number.
    pub value: String,
    /// Its type with the placement.
    pub ty: String,
    /// Bytes on the largest rank, of a weight or pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Seconds of the function with it there.
    pub seconds: f64,
    /// The other placements, the cheapest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Other>,
}

/// A placement that was not chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Other {
    /// The type with it.
    pub ty: String,
    /// Bytes on the largest rank, of a weight or pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Seconds of the function with it, everything else as is then best.
    pub seconds: f64,
}

/// A change of place.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Collective {
    /// What changes its place.
    pub value: String,
    /// The op.
    pub op: String,
    /// Predicted seconds.
    pub seconds: f64,
    /// Seconds that the function would take longer without it, everything else as is then best; `None` if it was not
    /// looked for, or nothing goes without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saves: Option<f64>,
}

impl Report {
    /// What `search` decided, on the paths `taken` of its entries, which keep so many `bytes`; `name` has the names of
    /// functions in the placed module. `others`: with what else it would have cost.
    pub fn of(
        search: &Search<'_>,
        taken: &[(usize, usize)],
        name: &dyn Fn(usize, usize) -> Option<String>,
        fits: bool,
        bytes: u64,
        others: bool,
    ) -> Self {
        let mut out = Report { ranks: u64::from(search.world.target.ranks), fits, bytes, ..Report::default() };
        for (at, path) in reached(search, taken) {
            out.cut |= search.solved[at].found.cut;
            let mut of = placed(search, at, path, others);
            of.name = name(at, path).unwrap_or(of.name);
            out.functions.push(of);
        }
        out
    }
}

/// The solutions that the paths `taken` of entries use, each once.
fn reached(search: &Search<'_>, taken: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut open: Vec<(usize, usize)> = taken.iter().rev().copied().collect();
    let mut seen: Vec<(usize, usize)> = Vec::new();
    while let Some((at, path)) = open.pop() {
        if seen.contains(&(at, path)) {
            continue;
        }
        seen.push((at, path));
        let s = &search.solved[at];
        let steps = &s.found.paths[path].steps;
        let subs = s.problem.configs.iter().zip(steps).filter_map(|(c, step)| c[step.config].sub);
        open.extend(subs.collect::<Vec<_>>().into_iter().rev());
    }
    seen
}

/// Weights and pools of all functions that the paths `taken` use, as they are placed.
pub(super) fn placed_values(search: &Search<'_>, taken: &[(usize, usize)]) -> Vec<(FuncId, Value, TensorType)> {
    let mut all = Vec::new();
    for (at, path) in reached(search, taken) {
        let s = &search.solved[at];
        let fixed = s.problem.slots.iter().filter_map(|(v, slot)| Some((v, slot.as_ref().filter(|s| s.fixed)?)));
        all.extend(fixed.map(|(v, slot)| (s.func, v, search.world.on(&slot.ty, search.place(at, path, v)))));
    }
    all
}

fn placed(search: &Search<'_>, at: usize, path: usize, others: bool) -> Placed {
    let s = &search.solved[at];
    let f = &search.m.funcs[s.func];
    let way = &s.found.paths[path];
    let moved: Vec<Value> = way.steps.iter().flat_map(|s| &s.moves).map(|m| m.value).collect();
    let mut values = Vec::new();
    for (v, data) in f.values.iter() {
        let Some(slot) = &s.problem.slots[v] else { continue };
        let place = search.place(at, path, v);
        let ty = search.world.on(&slot.ty, place);
        let bytes = slot.fixed.then(|| search.world.held(&ty));
        let asked = others && (slot.fixed || moved.contains(&v));
        let others = if asked { runners_up(search, s, f, path, v, place) } else { Vec::new() };
        let value = match data.def {
            ValueDef::Weight(w) => search.m.weights[w].name.clone(),
            _ => f.value_name(v),
        };
        values.push(Chosen { value, ty: ty.to_string(), bytes, seconds: way.seconds, others });
    }
    let mut collectives = Vec::new();
    for m in way.steps.iter().flat_map(|s| &s.moves) {
        let Some(slot) = &s.problem.slots[m.value] else { continue };
        let (from, to) = (slot.places[usize::from(m.from)], slot.places[usize::from(m.to)]);
        let op = search.world.conversion(from, to).map_or_else(String::new, |o| o.name().to_owned());
        let seconds = s.problem.moves[m.value][usize::from(m.from)][usize::from(m.to)];
        let saves = others.then(|| without(s, path, m)).flatten();
        collectives.push(Collective { value: f.value_name(m.value), op, seconds, saves });
    }
    Placed {
        name: f.name.clone(),
        seconds: way.seconds,
        bytes: way.bytes,
        states: s.found.states,
        cut: s.found.cut,
        values,
        collectives,
    }
}

/// What the function would take longer if the move `m` could not be made.
fn without(s: &Solved, path: usize, m: &Move) -> Option<f64> {
    let mut p = s.problem.clone();
    p.moves[m.value][usize::from(m.from)][usize::from(m.to)] = f64::INFINITY;
    let way = &s.found.paths[path];
    let found = p.run(NARROW, f64::INFINITY, false);
    let best = found.paths.iter().find(|q| q.results == way.results)?;
    Some(best.seconds - way.seconds)
}

/// What the function costs with `v` at each other of its places, found by searching again within a narrow beam.
fn runners_up(search: &Search<'_>, s: &Solved, f: &Function, path: usize, v: Value, chosen: Place) -> Vec<Other> {
    let Some(slot) = &s.problem.slots[v] else { return Vec::new() };
    let made = matches!(f.values[v].def, ValueDef::Result(..));
    if !made && s.problem.slots[v].as_ref().is_some_and(|s| s.start != super::table::Start::Free) {
        return Vec::new();
    }
    let first = f.body.iter().position(|i| {
        let data = &f.insts[*i];
        if made { data.results.contains(&v) } else { data.args.contains(&v) }
    });
    let Some(first) = first.filter(|i| matches!(f.insts[f.body[*i]].kind, InstKind::Op(_))) else { return Vec::new() };
    let ends = &s.found.paths[path].results;
    let mut out = Vec::new();
    for (k, place) in slot.places.iter().enumerate().filter(|(_, p)| **p != chosen) {
        let mut p = s.problem.clone();
        p.configs[first].retain(|c| {
            let (all, at) = if made { (&p.made[first], &c.results) } else { (&p.args[first], &c.args) };
            all.iter().zip(at).all(|(x, i)| *x != v || usize::from(*i) == k)
        });
        let found = p.run(NARROW, f64::INFINITY, false);
        if let Some(best) = found.paths.iter().find(|q| q.results == *ends) {
            let ty = search.world.on(&slot.ty, *place);
            let bytes = slot.fixed.then(|| search.world.held(&ty));
            out.push(Other { ty: ty.to_string(), bytes, seconds: best.seconds });
        }
    }
    out.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then_with(|| a.ty.cmp(&b.ty)));
    out
}
