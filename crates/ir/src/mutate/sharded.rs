//! Owns mutants of sharded modules: seeded single edits of the kinds that sharding goes wrong by. Half of the seeds leave
//! the stated types as they were, the other half state again what inference gives wherever it gives something, so that
//! the verifier cannot lean on a stale type. Never judges a mutant: the verifier and the rank interpreter do.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::builder::call_types;
use crate::collective::CollectiveKind;
use crate::entities::{FuncId, Inst, Value};
use crate::graph::{Function, InstData, InstKind, Module, ValueData, ValueDef};
use crate::op::Op;
use crate::ops::AllReduce;
use crate::placement::infer_on;
use crate::shard_map::granule;
use crate::ty::{Axis, Elem, Extent, Split, TensorType};

use super::Mixer;

struct Rng(Mixer);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n as usize).map_or(0, |x| x as u64)
    }

    fn pick<'t, T>(&mut self, of: &'t [T]) -> Option<&'t T> {
        self.0.below(of.len()).and_then(|i| of.get(i))
    }
}

/// A kind of edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardedMutant {
    /// Leaves a merge out.
    DropReduce,
    /// Merges twice.
    DoubleReduce,
    /// Merges after the next op instead of before it.
    ReduceTooLate,
    /// Leaves a gather, a re-split or a local slice out.
    DropMove,
    /// A collective over another axis.
    WrongAxis,
    /// A collective that splits another dim.
    WrongDim,
    /// A value, parameter or weight that is split along another dim.
    WrongSplit,
    /// A split in other units.
    WrongUnit,
    /// A weight cut inside a block.
    CutBlock,
    /// Pieces in another order.
    SwapPieces,
    /// A value read where another of the same type was made: a disconnected output.
    Disconnect,
    /// A joined dim taken for a plain one of its size, or the other way round.
    ForgetSeam,
    /// A cache read as it was before the rows of this step.
    StaleState,
    /// A value taken for another element type.
    WrongElem,
}

impl ShardedMutant {
    /// Every kind.
    pub const ALL: [ShardedMutant; 14] = [
        ShardedMutant::DropReduce,
        ShardedMutant::DoubleReduce,
        ShardedMutant::ReduceTooLate,
        ShardedMutant::DropMove,
        ShardedMutant::WrongAxis,
        ShardedMutant::WrongDim,
        ShardedMutant::WrongSplit,
        ShardedMutant::WrongUnit,
        ShardedMutant::CutBlock,
        ShardedMutant::SwapPieces,
        ShardedMutant::Disconnect,
        ShardedMutant::ForgetSeam,
        ShardedMutant::StaleState,
        ShardedMutant::WrongElem,
    ];
}

/// `m` with one edit of `class`; `None` if it has no place for one.
pub fn mutate_sharded(m: &Module, class: ShardedMutant, seed: u64) -> Option<Module> {
    let mut rng = Rng(Mixer(seed ^ (class as u64) << 32));
    let mut out = m.clone();
    match class {
        ShardedMutant::DropReduce => drop_collective(&mut out, &mut rng, is_reduce)?,
        ShardedMutant::DropMove => drop_collective(&mut out, &mut rng, |k| !is_reduce(k))?,
        ShardedMutant::DoubleReduce => double(&mut out, &mut rng)?,
        ShardedMutant::ReduceTooLate => too_late(&mut out, &mut rng)?,
        ShardedMutant::WrongAxis => edit_collective(&mut out, &mut rng, wrong_axis)?,
        ShardedMutant::WrongDim => edit_collective(&mut out, &mut rng, wrong_dim)?,
        ShardedMutant::WrongSplit => edit_type(&mut out, &mut rng, wrong_split)?,
        ShardedMutant::WrongUnit => edit_type(&mut out, &mut rng, wrong_unit)?,
        ShardedMutant::CutBlock => cut_block(&mut out, &mut rng)?,
        ShardedMutant::SwapPieces => swap_pieces(&mut out, &mut rng)?,
        ShardedMutant::Disconnect => disconnect(&mut out, &mut rng)?,
        ShardedMutant::ForgetSeam => edit_type(&mut out, &mut rng, forget_seam)?,
        ShardedMutant::StaleState => stale_state(&mut out, &mut rng)?,
        ShardedMutant::WrongElem => edit_type(&mut out, &mut rng, wrong_elem)?,
    }
    if rng.below(2) == 1 {
        restate(&mut out);
    }
    (out != *m).then_some(out)
}

fn is_reduce(k: CollectiveKind) -> bool {
    matches!(k, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter { .. })
}

