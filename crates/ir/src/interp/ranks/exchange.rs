//! Owns what collectives do to parts: the merge of each pending kind, and which parts come together and are cut anew.

use super::loose::{Rules, one_after_the_other, seen_as};
use super::parts::{join, take};
use super::{World, pending_over};
use crate::collective::{Collective, CollectiveKind};
use crate::shard_map::group;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, Extent, PendingKind, TensorType};

/// Every rank's part after the collective, from every rank's part before.
///
/// # Errors
/// Parts that do not fit the types, and types that do not fit the collective.
pub(crate) fn exchange(
    c: &Collective,
    arg: &TensorType,
    result: &TensorType,
    world: &World<'_>,
    parts: &[Tensor],
) -> Result<Vec<Tensor>, EvalError> {
    let loose: Vec<Tensor>;
    let parts = match world.rules {
        Rules::Kept => parts,
        Rules::Ignored => {
            loose = (0..).zip(parts).map(|(r, t)| seen_as(t, &world.local(arg, r)?)).collect::<Result<_, _>>()?;
            &loose
        }
    };
    let one = |rank: u64| {
        let members = group(world.mesh, &c.axis, rank)
            .ok_or_else(|| EvalError::new(format!("the mesh has no axis {}", c.axis)))?;
        let of = |r: u64| parts.get(r as usize).ok_or_else(|| EvalError::new("a value lacks a rank's part"));
        let own = of(rank)?;
        let together = match c.kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter { .. } => {
                let held = members.iter().map(|m| of(*m)).collect::<Result<Vec<_>, _>>()?;
                let kind = pending_over(arg, c, world.rules)?;
                match world.rules {
                    Rules::Kept => merge(kind, &held)?,
                    Rules::Ignored => {
                        // As large as the rank's own.
                        let own = world.local(arg, rank)?;
                        let seen = held.iter().map(|t| seen_as(t, &own)).collect::<Result<Vec<_>, _>>()?;
                        merge(kind, &seen.iter().collect::<Vec<_>>())?
                    }
                }
            }
            CollectiveKind::AllGather | CollectiveKind::AllToAll { .. } => {
                let d = arg.dims.iter().position(|d| d.axis() == Some(&c.axis));
                if let (None, Rules::Ignored) = (d, world.rules) {
                    let held = members.iter().map(|m| of(*m)).collect::<Result<Vec<_>, _>>()?;
                    return one_after_the_other(&held);
                }
                let d = d.ok_or_else(|| EvalError::new(format!("{arg} is not split over {}", c.axis)))?;
                let held = |m: &u64| Ok((of(*m)?, world.shard(arg, *m)?.ranges[d].clone()));
                let held = members.iter().map(held).collect::<Result<Vec<_>, EvalError>>()?;
                let n = match &arg.dims[d].extent {
                    Extent::Sym(s) => world.syms.get(s),
                    e => e.as_const(),
                };
                join(&held, d, n.ok_or_else(|| EvalError::new(format!("the size of {arg} is unknown")))?)?
            }
            CollectiveKind::Shard { .. } => own.clone(),
        };
        match c.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather => Ok(together),
            CollectiveKind::ReduceScatter { dim, .. }
            | CollectiveKind::AllToAll { dim, .. }
            | CollectiveKind::Shard { dim, .. } => {
                let shard = world.shard(result, rank)?;
                let together = match world.rules {
                    Rules::Kept => together,
                    Rules::Ignored => {
                        // Whole along what was split over the axis, and along what is to be.
                        let mut whole = world.local(arg, rank)?;
                        for (d, to) in whole.dims.iter_mut().enumerate() {
                            let of = if d == dim { result.dims.get(d) } else { arg.dims.get(d) };
                            if let Some(of) = of.filter(|_| d == dim || arg.dims[d].axis() == Some(&c.axis)) {
                                *to = Dim { split: None, ..of.clone() };
                            }
                        }
                        seen_as(&together, &world.bound(whole))?
                    }
                };
                let ranges =
                    shard.ranges.get(dim).ok_or_else(|| EvalError::new(format!("{result} has no dim {dim}")))?;
                take(&together, dim, ranges)
            }
        }
    };
    (0..world.ranks()?).map(one).collect()
}

