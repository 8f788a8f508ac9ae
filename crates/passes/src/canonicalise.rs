//! Pass `canonicalise`. Owns the simplifications that are never a matter of cost: identity decodes, scales by one,
//! reshapes of reshapes, pieces of joins, equal expressions computed twice, values that nothing uses, weights that
//! nothing reads. Never trades one cost for another, never changes the order of what stays.
//!
//! Before: `%d = dequant %w : f32[8]` of a `%w` that is `f32[8]` already. After: uses of `%d` read `%w`.

use std::collections::{HashMap, HashSet};

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst, Value, WeightId};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::ops::Reshape;

use crate::pass::{Pass, PassCx};

/// What the pass is called.
pub const NAME: &str = "canonicalise";

/// See the module's page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Canonicalise;

impl Pass for Canonicalise {
    fn name(&self) -> &'static str {
        NAME
    }

    fn why(&self) -> &'static str {
        "first, so that later passes meet one form of each expression"
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic> {
        let mut out = Module { funcs: Default::default(), weights: Default::default(), ..m.clone() };
        let live: Vec<Vec<Inst>> = m.funcs.values().map(live_insts).collect();
        let kept = keep_weights(m, &live, &mut out);
        for (f, live) in m.funcs.values().zip(&live) {
            let f = Rewriter::new(&out, f, &kept, cx).run(live)?;
            out.funcs.push(f);
        }
        // Rewrites leave dead instructions behind (an inner reshape, an identity); one more sweep removes them.
        for id in out.funcs.keys().collect::<Vec<FuncId>>() {
            let live = live_insts(&out.funcs[id]);
            out.funcs[id].body = live;
        }
        Ok(out.compacted())
    }
}

/// The instructions that a result or a state depends on, in order.
pub(crate) fn live_insts(f: &Function) -> Vec<Inst> {
    let mut used: Vec<Value> = f.results.iter().map(|(_, v)| *v).collect();
    let mut live = Vec::new();
    for inst in f.body.iter().rev() {
        let data = &f.insts[*inst];
        if data.results.iter().any(|r| used.contains(r) || f.ty(*r).state) {
            used.extend(&data.args);
            live.push(*inst);
        }
    }
    live.reverse();
    live
}

/// Copies the weights that live instructions read, in order.
fn keep_weights(m: &Module, live: &[Vec<Inst>], out: &mut Module) -> HashMap<WeightId, WeightId> {
    let mut used = vec![false; m.weights.len()];
    for (f, live) in m.funcs.values().zip(live) {
        let args = live.iter().flat_map(|i| &f.insts[*i].args).chain(f.results.iter().map(|(_, v)| v));
        for a in args {
            if let ValueDef::Weight(w) = f.values[*a].def {
                used[w.as_u32() as usize] = true;
            }
        }
    }
    let mut map = HashMap::new();
    for (id, w) in m.weights.iter().filter(|(id, _)| used[id.as_u32() as usize]) {
        map.insert(id, out.weights.push(w.clone()));
    }
    map
}

/// Rebuilds one function, simplifying on the way.
struct Rewriter<'a> {
    b: Builder<'a>,
    old: &'a Function,
    kept: &'a HashMap<WeightId, WeightId>,
    map: HashMap<Value, Value>,
    /// New values that are weights.
    weights: HashSet<Value>,
    /// Pure expressions built so far, for those computed twice.
    seen: Vec<(Op, Vec<Value>, Vec<Value>)>,
    /// How each new value was built.
    defs: HashMap<Value, (Op, Vec<Value>)>,
    cx: &'a mut PassCx,
}

impl<'a> Rewriter<'a> {
    fn new(m: &'a Module, old: &'a Function, kept: &'a HashMap<WeightId, WeightId>, cx: &'a mut PassCx) -> Self {
        let mut b = Builder::new(m, &old.name);
        if old.entry {
            b = b.entry();
        }
        let mut map = HashMap::new();
        for p in &old.params {
            map.insert(*p, b.param(&old.value_name(*p), old.ty(*p).clone()));
        }
        Rewriter { b, old, kept, map, weights: HashSet::new(), seen: Vec::new(), defs: HashMap::new(), cx }
    }

