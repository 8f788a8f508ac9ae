//! Owns the merge of each pending kind. Parts are merged in the order of their ranks, so every rank that merges them
//! gets the same bits.

use std::sync::Arc;

use glmc_ir::ty::{Elem, PendingKind};

use super::MeetError;

/// The value that parts are pending, to `out`; `width` is the extent of its last dim, `elem` its element.
///
/// # Errors
/// Parts of another length than the kind needs.
pub(super) fn merge(
    kind: PendingKind,
    elem: Elem,
    width: usize,
    parts: &[Arc<[u32]>],
    out: &mut [u32],
) -> Result<(), MeetError> {
    let rows = out.len().checked_div(width).unwrap_or(0);
    let want = match kind {
        PendingKind::Sum | PendingKind::Owned | PendingKind::Max => out.len(),
        PendingKind::Softmax => rows * (width + 2),
        PendingKind::TopK => 2 * out.len(),
    };
    if let Some(p) = parts.iter().find(|p| p.len() != want) {
        return Err(MeetError::length("a rank's part", p.len(), want));
    }
    match (kind, elem) {
        (PendingKind::Sum | PendingKind::Owned, Elem::I32) => fold::<i32>(parts, out, i32::wrapping_add),
        (PendingKind::Sum | PendingKind::Owned, _) => fold::<f32>(parts, out, |a, b| a + b),
        (PendingKind::Max, Elem::I32) => fold::<i32>(parts, out, i32::max),
        (PendingKind::Max, _) => fold::<f32>(parts, out, f32::max),
        (PendingKind::Softmax, _) => softmax(parts, width, out),
        (PendingKind::TopK, _) => topk(parts, width, out),
    }
    Ok(())
}

fn fold<T: bytemuck::Pod>(parts: &[Arc<[u32]>], out: &mut [u32], f: impl Fn(T, T) -> T) {
    let Some((first, rest)) = parts.split_first() else { return };
    out.copy_from_slice(first);
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    for p in rest {
        out.iter_mut().zip(bytemuck::cast_slice::<u32, T>(p)).for_each(|(a, b)| *a = f(*a, *b));
    }
}

/// Rows `(o.., max, sum)`; see `ir::ops::AttentionPart`. Without a visible key anywhere, zeros.
fn softmax(parts: &[Arc<[u32]>], width: usize, out: &mut [u32]) {
    let rows = bytemuck::cast_slice_mut::<u32, f32>(out).chunks_exact_mut(width.max(1));
    for (r, out) in rows.enumerate() {
        out.fill(0.0);
        let row = |p| &bytemuck::cast_slice::<u32, f32>(p)[r * (width + 2)..(r + 1) * (width + 2)];
        let held: Vec<&[f32]> = parts.iter().map(|p| row(p)).filter(|row| row[width + 1] != 0.0).collect();
        let most = held.iter().map(|row| row[width]).fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = held.iter().map(|row| row[width + 1] * (row[width] - most).exp()).collect();
        let total: f32 = weights.iter().sum();
        for (row, w) in held.iter().zip(&weights) {
            out.iter_mut().zip(*row).for_each(|(y, o)| *y += w / total * o);
        }
    }
}

/// Rows `(at.., score..)`; see `ir::ops::TopKPart`.
fn topk(parts: &[Arc<[u32]>], k: usize, out: &mut [u32]) {
    let rows = bytemuck::cast_slice_mut::<u32, i32>(out).chunks_exact_mut(k.max(1));
    for (r, out) in rows.enumerate() {
        let row = |p| bytemuck::cast_slice::<u32, f32>(p)[2 * r * k..2 * (r + 1) * k].split_at(k);
        let pairs = parts.iter().map(|p| row(p)).flat_map(|(at, score)| at.iter().copied().zip(score.iter().copied()));
        let mut found: Vec<(f32, f32)> = pairs.filter(|(at, _)| *at >= 0.0).collect();
        // Adding 0 makes -0 equal to +0.
        found.sort_by(|(a, x), (b, y)| (y + 0.0).total_cmp(&(x + 0.0)).then(a.total_cmp(b)));
        out.fill(-1);
        out.iter_mut().zip(found).for_each(|(out, (at, _))| *out = at as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(v: &[f32]) -> Arc<[u32]> {
        v.iter().map(|x| x.to_bits()).collect()
    }

    fn floats(v: &[u32]) -> Vec<f32> {
        v.iter().map(|x| f32::from_bits(*x)).collect()
    }

    #[test]
    fn sums_go_in_the_order_of_ranks() {
        let parts = [part(&[1e8, 1.0]), part(&[-1e8, 2.0]), part(&[1.0, f32::NAN])];
        let mut out = [0; 2];
        merge(PendingKind::Sum, Elem::F32, 2, &parts, &mut out).unwrap();
        assert_eq!(floats(&out)[0], 1.0);
        assert!(floats(&out)[1].is_nan());
        assert!(merge(PendingKind::Sum, Elem::F32, 3, &parts, &mut [0; 3]).is_err());
    }

    #[test]
    fn softmax_parts_weigh_by_their_sums_and_empty_ones_count_nothing() {
        // Scores 0 and ln 3 on one rank, ln 4 on the other, none on the third.
        let (l3, l4) = (3_f32.ln(), 4_f32.ln());
        let first = (1.0 * 10.0 + 3.0 * 20.0) / 4.0;
        let none = [0.0, f32::NEG_INFINITY, 0.0];
        let parts = [part(&[first, l3, 4.0 / 3.0]), part(&[30.0, l4, 1.0]), part(&none)];
        let mut out = [0];
        merge(PendingKind::Softmax, Elem::F32, 1, &parts, &mut out).unwrap();
        assert!((floats(&out)[0] - (10.0 + 60.0 + 120.0) / 8.0).abs() < 1e-4);
        merge(PendingKind::Softmax, Elem::F32, 1, &[part(&none), part(&none)], &mut out).unwrap();
        assert_eq!(floats(&out), [0.0]);
    }

    #[test]
    fn topk_parts_are_selected_again() {
        let inf = f32::NEG_INFINITY;
        let parts = [part(&[4.0, 1.0, 5.0, 2.0]), part(&[7.0, -1.0, 5.0, inf])];
        let mut out = [0; 2];
        merge(PendingKind::TopK, Elem::I32, 2, &parts, &mut out).unwrap();
        assert_eq!(out.map(u32::cast_signed), [4, 7]);
    }
}
