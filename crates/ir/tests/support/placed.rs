//! Random legal placements of a module: parameters and weights are split at random, each op's operands are brought to
//! a random placement that its dim rule allows, by collectives. The value of every function stays what it was.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::HashMap;

use glmc_ir::builder::Builder;
use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::ops::{AllGather, AllReduce, AllToAll, ReduceScatter, Shard};
use glmc_ir::placement::{Mesh, Role, infer_on, strip};
use glmc_ir::shard_map::{canonical, check};
use glmc_ir::ty::{Axis, Elem, PendingKind, Split, TensorType};

use crate::random::Choices;

/// `m` on `mesh`, placed by the choices.
pub(crate) fn place(m: &Module, mesh: &Mesh, c: &mut Choices<'_>) -> Module {
    place_moving(m, mesh, c, &[Elem::F32, Elem::F16, Elem::BF16, Elem::I32])
}

/// The same with collectives on these elements only.
pub(crate) fn place_moving(m: &Module, mesh: &Mesh, c: &mut Choices<'_>, moved: &'static [Elem]) -> Module {
    let mut out = Module { name: m.name.clone(), mesh: mesh.clone(), syms: m.syms.clone(), ..Module::default() };
    let mut p = Placer { mesh: mesh.clone(), fixed: HashMap::new(), moved };
    for w in m.weights.values() {
        let mut w = w.clone();
        w.ty = p.fixed(&w.ty, c);
        out.weights.push(w);
    }
    for (id, f) in &m.funcs {
        let calls = |i: &glmc_ir::entities::Inst, g: &Function| matches!(g.insts[*i].kind, InstKind::Call { func, .. } if func == id);
        let called = m.funcs.values().any(|g| g.body.iter().any(|i| calls(i, g)));
        let f = p.function(called, &out, f, c);
        out.funcs.push(f);
    }
    out
}

struct Placer {
    mesh: Mesh,
    /// One placement for each type of what collectives do not move: state, stored blocks; and for weights.
    fixed: HashMap<TensorType, TensorType>,
    moved: &'static [Elem],
}

impl Placer {
    /// Whether collectives may move it.
    fn moves(&self, t: &TensorType) -> bool {
        !t.state && self.moved.contains(&t.elem)
    }

    fn fixed(&mut self, t: &TensorType, c: &mut Choices<'_>) -> TensorType {
        if let Some(f) = self.fixed.get(t) {
            return f.clone();
        }
        let f = self.random(t, c);
        self.fixed.insert(t.clone(), f.clone());
        f
    }

    fn random(&self, t: &TensorType, c: &mut Choices<'_>) -> TensorType {
        let mut t = t.clone();
        for axis in self.mesh.keys() {
            let d = c.below(2 * t.rank() + 1);
            if let Some(dim) = t.dims.get(d).filter(|d| d.split.is_none()) {
                let last = d + 1 == t.rank();
                let unit = if last { t.elem.block().0 } else { 1 } * (1 + c.below(3) as u64);
                let (before, dim) = (t.clone(), dim.clone());
                t.dims[d] = glmc_ir::ty::Dim { split: Some(Split { axis: axis.clone(), unit }), ..dim };
                t = canonical(&t, &self.mesh);
                if check(&t, &self.mesh).is_err() {
                    t = before;
                }
            }
        }
        t
    }

    fn function(&mut self, called: bool, to: &Module, f: &Function, c: &mut Choices<'_>) -> Function {
        let mut b = Builder::new(to, &f.name);
        if f.entry {
            b = b.entry();
        }
        let mut map: HashMap<Value, Value> = HashMap::new();
        for p in &f.params {
            let t = f.ty(*p);
            let mut placed = if self.moves(t) { self.random(t, c) } else { self.fixed(t, c) };
            // A value cannot be made pending for a callee.
            if self.moves(t) && t.elem.is_float() && !f.entry && !called && c.below(5) == 0 {
                let free = self.mesh.keys().find(|a| placed.dims.iter().all(|d| d.axis() != Some(a)));
                placed.pending = free.map(|a| (PendingKind::Sum, a.clone()));
            }
            map.insert(*p, b.param(&f.value_name(*p), placed));
        }
        for i in &f.body {
            let data = &f.insts[*i];
            let mut args = Vec::new();
            for a in &data.args {
                let v = match f.values[*a].def {
                    ValueDef::Weight(w) => b.weight(w),
                    _ => map[a],
                };
                args.push(v);
            }
            let made = match &data.kind {
                InstKind::Op(op) => {
                    let now: Vec<TensorType> = args.iter().map(|a| b.ty(*a).clone()).collect();
                    let want = self.targets(op, &now, c);
                    let args: Vec<Value> = args.iter().zip(&want).map(|(a, t)| self.convert(&mut b, *a, t)).collect();
                    b.op(op.clone(), &args).expect("the placement is legal")
                }
                InstKind::Call { func, label } => {
                    let callee = &to.funcs[*func];
                    let want = callee.params.iter().map(|p| callee.ty(*p));
                    let args: Vec<Value> = args.iter().zip(want).map(|(a, t)| self.convert(&mut b, *a, t)).collect();
                    b.call(*func, label, &args).expect("arguments are as the callee wants them")
                }
            };
            for (r, v) in data.results.iter().zip(made) {
                if let Some(name) = &f.values[*r].name {
                    b.name(v, name);
                }
                map.insert(*r, v);
            }
        }
        let mut results = Vec::new();
        for (n, v) in &f.results {
            let mut v = match f.values[*v].def {
                ValueDef::Weight(w) => b.weight(w),
                _ => map[v],
            };
            if let (true, Some((_, axis))) = (f.entry, b.ty(v).pending.clone()) {
                v = b.one(AllReduce { axis }, &[v]).expect("it is pending");
            }
            results.push((n.clone(), v));
        }
        b.finish(results)
    }

