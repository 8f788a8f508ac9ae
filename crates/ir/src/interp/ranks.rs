//! Owns the interpreter of the sharded level: N simulated ranks, each with its own part of every value. Weights are
//! really cut by `shard_map`, ops run on parts alone, and only collectives carry numbers from rank to rank. Put
//! together again, the results are those of [`super::global`]. Never checks a placement (the verifier does): on a wrong
//! module it gives other numbers or an error, and with [`RankInterp::unverified`] nearly always numbers.
//!
//! Each pending kind has its merge in `exchange`; what a rank holds of a pending value stands in
//! [`crate::placement::local_type`].

mod exchange;
mod loose;
mod parts;
mod step;

pub(crate) use exchange::exchange;
pub(crate) use loose::{Rules, seen_as};
pub(crate) use step::eval_on;

use std::collections::HashMap;

use crate::collective::{Collective, CollectiveKind};
use crate::entities::{FuncId, Value, WeightId};
use crate::graph::{Function, InstKind, Module, Span, ValueDef};
use crate::op::Op;
use crate::placement::{Mesh, local_type, type_of};
use crate::shard_map::{Shard, rank_count};
use crate::tensor::{EvalError, Tensor, concrete};
use crate::ty::{Extent, PendingKind, SymValues, TensorType};

use super::Arith;
use super::global::{Observer, WeightSource, join_path, last_uses};

/// The ranks and what they agree on.
pub(crate) struct World<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) syms: &'a SymValues,
    pub(crate) rules: Rules,
}

impl World<'_> {
    /// Number of ranks.
    ///
    /// # Errors
    /// A mesh without ranks.
    pub(crate) fn ranks(&self) -> Result<u64, EvalError> {
        rank_count(self.mesh).ok_or_else(|| EvalError::new("the mesh has no ranks"))
    }

    pub(crate) fn shard(&self, ty: &TensorType, rank: u64) -> Result<Shard, EvalError> {
        match self.rules {
            Rules::Kept => Shard::of(ty, self.mesh, rank, self.syms).map_err(|d| EvalError::new(d.message)),
            Rules::Ignored => Shard::unchecked(ty, self.mesh, rank, self.syms)
                .ok_or_else(|| EvalError::new(format!("a symbol of {ty} has no value"))),
        }
    }

    pub(crate) fn local(&self, ty: &TensorType, rank: u64) -> Result<TensorType, EvalError> {
        match self.rules {
            Rules::Kept => local_type(ty, self.mesh, rank, self.syms).map_err(|d| EvalError::new(d.message)),
            Rules::Ignored => Ok(type_of(ty, &self.shard(ty, rank)?)),
        }
    }

    /// `ty` with the values of its symbols.
    pub(crate) fn bound(&self, mut ty: TensorType) -> TensorType {
        for d in &mut ty.dims {
            if let Extent::Sym(s) = &d.extent
                && let Some(n) = self.syms.get(s)
            {
                d.extent = Extent::Const(n);
            }
        }
        ty
    }

    /// Each rank's part of the whole value `t` of type `ty`.
    ///
    /// # Errors
    /// A type that cannot be cut, or a value that is pending a merge which no whole value can be taken apart for.
    pub(crate) fn cut(&self, t: &Tensor, ty: &TensorType) -> Result<Vec<Tensor>, EvalError> {
        let part = |rank| {
            let shard = self.shard(ty, rank)?;
            let mut part = t.clone();
            for (d, ranges) in shard.ranges.iter().enumerate().filter(|(d, _)| ty.dims[*d].split.is_some()) {
                part = parts::take(&part, d, ranges)?;
            }
            match &ty.pending {
                Some((kind, axis)) => {
                    let (at, size) = crate::shard_map::coordinate(self.mesh, axis, rank)
                        .ok_or_else(|| EvalError::new(format!("the mesh has no axis {axis}")))?;
                    parts::unmerged(part, *kind, at, size)
                }
                None => Ok(part),
            }
        };
        (0..self.ranks()?).map(part).collect()
    }

    /// The whole value from the ranks' parts: merges what is pending, joins what is split.
    ///
    /// # Errors
    /// Copies that differ (where no rule is kept, the first one counts), parts of other shapes than the type means.
    pub(crate) fn whole(&self, parts: Vec<Tensor>, ty: &TensorType) -> Result<Tensor, EvalError> {
        let (mut parts, mut ty) = (parts, ty.clone());
        if self.rules == Rules::Ignored {
            parts = (0..).zip(&parts).map(|(r, t)| seen_as(t, &self.local(&ty, r)?)).collect::<Result<_, _>>()?;
        }
        let axes: Vec<_> = ty.dims.iter().filter_map(|d| d.axis().cloned()).collect();
        let merge = ty.pending.iter().map(|(_, a)| (CollectiveKind::AllReduce, a.clone()));
        let joins = axes.into_iter().map(|a| (CollectiveKind::AllGather, a));
        for (kind, axis) in merge.chain(joins).collect::<Vec<_>>() {
            let c = Collective { kind, axis };
            let next = c.place("whole", &ty).map_err(|d| EvalError::new(d.message))?;
            parts = exchange(&c, &ty, &next, self, &parts)?;
            ty = next;
        }
        let mut copies = parts.into_iter();
        let first = copies.next().ok_or_else(|| EvalError::new("the mesh has no ranks"))?;
        for (r, copy) in copies.enumerate() {
            if self.rules == Rules::Kept && !parts::same(&first, &copy) {
                return Err(EvalError::new(format!("ranks 0 and {} hold other copies of a {ty}", r + 1)));
            }
        }
        Ok(first)
    }
}

