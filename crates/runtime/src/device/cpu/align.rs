//! f32 rows that start on cache lines.
//!
//! Owns the copying of rows that do not: a vector load across two lines costs as much as three, and the kernels load
//! little else than activations. Never computes.

use rayon::prelude::*;
use std::borrow::Cow;

/// f32 values in a cache line.
pub(super) const LINE: usize = 16;

/// Rows of one length, each at the start of a cache line.
pub(super) struct Rows<'a> {
    data: Cow<'a, [f32]>,
    start: usize,
    k: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    /// Takes rows of `k` elements, one after another; copies them only if they are not aligned.
    pub(super) fn new(x: &'a [f32], k: usize) -> Rows<'a> {
        if k.is_multiple_of(LINE) && offset(x) == 0 {
            return Rows { data: Cow::Borrowed(x), start: 0, k, stride: k };
        }
        let stride = k.next_multiple_of(LINE);
        let n = x.len().checked_div(k).unwrap_or(0);
        let mut data = vec![0.0; n * stride + LINE];
        let start = offset(&data);
        if k > 0 {
            let to = data[start..start + n * stride].par_chunks_mut(stride);
            to.zip(x.par_chunks(k)).with_min_len(16).for_each(|(to, from)| to[..k].copy_from_slice(from));
        }
        Rows { data: Cow::Owned(data), start, k, stride }
    }

    /// Row `i`.
    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.data[self.start + i * self.stride..][..self.k]
    }
}

/// How many values of a slice come before the first cache line's start; at most 15.
pub(super) fn offset(data: &[f32]) -> usize {
    // The result is unspecified only in constant evaluation; anything large means that there is no such place.
    let at = data.as_ptr().align_offset(4 * LINE);
    if at < LINE { at } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::{LINE, Rows, offset};

    #[test]
    fn rows_are_aligned_and_unchanged() {
        let data: Vec<f32> = (0..200).map(|i| i as f32).collect();
        for (from, k) in [(0, 16), (1, 16), (3, 7), (0, 33), (5, 1), (2, 0)] {
            let x = &data[from..from + 3 * k];
            let rows = Rows::new(x, k);
            for i in 0..3 {
                assert_eq!(rows.row(i), &x[i * k..(i + 1) * k]);
                assert!(k == 0 || rows.row(i).as_ptr().addr().is_multiple_of(4 * LINE));
            }
        }
        let at = offset(&data);
        assert!(data[at..].as_ptr().addr().is_multiple_of(4 * LINE));
    }
}
