//! Dot products of weight rows with a few f32 vectors, and the decoding of rows to f32.
//!
//! Owns the streaming path: each weight row is read and unpacked once and multiplied with up to [`GROUP`] vectors on
//! the way. The value of one (row, vector) pair does not depend on how many vectors share the pass. Never threads.

#![allow(
    clippy::needless_range_loop,
    reason = "indices into arrays of registers: unrolled, and the same on both sides"
)]

use super::simd::{Kernel, Simd, ahead};
use super::unpack::{Sink, Unpack, with_unpack};
use glmc_ir::quant::QuantType;

/// Vectors that share one pass over a weight row.
const GROUP: usize = 4;

/// Bytes of a row of `k` elements. Rows of float types may have any length.
pub(super) fn row_bytes(ty: QuantType, k: usize) -> Option<usize> {
    k.is_multiple_of(ty.block_elems()).then(|| (k / ty.block_elems()).checked_mul(ty.block_bytes()))?
}

/// `out[t][r] = rows[r] . xs[t]` for as many rows as `out[t]` is long.
///
/// `rows` holds packed rows of `k` elements; `xs[t]` has `k` elements. The lengths are the caller's duty.
pub(super) fn dot_rows(ty: QuantType, rows: &[u8], k: usize, xs: &[&[f32]], out: &mut [&mut [f32]]) {
    let Some(row_bytes) = row_bytes(ty, k).filter(|&b| b > 0) else {
        out.iter_mut().for_each(|o| o.fill(0.0));
        return;
    };
    with_unpack!(ty, u => super::simd::dispatch(DotRows { u, rows, row_bytes, k, xs, out }))
}

/// Decodes packed rows of `k` elements to f32, the starts of output rows `stride` apart; what lies between is kept.
pub(super) fn decode_rows(ty: QuantType, rows: &[u8], k: usize, out: &mut [f32], stride: usize) {
    let Some(row_bytes) = row_bytes(ty, k).filter(|&b| b > 0) else { return };
    let rows = rows.chunks_exact(row_bytes);
    with_unpack!(ty, u => super::simd::dispatch(DecodeRows { u, rows, k, out, stride }))
}

/// As [`decode_rows`], of elements `from .. from + k` of rows that are `row_bytes` long; `from` starts a block.
pub(super) fn decode_panel(ty: QuantType, rows: &[u8], row_bytes: usize, from: usize, k: usize, out: Panel<'_>) {
    let start = from / ty.block_elems() * ty.block_bytes();
    let len = k / ty.block_elems() * ty.block_bytes();
    let rows = rows.chunks_exact(row_bytes).map(|row| &row[start..start + len]);
    with_unpack!(ty, u => super::simd::dispatch(DecodeRows { u, rows, k, out: out.data, stride: out.stride }))
}

/// Decoded rows and the distance of their starts.
pub(super) struct Panel<'a> {
    /// The values.
    pub(super) data: &'a mut [f32],
    /// Elements from one row's start to the next.
    pub(super) stride: usize,
}

struct DotRows<'a, 'b, U> {
    u: U,
    rows: &'a [u8],
    row_bytes: usize,
    k: usize,
    xs: &'a [&'a [f32]],
    out: &'a mut [&'b mut [f32]],
}

impl<U: Unpack> Kernel for DotRows<'_, '_, U> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DotRows { u, rows, row_bytes, k, xs, out } = self;
        for (xs, out) in xs.chunks(GROUP).zip(out.chunks_mut(GROUP)) {
            match xs.len() {
                1 => dot_group::<S, U, 1>(s, u, rows, row_bytes, k, xs, out),
                2 => dot_group::<S, U, 2>(s, u, rows, row_bytes, k, xs, out),
                3 => dot_group::<S, U, 3>(s, u, rows, row_bytes, k, xs, out),
                _ => dot_group::<S, U, 4>(s, u, rows, row_bytes, k, xs, out),
            }
        }
    }
}

#[inline(always)]
fn dot_group<S: Simd, U: Unpack, const T: usize>(
    s: S,
    u: U,
    rows: &[u8],
    row_bytes: usize,
    k: usize,
    xs: &[&[f32]],
    out: &mut [&mut [f32]],
) {
    // One vector comes from the second-level cache for each row; several rows share it.
    if T == 1 {
        dot_sets::<S, U, T, 4>(s, u, rows, row_bytes, k, xs, out)
    } else {
        dot_sets::<S, U, T, 1>(s, u, rows, row_bytes, k, xs, out)
    }
}

/// `R` rows at a time, then what is left row by row.
#[inline(always)]
fn dot_sets<S: Simd, U: Unpack, const T: usize, const R: usize>(
    s: S,
    u: U,
    rows: &[u8],
    row_bytes: usize,
    k: usize,
    xs: &[&[f32]],
    out: &mut [&mut [f32]],
) {
    let xs: [&[f32]; T] = std::array::from_fn(|t| &xs[t][..k]);
    let n = out[0].len().min(rows.len() / row_bytes);
    let mut r = 0;
    while r + R <= n {
        let set: [&[u8]; R] = std::array::from_fn(|i| &rows[(r + i) * row_bytes..(r + i + 1) * row_bytes]);
        let sums = dot_rows_of(s, u, set, xs);
        for (i, sums) in sums.into_iter().enumerate() {
            for (t, sum) in sums.into_iter().enumerate() {
                out[t][r + i] = sum;
            }
        }
        r += R;
    }
    for r in r..n {
        let [sums] = dot_rows_of(s, u, [&rows[r * row_bytes..(r + 1) * row_bytes]], xs);
        for (t, sum) in sums.into_iter().enumerate() {
            out[t][r] = sum;
        }
    }
}

