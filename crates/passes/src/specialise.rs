//! Pass `specialise`. Owns the variants of entries for short contexts. Never decides that a variant may compute less: that
//! is for the rules to find, in its types.
//!
//! Before: an entry selects the `k` best of up to `S` positions, and `S` may be more than `k`. After: beside it stands
//! `entry.short`, the same program over the symbol `S.short`, whose bound is `k`. There every selection holds all that is
//! visible, whatever the scores are: rule `attend-to-all` ([`select`]) needs nothing but that bound. Where the bound of `S`
//! is at most `k` already, the entry itself is the variant.
//!
//! These rules are applied here, before all others, and what they leave without a use goes: saturation would join it with
//! what is used, as it joins everything that reads one input.
//!
//! Rules see one function. A selection that one function makes and another attends by is followed here: where every call
//! of a function brings it all that its attention may see ([`Everything`]), the attention goes without, and the selection
//! is no parameter any more.

use std::collections::HashMap;

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst, Value};
use glmc_ir::graph::{Function, InstData, InstKind, Module, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::ty::{Extent, Sym};

use crate::egraph::Saturator;
use crate::egraph::cost::Machine;
use crate::egraph::rules::select;
use crate::pass::{Pass, PassCx, Variant};
use crate::prune;

/// What the pass is called.
pub const NAME: &str = "specialise";
/// What names of variants, and of their symbols, end with.
const SHORT: &str = ".short";

/// The pass with its machine; see the module's page.
#[derive(Clone, Debug)]
pub struct Specialise {
    saturator: Result<Saturator, Diagnostic>,
    machine: Machine,
}

impl Specialise {
    /// For a machine.
    pub fn new(machine: Machine) -> Self {
        Specialise { saturator: Saturator::new(select::RULES), machine }
    }

    /// Applies the rules on selections wherever something is selected; whether any was.
    fn rewrite(&self, m: &mut Module, cx: &mut PassCx) -> Result<bool, Diagnostic> {
        let saturator = self.saturator.as_ref().map_err(Clone::clone)?;
        let mut machine = self.machine.clone();
        machine.syms = machine.nominal(m);
        let mut any = false;
        let selects = |f: &Function| insts(f).any(|d| matches!(&d.kind, InstKind::Op(Op::TopK(_))));
        for id in m.funcs.keys().collect::<Vec<_>>() {
            if !selects(&m.funcs[id]) {
                continue;
            }
            let found = saturator.function(m, &m.funcs[id], &machine, 1, &mut || cx.answer())?;
            if !found.best[0].rules.is_empty() {
                m.funcs[id] = found.best[0].function.clone();
                cx.specialised.push(found);
                any = true;
            }
        }
        Ok(any)
    }
}

impl Pass for Specialise {
    fn name(&self) -> &'static str {
        NAME
    }

    fn why(&self) -> &'static str {
        "a context that fits in the selection needs none: a variant of its own says so in its types"
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic> {
        let mut out = m.clone();
        let limits = selected(m);
        let (mut made, mut lifted) = (Vec::new(), Vec::new());
        for (id, f) in m.entries() {
            let reach = reached(m, id);
            let syms = reach.iter().chain([&id]).flat_map(|f| symbols(&m.funcs[*f]));
            let Some((sym, k)) = syms.filter_map(|s| Some((s.clone(), *limits.get(&s)?))).next() else { continue };
            let there = |name: &str| m.func_named(name).is_some();
            let fits = m.syms.get(&sym).is_some_and(|bound| *bound <= k);
            // What is short already, by itself or by an earlier run.
            let done = if fits { to_all(m, &[&reach[..], &[id]].concat()).is_empty() } else { there(&short(&f.name)) };
            if done || !cx.choose() {
                continue;
            }
            let with = (!fits).then(|| (sym.clone(), Sym::from(short(sym.as_str()).as_str())));
            if let Some((_, tight)) = &with {
                out.syms.insert(tight.clone(), k);
            }
            let mut copies: HashMap<FuncId, FuncId> = HashMap::new();
            for old in reach {
                let mut g = copy(&m.funcs[old], with.as_ref(), &copies);
                g.name = unused(&out, &short(&g.name));
                let new = out.funcs.push(g);
                copies.insert(old, new);
                made.push(new);
            }
            let mut g = copy(f, with.as_ref(), &copies);
            if fits {
                // An entry stands after what it calls.
                out.funcs[id].entry = false;
                out.funcs[id].name = unused(&out, &format!("{}.lifted", f.name));
                lifted.push(out.funcs[id].name.clone());
            } else {
                g.name = short(&f.name);
                cx.variants.push(Variant { entry: g.name.clone(), of: f.name.clone() });
            }
            made.push(out.funcs.push(g));
        }
        attend_to_all(&mut out, &made);
        lifted.extend(called(m).into_iter().map(|f| m.funcs[f].name.clone()));
        let mut out = without_uncalled(out, &lifted);
        let any = self.rewrite(&mut out, cx)?;
        Ok(if any || !made.is_empty() { prune::prune(&out) } else { out })
    }
}

