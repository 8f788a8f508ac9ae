//! The largest elements of each row, in a total and documented order.
//!
//! Owns the order: larger first, equal ones by smaller index. A NaN is an error, never a choice.

use super::error::{KernelError, want_len};
use rayon::prelude::*;
use std::cmp::Ordering;

/// `ids[t, :]` = indices of the `k` largest elements of row t that are above -inf, padded with -1.
///
/// `score` is `[rows, n]`, `ids` is `[rows, k]`. Larger scores come first; among equal ones the smaller index.
///
/// # Errors
/// [`KernelError::Nan`] for the first NaN (`ids` is then unspecified); or if the slices do not fit the shapes.
pub fn topk(score: &[f32], rows: usize, k: usize, ids: &mut [i32]) -> Result<(), KernelError> {
    let n = score.len().checked_div(rows).unwrap_or(0);
    want_len("score", score.len(), &[rows, n])?;
    want_len("ids", ids.len(), &[rows, k])?;
    if n > i32::MAX as usize {
        return Err(KernelError::Dim { what: "the scores' width", have: n, need: "at most 2^31 - 1" });
    }
    if let Some(at) = score.par_iter().position_first(|v| v.is_nan()) {
        return Err(KernelError::Nan { what: "score", row: at / n, at: at % n });
    }
    if n == 0 || k == 0 {
        ids.fill(-1);
        return Ok(());
    }
    score.par_chunks(n).zip(ids.par_chunks_mut(k)).for_each(|(score, ids)| row(score, ids));
    Ok(())
}

/// [`topk`] over some of the entries, to be merged with the rest: `out` is `[rows, 2 k]`, of each row the positions as
/// `whole` counts them and then the scores, padded with -1 and -inf.
///
/// # Errors
/// As for [`topk`].
pub fn topk_part(
    score: &[f32],
    rows: usize,
    k: usize,
    whole: impl Fn(usize) -> u64,
    out: &mut [f32],
) -> Result<(), KernelError> {
    want_len("out", out.len(), &[rows, 2, k])?;
    let mut ids = vec![-1; rows * k];
    topk(score, rows, k, &mut ids)?;
    let n = score.len().checked_div(rows).unwrap_or(0);
    for (r, (out, ids)) in out.chunks_exact_mut((2 * k).max(1)).zip(ids.chunks_exact(k.max(1))).enumerate() {
        let (at, best) = out.split_at_mut(k);
        for ((at, best), id) in at.iter_mut().zip(best).zip(ids) {
            (*at, *best) = match usize::try_from(*id) {
                Ok(i) => (whole(i) as f32, score[r * n + i]),
                Err(_) => (-1.0, f32::NEG_INFINITY),
            };
        }
    }
    Ok(())
}

/// Descending by score, then ascending by index. The scores are not NaN.
pub(super) fn before(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    // Adding 0 makes -0 equal to +0.
    (b.0 + 0.0).total_cmp(&(a.0 + 0.0)).then(a.1.cmp(&b.1))
}

fn row(score: &[f32], ids: &mut [i32]) {
    let k = ids.len();
    let mut best: Vec<(f32, u32)> = score.iter().copied().zip(0..).filter(|&(v, _)| v > f32::NEG_INFINITY).collect();
    if best.len() > k {
        best.select_nth_unstable_by(k - 1, before);
        best.truncate(k);
    }
    best.sort_unstable_by(before);
    ids.fill(-1);
    for (id, (_, i)) in ids.iter_mut().zip(best) {
        *id = i.cast_signed();
    }
}

#[cfg(test)]
mod tests {
    use super::topk;
    use crate::device::cpu::error::KernelError;
    use crate::device::cpu::testing::Rng;

    #[test]
    fn orders_ties_by_index_and_pads() {
        let inf = f32::INFINITY;
        let score = [1.0, 2.0, 2.0, -inf, inf, -inf, 0.0, -0.0, 0.0, -5.0, -inf, -inf];
        let mut ids = [0; 8];
        topk(&score, 2, 4, &mut ids).unwrap();
        assert_eq!(ids, [4, 1, 2, 0, 0, 1, 2, 3]);
        let mut ids = [0; 12];
        topk(&score, 2, 6, &mut ids).unwrap();
        assert_eq!(ids, [4, 1, 2, 0, -1, -1, 0, 1, 2, 3, -1, -1]);
    }

    #[test]
    fn equals_a_full_sort() {
        let mut rng = Rng::new(9);
        for n in [1_usize, 2, 31, 1000] {
            let score: Vec<f32> = (0..3 * n).map(|_| (rng.float() * 20.0).round()).collect();
            for k in [1, 2, n.div_ceil(2), n, n + 3] {
                let mut ids = vec![7; 3 * k];
                topk(&score, 3, k, &mut ids).unwrap();
                for t in 0..3 {
                    let row = &score[t * n..(t + 1) * n];
                    let mut all: Vec<usize> = (0..n).collect();
                    all.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap());
                    let want = all.iter().map(|&i| i as i32).chain(std::iter::repeat(-1)).take(k);
                    assert!(ids[t * k..(t + 1) * k].iter().copied().eq(want));
                }
            }
        }
    }

    #[test]
    fn a_nan_is_an_error_that_names_it() {
        let mut ids = [0; 4];
        let error = topk(&[0.0, 1.0, 2.0, f32::NAN], 2, 2, &mut ids).unwrap_err();
        assert_eq!(error, KernelError::Nan { what: "score", row: 1, at: 1 });
        assert!(topk(&[-f32::NAN, 1.0], 1, 1, &mut [0]).is_err());
        assert!(topk(&[0.0; 5], 2, 1, &mut [0; 2]).is_err());
    }
}
