//! Register-blocked products of f32 rows with f32 rows, both contiguous along the contraction.
//!
//! Owns the micro kernel (a block of weight rows against a few vectors, all sums in registers) and the panel loop over
//! quantised weights. Each output's order of additions depends only on K, never on its place in a block. Never threads.

#![allow(
    clippy::needless_range_loop,
    reason = "indices into arrays of registers: unrolled, and the same on both sides"
)]

use super::align::{LINE, offset};
use super::dot::{Panel, decode_panel};
use super::simd::{Kernel, Simd, dispatch};
use glmc_ir::quant::QuantType;
use std::cell::RefCell;

/// Elements of the contraction that are decoded and multiplied at a time; a multiple of every block size.
const PANEL: usize = 512;
/// Rows of a decoded tile are padded with zeros to a multiple of this.
const ROWS: usize = 8;
/// Vectors of one register block.
const COLS: usize = 3;

/// `out[t][r] = rows[r] . xs[t]`, as [`super::dot::dot_rows`], for many vectors: weights are decoded a panel at a time
/// into a scratch tile and reused for all of them. `row_bytes` is the packed length of a row, not zero.
pub(super) fn gemm_rows(ty: QuantType, rows: &[u8], row_bytes: usize, k: usize, xs: &[&[f32]], out: &mut [&mut [f32]]) {
    thread_local!(static TILE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    let n = rows.len() / row_bytes;
    TILE.with_borrow_mut(|tile| {
        for from in (0..k).step_by(PANEL) {
            let len = PANEL.min(k - from);
            let stride = len.next_multiple_of(16);
            tile.clear();
            tile.resize(n.next_multiple_of(ROWS) * stride + LINE, 0.0);
            let start = offset(tile);
            let tile = &mut tile[start..start + n.next_multiple_of(ROWS) * stride];
            decode_panel(ty, rows, row_bytes, from, len, Panel { data: tile, stride });
            dispatch(PanelProduct { w: tile, stride, from, len, xs, out, first: from == 0 });
        }
    });
}

/// `out[m][n] = a[m] . b[n]` over f32 rows of one length, a block at a time: calls `done(m, n, value)` for each.
///
/// Runs inside another kernel, with its instructions.
#[inline(always)]
pub(super) fn products<S: Simd>(s: S, a: &[&[f32]], b: &[&[f32]], mut done: impl FnMut(usize, usize, f32)) {
    let mut m = 0;
    while m < a.len() {
        let rows = a.len() - m;
        let mut n = 0;
        while n < b.len() {
            let cols = b.len() - n;
            match (S::WIDE && rows >= 8, rows >= 2, cols >= 3) {
                (true, _, true) => block::<S, 8, 3>(s, a, b, (m, n), &mut done),
                (true, _, false) => block::<S, 8, 1>(s, a, b, (m, n), &mut done),
                (false, true, true) => block::<S, 2, 3>(s, a, b, (m, n), &mut done),
                (false, true, false) => block::<S, 2, 1>(s, a, b, (m, n), &mut done),
                (false, false, true) => block::<S, 1, 3>(s, a, b, (m, n), &mut done),
                (false, false, false) => block::<S, 1, 1>(s, a, b, (m, n), &mut done),
            }
            n += if cols >= 3 { 3 } else { 1 };
        }
        m += if S::WIDE && rows >= 8 {
            8
        } else if rows >= 2 {
            2
        } else {
            1
        };
    }
}

#[inline(always)]
fn block<S: Simd, const M: usize, const N: usize>(
    s: S,
    a: &[&[f32]],
    b: &[&[f32]],
    (m, n): (usize, usize),
    done: &mut impl FnMut(usize, usize, f32),
) {
    let sums = micro::<S, M, N>(s, std::array::from_fn(|i| a[m + i]), std::array::from_fn(|i| b[n + i]));
    for (i, row) in sums.iter().enumerate() {
        for (j, &v) in row.iter().enumerate() {
            done(m + i, n + j, v);
        }
    }
}

/// Dots of `M` rows with `N` vectors. A vector may be shorter than the rows' padded length: the first vector's length
/// counts, and rows must be at least as long.
#[inline(always)]
fn micro<S: Simd, const M: usize, const N: usize>(s: S, a: [&[f32]; M], b: [&[f32]; N]) -> [[f32; N]; M] {
    let len = b[0].len();
    let steps = len / 16;
    let mut av: [&[[f32; 16]]; M] = [&[]; M];
    let mut bv: [&[[f32; 16]]; N] = [&[]; N];
    for m in 0..M {
        av[m] = &a[m].as_chunks::<16>().0[..steps];
    }
    for n in 0..N {
        bv[n] = &b[n].as_chunks::<16>().0[..steps];
    }
    let mut acc = [[s.splat(0.0); N]; M];
    for i in 0..steps {
        let mut y = [s.splat(0.0); N];
        for n in 0..N {
            y[n] = s.load(&bv[n][i]);
        }
        for m in 0..M {
            let x = s.load(&av[m][i]);
            for n in 0..N {
                acc[m][n] = s.fma(x, y[n], acc[m][n]);
            }
        }
    }
    if !len.is_multiple_of(16) {
        for m in 0..M {
            let x = s.load(&padded(&a[m][steps * 16..len]));
            for n in 0..N {
                acc[m][n] = s.fma(x, s.load(&padded(&b[n][steps * 16..len])), acc[m][n]);
            }
        }
    }
    sums(s, acc)
}

fn padded(tail: &[f32]) -> [f32; 16] {
    let mut v = [0.0; 16];
    v[..tail.len()].copy_from_slice(tail);
    v
}

/// The lane sums of a block of accumulators, four at a time.
#[inline(always)]
fn sums<S: Simd, const M: usize, const N: usize>(s: S, acc: [[S::F; N]; M]) -> [[f32; N]; M] {
    let mut out = [[0.0; N]; M];
    let zero = s.splat(0.0);
    for i in (0..M * N).step_by(4) {
        let mut four = [zero; 4];
        for j in 0..4.min(M * N - i) {
            four[j] = acc[(i + j) / N][(i + j) % N];
        }
        let four = s.sum4(four);
        for j in 0..4.min(M * N - i) {
            out[(i + j) / N][(i + j) % N] = four[j];
        }
    }
    out
}

/// `out[m] = sum_i p[m][i] v(i)`: weighted sums of rows. All of `p` have one length, all of `out` the rows' length;
/// rows come from `v` by index and are read only if their index is below `p`'s length.
///
/// Runs inside another kernel, with its instructions.
#[inline(always)]
pub(super) fn weighted<'v, S: Simd>(s: S, p: &[&[f32]], v: &impl Fn(usize) -> &'v [f32], out: &mut [&mut [f32]]) {
    let most = if S::WIDE { 8 } else { 4 };
    for (p, out) in p.chunks(most).zip(out.chunks_mut(most)) {
        if p.len() == 8 {
            weighted_rows::<S, 8>(s, p, v, out);
        } else if p.len() == 4 {
            weighted_rows::<S, 4>(s, p, v, out);
        } else {
            for (p, out) in p.chunks(1).zip(out.chunks_mut(1)) {
                weighted_rows::<S, 1>(s, p, v, out);
            }
        }
    }
}

