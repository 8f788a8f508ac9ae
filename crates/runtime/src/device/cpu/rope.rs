//! Rotary position embedding over interleaved pairs.
//!
//! Owns the rotation, with angles, cosines and sines in f64. Never scales positions or frequencies.

use super::error::{KernelError, want_len};
use rayon::prelude::*;

/// Rotates each pair (2j, 2j+1) of the last dim by `positions[t] * theta^(-2j/d)`.
///
/// `y[2j] = x[2j] cos - x[2j+1] sin`, `y[2j+1] = x[2j] sin + x[2j+1] cos`. `x` and `y` are `[T, heads, d]` with T the
/// number of positions.
///
/// # Errors
/// If `d` is odd or a slice does not fit the shape.
pub fn rope(
    x: &[f32],
    heads: usize,
    d: usize,
    positions: &[i32],
    theta: f64,
    y: &mut [f32],
) -> Result<(), KernelError> {
    if !d.is_multiple_of(2) {
        return Err(KernelError::Dim { what: "the rotated width", have: d, need: "an even number" });
    }
    want_len("x", x.len(), &[positions.len(), heads, d])?;
    want_len("y", y.len(), &[x.len()])?;
    if x.is_empty() {
        return Ok(());
    }
    let freqs: Vec<f64> = (0..d / 2).map(|j| theta.powf(-2.0 * j as f64 / d as f64)).collect();
    let row = heads * d;
    x.par_chunks(row).zip(y.par_chunks_mut(row)).zip(positions).with_min_len(8).for_each(|((x, y), &p)| {
        let turns: Vec<(f32, f32)> = freqs
            .iter()
            .map(|f| {
                let (sin, cos) = (f64::from(p) * f).sin_cos();
                (cos as f32, sin as f32)
            })
            .collect();
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
            for ((x, y), &(cos, sin)) in x.as_chunks::<2>().0.iter().zip(y.as_chunks_mut::<2>().0).zip(&turns) {
                *y = [x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos];
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::rope;
    use crate::device::cpu::testing::{Rng, on_threads};

    #[test]
    fn rotates_neighbours_not_halves() {
        let mut y = [0.0; 8];
        rope(&[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 1, 8, &[1], 1e6, &mut y).unwrap();
        assert_eq!(y, [1_f32.cos(), 1_f32.sin(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn equals_the_formula_far_out() {
        let (heads, d, theta) = (3, 64, 8e6_f64);
        let positions = [0, 1, 17, 1_000_003, 7, 8, 9, 10, 11, 12];
        let x = Rng::new(1).floats(positions.len() * heads * d);
        let y = on_threads(|| {
            let mut y = vec![f32::NAN; x.len()];
            rope(&x, heads, d, &positions, theta, &mut y).unwrap();
            y
        });
        for i in (0..x.len()).step_by(2) {
            let (t, j) = (i / (heads * d), i % d / 2);
            let angle = f64::from(positions[t]) * theta.powf(-(2.0 * j as f64) / d as f64);
            let (a, b) = (f64::from(x[i]), f64::from(x[i + 1]));
            assert!((f64::from(y[i]) - (a * angle.cos() - b * angle.sin())).abs() < 3e-7);
            assert!((f64::from(y[i + 1]) - (a * angle.sin() + b * angle.cos())).abs() < 3e-7);
        }
    }

    #[test]
    fn only_the_distance_of_positions_matters() {
        let mut rng = Rng::new(2);
        let (q, k) = (rng.floats(64), rng.floats(64));
        let score = |p: i32, s: i32| {
            let (mut a, mut b) = (vec![0.0; 64], vec![0.0; 64]);
            rope(&q, 1, 64, &[p], 1e6, &mut a).unwrap();
            rope(&k, 1, 64, &[s], 1e6, &mut b).unwrap();
            a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        assert!((score(9, 4) - score(1_000_009, 1_000_004)).abs() < 1e-5);
    }

    #[test]
    fn refuses_odd_widths() {
        assert!(rope(&[0.0; 3], 1, 3, &[0], 1e4, &mut [0.0; 3]).is_err());
        assert!(rope(&[0.0; 4], 1, 4, &[0, 1], 1e4, &mut [0.0; 4]).is_err());
    }
}
