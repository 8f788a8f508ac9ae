//! What ranks wrote beside the model's values: parts are compared with the part that the placement means, sums that are
//! not merged yet are added up first. Never owns a bound.

use glmc_ir::interp::launch::cut;
use glmc_ir::kernel::Kernel;
use glmc_ir::plan::Step;
use glmc_ir::shard_map::{Shard, group};
use glmc_ir::tensor::{Data, Tensor};
use glmc_ir::ty::PendingKind;

use super::launches::At;
use super::metric::{Off, rms};
use super::names::Known;
use super::reference::Values;

/// How far a value is off on one rank, or on a group of ranks that hold it together.
#[derive(Clone, Debug)]
pub(super) struct OnRank {
    pub(super) rank: usize,
    /// Whether the error is that of the sum over a group of ranks, of which this is the first.
    pub(super) together: bool,
    pub(super) off: Off,
}

/// How far each rank is off from the value that the reference has under one of the names.
///
/// # Errors
/// Why it cannot be compared, for people.
pub(super) fn compare(
    at: &At<'_>,
    index: (usize, usize),
    step: &Step,
    known: &Known,
    values: &Values,
    rows: Option<usize>,
) -> Result<Vec<OnRank>, String> {
    let want = known.names.iter().find_map(|n| values.get(n));
    let want = want.ok_or("rewritten: no value of the reference has its name")?;
    let parts = at.recorded.parts.get(&index).ok_or("it was not shown")?;
    if let Kernel::AppendRow(_) = step.kernel {
        return pool_rows(at, step, known, parts, want);
    }
    let mesh = &at.plan.mesh;
    let shape = known.ty.shape(&at.recorded.syms).ok_or("its size is unknown")?;
    let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
    if shape.iter().product::<usize>() != want.len() {
        return Err(format!("it has the shape {shape:?}, the reference {:?}", want.shape));
    }
    let want = Tensor { shape, data: want.data.clone() };
    let mut ty = known.ty.clone();
    let pending = ty.pending.take();
    let wants = cut(&want, &ty, mesh, &at.recorded.syms).map_err(|e| e.to_string())?;
    let unit = rms([&want]);
    let off = |have: &Tensor, want: &Tensor| match (rows, ty.dims.first().is_some_and(|d| d.split.is_some())) {
        // Tokens from one on follow other choices.
        (Some(n), false) => Off::between(&first_rows(have, n), &first_rows(want, n), unit),
        (Some(_), true) => Off::NONE,
        (None, _) => Off::between(have, want, unit),
    };
    let mut out = Vec::new();
    match pending {
        None => {
            for (rank, (part, want)) in parts.iter().zip(&wants).enumerate() {
                if let Some(have) = part {
                    out.push(OnRank { rank, together: false, off: off(have, want) });
                }
            }
        }
        Some((PendingKind::Sum | PendingKind::Owned, axis)) => {
            for (rank, want) in wants.iter().enumerate() {
                let ranks = group(mesh, &axis, rank as u64).ok_or("its axis is not there")?;
                if ranks.first() != Some(&(rank as u64)) {
                    continue;
                }
                let each: Option<Vec<&Tensor>> =
                    ranks.iter().map(|r| parts.get(*r as usize).and_then(Option::as_ref)).collect();
                let sum = sum(&each.ok_or("it was not shown on every rank")?)?;
                out.push(OnRank { rank, together: true, off: off(&sum, want) });
            }
        }
        Some((kind, _)) => return Err(format!("it awaits a merge of {kind:?}")),
    }
    if out.is_empty() {
        return Err("it was not shown".into());
    }
    Ok(out)
}

fn first_rows(t: &Tensor, n: usize) -> Tensor {
    let tokens = t.shape.first().copied().unwrap_or(0);
    let keep = t.len().checked_div(tokens).unwrap_or(0) * n.min(tokens);
    let mut shape = t.shape.clone();
    if let Some(d) = shape.first_mut() {
        *d = n.min(tokens);
    }
    match &t.data {
        Data::F(v) => Tensor::f(shape, v.iter().take(keep).copied().collect()),
        Data::I(v) => Tensor::i(shape, v.iter().take(keep).copied().collect()),
        Data::Q(..) => t.clone(),
    }
}

fn sum(parts: &[&Tensor]) -> Result<Tensor, String> {
    let first = parts.first().ok_or("no part")?;
    let mut out = first.floats().map_err(|e| e.to_string())?.to_vec();
    for p in &parts[1..] {
        let v = p.floats().map_err(|e| e.to_string())?;
        out.iter_mut().zip(v).for_each(|(a, b)| *a += b);
    }
    Ok(Tensor::f(first.shape.clone(), out))
}

/// Rows that ranks put into their parts of a pool.
fn pool_rows(
    at: &At<'_>,
    step: &Step,
    known: &Known,
    parts: &[Option<Tensor>],
    want: &Tensor,
) -> Result<Vec<OnRank>, String> {
    let (all, width) = (want.floats().map_err(|e| e.to_string())?, want.shape.get(1).copied().unwrap_or(1));
    let unit = rms([want]);
    let mut out = Vec::new();
    for (rank, part) in parts.iter().enumerate() {
        let Some(have) = part else { continue };
        let own = at.own_rows(step, rank).ok_or("its rows are named by no step parameter")?;
        let shard = Shard::of(&known.ty, &at.plan.mesh, rank as u64, &at.recorded.syms).map_err(|d| d.message)?;
        let columns: Vec<usize> = shard.ranges[1].iter().flat_map(|r| r.clone()).map(|c| c as usize).collect();
        if columns.iter().any(|c| *c >= width) || own.len() * width != all.len() {
            return Err(format!("the reference has rows {:?}", want.shape));
        }
        let tokens = own.iter().enumerate().filter(|(_, p)| p.is_some()).map(|(t, _)| t);
        let v: Vec<f64> = tokens.flat_map(|t| columns.iter().map(move |c| all[t * width + c])).collect();
        out.push(OnRank { rank, together: false, off: Off::between(have, &Tensor::f(vec![v.len()], v), unit) });
    }
    if out.is_empty() { Err("it was not shown".into()) } else { Ok(out) }
}