fn short(name: &str) -> String {
    format!("{name}{SHORT}")
}

fn unused(m: &Module, name: &str) -> String {
    let numbered = (2..).map(|n| format!("{name}.{n}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    all.find(|n| m.func_named(n).is_none()).unwrap_or_default()
}

/// Symbols over which something is selected, each with the fewest that are.
fn selected(m: &Module) -> HashMap<Sym, u64> {
    let mut out: HashMap<Sym, u64> = HashMap::new();
    for f in m.funcs.values() {
        for data in insts(f) {
            let InstKind::Op(Op::TopK(t)) = &data.kind else { continue };
            if let Some(Extent::Sym(s)) = f.ty(data.args[0]).last().map(|d| &d.extent) {
                let k = out.entry(s.clone()).or_insert(t.k);
                *k = t.k.min(*k);
            }
        }
    }
    out
}

fn insts(f: &Function) -> impl Iterator<Item = &InstData> {
    f.body.iter().map(|i| &f.insts[*i])
}

/// The symbols over which `f` selects.
fn symbols(f: &Function) -> impl Iterator<Item = Sym> {
    let of = |data: &InstData| match (&data.kind, f.ty(*data.args.first()?).last().map(|d| &d.extent)) {
        (InstKind::Op(Op::TopK(_)), Some(Extent::Sym(s))) => Some(s.clone()),
        _ => None,
    };
    insts(f).filter_map(of)
}

/// What an entry calls, callees before callers.
fn reached(m: &Module, entry: FuncId) -> Vec<FuncId> {
    let mut seen = vec![entry];
    let mut at = 0;
    while at < seen.len() {
        for data in insts(&m.funcs[seen[at]]) {
            if let InstKind::Call { func, .. } = data.kind
                && !seen.contains(&func)
            {
                seen.push(func);
            }
        }
        at += 1;
    }
    // Functions stand before their callers.
    seen.retain(|f| *f != entry);
    seen.sort();
    seen
}

/// `f` with one symbol in the place of another, calling copies.
fn copy(f: &Function, with: Option<&(Sym, Sym)>, copies: &HashMap<FuncId, FuncId>) -> Function {
    let mut g = f.clone();
    let put = |e: &mut Extent| {
        if let (Extent::Sym(s), Some((from, to))) = (e, with)
            && s == from
        {
            *s = to.clone();
        }
    };
    g.values.values_mut().flat_map(|v| &mut v.ty.dims).for_each(|d| put(&mut d.extent));
    for data in g.insts.values_mut() {
        match &mut data.kind {
            InstKind::Call { func, .. } => *func = copies.get(func).copied().unwrap_or(*func),
            InstKind::Op(Op::Reshape(r)) => r.dims.iter_mut().for_each(|d| put(&mut d.extent)),
            InstKind::Op(_) => {}
        }
    }
    g
}

/// A selection that holds, for each token, every position that is visible to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Everything {
    /// Which sequence each token belongs to.
    seq: Value,
    /// How many positions it sees.
    len: Value,
}

/// What `v` selects, if that is every visible position of up to so many as there can be: the best `k` of scores that are
/// above `-inf` wherever a position is visible, and of which there are at most `k`.
fn everything(m: &Module, f: &Function, v: Value) -> Option<Everything> {
    let made = |v: Value| match f.values[v].def {
        ValueDef::Result(i, _) => Some(&f.insts[i]),
        _ => None,
    };
    let top = made(v)?;
    let InstKind::Op(Op::TopK(t)) = &top.kind else { return None };
    let scores = made(top.args[0])?;
    let InstKind::Op(Op::IndexerScores(_)) = &scores.kind else { return None };
    let most = match &f.ty(top.args[0]).last()?.extent {
        Extent::Sym(s) => *m.syms.get(s)?,
        e => e.as_const()?,
    };
    (most <= t.k).then_some(Everything { seq: scores.args[3], len: scores.args[4] })
}

/// Parameters of `f` that are selections of its attentions and nothing else, with the parameters that say what those may
/// see.
fn given(f: &Function) -> impl Iterator<Item = (usize, Everything)> {
    f.params.iter().enumerate().filter_map(|(i, p)| {
        if f.results.iter().any(|(_, v)| v == p) {
            return None;
        }
        let mut found = None;
        for data in insts(f).filter(|d| d.args.contains(p)) {
            let InstKind::Op(Op::Attention(a)) = &data.kind else { return None };
            let at = 2 * a.parts;
            let here = Everything { seq: *data.args.get(at + 1)?, len: *data.args.get(at + 2)? };
            let only = data.args.iter().position(|v| v == p) == Some(at + 3);
            if !only || found.is_some_and(|e| e != here) {
                return None;
            }
            found = Some(here);
        }
        let named = |v: Value| f.params.contains(&v);
        found.filter(|e| named(e.seq) && named(e.len)).map(|e| (i, e))
    })
}

/// The parameters of functions among `made` that are selections which hold everything, whichever of `made` calls.
fn to_all(m: &Module, made: &[FuncId]) -> Vec<(FuncId, Vec<Value>)> {
    let mut sites: HashMap<FuncId, Vec<(FuncId, Inst)>> = HashMap::new();
    for id in made {
        for i in &m.funcs[*id].body {
            if let InstKind::Call { func, .. } = m.funcs[*id].insts[*i].kind {
                sites.entry(func).or_default().push((*id, *i));
            }
        }
    }
    let mut out = Vec::new();
    for id in made {
        let Some(calls) = sites.get(id) else { continue };
        let f = &m.funcs[*id];
        let index = |v: Value| f.params.iter().position(|p| *p == v);
        let all = |(i, e): &(usize, Everything)| {
            let (Some(seq), Some(len)) = (index(e.seq), index(e.len)) else { return false };
            calls.iter().all(|(caller, inst)| {
                let args = &m.funcs[*caller].insts[*inst].args;
                brings(m, *caller, args[*i]) == Some(Everything { seq: args[seq], len: args[len] })
            })
        };
        let dropped: Vec<Value> = given(f).filter(all).map(|(i, _)| f.params[i]).collect();
        if !dropped.is_empty() {
            out.push((*id, dropped));
        }
    }
    out
}

/// Takes selections that hold everything away from functions that are given them.
fn attend_to_all(m: &mut Module, made: &[FuncId]) {
    for (id, dropped) in to_all(m, made) {
        for data in m.funcs[id].insts.values_mut() {
            if let InstKind::Op(Op::Attention(a)) = &mut data.kind
                && data.args.last().is_some_and(|v| dropped.contains(v))
            {
                a.selected = false;
                data.args.pop();
            }
        }
    }
}

/// What a value of `caller` selects, if it is the result of a call that selects everything.
fn brings(m: &Module, caller: FuncId, v: Value) -> Option<Everything> {
    let f = &m.funcs[caller];
    let ValueDef::Result(inst, k) = f.values[v].def else { return None };
    let data = &f.insts[inst];
    let InstKind::Call { func, .. } = &data.kind else { return everything(m, f, v) };
    let g = &m.funcs[*func];
    let made = everything(m, g, g.results.get(k as usize)?.1)?;
    let at = |v: Value| g.params.iter().position(|p| *p == v).map(|i| data.args[i]);
    Some(Everything { seq: at(made.seq)?, len: at(made.len)? })
}

/// The functions that something calls.
fn called(m: &Module) -> Vec<FuncId> {
    let of = |d: &InstData| if let InstKind::Call { func, .. } = d.kind { Some(func) } else { None };
    m.funcs.values().flat_map(insts).filter_map(of).collect()
}

/// Without the functions of these names that nothing calls.
fn without_uncalled(mut m: Module, names: &[String]) -> Module {
    loop {
        let now = called(&m);
        let gone = |id: FuncId, f: &Function| !f.entry && !now.contains(&id) && names.contains(&f.name);
        let kept: Vec<FuncId> = m.funcs.iter().filter(|(id, f)| !gone(*id, f)).map(|(id, _)| id).collect();
        if kept.len() == m.funcs.len() {
            return m;
        }
        let new = kept.iter().enumerate().map(|(i, id)| (*id, FuncId::from_u32(i as u32))).collect();
        let funcs = kept.iter().map(|id| copy(&m.funcs[*id], None, &new)).collect();
        m = Module { funcs, ..m };
    }
}