/// Every instruction whose op `keep` takes.
fn sites(m: &Module, keep: impl Fn(&Op) -> bool) -> Vec<(FuncId, Inst)> {
    let of = |(id, f): (FuncId, &Function)| {
        let op = |i: &Inst| matches!(&f.insts[*i].kind, InstKind::Op(op) if keep(op));
        f.body.iter().copied().filter(op).map(|i| (id, i)).collect::<Vec<_>>()
    };
    m.funcs.iter().flat_map(of).collect()
}

fn replace_uses(f: &mut Function, old: Value, new: Value) {
    for i in f.body.clone() {
        f.insts[i].args.iter_mut().filter(|a| **a == old).for_each(|a| *a = new);
    }
    f.results.iter_mut().filter(|(_, v)| *v == old).for_each(|(_, v)| *v = new);
}

fn drop_collective(m: &mut Module, rng: &mut Rng, of: fn(CollectiveKind) -> bool) -> Option<()> {
    let all = sites(m, |op| op.collective().is_some_and(|c| of(c.kind)));
    let (func, inst) = *rng.pick(&all)?;
    let f = &mut m.funcs[func];
    let (from, to) = (f.insts[inst].results[0], f.insts[inst].args[0]);
    f.body.retain(|i| *i != inst);
    replace_uses(f, from, to);
    Some(())
}

/// Puts `op` of `arg` at `at` of the body, its result of type `ty`.
fn insert(f: &mut Function, at: usize, op: Op, arg: Value, ty: TensorType) -> Value {
    let inst = f.insts.push(InstData { kind: InstKind::Op(op), args: vec![arg], results: Vec::new() });
    let v = f.values.push(ValueData { ty, def: ValueDef::Result(inst, 0), name: None });
    f.insts[inst].results.push(v);
    f.body.insert(at, inst);
    v
}

fn double(m: &mut Module, rng: &mut Rng) -> Option<()> {
    let all = sites(m, |op| op.collective().is_some_and(|c| is_reduce(c.kind)));
    let (func, inst) = *rng.pick(&all)?;
    let f = &mut m.funcs[func];
    let at = f.body.iter().position(|i| *i == inst)? + 1;
    let InstKind::Op(op) = f.insts[inst].kind.clone() else { return None };
    let axis = op.collective()?.axis;
    let made = f.insts[inst].results[0];
    let ty = f.ty(made).clone();
    let again = f.values.next_key();
    replace_uses(f, made, again);
    insert(f, at, AllReduce { axis }.into(), made, ty);
    Some(())
}

fn too_late(m: &mut Module, rng: &mut Rng) -> Option<()> {
    let all = sites(m, |op| matches!(op, Op::AllReduce(_)));
    let (func, inst) = *rng.pick(&all)?;
    let f = &mut m.funcs[func];
    let (part, merged) = (f.insts[inst].args[0], f.insts[inst].results[0]);
    let InstKind::Op(op) = f.insts[inst].kind.clone() else { return None };
    let uses = |i: &&Inst| f.insts[**i].args.contains(&merged) && matches!(f.insts[**i].kind, InstKind::Op(_));
    let users: Vec<Inst> = f.body.iter().filter(uses).copied().collect();
    let user = *rng.pick(&users)?;
    f.insts[user].args.iter_mut().filter(|a| **a == merged).for_each(|a| *a = part);
    let at = f.body.iter().position(|i| *i == user)? + 1;
    let pending = f.ty(part).pending.clone();
    for r in f.insts[user].results.clone() {
        let ty = f.ty(r).clone();
        let late = f.values.next_key();
        replace_uses(f, r, late);
        insert(f, at, op.clone(), r, ty);
        f.values[r].ty.pending.clone_from(&pending);
    }
    // Where nothing else reads the merged value, its merge goes.
    let read = f.body.iter().any(|i| f.insts[*i].args.contains(&merged)) || f.results.iter().any(|(_, v)| *v == merged);
    if !read {
        f.body.retain(|i| *i != inst);
    }
    Some(())
}

fn edit_collective(
    m: &mut Module,
    rng: &mut Rng,
    edit: fn(&mut Op, &Module, usize, &mut Rng) -> Option<()>,
) -> Option<()> {
    let all = sites(m, |op| op.collective().is_some());
    let (func, inst) = *rng.pick(&all)?;
    let rank = m.funcs[func].ty(m.funcs[func].insts[inst].args[0]).rank();
    let InstKind::Op(mut op) = m.funcs[func].insts[inst].kind.clone() else { return None };
    edit(&mut op, m, rank, rng)?;
    m.funcs[func].insts[inst].kind = InstKind::Op(op);
    Some(())
}

