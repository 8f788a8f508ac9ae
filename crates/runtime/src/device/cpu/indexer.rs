//! The lightning indexer's scores.
//!
//! Owns `score[t, s] = sum_h w[t, h] relu(scale q[t, h] . k[s])` over visible positions. It never selects: see `topk`.

use super::attention::check_maps;
use super::cached::Cached;
use super::error::{KernelError, want_len};
use super::gemm::products;
use super::simd::{Kernel, Simd, dispatch};
use rayon::prelude::*;

/// Positions of one task.
const TASK: usize = 1024;

/// What the indexer reads.
#[derive(Clone, Copy, Debug)]
pub struct IndexerArgs<'a> {
    /// Queries `[T, H, d]`.
    pub q: &'a [f32],
    /// Weights of the heads `[T, H]`, of any sign.
    pub w: &'a [f32],
    /// Keys `[Q, S, d]`, shared by the heads.
    pub k: Cached<'a>,
    /// Number of heads, H.
    pub heads: usize,
    /// Width of queries and keys.
    pub d: usize,
    /// Number of sequences, Q.
    pub seqs: usize,
    /// Positions stored for each sequence, S.
    pub positions: usize,
    /// `[T]`: the sequence of each token.
    pub seq: &'a [i32],
    /// `[T]`: how many positions each token may see.
    pub len: &'a [i32],
    /// Factor inside the ReLU.
    pub scale: f32,
}

/// `score[t, s] = sum_h w[t, h] relu(scale q[t, h] . k[seq[t], s])` for `s < len[t]`, -inf elsewhere. `score` is
/// `[T, S]`. Hidden keys are not read.
///
/// # Errors
/// If the slices do not fit the shapes, a sequence does not exist, or a length exceeds the stored positions.
pub fn indexer_scores(a: &IndexerArgs<'_>, score: &mut [f32]) -> Result<(), KernelError> {
    let t = a.seq.len();
    want_len("q", a.q.len(), &[t, a.heads, a.d])?;
    want_len("w", a.w.len(), &[t, a.heads])?;
    a.k.check("k", a.seqs * a.positions)?;
    want_len("len", a.len.len(), &[t])?;
    want_len("score", score.len(), &[t, a.positions])?;
    check_maps(a.seq, a.seqs, a.len, a.positions)?;
    if score.is_empty() {
        return Ok(());
    }
    score.par_chunks_mut(a.positions).enumerate().for_each(|(t, score)| {
        let (visible, hidden) = score.split_at_mut(usize::try_from(a.len[t]).unwrap_or(0));
        hidden.fill(f32::NEG_INFINITY);
        let q: Vec<&[f32]> = (0..a.heads).map(|h| &a.q[(t * a.heads + h) * a.d..][..a.d]).collect();
        let w = &a.w[t * a.heads..(t + 1) * a.heads];
        let base = usize::try_from(a.seq[t]).unwrap_or(0) * a.positions;
        visible.par_chunks_mut(TASK).enumerate().for_each(|(i, score)| {
            let first = base + i * TASK;
            let k: Vec<&[f32]> = (first..first + score.len()).map(|s| a.k.row(s)).collect();
            dispatch(Scores { q: &q, w, k: &k, scale: a.scale, score });
        });
    });
    Ok(())
}

struct Scores<'a> {
    q: &'a [&'a [f32]],
    w: &'a [f32],
    k: &'a [&'a [f32]],
    scale: f32,
    score: &'a mut [f32],
}

impl Kernel for Scores<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.score.fill(0.0);
        // Heads come in increasing order for each position. A NaN passes the comparison, so it is not hidden.
        products(s, self.q, self.k, |h, i, v| {
            let v = v * self.scale;
            self.score[i] += self.w[h] * if v <= 0.0 { 0.0 } else { v };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Cached, IndexerArgs, indexer_scores};
    use crate::device::cpu::testing::{Rng, on_threads};

    fn check(heads: usize, d: usize, positions: usize, len: &[i32]) {
        let mut rng = Rng::new(4);
        let (t, seqs) = (len.len(), 2);
        let seq: Vec<i32> = (0..t).map(|t| (t % 2) as i32).collect();
        let (q, w) = (rng.floats(t * heads * d), rng.floats(t * heads));
        let mut k = rng.floats(seqs * positions * d);
        for s in 0..seqs * positions {
            let sees = |t: usize| {
                seq[t] as usize == s / positions && (s % positions) as i32 >= 0 && ((s % positions) as i32) < len[t]
            };
            if !(0..t).any(sees) {
                k[s * d..(s + 1) * d].fill(f32::NAN);
            }
        }
        let args = IndexerArgs {
            q: &q,
            w: &w,
            k: Cached::dense(&k, d),
            heads,
            d,
            seqs,
            positions,
            seq: &seq,
            len,
            scale: 0.3,
        };
        let score = on_threads(|| {
            let mut score = vec![f32::NAN; t * positions];
            indexer_scores(&args, &mut score).unwrap();
            score
        });
        for (i, &got) in score.iter().enumerate() {
            let (t, s) = (i / positions, i % positions);
            if s as i32 >= len[t] {
                assert_eq!(got, f32::NEG_INFINITY);
                continue;
            }
            let key = &k[(seq[t] as usize * positions + s) * d..][..d];
            let want: f64 = (0..heads)
                .map(|h| {
                    let q = &q[(t * heads + h) * d..][..d];
                    let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    f64::from(w[t * heads + h]) * (dot * f64::from(0.3_f32)).max(0.0)
                })
                .sum();
            assert!((f64::from(got) - want).abs() < 2e-5, "{got} for {want}");
        }
    }

    #[test]
    fn equals_the_definition() {
        check(1, 1, 1, &[1]);
        check(3, 5, 7, &[7, 0, 3]);
        check(32, 128, 50, &[50, 49, 1]);
        check(9, 20, 2500, &[2500, 1025]);
    }

    #[test]
    fn a_nan_key_in_sight_is_not_hidden() {
        let args = IndexerArgs {
            q: &[1.0],
            w: &[1.0],
            k: Cached::dense(&[1.0, f32::NAN], 1),
            heads: 1,
            d: 1,
            seqs: 1,
            positions: 2,
            seq: &[0],
            len: &[2],
            scale: 1.0,
        };
        let mut score = [0.0; 2];
        indexer_scores(&args, &mut score).unwrap();
        assert!(score[0] == 1.0 && score[1].is_nan());
        assert!(indexer_scores(&IndexerArgs { len: &[3], ..args }, &mut score).is_err());
        assert!(indexer_scores(&IndexerArgs { seq: &[2], ..args }, &mut score).is_err());
    }
}
