//! Contraction over the middle dim of stacked weights: `out[s, h, n] = sum_c x[s, c] w[h, c, n]`.
//!
//! Owns the key expansion of latent attention, whose weights are stored along `n`. Weights are decoded one head at a
//! time. Never transposes or keeps decoded weights.

use super::dot::decode_rows;
use super::error::{KernelError, want_len};
use super::gemm::weighted;
use super::matmul::WeightView;
use super::simd::{Kernel, Simd, dispatch};
use rayon::prelude::*;

/// Positions of one task.
const TASK: usize = 64;

/// `out[s, h, n] = sum_c x[s, c] w[h, c, n]`.
///
/// `w` holds `heads * C` rows of `N` elements; `x` is `[positions, C]`, `out` is `[positions, heads, N]`.
///
/// # Errors
/// If the slices do not fit the shapes or `heads` does not divide the rows of `w`.
pub fn matmul_mid(
    w: WeightView<'_>,
    heads: usize,
    x: &[f32],
    positions: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let (n, c) = (w.k(), w.n().checked_div(heads).unwrap_or(0));
    if c * heads != w.n() || heads == 0 {
        return Err(KernelError::Dim { what: "heads", have: heads, need: "a divisor of the weight's rows" });
    }
    want_len("x", x.len(), &[positions, c])?;
    want_len("out", out.len(), &[positions, heads, n])?;
    if out.is_empty() {
        return Ok(());
    }
    let xs: Vec<&[f32]> = (0..positions).map(|s| &x[s * c..(s + 1) * c]).collect();
    let mut by_head: Vec<Vec<&mut [f32]>> = (0..heads).map(|_| Vec::with_capacity(positions)).collect();
    for (i, row) in out.chunks_mut(n).enumerate() {
        by_head[i % heads].push(row);
    }
    by_head.into_par_iter().enumerate().for_each(|(h, mut out)| {
        let mut rows = vec![0.0; c * n];
        decode_rows(w.ty(), w.rows(h * c, c).bytes(), n, &mut rows, n);
        xs.par_chunks(TASK).zip(out.par_chunks_mut(TASK)).for_each(|(xs, out)| {
            dispatch(Expand { xs, rows: &rows, n, out });
        });
    });
    Ok(())
}

struct Expand<'a, 'y> {
    xs: &'a [&'a [f32]],
    rows: &'a [f32],
    n: usize,
    out: &'a mut [&'y mut [f32]],
}

impl Kernel for Expand<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Expand { xs, rows, n, out } = self;
        weighted(s, xs, &|c| &rows[c * n..(c + 1) * n], out);
    }
}

#[cfg(test)]
mod tests {
    use super::matmul_mid;
    use crate::device::cpu::matmul::WeightView;
    use crate::device::cpu::testing::{Rng, close, on_threads, weights};
    use glmc_ir::quant::QuantType;

    #[test]
    fn equals_the_definition() {
        for (ty, heads, c, n) in [
            (QuantType::Q5_0, 3, 5, 192),
            (QuantType::F32, 2, 7, 19),
            (QuantType::Q8_0, 1, 1, 32),
            (QuantType::Q4_K, 2, 3, 256),
        ] {
            for s in [1, 2, 5, 8, 70] {
                let (bytes, w) = weights(ty, heads * c, n, 5);
                let x = Rng::new(6).floats(s * c);
                let view = WeightView::new(ty, &bytes, heads * c, n).unwrap();
                let out = on_threads(|| {
                    let mut out = vec![f32::NAN; s * heads * n];
                    matmul_mid(view, heads, &x, s, &mut out).unwrap();
                    out
                });
                for (i, &y) in out.iter().enumerate() {
                    let (s, h, n_) = (i / (heads * n), i / n % heads, i % n);
                    close(y, (0..c).map(|c_| (x[s * c + c_], w[(h * c + c_) * n + n_])), 2e-6);
                }
            }
        }
    }

    #[test]
    fn refuses_wrong_shapes() {
        let (bytes, _) = weights(QuantType::F32, 6, 4, 1);
        let view = WeightView::new(QuantType::F32, &bytes, 6, 4).unwrap();
        assert!(matmul_mid(view, 4, &[0.0; 6], 1, &mut [0.0; 4]).is_err());
        assert!(matmul_mid(view, 2, &[0.0; 4], 1, &mut [0.0; 8]).is_err());
    }
}
