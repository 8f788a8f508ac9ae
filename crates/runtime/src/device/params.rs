//! Owns what of a step parameter a rank gets: the engine gives it whole.

use std::borrow::Cow;

use glmc_ir::placement::{Mesh, strip};
use glmc_ir::shard_map::Shard;
use glmc_ir::ty::{SymValues, TensorType};

use crate::collective::take;

/// The part of `rank` of a whole parameter of type `ty` (32-bit words) at these values of the symbols.
///
/// # Errors
/// A type that no whole value has, or words of another number than it needs.
pub fn own_param<'v>(
    ty: &TensorType,
    whole: &'v [i32],
    mesh: &Mesh,
    rank: usize,
    syms: &SymValues,
) -> Result<Cow<'v, [i32]>, String> {
    let told = |m: String| format!("a step parameter of type {ty}: {m}");
    if ty.pending.is_some() {
        return Err(told("a whole value is not pending".into()));
    }
    if strip(ty) == *ty {
        return Ok(Cow::Borrowed(whole));
    }
    let shard = Shard::of(ty, mesh, rank as u64, syms).map_err(|d| told(d.message))?;
    let shape = ty.shape(syms).ok_or_else(|| told("its size is unknown".into()))?;
    let mut shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
    let mut part: Vec<u32> = bytemuck::cast_slice(whole).to_vec();
    for (d, ranges) in shard.ranges.iter().enumerate().filter(|(d, _)| ty.dims[*d].split.is_some()) {
        let held: usize = ranges.iter().map(|r| (r.end - r.start) as usize).sum();
        let mut next = vec![0; part.len().checked_div(shape[d]).unwrap_or(0) * held];
        take(&part, &shape, d, ranges, &mut next).map_err(|e| told(e.to_string()))?;
        (part, shape[d]) = (next, held);
    }
    Ok(Cow::Owned(part.into_iter().map(u32::cast_signed).collect()))
}
