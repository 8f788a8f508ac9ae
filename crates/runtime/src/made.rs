//! Weights that are made and not read: which blocks of its tensors a rank holds, and their bytes on the host. The model's
//! files give nothing but their headers.

use glmc_ir::plan::{Plan, Recipe};
use glmc_ir::quant::made::{self, Run};
use glmc_ir::quant::synth::Fill;
use glmc_ir::shard_map::Shard;
use glmc_ir::ty::SymValues;

use crate::error::RuntimeError;

/// The blocks of a weight's tensor that `rank` holds, in the order of its slices.
///
/// # Errors
/// Slices that cut blocks or lie outside the tensor.
pub fn runs(recipe: &Recipe, rank: usize) -> Result<Vec<Run>, RuntimeError> {
    let refuse = || RuntimeError::Request(format!("weight `{}`: a slice that cuts blocks of its tensor", recipe.name));
    let block = recipe.ty.elem.in_file().storage().map(|q| q.block_bytes() as u64).ok_or_else(refuse)?;
    let whole = |bytes: u64| bytes.is_multiple_of(block).then_some(bytes / block);
    let slices = recipe.slices.get(rank).ok_or_else(refuse)?.iter();
    let run = |s: &glmc_ir::plan::Slice| {
        let start = s.offset.checked_sub(recipe.span.offset).filter(|_| s.part == recipe.span.part)?;
        let (first, piece) = (whole(start)?, whole(s.bytes)?);
        let stride = if s.count > 1 { whole(s.stride)? } else { piece };
        Some(Run { first, piece, count: s.count, stride })
    };
    slices.map(|s| run(s).ok_or_else(refuse)).collect()
}

/// A rank's bytes of a weight, as its recipe would take them from a file that [`Fill`] has written.
///
/// # Errors
/// As for [`runs`].
pub fn stored(plan: &Plan, recipe: &Recipe, rank: usize, fill: &Fill) -> Result<Vec<u8>, RuntimeError> {
    let refuse = |why: &str| RuntimeError::Request(format!("weight `{}`: {why}", recipe.name));
    let q = recipe.ty.elem.in_file().storage().ok_or_else(|| refuse("its type is that of no file"))?;
    let bytes = made::bytes(q, fill, &runs(recipe, rank)?);
    if recipe.ty.elem == recipe.ty.elem.in_file() {
        return Ok(bytes);
    }
    let shard = Shard::of(&recipe.ty, &plan.mesh, rank as u64, &SymValues::default());
    Ok(shard.map_err(|d| refuse(&d.message))?.stored(bytes))
}