    fn run(mut self, live: &[Inst]) -> Result<Function, Diagnostic> {
        for inst in live {
            let data = &self.old.insts[*inst];
            let args = data.args.iter().map(|a| self.value(*a)).collect::<Result<Vec<_>, _>>()?;
            let results = match &data.kind {
                InstKind::Op(op) => self.op(op, &args)?,
                InstKind::Call { func, label } => self.b.call(*func, label, &args)?,
            };
            for (old, new) in data.results.iter().zip(&results) {
                // A weight that took the place of its own decode keeps its one name.
                if let Some(name) = &self.old.values[*old].name
                    && !self.weights.contains(new)
                {
                    self.b.name_if_unnamed(*new, name);
                }
                self.map.insert(*old, *new);
            }
        }
        let results: Vec<(String, Value)> = self
            .old
            .results
            .iter()
            .map(|(n, v)| Ok((n.clone(), self.value(*v)?)))
            .collect::<Result<_, Diagnostic>>()?;
        Ok(self.b.finish(results))
    }

    fn value(&mut self, v: Value) -> Result<Value, Diagnostic> {
        if let Some(n) = self.map.get(&v) {
            return Ok(*n);
        }
        if let ValueDef::Weight(w) = self.old.values[v].def
            && let Some(n) = self.kept.get(&w)
        {
            let n = self.b.weight(*n);
            self.weights.insert(n);
            return Ok(n);
        }
        let name = self.old.value_name(v);
        Err(Diagnostic::new("use-before-def", format!("%{name} is used before it is defined")))
    }

    fn op(&mut self, op: &Op, args: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        if let Some(v) = self.simpler(op, args)?
            && self.cx.choose()
        {
            return Ok(vec![v]);
        }
        let pure = op.consumes().is_none() && !args.iter().any(|a| self.b.ty(*a).state);
        if pure
            && let Some((_, _, r)) = self.seen.iter().find(|(o, a, _)| o == op && a == args)
            && self.cx.choose()
        {
            return Ok(r.clone());
        }
        self.emit(op.clone(), args, pure)
    }

    fn emit(&mut self, op: Op, args: &[Value], pure: bool) -> Result<Vec<Value>, Diagnostic> {
        let results = self.b.op(op.clone(), args)?;
        if pure {
            self.seen.push((op.clone(), args.to_vec(), results.clone()));
        }
        for r in &results {
            self.defs.insert(*r, (op.clone(), args.to_vec()));
        }
        Ok(results)
    }

    /// A value that already holds (or holds more directly) what `op` would compute.
    fn simpler(&mut self, op: &Op, args: &[Value]) -> Result<Option<Value>, Diagnostic> {
        let def = |s: &Self, v: Value| s.defs.get(&v).cloned();
        match op {
            Op::Dequant(_) if self.b.ty(args[0]).elem == glmc_ir::ty::Elem::F32 => Ok(Some(args[0])),
            Op::Scale(s) if s.factor == 1.0 => Ok(Some(args[0])),
            Op::Piece(p) => Ok(match def(self, args[0]) {
                Some((Op::Join(j), parts)) => j.names.iter().position(|n| *n == p.name).map(|i| parts[i]),
                _ => None,
            }),
            Op::Reshape(r) if self.b.ty(args[0]).dims == r.dims => Ok(Some(args[0])),
            Op::Reshape(r) => match def(self, args[0]) {
                Some((Op::Reshape(_), inner)) if self.b.ty(inner[0]).dims == r.dims => Ok(Some(inner[0])),
                Some((Op::Reshape(_), inner)) => {
                    let outer = Op::Reshape(Reshape { dims: r.dims.clone() });
                    self.emit(outer, &inner, true).map(|v| Some(v[0]))
                }
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }
}