/// Dots of `R` packed rows with `T` vectors of one length. A row's value does not depend on the others.
#[inline(always)]
fn dot_rows_of<S: Simd, U: Unpack, const T: usize, const R: usize>(
    s: S,
    u: U,
    rows: [&[u8]; R],
    xs: [&[f32]; T],
) -> [[f32; T]; R] {
    let (elems, bytes) = (u.elems(), u.bytes());
    let mut acc = [[[s.splat(0.0); 2]; T]; R];
    let blocks = rows[0].len() / bytes;
    let ahead = ahead(R * rows[0].len());
    for b in 0..blocks {
        for r in 0..R {
            let block = &rows[r][b * bytes..(b + 1) * bytes];
            for line in (0..bytes).step_by(64) {
                // The same place of the next rows.
                s.prefetch(block.as_ptr().wrapping_add(ahead + line));
            }
            let mut sink = DotSink { s, x: std::array::from_fn(|t| &xs[t][b * elems..(b + 1) * elems]), acc: acc[r] };
            u.unpack(s, block, &mut sink);
            acc[r] = sink.acc;
        }
    }
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        let tail = &rows[r][blocks * bytes..];
        if !tail.is_empty() {
            // Only float rows have one: their unpacker's block is 32 elements, their own is one.
            let block = padded_bytes(tail);
            let x: [[f32; 32]; T] = std::array::from_fn(|t| padded(&xs[t][blocks * elems..]));
            let mut last = DotSink { s, x: std::array::from_fn(|t| &x[t][..]), acc: acc[r] };
            u.unpack(s, &block[..bytes], &mut last);
            acc[r] = last.acc;
        }
        out[r] = finish(s, acc[r]);
    }
    out
}

#[inline(always)]
fn finish<S: Simd, const T: usize>(s: S, acc: [[S::F; 2]; T]) -> [f32; T] {
    let mut sums = [0.0; T];
    for t in 0..T {
        sums[t] = s.sum(s.add(acc[t][0], acc[t][1]));
    }
    sums
}

fn padded_bytes(tail: &[u8]) -> [u8; 128] {
    let mut block = [0; 128];
    block[..tail.len()].copy_from_slice(tail);
    block
}

fn padded(tail: &[f32]) -> [f32; 32] {
    let mut x = [0.0; 32];
    x[..tail.len()].copy_from_slice(tail);
    x
}

struct DotSink<'a, S: Simd, const T: usize> {
    s: S,
    x: [&'a [f32]; T],
    acc: [[S::F; 2]; T],
}

impl<S: Simd, const T: usize> Sink<S> for DotSink<'_, S, T> {
    #[inline(always)]
    fn put(&mut self, at: usize, w: [S::F; 2]) {
        for t in 0..T {
            for h in 0..2 {
                let from = at + 16 * h;
                let x = self.x[t][from..from + 16].as_array().expect("16 elements");
                self.acc[t][h] = self.s.fma(w[h], self.s.load(x), self.acc[t][h]);
            }
        }
    }
}

struct DecodeRows<'a, U, R> {
    u: U,
    rows: R,
    k: usize,
    out: &'a mut [f32],
    stride: usize,
}

impl<'r, U: Unpack, R: Iterator<Item = &'r [u8]>> Kernel for DecodeRows<'_, U, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DecodeRows { u, rows, k, out, stride } = self;
        for (row, out) in rows.zip(out.chunks_mut(stride)) {
            decode_row(s, u, row, &mut out[..k]);
        }
    }
}

#[inline(always)]
fn decode_row<S: Simd, U: Unpack>(s: S, u: U, row: &[u8], out: &mut [f32]) {
    let (elems, bytes) = (u.elems(), u.bytes());
    let blocks = row.chunks_exact(bytes);
    let tail = blocks.remainder();
    let mut outs = out.chunks_exact_mut(elems);
    for (block, out) in blocks.zip(&mut outs) {
        u.unpack(s, block, &mut StoreSink { s, out });
    }
    if !tail.is_empty() {
        let rest = outs.into_remainder();
        let mut all = [0.0; 32];
        u.unpack(s, &padded_bytes(tail)[..bytes], &mut StoreSink { s, out: &mut all });
        rest.copy_from_slice(&all[..rest.len()]);
    }
}

struct StoreSink<'a, S> {
    s: S,
    out: &'a mut [f32],
}

impl<S: Simd> Sink<S> for StoreSink<'_, S> {
    #[inline(always)]
    fn put(&mut self, at: usize, w: [S::F; 2]) {
        for (h, w) in w.into_iter().enumerate() {
            let from = at + 16 * h;
            self.s.store(w, self.out[from..from + 16].as_mut_array().expect("16 elements"));
        }
    }
}
