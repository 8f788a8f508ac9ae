//! RMS and layer normalisation over the last dim.
//!
//! Owns the two formulas, with sums in f64. Never chooses an epsilon.

use super::error::{KernelError, want_len};
use rayon::prelude::*;

/// `y_j = w_j x_j / sqrt(mean(x^2) + eps)` for each row of `x`, whose length is `w`'s.
///
/// # Errors
/// If `x` is not whole rows or `y` has another length.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) -> Result<(), KernelError> {
    rows(x, w.len(), y, |x, y| {
        let mean = sum(x, |v| v * v) / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        for ((y, &x), &w) in y.iter_mut().zip(x).zip(w) {
            *y = (f64::from(x) * scale) as f32 * w;
        }
    })
}

/// `y_j = w_j (x_j - mean) / sqrt(var + eps) + b_j` with the population variance, for each row of `x`.
///
/// # Errors
/// If `x` is not whole rows, `y` has another length, or `b` another than `w`.
pub fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]) -> Result<(), KernelError> {
    want_len("b", b.len(), &[w.len()])?;
    rows(x, w.len(), y, |x, y| {
        let mean = sum(x, |v| v) / x.len() as f64;
        let var = sum(x, |v| (v - mean) * (v - mean)) / x.len() as f64;
        let scale = 1.0 / (var + f64::from(eps)).sqrt();
        for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(w).zip(b) {
            *y = ((f64::from(x) - mean) * scale) as f32 * w + b;
        }
    })
}

/// Eight running sums, so that the additions overlap.
fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let (chunks, tail) = x.as_chunks::<8>();
    let mut acc = [0.0; 8];
    for c in chunks {
        for (a, &v) in acc.iter_mut().zip(c) {
            *a += f(f64::from(v));
        }
    }
    acc.iter().sum::<f64>() + tail.iter().map(|&v| f(f64::from(v))).sum::<f64>()
}

fn rows(x: &[f32], d: usize, y: &mut [f32], f: impl Fn(&[f32], &mut [f32]) + Sync) -> Result<(), KernelError> {
    if d == 0 {
        return Err(KernelError::Dim { what: "the norm's width", have: 0, need: "at least 1" });
    }
    want_len("x", x.len(), &[x.len() / d, d])?;
    want_len("y", y.len(), &[x.len()])?;
    let least = (1_usize << 14).div_ceil(d);
    x.par_chunks(d).with_min_len(least).zip(y.par_chunks_mut(d)).for_each(|(x, y)| f(x, y));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{layer_norm, rms_norm};
    use crate::device::cpu::testing::{Rng, on_threads};

    #[test]
    fn equal_the_formulas() {
        for (t, d) in [(1, 1), (3, 7), (5, 128), (40, 513)] {
            let mut rng = Rng::new(d as u64);
            let x: Vec<f32> = rng.floats(t * d).iter().map(|v| v + 3.0).collect();
            let (w, b) = (rng.floats(d), rng.floats(d));
            let rms = on_threads(|| {
                let mut y = vec![f32::NAN; t * d];
                rms_norm(&x, &w, 1e-5, &mut y).unwrap();
                y
            });
            let ln = on_threads(|| {
                let mut y = vec![f32::NAN; t * d];
                layer_norm(&x, &w, &b, 1e-6, &mut y).unwrap();
                y
            });
            for r in 0..t {
                let row: Vec<f64> = x[r * d..(r + 1) * d].iter().map(|&v| f64::from(v)).collect();
                let mean = row.iter().sum::<f64>() / d as f64;
                let sq = row.iter().map(|v| v * v).sum::<f64>() / d as f64;
                let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / d as f64;
                for j in 0..d {
                    let want = f64::from(w[j]) * row[j] / (sq + 1e-5_f32 as f64).sqrt();
                    assert!((f64::from(rms[r * d + j]) - want).abs() <= 3e-7 * want.abs());
                    let want = f64::from(w[j]) * (row[j] - mean) / (var + 1e-6_f32 as f64).sqrt() + f64::from(b[j]);
                    assert!((f64::from(ln[r * d + j]) - want).abs() <= 1e-6, "{want}");
                }
            }
        }
    }

    #[test]
    fn a_constant_row_has_no_variance() {
        let mut y = [f32::NAN; 4];
        layer_norm(&[5.0; 4], &[1.0; 4], &[0.25; 4], 1e-6, &mut y).unwrap();
        assert_eq!(y, [0.25; 4]);
    }

    #[test]
    fn refuse_ragged_rows() {
        assert!(rms_norm(&[1.0; 5], &[1.0; 2], 0.0, &mut [0.0; 5]).is_err());
        assert!(rms_norm(&[1.0; 4], &[1.0; 2], 0.0, &mut [0.0; 5]).is_err());
        assert!(rms_norm(&[], &[], 0.0, &mut []).is_err());
        assert!(layer_norm(&[1.0; 4], &[1.0; 2], &[0.0; 3], 0.0, &mut [0.0; 4]).is_err());
    }
}