fn wrong_axis(op: &mut Op, m: &Module, _: usize, rng: &mut Rng) -> Option<()> {
    let now = op.collective()?.axis;
    let others: Vec<Axis> = m.mesh.keys().filter(|a| **a != now).cloned().collect();
    let axis = rng.pick(&others)?.clone();
    match op {
        Op::AllReduce(o) => o.axis = axis,
        Op::AllGather(o) => o.axis = axis,
        Op::ReduceScatter(o) => o.axis = axis,
        Op::AllToAll(o) => o.axis = axis,
        Op::Shard(o) => o.axis = axis,
        _ => return None,
    }
    Some(())
}

fn wrong_dim(op: &mut Op, _: &Module, rank: usize, rng: &mut Rng) -> Option<()> {
    let dim = match op {
        Op::ReduceScatter(o) => &mut o.dim,
        Op::AllToAll(o) => &mut o.dim,
        Op::Shard(o) => &mut o.dim,
        _ => return None,
    };
    *dim = (*dim + 1 + rng.below(rank.max(2) as u64 - 1) as usize) % rank.max(1);
    Some(())
}

/// Edits the type of a value, or of a weight with every value it is.
fn edit_type(m: &mut Module, rng: &mut Rng, edit: fn(&mut TensorType, &mut Rng) -> Option<()>) -> Option<()> {
    if rng.below(3) == 0 && !m.weights.is_empty() {
        let ids: Vec<_> = m.weights.keys().collect();
        let w = *rng.pick(&ids)?;
        edit(&mut m.weights[w].ty, rng)?;
        let ty = m.weights[w].ty.clone();
        for f in m.funcs.values_mut() {
            f.values.values_mut().filter(|v| v.def == ValueDef::Weight(w)).for_each(|v| v.ty = ty.clone());
        }
        return Some(());
    }
    let ids: Vec<FuncId> = m.funcs.keys().collect();
    let f = &mut m.funcs[*rng.pick(&ids)?];
    let results = f.body.iter().flat_map(|i| &f.insts[*i].results).copied();
    let values: Vec<Value> = f.params.iter().copied().chain(results).collect();
    edit(&mut f.values[*rng.pick(&values)?].ty, rng)
}

fn wrong_split(t: &mut TensorType, rng: &mut Rng) -> Option<()> {
    let split: Vec<usize> = (0..t.rank()).filter(|d| t.dims[*d].split.is_some()).collect();
    let from = *rng.pick(&split)?;
    let s = t.dims[from].split.take();
    let to = (from + rng.below(t.rank() as u64) as usize) % t.rank();
    if to != from {
        t.dims[to].split = s;
    }
    Some(())
}

fn wrong_unit(t: &mut TensorType, rng: &mut Rng) -> Option<()> {
    let split: Vec<usize> = (0..t.rank()).filter(|d| t.dims[*d].split.is_some()).collect();
    let d = *rng.pick(&split)?;
    let n = t.dims[d].extent.as_const()?;
    let Some(Split { unit, .. }) = &mut t.dims[d].split else { return None };
    *unit = 1 + (*unit + rng.below(n)) % n.max(2);
    Some(())
}

fn cut_block(m: &mut Module, rng: &mut Rng) -> Option<()> {
    let quantised = |t: &TensorType| t.rank() > 0 && granule(t, t.rank() - 1) > 1;
    let ids: Vec<_> = m.weights.iter().filter(|(_, w)| quantised(&w.ty)).map(|(id, _)| id).collect();
    let w = *rng.pick(&ids)?;
    let axes: Vec<Axis> = m.mesh.keys().cloned().collect();
    let axis = rng.pick(&axes)?.clone();
    let ty = &mut m.weights[w].ty;
    let (last, block) = (ty.rank() - 1, granule(ty, ty.rank() - 1));
    ty.dims.iter_mut().filter(|d| d.axis() == Some(&axis)).for_each(|d| d.split = None);
    ty.dims[last].split = Some(Split { axis, unit: 1 + rng.below(block - 1) });
    let ty = ty.clone();
    for f in m.funcs.values_mut() {
        f.values.values_mut().filter(|v| v.def == ValueDef::Weight(w)).for_each(|v| v.ty = ty.clone());
    }
    Some(())
}