/// The value that parts are pending, merged in the order of ranks.
fn merge(kind: PendingKind, parts: &[&Tensor]) -> Result<Tensor, EvalError> {
    if parts.windows(2).any(|w| w[0].shape != w[1].shape) {
        return Err(EvalError::new("ranks hold parts of different shapes"));
    }
    match kind {
        PendingKind::Sum | PendingKind::Owned => fold(parts, |a, b| a + b, |a, b| a + b),
        PendingKind::Max => fold(parts, f64::max, i64::max),
        PendingKind::Softmax => merge_softmax(parts),
        PendingKind::TopK => merge_topk(parts),
    }
}

fn fold(parts: &[&Tensor], f: fn(f64, f64) -> f64, i: fn(i64, i64) -> i64) -> Result<Tensor, EvalError> {
    let (first, rest) = parts.split_first().ok_or_else(|| EvalError::new("no parts to merge"))?;
    let mut out = (*first).clone();
    for p in rest {
        match &mut out.data {
            crate::tensor::Data::F(v) => v.iter_mut().zip(p.floats()?).for_each(|(a, b)| *a = f(*a, *b)),
            crate::tensor::Data::I(v) => v.iter_mut().zip(p.ints()?).for_each(|(a, b)| *a = i(*a, *b)),
            crate::tensor::Data::Q(..) => return Err(EvalError::new("stored blocks are never pending")),
        }
    }
    Ok(out)
}

/// Rows `(o.., max, sum)`; see [`crate::ops::AttentionPart`].
fn merge_softmax(parts: &[&Tensor]) -> Result<Tensor, EvalError> {
    let data: Vec<&[f64]> = parts.iter().map(|p| p.floats()).collect::<Result<_, _>>()?;
    let mut shape = parts.first().map(|p| p.shape.clone()).unwrap_or_default();
    let width = shape.last().copied().filter(|n| *n >= 2).ok_or_else(|| EvalError::new("no softmax parts"))?;
    let value = width - 2;
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let mut out = Vec::with_capacity(rows * value);
    for r in 0..rows {
        let row = |d: &&[f64]| d[r * width..(r + 1) * width].to_vec();
        let held: Vec<Vec<f64>> = data.iter().map(row).filter(|row| row[value + 1] != 0.0).collect();
        let max = held.iter().map(|row| row[value]).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = held.iter().map(|row| row[value + 1] * (row[value] - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mean = |i: usize| held.iter().zip(&weights).map(|(row, w)| w / total * row[i]).sum::<f64>();
        out.extend((0..value).map(mean));
    }
    if let Some(d) = shape.last_mut() {
        *d = value;
    }
    Ok(Tensor::f(shape, out))
}

/// Rows `(at.., score..)`; see [`crate::ops::TopKPart`].
fn merge_topk(parts: &[&Tensor]) -> Result<Tensor, EvalError> {
    let data: Vec<&[f64]> = parts.iter().map(|p| p.floats()).collect::<Result<_, _>>()?;
    let mut shape = parts.first().map(|p| p.shape.clone()).unwrap_or_default();
    let width = shape.last().copied().unwrap_or(0);
    let (k, rows) = (width / 2, shape[..shape.len().saturating_sub(1)].iter().product::<usize>());
    let mut out = Vec::with_capacity(rows * k);
    for r in 0..rows {
        let row = |d: &&[f64]| d[r * width..(r + 1) * width].to_vec();
        let pairs = |row: Vec<f64>| (0..k).map(|i| (row[i], row[k + i])).collect::<Vec<_>>();
        let mut found: Vec<(f64, f64)> = data.iter().map(row).flat_map(pairs).filter(|(at, _)| *at >= 0.0).collect();
        found.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.total_cmp(b)));
        out.extend(found.iter().map(|(at, _)| *at as i64).chain(std::iter::repeat(-1)).take(k));
    }
    if let Some(d) = shape.last_mut() {
        *d = k;
    }
    Ok(Tensor::i(shape, out))
}
