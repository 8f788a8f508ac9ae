//! Owns what a rank holds and runs: the local form of types and of ops. The one place where an attribute that speaks of
//! global sizes is put into a rank's sizes.
//!
//! - A split dim has the extent of the rank's part; pieces of a joined dim have theirs.
//! - A part of a pending sum or maximum looks like the value. A part of a pending softmax merge is what
//!   [`crate::ops::AttentionPart`] gives, a part of a pending top-k merge what [`crate::ops::TopKPart`] gives: they
//!   carry what the merge needs.

use super::Mesh;
use crate::diag::Diagnostic;
use crate::op::Op;
use crate::ops::{AttentionPart, Fused, Piece, Reshape, TopKPart};
use crate::shard_map::Shard;
use crate::ty::{Dim, Elem, Extent, PendingKind, SymValues, TensorType};

/// The type of a rank's part of `ty`: constant dims, no placement.
///
/// # Errors
/// See [`crate::shard_map::CODES`].
pub fn local_type(ty: &TensorType, mesh: &Mesh, rank: u64, syms: &SymValues) -> Result<TensorType, Diagnostic> {
    Ok(type_of(ty, &Shard::of(ty, mesh, rank, syms)?))
}

/// The type of the part `shard` of `ty`.
pub(crate) fn type_of(ty: &TensorType, shard: &Shard) -> TensorType {
    let dims = ty.dims.iter().zip(&shard.ranges).map(|(d, ranges)| {
        let n = ranges.iter().map(|r| r.end - r.start).sum();
        let extent = match &d.extent {
            // A joined dim that is not split is one range over all its pieces.
            Extent::Joined(p) if d.split.is_none() => Extent::Joined(p.clone()),
            Extent::Joined(p) => {
                let parts = ranges.iter().map(|r| r.end - r.start);
                Extent::Joined(p.iter().zip(parts).map(|((name, _), n)| (name.clone(), n)).collect())
            }
            _ => Extent::Const(n),
        };
        Dim { extent, split: None }
    });
    let t = TensorType { pending: None, ..ty.with_dims(dims.collect()) };
    match &ty.pending {
        Some((PendingKind::Softmax, _)) => softmax_part(&t),
        Some((PendingKind::TopK, _)) => topk_part(&t),
        _ => t,
    }
}

/// The type of a part that is to be merged by softmax: see [`crate::ops::AttentionPart`].
pub fn softmax_part(t: &TensorType) -> TensorType {
    let n = t.last().and_then(|d| d.extent.as_const()).unwrap_or(0);
    joined_last(t, &[("o", n), ("max", 1), ("sum", 1)])
}

/// The type of a part that is to be merged by selecting again: see [`crate::ops::TopKPart`].
pub fn topk_part(t: &TensorType) -> TensorType {
    let k = t.last().and_then(|d| d.extent.as_const()).unwrap_or(0);
    joined_last(t, &[("at", k), ("score", k)])
}

fn joined_last(t: &TensorType, pieces: &[(&str, u64)]) -> TensorType {
    let mut t = t.with_elem(Elem::F32);
    t.dims.pop();
    t.dims.push(Dim::joined(pieces));
    t
}

/// What a rank runs of `op`, given its parts' types and whether a dim that the op reduces is split.
pub fn local_op(op: &Op, args: &[TensorType], results: &[TensorType], pending: Option<PendingKind>) -> Op {
    match (op, pending) {
        (Op::Attention(a), Some(PendingKind::Softmax)) => AttentionPart::from(a.clone()).into(),
        (Op::TopK(t), Some(PendingKind::TopK)) => TopKPart { k: t.k }.into(),
        (Op::Reshape(_), _) => Reshape { dims: results[0].dims.clone() }.into(),
        (Op::Piece(p), _) => match args[0].last().map(|d| &d.extent) {
            Some(Extent::Joined(of)) => Piece { name: p.name.clone(), of: of.clone() }.into(),
            _ => op.clone(),
        },
        (Op::Fused(f), _) => Fused::of(f.kernel.clone(), &args.iter().collect::<Vec<_>>()).into(),
        _ => op.clone(),
    }
}
