//! Owns one op on one rank: positions and counts are put into the rank's part, the op's local form runs on local types,
//! found positions are put back. All of it follows from the op's dim rule.

use std::ops::Range;

use super::World;
use super::loose::{Rules, agreed, as_the_op_sees, seen_as};
use crate::op::Op;
use crate::placement::{DimRule, Role, local_op, own_parts, strip};
use crate::tensor::{Data, EvalError, Tensor, concrete};
use crate::ty::{SymValues, TensorType};

/// The rank's parts of the results of `op`, which is no collective, from its parts of the arguments of types `types`.
///
/// # Errors
/// Parts of another shape than their types mean, an op that does not take them, or that has no answer.
pub(crate) fn eval_on(
    op: &Op,
    types: &[&TensorType],
    world: &World<'_>,
    rank: u64,
    args: &[&Tensor],
) -> Result<Vec<Tensor>, EvalError> {
    let told = |d: crate::diag::Diagnostic| EvalError::new(d.message);
    let none = SymValues::default();
    let ignored = world.rules == Rules::Ignored;
    if let (true, Op::Reshape(_), [x]) = (ignored, op, args) {
        // A view: whoever reads it sees the memory by its own type.
        return Ok(vec![(*x).clone()]);
    }
    let own_types: Vec<TensorType>;
    let own_refs: Vec<&TensorType>;
    let types = if ignored {
        own_types = as_the_op_sees(op, types);
        own_refs = own_types.iter().collect();
        own_refs.as_slice()
    } else {
        types
    };
    let global: Vec<TensorType> = types.iter().map(|t| strip(t)).collect();
    let results = op.infer(&global.iter().collect::<Vec<_>>()).map_err(told)?;
    let rule = op.dim_rule(types, &results);
    let mut local = Vec::with_capacity(types.len());
    for (ty, t) in types.iter().zip(args) {
        let l = world.local(ty, rank)?;
        if !ignored && concrete(&l, &none)? != t.shape {
            return Err(EvalError::new(format!("rank {rank} holds {:?} of a {ty}", t.shape)));
        }
        local.push(l);
    }
    let parts = Parts { rule: &rule, types, world, rank };
    let seen: Vec<Tensor>;
    let seen_refs: Vec<&Tensor>;
    let args = if ignored {
        agreed(&rule, own_parts(op, &rule), types, &mut local);
        seen = local.iter().zip(args).map(|(l, t)| seen_as(t, l)).collect::<Result<_, _>>()?;
        seen_refs = seen.iter().collect();
        seen_refs.as_slice()
    } else {
        args
    };
    let own = args.iter().enumerate().map(|(i, t)| parts.inward(i, t)).collect::<Result<Vec<_>, _>>()?;
    let split = |l: &usize| parts.dim_of(*l).is_some_and(|(a, d)| types[a].dims[d].split.is_some());
    let reduced = rule.roles.iter().enumerate().filter(|(l, _)| split(l)).find_map(|(_, r)| match r {
        Role::Reduce(kind) => Some(*kind),
        _ => None,
    });
    // Attributes that state result dims get the rank's: those of the labels that arguments split.
    let placed = parts.result_types(op, &results)?;
    let run = local_op(op, &local, &placed, reduced);
    // The type rule on the local types is the check that the parts fit each other.
    run.infer(&local.iter().collect::<Vec<_>>()).map_err(told)?;
    let made = run.eval(&own.iter().collect::<Vec<_>>())?;
    made.into_iter().enumerate().map(|(k, t)| parts.outward(k, t)).collect()
}

/// The rank's ranges along a label, and the whole extent.
type Along = (Vec<Range<u64>>, u64);

struct Parts<'a> {
    rule: &'a DimRule,
    types: &'a [&'a TensorType],
    world: &'a World<'a>,
    rank: u64,
}

