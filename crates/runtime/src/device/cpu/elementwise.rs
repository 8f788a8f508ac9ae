//! Functions of single elements.
//!
//! Owns the loops; the functions themselves are in `math`. Outputs never alias inputs, except in the `_assign` forms.

use super::error::{KernelError, want_len};
use super::math;
use super::simd::{Kernel, Simd, dispatch};
use rayon::prelude::*;

/// Elements of one task.
const TASK: usize = 1 << 14;

/// `y = a + b`.
///
/// # Errors
/// If the lengths differ.
pub fn add(a: &[f32], b: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
    binary(
        a,
        b,
        y,
        #[inline(always)]
        |a, b| a + b,
    )
}

/// `y += a`.
///
/// # Errors
/// If the lengths differ.
pub fn add_assign(y: &mut [f32], a: &[f32]) -> Result<(), KernelError> {
    want_len("a", a.len(), &[y.len()])?;
    y.par_chunks_mut(TASK).zip(a.par_chunks(TASK)).for_each(|(y, a)| y.iter_mut().zip(a).for_each(|(y, a)| *y += a));
    Ok(())
}

/// `y = a * b`.
///
/// # Errors
/// If the lengths differ.
pub fn mul(a: &[f32], b: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
    binary(
        a,
        b,
        y,
        #[inline(always)]
        |a, b| a * b,
    )
}

/// `y = silu(gate) * up`, with `silu(v) = v sigmoid(v)`.
///
/// # Errors
/// If the lengths differ.
pub fn silu_mul(gate: &[f32], up: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
    binary(
        gate,
        up,
        y,
        #[inline(always)]
        |g, u| g * math::sigmoid(g) * u,
    )
}

/// `y = x sigmoid(x)`.
///
/// # Errors
/// If the lengths differ.
pub fn silu(x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
    unary(
        x,
        y,
        #[inline(always)]
        |x| x * math::sigmoid(x),
    )
}

/// `y = 1 / (1 + e^-x)`.
///
/// # Errors
/// If the lengths differ.
pub fn sigmoid(x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
    unary(x, y, math::sigmoid)
}

/// `y = max(x, 0)`; NaN stays NaN.
///
/// # Errors
/// If the lengths differ.
pub fn relu(x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
    unary(
        x,
        y,
        #[inline(always)]
        |x| if x <= 0.0 { 0.0 } else { x },
    )
}

/// `y = by * x`.
///
/// # Errors
/// If the lengths differ.
pub fn scale(x: &[f32], by: f32, y: &mut [f32]) -> Result<(), KernelError> {
    unary(
        x,
        y,
        #[inline(always)]
        |x| by * x,
    )
}

fn unary(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32 + Sync) -> Result<(), KernelError> {
    want_len("y", y.len(), &[x.len()])?;
    x.par_chunks(TASK).zip(y.par_chunks_mut(TASK)).for_each(|(x, y)| dispatch(Unary { x, y, f: &f }));
    Ok(())
}

fn binary(a: &[f32], b: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32 + Sync) -> Result<(), KernelError> {
    want_len("b", b.len(), &[a.len()])?;
    want_len("y", y.len(), &[a.len()])?;
    let inputs = a.par_chunks(TASK).zip(b.par_chunks(TASK));
    inputs.zip(y.par_chunks_mut(TASK)).for_each(|((a, b), y)| dispatch(Binary { a, b, y, f: &f }));
    Ok(())
}

struct Unary<'a, F> {
    x: &'a [f32],
    y: &'a mut [f32],
    f: &'a F,
}

impl<F: Fn(f32) -> f32> Kernel for Unary<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            *y = (self.f)(x);
        }
    }
}

struct Binary<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
    f: &'a F,
}

impl<F: Fn(f32, f32) -> f32> Kernel for Binary<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for ((y, &a), &b) in self.y.iter_mut().zip(self.a).zip(self.b) {
            *y = (self.f)(a, b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::testing::{Rng, on_threads};

    #[test]
    fn equal_their_definitions() {
        for n in [0, 1, 17, 40_001] {
            let mut rng = Rng::new(n as u64);
            let a: Vec<f32> = rng.floats(n).iter().map(|v| 30.0 * v).collect();
            let b = rng.floats(n);
            let sig = |v: f32| 1.0 / (1.0 + (-f64::from(v)).exp());
            type Op<'a> = &'a (dyn Fn(&mut [f32]) -> Result<(), KernelError> + Sync);
            let check = |op: Op<'_>, want: &dyn Fn(usize) -> f64| {
                let y = on_threads(|| {
                    let mut y = vec![0.5; n];
                    op(&mut y).unwrap();
                    y
                });
                for (i, y) in y.iter().enumerate() {
                    assert!(
                        (f64::from(*y) - want(i)).abs() <= 5e-7 * want(i).abs().max(1e-20),
                        "{i}: {y} for {}",
                        want(i)
                    );
                }
            };
            let (x, z) = (|i: usize| f64::from(a[i]), |i: usize| f64::from(b[i]));
            check(&|y| add(&a, &b, y), &|i| f64::from(a[i] + b[i]));
            check(&|y| add_assign(y, &a), &|i| f64::from(0.5 + a[i]));
            check(&|y| mul(&a, &b, y), &|i| x(i) * z(i));
            check(&|y| silu_mul(&a, &b, y), &|i| x(i) * sig(a[i]) * z(i));
            check(&|y| silu(&a, y), &|i| x(i) * sig(a[i]));
            check(&|y| sigmoid(&a, y), &|i| sig(a[i]));
            check(&|y| relu(&a, y), &|i| x(i).max(0.0));
            check(&|y| scale(&a, 0.3, y), &|i| f64::from(0.3_f32) * x(i));
        }
    }

    #[test]
    fn lengths_must_agree() {
        assert!(add(&[1.0], &[1.0, 2.0], &mut [0.0]).is_err());
        assert!(silu(&[1.0], &mut [0.0; 2]).is_err());
        assert!(add_assign(&mut [0.0], &[]).is_err());
        let mut y = [0.0];
        relu(&[f32::NAN], &mut y).unwrap();
        assert!(y[0].is_nan());
    }
}
