//! Pass `prune`. Owns the removal of what functions pass to each other for nothing: parameters that a function does not
//! read, results that no call uses, cache pools that no entry reads, weights that are left over. Never changes a value
//! that an entry returns, never an entry's step parameters.
//!
//! Before: `call @layer(.., @w)` of a function whose rewritten body no longer reads its `%w`. After: neither names it, and
//! passes that decide by what an entry reads see what it reads.
//!
//! A pool that some entry reads stays in all of them: they keep it for that one.

use std::collections::{HashMap, HashSet};

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst, Value, WeightId};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::op::Op;

use crate::canonicalise::live_insts;
use crate::pass::{Pass, PassCx};

/// What the pass is called.
pub const NAME: &str = "prune";

/// See the module's page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prune;

impl Pass for Prune {
    fn name(&self) -> &'static str {
        NAME
    }

    fn why(&self) -> &'static str {
        "what rewrites made useless across calls is not placed, passed or kept"
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn run(&self, m: &Module, _: &mut PassCx) -> Result<Module, Diagnostic> {
        Ok(prune(m))
    }
}

/// `m` without what nothing reads; see the module's page.
pub fn prune(m: &Module) -> Module {
    let mut m = m.compacted();
    loop {
        let next = once(&m).compacted();
        if next == m {
            return m;
        }
        m = next;
    }
}

/// What goes from a function: indices of parameters and results.
#[derive(Clone, Default)]
struct Gone {
    params: HashSet<usize>,
    results: HashSet<usize>,
}

fn once(m: &Module) -> Module {
    let mut out = m.clone();
    for f in out.funcs.values_mut() {
        f.body = live_insts(f);
    }
    let pools = Pools::of(&out);
    let called = uses(&out);
    let mut gone: HashMap<FuncId, Gone> = HashMap::new();
    for (id, f) in &out.funcs {
        let mut g = pools.gone(id, f);
        // A function that nothing calls is as its caller, whoever that is, wants it.
        if let (false, Some(used)) = (f.entry, called.get(&id)) {
            let reads = reads(f);
            let plain = |v: &Value| !f.ty(*v).state;
            let unread = f.params.iter().enumerate().filter(|(_, p)| plain(p) && !reads.contains(p));
            g.params.extend(unread.map(|(i, _)| i));
            let unused = f.results.iter().enumerate().filter(|(i, (_, v))| plain(v) && !used.contains(i));
            g.results.extend(unused.map(|(i, _)| i));
        }
        gone.insert(id, g);
    }
    for (id, f) in out.funcs.iter_mut() {
        // Instructions that only kept a pool that is gone.
        let appends = pools.appends(id, f);
        f.body.retain(|i| !appends.contains(i));
        for i in f.body.clone() {
            let data = &mut f.insts[i];
            if let InstKind::Call { func, .. } = &data.kind
                && let Some(g) = gone.get(func)
            {
                data.args = without(&data.args, &g.params);
                data.results = without(&data.results, &g.results);
            }
        }
        let g = &gone[&id];
        f.params = without(&f.params, &g.params);
        f.results = without(&f.results, &g.results);
        for (i, p) in f.params.clone().into_iter().enumerate() {
            f.values[p].def = ValueDef::Param(i as u32);
        }
    }
    for f in out.funcs.values_mut() {
        f.body = live_insts(f);
    }
    keep_weights(&mut out);
    out
}

fn without<T: Clone>(all: &[T], gone: &HashSet<usize>) -> Vec<T> {
    all.iter().enumerate().filter(|(i, _)| !gone.contains(i)).map(|(_, v)| v.clone()).collect()
}

/// What instructions and results of `f` read.
fn reads(f: &Function) -> HashSet<Value> {
    let args = f.body.iter().flat_map(|i| &f.insts[*i].args);
    args.copied().chain(f.results.iter().map(|(_, v)| *v)).collect()
}

/// For each function that is called the results that some call uses.
fn uses(m: &Module) -> HashMap<FuncId, HashSet<usize>> {
    let mut out: HashMap<FuncId, HashSet<usize>> = HashMap::new();
    for f in m.funcs.values() {
        let reads = reads(f);
        for i in &f.body {
            if let InstKind::Call { func, .. } = &f.insts[*i].kind {
                let used = f.insts[*i].results.iter().enumerate().filter(|(_, r)| reads.contains(r));
                out.entry(*func).or_default().extend(used.map(|(k, _)| k));
            }
        }
    }
    out
}

/// The pools of every function: which parameter each version of one comes from, and whether anything reads it.
struct Pools {
    /// By function: the state parameter that a state value is a version of, by index.
    roots: HashMap<FuncId, HashMap<Value, usize>>,
    /// Functions and parameters whose pools stay.
    kept: HashSet<(FuncId, usize)>,
}