fn swap_pieces(m: &mut Module, rng: &mut Rng) -> Option<()> {
    let all = sites(m, |op| match op {
        Op::Piece(p) => p.of.len() > 1,
        Op::Matmul(o) => o.names.len() > 1,
        Op::Join(j) => j.names.len() > 1,
        _ => false,
    });
    let (func, inst) = *rng.pick(&all)?;
    match &mut m.funcs[func].insts[inst].kind {
        InstKind::Op(Op::Piece(p)) => p.of.rotate_left(1),
        InstKind::Op(Op::Matmul(o)) => o.names.rotate_left(1),
        InstKind::Op(Op::Join(j)) => j.names.rotate_left(1),
        _ => return None,
    }
    Some(())
}

/// One that nothing else reads, so that what was made for it hangs loose.
fn disconnect(m: &mut Module, rng: &mut Rng) -> Option<()> {
    let ids: Vec<FuncId> = m.funcs.keys().collect();
    let f = &mut m.funcs[*rng.pick(&ids)?];
    let mut uses: HashMap<Value, usize> = HashMap::new();
    let read = f.body.iter().flat_map(|i| &f.insts[*i].args).chain(f.results.iter().map(|(_, v)| v));
    read.for_each(|v| *uses.entry(*v).or_default() += 1);
    let at = rng.below(f.body.len() as u64) as usize;
    let inst = *f.body.get(at)?;
    let once = |(_, v): &(usize, &Value)| uses[*v] == 1 && matches!(f.values[**v].def, ValueDef::Result(..));
    let args: Vec<usize> = f.insts[inst].args.iter().enumerate().filter(once).map(|(i, _)| i).collect();
    let arg = *rng.pick(&args)?;
    let now = f.insts[inst].args[arg];
    let results = f.body[..at].iter().flat_map(|i| &f.insts[*i].results);
    let same = |v: &&Value| **v != now && f.ty(**v) == f.ty(now);
    let others: Vec<Value> = f.params.iter().chain(results).filter(same).copied().collect();
    f.insts[inst].args[arg] = *rng.pick(&others)?;
    Some(())
}

fn forget_seam(t: &mut TensorType, rng: &mut Rng) -> Option<()> {
    let last = t.dims.last_mut()?;
    last.extent = match &last.extent {
        Extent::Joined(_) => Extent::Const(last.extent.as_const()?),
        Extent::Const(n) if *n > 1 => {
            let a = 1 + rng.below(*n - 1);
            Extent::Joined(vec![("a".into(), a), ("b".into(), *n - a)])
        }
        _ => return None,
    };
    Some(())
}

/// A reader of what an op made of a state gets the state as it was.
fn stale_state(m: &mut Module, rng: &mut Rng) -> Option<()> {
    let all = sites(m, |op| op.consumes().is_some());
    let (func, inst) = *rng.pick(&all)?;
    let f = &mut m.funcs[func];
    let InstKind::Op(op) = &f.insts[inst].kind else { return None };
    let (arg, result) = op.consumes()?;
    let (old, new) = (f.insts[inst].args[arg], f.insts[inst].results[result]);
    let reads = |i: &&Inst| f.insts[**i].args.contains(&new);
    let readers: Vec<Inst> = f.body.iter().filter(reads).copied().collect();
    let reader = *rng.pick(&readers)?;
    f.insts[reader].args.iter_mut().filter(|a| **a == new).for_each(|a| *a = old);
    Some(())
}

fn wrong_elem(t: &mut TensorType, rng: &mut Rng) -> Option<()> {
    let now = t.elem;
    let others: Vec<Elem> = [Elem::F32, Elem::F16, Elem::I32].into_iter().filter(|e| *e != now).collect();
    t.elem = *rng.pick(&others)?;
    Some(())
}

/// States every result type that inference gives; what it refuses stays as it was.
fn restate(m: &mut Module) {
    let ids: Vec<FuncId> = m.funcs.keys().collect();
    for id in ids {
        let mut new: IndexMap<Value, TensorType> = IndexMap::new();
        for i in m.funcs[id].body.clone() {
            let f = &m.funcs[id];
            let inst = &f.insts[i];
            let types: Vec<&TensorType> = inst.args.iter().map(|a| new.get(a).unwrap_or(f.ty(*a))).collect();
            let inferred = match &inst.kind {
                InstKind::Op(op) => infer_on(op, &types, &m.mesh),
                InstKind::Call { func, .. } => call_types(m, *func, &types),
            };
            if let Ok(results) = inferred {
                new.extend(inst.results.clone().into_iter().zip(results));
            }
        }
        for (v, ty) in new {
            m.funcs[id].values[v].ty = ty;
        }
    }
}