#[inline(always)]
fn weighted_rows<'v, S: Simd, const M: usize>(
    s: S,
    p: &[&[f32]],
    v: &impl Fn(usize) -> &'v [f32],
    out: &mut [&mut [f32]],
) {
    let width = out[0].len();
    let p: [&[f32]; M] = std::array::from_fn(|m| &p[m][..p[0].len()]);
    let mut at = 0;
    while S::WIDE && at + 48 <= width {
        weighted_lanes::<S, M, 3>(s, p, v, at, 48, out);
        at += 48;
    }
    while at + 16 <= width {
        weighted_lanes::<S, M, 1>(s, p, v, at, 16, out);
        at += 16;
    }
    if at < width {
        weighted_lanes::<S, M, 1>(s, p, v, at, width - at, out);
    }
}

/// Columns `at .. at + width` of the sums, `width` being `16 * N` or, for N = 1, less.
#[inline(always)]
fn weighted_lanes<'v, S: Simd, const M: usize, const N: usize>(
    s: S,
    p: [&[f32]; M],
    v: &impl Fn(usize) -> &'v [f32],
    at: usize,
    width: usize,
    out: &mut [&mut [f32]],
) {
    let k = p[0].len();
    let mut p = p;
    for r in &mut p {
        *r = &r[..k];
    }
    let mut acc = [[s.splat(0.0); N]; M];
    for i in 0..k {
        let row = &v(i)[at..at + width];
        let mut lanes = [s.splat(0.0); N];
        if width == 16 * N {
            for n in 0..N {
                lanes[n] = s.load(row[16 * n..16 * n + 16].as_array().expect("16 elements"));
            }
        } else {
            lanes[0] = s.load(&padded(row));
        }
        for m in 0..M {
            let w = s.splat(p[m][i]);
            for n in 0..N {
                acc[m][n] = s.fma(w, lanes[n], acc[m][n]);
            }
        }
    }
    for m in 0..M {
        for n in 0..N {
            let mut lanes = [0.0; 16];
            s.store(acc[m][n], &mut lanes);
            let from = at + 16 * n;
            let len = 16.min(at + width - from);
            out[m][from..from + len].copy_from_slice(&lanes[..len]);
        }
    }
}