    /// Operand types that the op takes, each reachable from what is there.
    fn targets(&self, op: &Op, now: &[TensorType], c: &mut Choices<'_>) -> Vec<TensorType> {
        let global: Vec<TensorType> = now.iter().map(strip).collect();
        let refs: Vec<&TensorType> = global.iter().collect();
        let results = op.infer(&refs).expect("the module is well-typed");
        let rule = op.dim_rule(&refs, &results);
        for attempt in 0..8 {
            let mut split: Vec<Option<Split>> = vec![None; rule.roles.len()];
            let mut used: Vec<Axis> = Vec::new();
            for (t, labels) in now.iter().zip(&rule.args).filter(|(t, _)| !self.moves(t)) {
                for (d, l) in t.dims.iter().zip(labels) {
                    if let Some(s) = &d.split {
                        split[*l] = Some(s.clone());
                        used.push(s.axis.clone());
                    }
                }
            }
            for axis in self.mesh.keys().filter(|_| attempt < 7) {
                if used.contains(axis) {
                    continue;
                }
                // What is there, or any label that may be split.
                let arg = c.below(now.len());
                let there = now[arg].dims.iter().zip(&rule.args[arg]).find(|(d, _)| d.axis() == Some(axis));
                let (label, unit) = match there {
                    Some((d, l)) if c.flip() => (*l, d.split.as_ref().map_or(1, |s| s.unit)),
                    _ => (c.below(rule.roles.len() * 3 / 2 + 1), 1 + c.below(3) as u64),
                };
                if label < split.len() && split[label].is_none() && rule.roles[label] != Role::Whole {
                    split[label] = Some(Split { axis: axis.clone(), unit });
                }
            }
            let keep = c.flip() && attempt < 7;
            let want: Vec<TensorType> =
                now.iter()
                    .zip(&rule.args)
                    .map(|(t, labels)| {
                        if !self.moves(t) {
                            return t.clone();
                        }
                        let mut w = strip(t);
                        w.dims.iter_mut().zip(labels).for_each(|(d, l)| d.split = split[*l].clone());
                        let sum = t.pending.clone().filter(|(k, a)| {
                            keep && *k == PendingKind::Sum && w.dims.iter().all(|d| d.axis() != Some(a))
                        });
                        w.pending = sum;
                        canonical(&w, &self.mesh)
                    })
                    .collect();
            let wanted: Vec<&TensorType> = want.iter().collect();
            let sound = |t: &TensorType| {
                let mut axes: Vec<&Axis> = t.dims.iter().filter_map(|d| d.axis()).collect();
                axes.extend(t.pending.iter().map(|(_, a)| a));
                let n = axes.len();
                axes.sort();
                axes.dedup();
                axes.len() == n && check(t, &self.mesh).is_ok()
            };
            match infer_on(op, &wanted, &self.mesh) {
                Ok(results) if results.iter().chain(&want).all(sound) => return want,
                _ => {}
            }
        }
        panic!("`{}` takes no placement of {now:?}", op.name());
    }

    /// Brings `v` to the placement `want` by collectives.
    fn convert(&self, b: &mut Builder<'_>, mut v: Value, want: &TensorType) -> Value {
        if let Some((kind, axis)) = b.ty(v).pending.clone()
            && want.pending.is_none()
        {
            let to = want.dims.iter().position(|d| d.axis() == Some(&axis));
            let free = |d: usize| b.ty(v).dims[d].split.is_none();
            let op: Op = match to.filter(|d| kind == PendingKind::Sum && free(*d)) {
                Some(dim) => {
                    let unit = want.dims[dim].split.as_ref().map_or(1, |s| s.unit);
                    ReduceScatter { axis, dim, unit }.into()
                }
                None => AllReduce { axis }.into(),
            };
            v = b.one(op, &[v]).expect("it is pending");
        }
        for d in 0..want.dims.len() {
            let (have, wish) = (b.ty(v).dims[d].split.clone(), &want.dims[d].split);
            let Some(s) = have.filter(|h| Some(h) != wish.as_ref()) else { continue };
            let to = want.dims.iter().enumerate().find(|(i, t)| *i != d && t.axis() == Some(&s.axis));
            let op: Op = match to.filter(|(i, _)| b.ty(v).dims[*i].split.is_none()) {
                Some((dim, t)) => {
                    let unit = t.split.as_ref().map_or(1, |s| s.unit);
                    AllToAll { axis: s.axis, dim, unit }.into()
                }
                None => AllGather { axis: s.axis }.into(),
            };
            v = b.one(op, &[v]).expect("it is split");
        }
        for (dim, t) in want.dims.iter().enumerate() {
            if let (None, Some(s)) = (&b.ty(v).dims[dim].split, &t.split) {
                let op = Shard { axis: s.axis.clone(), dim, unit: s.unit };
                v = b.one(op, &[v]).expect("it is whole");
            }
        }
        assert_eq!(b.ty(v), want, "collectives bring every placement about");
        v
    }
}