impl Parts<'_> {
    /// The argument and dim that has a label, a split one first.
    fn dim_of(&self, label: usize) -> Option<(usize, usize)> {
        let dims =
            self.rule.args.iter().enumerate().flat_map(|(a, ls)| ls.iter().enumerate().map(move |(d, l)| (a, d, *l)));
        let of: Vec<(usize, usize)> = dims.filter(|(_, _, l)| *l == label).map(|(a, d, _)| (a, d)).collect();
        let split = |(a, d): &&(usize, usize)| self.types[*a].dims.get(*d).is_some_and(|d| d.split.is_some());
        of.iter().find(split).or(of.first()).copied()
    }

    /// The rank's ranges along a label, and its whole extent; `None` if it is whole.
    fn ranges(&self, label: usize) -> Result<Option<Along>, EvalError> {
        let Some((a, d)) = self.dim_of(label).filter(|(a, d)| self.types[*a].dims[*d].split.is_some()) else {
            return Ok(None);
        };
        let n = concrete(self.types[a], self.world.syms)?[d] as u64;
        Ok(Some((self.world.shard(self.types[a], self.rank)?.ranges[d].clone(), n)))
    }

    /// Positions and counts of argument `i` as the rank's part sees them.
    fn inward(&self, i: usize, t: &Tensor) -> Result<Tensor, EvalError> {
        let of = |list: &[(usize, usize)]| list.iter().find(|(a, _)| *a == i).map(|(_, l)| *l);
        let position = of(&self.rule.positions).map(|l| (l, false));
        let Some((label, counts)) = position.or(of(&self.rule.counts).map(|l| (l, true))) else { return Ok(t.clone()) };
        let Some((ranges, n)) = self.ranges(label)? else { return Ok(t.clone()) };
        let mut out = Vec::with_capacity(t.len());
        for v in t.ints()? {
            let x = u64::try_from(*v).ok();
            if counts && x.is_some_and(|x| x > n) {
                return Err(EvalError::new(format!("the first {v} of {n}")));
            }
            // A position outside the dim is in no rank's part; ops that must not be asked for one say so elsewhere.
            out.push(match (x, counts) {
                (None, _) => *v,
                (Some(x), true) => ranges.iter().map(|r| x.clamp(r.start, r.end) - r.start).sum::<u64>() as i64,
                (Some(x), false) => local_position(&ranges, x),
            });
        }
        Ok(Tensor::i(t.shape.clone(), out))
    }

    /// Positions that result `k` found, counted in the whole dim.
    fn outward(&self, k: usize, mut t: Tensor) -> Result<Tensor, EvalError> {
        let Some((_, label)) = self.rule.found.iter().find(|(r, _)| *r == k) else { return Ok(t) };
        let Some((ranges, _)) = self.ranges(*label)? else { return Ok(t) };
        match &mut t.data {
            Data::I(v) => v.iter_mut().for_each(|x| *x = global_position(&ranges, *x)),
            // A part of a selection: positions, then scores.
            Data::F(v) => {
                let k = t.shape.last().copied().unwrap_or(0) / 2;
                for row in v.chunks_exact_mut((2 * k).max(1)) {
                    row[..k].iter_mut().for_each(|x| *x = global_position(&ranges, *x as i64) as f64);
                }
            }
            Data::Q(..) => return Err(EvalError::new("positions are no blocks")),
        }
        Ok(t)
    }

    /// The rank's types of the results, placed by the labels alone.
    fn result_types(&self, op: &Op, results: &[TensorType]) -> Result<Vec<TensorType>, EvalError> {
        let placed = |(r, labels): (&TensorType, &Vec<usize>)| {
            let mut r = r.clone();
            for (dim, label) in r.dims.iter_mut().zip(labels) {
                if let Some((a, d)) = self.dim_of(*label) {
                    dim.split = self.types[a].dims[d].split.clone();
                }
            }
            if let Op::Reshape(_) = op {
                crate::ops::Reshape::scale_units(self.types[0], &mut r);
            }
            self.world.local(&r, self.rank)
        };
        results.iter().zip(&self.rule.results).map(placed).collect()
    }
}

/// Where global position `x` lies in the rank's part; -1 outside it.
fn local_position(ranges: &[Range<u64>], x: u64) -> i64 {
    let mut before = 0;
    for r in ranges {
        if r.contains(&x) {
            return (before + x - r.start) as i64;
        }
        before += r.end - r.start;
    }
    -1
}

/// The inverse of [`local_position`]; negative ones are none.
fn global_position(ranges: &[Range<u64>], x: i64) -> i64 {
    let Ok(mut rest) = u64::try_from(x) else { return x };
    for r in ranges {
        let n = r.end - r.start;
        if rest < n {
            return (r.start + rest) as i64;
        }
        rest -= n;
    }
    x
}