/// The ranks of one module.
pub struct RankInterp<'a> {
    module: &'a Module,
    arith: Arith,
    syms: SymValues,
    weights: &'a dyn WeightSource,
    observer: Option<Observer<'a>>,
    rules: Rules,
}

impl<'a> RankInterp<'a> {
    /// The ranks of `module`'s mesh at the symbol values `syms`.
    pub fn new(module: &'a Module, arith: Arith, syms: SymValues, weights: &'a dyn WeightSource) -> Self {
        RankInterp { module, arith, syms, weights, observer: None, rules: Rules::Kept }
    }

    /// The same for a module that the verifier has not seen: it does what is written, as a machine would. Parts are
    /// memory that each reader sees by its own type, what lies beyond their end is poison, a merge adds whatever ranks
    /// bring, and of copies that differ the first is the result.
    pub fn unverified(mut self) -> Self {
        self.rules = Rules::Ignored;
        self
    }

    /// The same, showing each named value, put together, to `f`.
    pub fn observe(mut self, f: Observer<'a>) -> Self {
        self.observer = Some(f);
        self
    }

    /// Cuts whole arguments, runs `func` on every rank, and puts the results together, in the function's order.
    ///
    /// # Errors
    /// Arguments of other shapes, what cannot be cut, an op without an answer on a rank, parts of another shape than the
    /// stated type means, copies of one value that differ; the message names function and value.
    pub fn run(&mut self, func: FuncId, args: Vec<Tensor>) -> Result<Vec<Tensor>, EvalError> {
        let f = &self.module.funcs[func];
        if args.len() != f.params.len() {
            return Err(EvalError::new(format!("@{} takes {} arguments", f.name, f.params.len())));
        }
        let mut cut = Vec::with_capacity(args.len());
        for (p, t) in f.params.iter().zip(&args) {
            let (ty, name) = (f.ty(*p), f.value_name(*p));
            let want = concrete(ty, &self.syms)?;
            if want != t.shape {
                return Err(EvalError::new(format!("@{} %{name} has shape {want:?}, found {:?}", f.name, t.shape)));
            }
            cut.push(self.world().cut(t, ty).map_err(|e| EvalError::new(format!("@{} %{name}: {e}", f.name)))?);
        }
        let parts = self.call(func, "", cut)?;
        let whole = |(parts, (n, v)): (Vec<Tensor>, &(String, Value))| {
            let whole = self.world().whole(parts, f.ty(*v));
            whole.map_err(|e| EvalError::new(format!("@{} result `{n}`: {e}", f.name)))
        };
        parts.into_iter().zip(&f.results).map(whole).collect()
    }