struct PanelProduct<'a, 'b> {
    w: &'a [f32],
    stride: usize,
    from: usize,
    len: usize,
    xs: &'a [&'a [f32]],
    out: &'a mut [&'b mut [f32]],
    first: bool,
}

impl Kernel for PanelProduct<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PanelProduct { w, stride, from, len, xs, out, first } = self;
        for (xs, out) in xs.chunks(COLS).zip(out.chunks_mut(COLS)) {
            for m in (0..w.len() / stride).step_by(ROWS) {
                let p = Part { w: &w[m * stride..(m + ROWS) * stride], stride, m, from, len, first };
                match xs.len() {
                    3 => rows_by::<S, 3>(s, &p, xs, out),
                    2 => rows_by::<S, 2>(s, &p, xs, out),
                    _ => rows_by::<S, 1>(s, &p, xs, out),
                }
            }
        }
    }
}

/// Eight rows of a panel and where they belong.
struct Part<'a> {
    w: &'a [f32],
    stride: usize,
    m: usize,
    from: usize,
    len: usize,
    first: bool,
}

#[inline(always)]
fn rows_by<S: Simd, const N: usize>(s: S, p: &Part<'_>, xs: &[&[f32]], out: &mut [&mut [f32]]) {
    let xs: [&[f32]; N] = std::array::from_fn(|n| &xs[n][p.from..p.from + p.len]);
    if S::WIDE {
        rows_block::<S, 8, N>(s, p, 0, xs, out);
    } else {
        for at in (0..ROWS).step_by(2) {
            rows_block::<S, 2, N>(s, p, at, xs, out);
        }
    }
}

#[inline(always)]
fn rows_block<S: Simd, const M: usize, const N: usize>(
    s: S,
    p: &Part<'_>,
    at: usize,
    xs: [&[f32]; N],
    out: &mut [&mut [f32]],
) {
    let rows = std::array::from_fn(|i| &p.w[(at + i) * p.stride..(at + i) * p.stride + p.len]);
    let sums = micro::<S, M, N>(s, rows, xs);
    for n in 0..N {
        for i in 0..M {
            // Rows past the end of the weight are padding.
            if let Some(y) = out[n].get_mut(p.m + at + i) {
                *y = if p.first { sums[i][n] } else { *y + sums[i][n] };
            }
        }
    }
}
