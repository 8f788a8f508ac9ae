//! Owns the way down: a norm of what a call makes moves to the end of the callee, which takes the weights and gives the
//! normed value too. A callee that ends with different norms at different calls becomes several functions.

use std::collections::{HashMap, HashSet};

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst, Value};
use glmc_ir::graph::{Function, InstKind, Module};
use glmc_ir::op::Op;
use glmc_ir::ops::Gather;

use super::copy::Copy;
use super::norm::{Found, Norm, at_hand, called, find, made_by, uses};
use crate::pass::PassCx;

/// What a function ends with: norms of some of its results.
type Tails = Vec<(usize, Norm)>;

/// A norm of a caller that moves.
struct Sink {
    found: Found,
    /// The call and its result that is normed.
    call: Inst,
    result: usize,
    /// The `gather` between them, of which rows are wanted.
    rows: Option<(Inst, Value)>,
}

/// One function's norms that move, and what is left out with them.
#[derive(Default)]
struct Moves {
    sinks: Vec<Sink>,
    gone: HashSet<Inst>,
}

impl Moves {
    fn of(m: &Module, f: &Function, cx: &mut PassCx) -> Self {
        let found = f.body.iter().filter_map(|i| sinking(m, f, find(f, *i)?));
        let sinks: Vec<Sink> = found.filter(|_| cx.choose()).collect();
        let mut gone: HashSet<Inst> = sinks.iter().map(|s| s.found.inst).collect();
        // What only those norms read.
        let mut before: Vec<Inst> = sinks.iter().flat_map(|s| &s.found.decodes).copied().collect();
        before.extend(sinks.iter().filter_map(|s| s.rows.map(|(gather, _)| gather)));
        for inst in before {
            if read_after(f, &gone, f.insts[inst].results[0]) == 0 {
                gone.insert(inst);
            }
        }
        Moves { sinks, gone }
    }

    fn at(&self, call: Inst) -> impl Iterator<Item = &Sink> {
        self.sinks.iter().filter(move |s| s.call == call)
    }

    fn tails(&self, call: Inst) -> Tails {
        self.at(call).map(|s| (s.result, s.found.norm.clone())).collect()
    }
}

/// How often `v` is read or returned without the instructions `gone`.
fn read_after(f: &Function, gone: &HashSet<Inst>, v: Value) -> usize {
    uses(f, v) - gone.iter().flat_map(|i| &f.insts[*i].args).filter(|a| **a == v).count()
}

fn sinking(m: &Module, f: &Function, found: Found) -> Option<Sink> {
    if !found.weights.iter().all(|w| at_hand(f, *w)) {
        return None;
    }
    if let Some((call, result)) = called(m, f, found.x) {
        return Some(Sink { found, call, result, rows: None });
    }
    let (gather, _) = made_by(f, found.x, |k| matches!(k, InstKind::Op(Op::Gather(_))))?;
    let (table, ids) = (f.insts[gather].args[0], f.insts[gather].args[1]);
    let (call, result) = called(m, f, table).filter(|_| found.norm.keeps_zero_rows())?;
    Some(Sink { found, call, result, rows: Some((gather, ids)) })
}

/// `m` with such norms in the callees; none if there is none.
pub(super) fn sink(m: &Module, cx: &mut PassCx) -> Result<Option<Module>, Diagnostic> {
    let moves: Vec<Moves> = m.funcs.values().map(|f| Moves::of(m, f, cx)).collect();
    if moves.iter().all(|x| x.sinks.is_empty()) {
        return Ok(None);
    }
    // The forms of each function that calls ask for, in the order of the calls.
    let mut forms: HashMap<FuncId, Vec<Tails>> = HashMap::new();
    for (f, moves) in m.funcs.values().zip(&moves) {
        for inst in &f.body {
            if let InstKind::Call { func, .. } = f.insts[*inst].kind {
                let (tails, of) = (moves.tails(*inst), forms.entry(func).or_default());
                if !of.contains(&tails) {
                    of.push(tails);
                }
            }
        }
    }
    let mut out = Module { funcs: Default::default(), ..m.clone() };
    let mut made: HashMap<FuncId, Vec<(Tails, FuncId)>> = HashMap::new();
    for ((id, f), moves) in m.funcs.iter().zip(&moves) {
        for (n, tails) in forms.remove(&id).unwrap_or_else(|| vec![Tails::new()]).into_iter().enumerate() {
            let name = if n == 0 { f.name.clone() } else { unused(m, &out, &f.name) };
            let g = form(m, &out, f, &name, moves, &tails, &made)?;
            let new = out.funcs.push(g);
            made.entry(id).or_default().push((tails, new));
        }
    }
    Ok(Some(out))
}

