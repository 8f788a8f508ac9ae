//! Owns contractions without a path of their own: by strides, the innermost loop over what is contiguous on the right.
//! Small operands only; nothing here is blocked.

use glmc_ir::ops::Einsum;
use rayon::prelude::*;

use super::error::{KernelError, want_len};

/// Entries computed by one task.
const TASK: usize = 4096;

/// `y = x * w` by `e`. Shapes are those of `x` and `w`; `y` is row-major in the order of the result's letters.
pub(super) fn contract(
    e: &Einsum,
    x: &[f32],
    x_shape: &[usize],
    w: &[f32],
    w_shape: &[usize],
    y: &mut [f32],
) -> Result<(), KernelError> {
    want_len("x", x.len(), x_shape)?;
    want_len("w", w.len(), w_shape)?;
    let extent = |c: u8| {
        let on = |side: &[u8], shape: &[usize]| side.iter().position(|l| *l == c).map(|i| shape[i]);
        on(&e.lhs, x_shape).or_else(|| on(&e.rhs, w_shape)).unwrap_or(1)
    };
    let sum = e.contracted();
    let out: Vec<usize> = e.out.iter().map(|c| extent(*c)).collect();
    want_len("y", y.len(), &out)?;
    let Some((last, outer)) = out.split_last() else { return Ok(()) };
    let (last, outer) = (*last, outer.to_vec());
    if y.is_empty() {
        return Ok(());
    }
    let sums: Vec<usize> = sum.iter().map(|c| extent(*c)).collect();
    let terms: usize = sums.iter().product();
    let of = |side: &[u8], shape: &[usize], letters: &[u8]| strides(side, shape, letters);
    let (xo, wo) = (of(&e.lhs, x_shape, &e.out), of(&e.rhs, w_shape, &e.out));
    let (xs, ws) = (of(&e.lhs, x_shape, &sum), of(&e.rhs, w_shape, &sum));
    let (xl, wl) = (xo[xo.len() - 1], wo[wo.len() - 1]);
    y.par_chunks_mut(last).with_min_len((TASK / last).max(1)).enumerate().for_each(|(row, y)| {
        let (xb, wb) = (at(row, &outer, &xo), at(row, &outer, &wo));
        y.fill(0.0);
        for term in 0..terms {
            let (xa, wa) = (xb + at(term, &sums, &xs), wb + at(term, &sums, &ws));
            if xl == 0 && wl == 1 {
                let f = x[xa];
                y.iter_mut().zip(&w[wa..wa + last]).for_each(|(y, w)| *y += f * w);
            } else {
                y.iter_mut().enumerate().for_each(|(i, y)| *y += x[xa + i * xl] * w[wa + i * wl]);
            }
        }
    });
    Ok(())
}

/// The stride in `side`'s tensor of each of `letters`; 0 where it lacks the letter.
fn strides(side: &[u8], shape: &[usize], letters: &[u8]) -> Vec<usize> {
    let stride = |c: &u8| side.iter().position(|l| l == c).map_or(0, |i| shape[i + 1..].iter().product());
    letters.iter().map(stride).collect()
}

/// The offset of the row-major index `flat` of `shape` under `strides`.
fn at(flat: usize, shape: &[usize], strides: &[usize]) -> usize {
    let (mut rest, mut offset) = (flat, 0);
    for (n, s) in shape.iter().zip(strides).rev() {
        offset += rest % n * s;
        rest /= n;
    }
    offset
}