impl Pools {
    fn of(m: &Module) -> Self {
        let mut p = Pools { roots: HashMap::new(), kept: HashSet::new() };
        // Callees stand before their callers.
        let mut read: HashSet<(FuncId, usize)> = HashSet::new();
        let mut called = HashSet::new();
        for (id, f) in &m.funcs {
            let mut roots: HashMap<Value, usize> =
                f.params.iter().enumerate().filter(|(_, v)| f.ty(**v).state).map(|(i, v)| (*v, i)).collect();
            for inst in &f.body {
                let data = &f.insts[*inst];
                match &data.kind {
                    InstKind::Op(op) => {
                        let changed = op.consumes().filter(|_| matches!(op, Op::Append(_)));
                        let others = data.args.iter().enumerate().filter(|(i, _)| changed.is_none_or(|(a, _)| a != *i));
                        read.extend(others.filter_map(|(_, a)| Some((id, *roots.get(a)?))));
                        if let Some((a, r)) = changed
                            && let Some(root) = roots.get(&data.args[a]).copied()
                        {
                            roots.insert(data.results[r], root);
                        }
                    }
                    InstKind::Call { func, .. } => {
                        called.insert(*func);
                        let g = &m.funcs[*func];
                        let inner = p.roots.get(func);
                        for (i, a) in data.args.iter().enumerate() {
                            if let (Some(root), true) = (roots.get(a), read.contains(&(*func, i))) {
                                read.insert((id, *root));
                            }
                        }
                        for (r, (_, v)) in data.results.iter().zip(&g.results) {
                            let from = inner.and_then(|roots| roots.get(v)).and_then(|i| data.args.get(*i));
                            if let Some(root) = from.and_then(|a| roots.get(a)).copied() {
                                roots.insert(*r, root);
                            }
                        }
                    }
                }
            }
            p.roots.insert(id, roots);
        }
        p.keep(m, &read, &called);
        p
    }

    /// Settles what stays: pools that an entry reads, in all entries, and whatever shares a call with one.
    fn keep(&mut self, m: &Module, read: &HashSet<(FuncId, usize)>, called: &HashSet<FuncId>) {
        let name = |id: FuncId, i: usize| m.funcs[id].value_name(m.funcs[id].params[i]);
        let entry = |id: FuncId| m.funcs[id].entry;
        let mut wanted: HashSet<String> =
            read.iter().filter(|(id, _)| entry(*id)).map(|(id, i)| name(*id, *i)).collect();
        loop {
            let before = self.kept.len();
            for (id, f) in m.funcs.iter().rev() {
                for i in (0..f.params.len()).filter(|i| f.ty(f.params[*i]).state) {
                    // A function that nothing calls is as it is for whoever will.
                    if f.entry && wanted.contains(&name(id, i)) || !f.entry && !called.contains(&id) {
                        self.kept.insert((id, i));
                    }
                }
                for inst in &f.body {
                    let data = &f.insts[*inst];
                    let InstKind::Call { func, .. } = &data.kind else { continue };
                    for (i, a) in data.args.iter().enumerate() {
                        let Some(root) = self.roots[&id].get(a).copied() else { continue };
                        if self.kept.contains(&(id, root)) {
                            self.kept.insert((*func, i));
                        } else if self.kept.contains(&(*func, i)) {
                            self.kept.insert((id, root));
                        }
                    }
                }
            }
            wanted.extend(self.kept.iter().filter(|(id, _)| entry(*id)).map(|(id, i)| name(*id, *i)));
            if self.kept.len() == before {
                return;
            }
        }
    }

    /// Whether `v` is a version of a pool that goes.
    fn goes(&self, id: FuncId, v: Value) -> bool {
        self.roots[&id].get(&v).is_some_and(|root| !self.kept.contains(&(id, *root)))
    }

    fn gone(&self, id: FuncId, f: &Function) -> Gone {
        let params = f.params.iter().enumerate().filter(|(_, v)| self.goes(id, **v)).map(|(i, _)| i);
        let results = f.results.iter().enumerate().filter(|(_, (_, v))| self.goes(id, *v)).map(|(i, _)| i);
        Gone { params: params.collect(), results: results.collect() }
    }

    /// The appends to pools that go.
    fn appends(&self, id: FuncId, f: &Function) -> HashSet<Inst> {
        let append = |i: &&Inst| {
            let data = &f.insts[**i];
            matches!(data.kind, InstKind::Op(Op::Append(_))) && data.results.iter().any(|r| self.goes(id, *r))
        };
        f.body.iter().filter(append).copied().collect()
    }
}

/// Drops weights that no function reads.
fn keep_weights(m: &mut Module) {
    let weight = |f: &Function, v: Value| if let ValueDef::Weight(w) = f.values[v].def { Some(w) } else { None };
    let used: HashSet<WeightId> =
        m.funcs.values().flat_map(|f| reads(f).into_iter().filter_map(|v| weight(f, v)).collect::<Vec<_>>()).collect();
    if used.len() == m.weights.len() {
        return;
    }
    let mut new: HashMap<WeightId, WeightId> = HashMap::new();
    let all = std::mem::take(&mut m.weights);
    for (w, weight) in all.iter().filter(|(w, _)| used.contains(w)) {
        new.insert(w, m.weights.push(weight.clone()));
    }
    for f in m.funcs.values_mut() {
        *f = f.compacted();
        for v in f.values.values_mut() {
            if let ValueDef::Weight(w) = &mut v.def
                && let Some(n) = new.get(w)
            {
                *w = *n;
            }
        }
    }
}