/// `NAME.rotated_N` that no function has.
fn unused(m: &Module, out: &Module, name: &str) -> String {
    let names = (2u32..).map(|n| format!("{name}.rotated_{n}"));
    names.into_iter().find(|n| m.func_named(n).is_none() && out.func_named(n).is_none()).unwrap_or_default()
}

/// `f` without the norms that move into its callees, ending with `tails`.
fn form(
    m: &Module,
    out: &Module,
    f: &Function,
    name: &str,
    moves: &Moves,
    tails: &Tails,
    made: &HashMap<FuncId, Vec<(Tails, FuncId)>>,
) -> Result<Function, Diagnostic> {
    let mut c = Copy::new(out, f, name);
    f.params.iter().for_each(|p| c.param(*p));
    let mut weights = Vec::with_capacity(tails.len());
    for (_, norm) in tails {
        let letter = |i: usize| ["w", "b"].get(i).map_or_else(|| i.to_string(), |l| (*l).to_owned());
        let params = norm.weights.iter().enumerate();
        let params = params.map(|(i, (ty, _))| c.b.param(&format!("next_norm.{}", letter(i)), ty.clone()));
        weights.push(params.collect::<Vec<_>>());
    }
    // The normed rows of each moved norm's call.
    let mut normed: HashMap<Inst, Value> = HashMap::new();
    for inst in &f.body {
        match &f.insts[*inst].kind {
            InstKind::Call { func, .. } => {
                let (tails, mut args) = (moves.tails(*inst), c.args(*inst)?);
                for s in moves.at(*inst) {
                    for w in &s.found.weights {
                        args.push(c.value(*w)?);
                    }
                }
                let mut forms = made.get(func).into_iter().flatten();
                let callee = forms.find(|(t, _)| *t == tails).map(|(_, id)| *id);
                let order = || Diagnostic::new("call-order", format!("@{} calls what stands after it", f.name));
                let results = c.call(*inst, callee.ok_or_else(order)?, &args)?;
                let old = f.insts[*inst].results.len();
                for (s, v) in moves.at(*inst).zip(results.iter().skip(old)) {
                    normed.insert(s.found.inst, *v);
                    let was = f.insts[s.found.inst].results[0];
                    if s.rows.is_none() {
                        if let Some(name) = &f.values[was].name {
                            c.b.name(*v, name);
                        }
                        c.map.insert(was, *v);
                    }
                }
                // A result whose only readers moved is not needed, and says so.
                for (k, r) in f.insts[*inst].results.iter().enumerate() {
                    let lost = uses(f, *r) > 0 && read_after(f, &moves.gone, *r) == 0;
                    if lost && !f.ty(*r).state {
                        let name = f.values[*r].name.clone().unwrap_or_else(|| m.funcs[*func].results[k].0.clone());
                        c.b.name(results[k], &format!("_{name}"));
                    }
                }
            }
            InstKind::Op(_) => match moves.sinks.iter().find(|s| s.found.inst == *inst) {
                Some(s) => {
                    if let (Some((_, ids)), Some(table)) = (s.rows, normed.get(inst).copied()) {
                        let ids = c.value(ids)?;
                        let v = c.b.one(Gather {}, &[table, ids])?;
                        let was = f.insts[*inst].results[0];
                        if let Some(name) = &f.values[was].name {
                            c.b.name(v, name);
                        }
                        c.map.insert(was, v);
                    }
                }
                None if moves.gone.contains(inst) => {}
                None => c.inst(*inst)?,
            },
        }
    }
    let mut more = Vec::with_capacity(tails.len());
    for ((result, norm), weights) in tails.iter().zip(weights) {
        let x = c.value(f.results[*result].1)?;
        let v = norm.build(&mut c.b, x, &weights)?;
        c.b.name(v, "next_norm");
        let taken = |n: &String| f.results.iter().chain(&more).any(|(r, _)| r == n);
        let mut names = (1u32..).map(|n| if n == 1 { "next_norm".to_owned() } else { format!("next_norm_{n}") });
        let name = names.find(|n| !taken(n)).unwrap_or_default();
        more.push((name, v));
    }
    c.finish(more)
}