    fn world(&self) -> World<'_> {
        World { mesh: &self.module.mesh, syms: &self.syms, rules: self.rules }
    }

    /// Every rank's parts of the results from every rank's parts of the arguments.
    fn call(&mut self, func: FuncId, path: &str, args: Vec<Vec<Tensor>>) -> Result<Vec<Vec<Tensor>>, EvalError> {
        let module = self.module;
        let f = &module.funcs[func];
        let mut env: HashMap<Value, Vec<Tensor>> = f.params.iter().copied().zip(args).collect();
        let last = last_uses(f);
        for (at, inst) in f.body.iter().enumerate() {
            let data = &f.insts[*inst];
            for a in &data.args {
                if let ValueDef::Weight(w) = f.values[*a].def {
                    let parts = self.weight(w)?;
                    env.insert(*a, parts);
                }
            }
            let missing =
                |v: &Value| EvalError::new(format!("@{} reads %{} before it is defined", f.name, f.value_name(*v)));
            let outs = match &data.kind {
                InstKind::Op(op) => {
                    let operands: Vec<&Vec<Tensor>> =
                        data.args.iter().map(|a| env.get(a).ok_or_else(|| missing(a))).collect::<Result<_, _>>()?;
                    let name = data.results.first().map(|r| f.value_name(*r)).unwrap_or_default();
                    self.op(f, op, &data.args, &data.results, &operands)
                        .map_err(|e| EvalError::new(format!("@{} %{name}: {e}", f.name)))?
                }
                InstKind::Call { func, label } => {
                    let args = data.args.iter().map(|a| env.get(a).cloned().ok_or_else(|| missing(a)));
                    let args = args.collect::<Result<Vec<_>, _>>()?;
                    self.call(*func, &join_path(path, label), args)?
                }
            };
            for (r, parts) in data.results.iter().zip(outs) {
                if let (Some(name), Some(see)) = (&f.values[*r].name, self.observer.as_mut()) {
                    let world = World { mesh: &module.mesh, syms: &self.syms, rules: self.rules };
                    see(&join_path(path, name), f.ty(*r), &world.whole(parts.clone(), f.ty(*r))?);
                }
                env.insert(*r, parts);
            }
            env.retain(|v, _| last.get(v).is_none_or(|l| *l > at));
        }
        let results = f.results.iter().map(|(n, v)| match f.values[*v].def {
            ValueDef::Weight(w) => self.weight(w),
            _ => env.get(v).cloned().ok_or_else(|| EvalError::new(format!("@{} never defines result `{n}`", f.name))),
        });
        results.collect()
    }

    /// One op on every rank, with the results' parts kept and checked by their stated types.
    fn op(
        &self,
        f: &Function,
        op: &Op,
        args: &[Value],
        results: &[Value],
        operands: &[&Vec<Tensor>],
    ) -> Result<Vec<Vec<Tensor>>, EvalError> {
        let world = self.world();
        let arg_types: Vec<&TensorType> = args.iter().map(|a| f.ty(*a)).collect();
        let types: Vec<&TensorType> = results.iter().map(|r| f.ty(*r)).collect();
        let by_rank: Vec<Vec<Tensor>> = match op.collective() {
            Some(c) => match (arg_types.as_slice(), types.as_slice(), operands) {
                ([a], [r], [x]) => exchange(&c, a, r, &world, x)?.into_iter().map(|t| vec![t]).collect(),
                _ => return Err(EvalError::new("a collective takes and gives one value")),
            },
            None => (0..world.ranks()?)
                .map(|rank| {
                    let local: Option<Vec<&Tensor>> = operands.iter().map(|p| p.get(rank as usize)).collect();
                    let local = local.ok_or_else(|| EvalError::new("a value lacks a rank's part"))?;
                    eval_on(op, &arg_types, &world, rank, &local)
                })
                .collect::<Result<_, _>>()?,
        };
        let mut out: Vec<Vec<Tensor>> = vec![Vec::new(); types.len()];
        for (rank, made) in by_rank.into_iter().enumerate() {
            if made.len() != types.len() {
                return Err(EvalError::new(format!("`{}` gives {} results", op.name(), made.len())));
            }
            for ((t, ty), out) in made.into_iter().zip(&types).zip(&mut out) {
                let local = world.local(ty, rank as u64)?;
                if self.rules == Rules::Kept && concrete(&local, &SymValues::default())? != t.shape {
                    return Err(EvalError::new(format!("rank {rank} makes {:?} of a {ty}", t.shape)));
                }
                out.push(self.arith.keep(t, local.elem));
            }
        }
        Ok(out)
    }

    /// Each rank's part of a weight, from the bytes that its recipe would read.
    fn weight(&self, w: WeightId) -> Result<Vec<Tensor>, EvalError> {
        let ty = &self.module.weights[w].ty;
        let bytes = self.weights.bytes(w)?;
        let span = Span { part: 0, offset: 0, bytes: bytes.len() as u64 };
        let world = self.world();
        let part = |rank| {
            let shard = world.shard(ty, rank)?;
            let mut own = Vec::with_capacity(shard.bytes() as usize);
            for s in shard.slices(span).map_err(|d| EvalError::new(d.message))? {
                for i in 0..s.count {
                    let at = (s.offset + i * s.stride) as usize;
                    own.extend_from_slice(&bytes[at..at + s.bytes as usize]);
                }
            }
            Tensor::from_bytes(ty.elem, shard.shape().into_iter().map(|n| n as usize).collect(), &shard.stored(own))
        };
        (0..world.ranks()?).map(part).collect()
    }
}

/// The merge that a value of type `ty` owes over `axis`; without rules, what a merge does to a value that owes none.
fn pending_over(ty: &TensorType, c: &Collective, rules: Rules) -> Result<PendingKind, EvalError> {
    match (&ty.pending, rules) {
        (Some((kind, a)), _) if *a == c.axis => Ok(*kind),
        (Some((kind, _)), Rules::Ignored) => Ok(*kind),
        (None, Rules::Ignored) => Ok(PendingKind::Sum),
        _ => Err(EvalError::new(format!("{ty} is not pending over {}", c.axis))),
    }
}
