//! Attention over cached keys and values: dense, or restricted to selected positions.
//!
//! Owns scores, softmax and the weighted sum, in f32 with the maximum subtracted. The work is proportional to the
//! visible positions; a hidden key or value is never read, whatever it holds. It never writes a cache.

use super::cached::Cached;
use super::error::{KernelError, want_len};
use super::gemm::{products, weighted};
use super::math;
use super::simd::{Kernel, Simd, dispatch};
use rayon::prelude::*;

/// Heads that share one pass over shared keys and values.
const HEADS: usize = 8;

/// One part of the scores: queries and keys of one width.
#[derive(Clone, Copy, Debug)]
pub struct KeyPart<'a> {
    /// Queries `[T, H, d]`.
    pub q: &'a [f32],
    /// Keys `[Q, S, H, d]`, or `[Q, S, d]` if all heads share them.
    pub k: Cached<'a>,
    /// The width.
    pub d: usize,
    /// Whether each head has keys of its own.
    pub per_head: bool,
}

/// What attention reads.
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs<'a> {
    /// The parts whose scores are added.
    pub parts: &'a [KeyPart<'a>],
    /// Values `[Q, S, H, dv]`, or `[Q, S, dv]` if all heads share them.
    pub v: Cached<'a>,
    /// Width of a value.
    pub dv: usize,
    /// Whether each head has values of its own.
    pub v_per_head: bool,
    /// Number of heads, H.
    pub heads: usize,
    /// Number of sequences, Q.
    pub seqs: usize,
    /// Positions stored for each sequence, S.
    pub positions: usize,
    /// `[T]`: the sequence of each token.
    pub seq: &'a [i32],
    /// `[T]`: how many positions each token may see.
    pub len: &'a [i32],
    /// `[T, K]`: the positions that each token attends to, in any order; negative entries are none.
    pub sel: Option<&'a [i32]>,
    /// Factor of the scores.
    pub scale: f32,
}

/// `out[t, h, :] = sum_s softmax_s(scale * sum_parts q[t, h] . k[s, h]) v[s, h]` over the visible positions: those
/// below `len[t]` that are in `sel[t]`, where a selection is given. Without any, zeros. `out` is `[T, H, dv]`.
///
/// # Errors
/// If the slices do not fit the shapes, a sequence does not exist, or a length exceeds the stored positions. A
/// negative length counts as none.
pub fn attention(args: &AttentionArgs<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    check(args, out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    let (row, group) = (args.heads * args.dv, HEADS * args.dv);
    out.par_chunks_mut(row).enumerate().for_each(|(t, out)| {
        let visible = Visible::of(args, t);
        out.par_chunks_mut(group).enumerate().for_each(|(g, out)| {
            if visible.len() == 0 {
                out.fill(0.0);
            } else {
                dispatch(Attend { args, t, first: g * HEADS, visible: &visible, out, stats: None });
            }
        });
    });
    Ok(())
}

/// [`attention`] over some of the keys, to be merged with the rest: `out` is `[T, H, dv + 2]`, for each token and head
/// the weighted mean of the values, the largest score, and the sum of `exp(score - largest)`. Without a visible
/// position: zeros, -inf, 0.
///
/// # Errors
/// As for [`attention`].
pub fn attention_part(args: &AttentionArgs<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    let width = args.dv + 2;
    check(args, out.len() / width * args.dv)?;
    want_len("out", out.len(), &[args.seq.len(), args.heads, width])?;
    if out.is_empty() {
        return Ok(());
    }
    out.par_chunks_mut(args.heads * width).enumerate().for_each(|(t, out)| {
        let visible = Visible::of(args, t);
        out.par_chunks_mut(HEADS * width).enumerate().for_each(|(g, out)| {
            let heads = out.len() / width;
            let (mut o, mut stats) = (vec![0.0; heads * args.dv], vec![(f32::NEG_INFINITY, 0.0); heads]);
            if visible.len() > 0 {
                let stats = Some(stats.as_mut_slice());
                dispatch(Attend { args, t, first: g * HEADS, visible: &visible, out: &mut o, stats });
            }
            for ((h, row), (most, sum)) in out.chunks_exact_mut(width).enumerate().zip(stats) {
                row[..args.dv].copy_from_slice(&o[h * args.dv..(h + 1) * args.dv]);
                (row[args.dv], row[args.dv + 1]) = (most, sum);
            }
        });
    });
    Ok(())
}

fn check(a: &AttentionArgs<'_>, out: usize) -> Result<(), KernelError> {
    let t = a.seq.len();
    want_len("len", a.len.len(), &[t])?;
    want_len("out", out, &[t, a.heads, a.dv])?;
    for part in a.parts {
        want_len("q", part.q.len(), &[t, a.heads, part.d])?;
        part.k.check("k", a.seqs * a.positions)?;
    }
    a.v.check("v", a.seqs * a.positions)?;
    if let Some(sel) = a.sel {
        want_len("sel", sel.len(), &[t, sel.len().checked_div(t).unwrap_or(0)])?;
    }
    check_maps(a.seq, a.seqs, a.len, a.positions)
}

/// Checks the maps that say what each token sees.
pub(super) fn check_maps(seq: &[i32], seqs: usize, len: &[i32], positions: usize) -> Result<(), KernelError> {
    let outside = |v: i32, bound: usize| usize::try_from(v).is_ok_and(|v| v >= bound);
    if let Some(at) = seq.iter().position(|&q| q < 0 || outside(q, seqs)) {
        return Err(KernelError::Index { what: "seq", at, value: i64::from(seq[at]), bound: seqs });
    }
    if let Some(at) = len.iter().position(|&n| outside(n, positions.saturating_add(1))) {
        return Err(KernelError::Index { what: "len", at, value: i64::from(len[at]), bound: positions + 1 });
    }
    Ok(())
}

/// The positions that a token sees, in increasing order.
enum Visible {
    First(usize),
    Chosen(Vec<usize>),
}

impl Visible {
    fn of(a: &AttentionArgs<'_>, t: usize) -> Visible {
        let len = usize::try_from(a.len[t]).unwrap_or(0);
        let Some(sel) = a.sel else { return Visible::First(len) };
        let k = sel.len() / a.seq.len();
        let sel = sel[t * k..(t + 1) * k].iter().filter_map(|&s| usize::try_from(s).ok().filter(|&s| s < len));
        let mut chosen: Vec<usize> = sel.collect();
        chosen.sort_unstable();
        chosen.dedup();
        Visible::Chosen(chosen)
    }

    fn len(&self) -> usize {
        match self {
            Visible::First(n) => *n,
            Visible::Chosen(c) => c.len(),
        }
    }

    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        match self {
            Visible::First(_) => i,
            Visible::Chosen(c) => c[i],
        }
    }
}

/// Up to [`HEADS`] heads of one token.
struct Attend<'a, 'y> {
    args: &'a AttentionArgs<'a>,
    t: usize,
    first: usize,
    visible: &'a Visible,
    out: &'y mut [f32],
    /// For each head the largest score and the sum of exponentials, if they are wanted.
    stats: Option<&'y mut [(f32, f32)]>,
}

impl Kernel for Attend<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (n, heads) = (self.visible.len(), self.out.len() / self.args.dv);
        let mut p = vec![0.0_f32; heads * n];
        for part in self.args.parts {
            self.add_scores(s, part, heads, &mut p);
        }
        for (h, p) in p.chunks_exact_mut(n).enumerate() {
            let made = softmax(s, p, self.args.scale);
            if let Some(stats) = &mut self.stats {
                stats[h] = made;
            }
        }
        let p: Vec<&[f32]> = p.chunks_exact(n).collect();
        self.weigh(s, &p);
    }
}

impl Attend<'_, '_> {
    #[inline(always)]
    fn base(&self) -> usize {
        usize::try_from(self.args.seq[self.t]).unwrap_or(0) * self.args.positions
    }

    #[inline(always)]
    fn add_scores<S: Simd>(&self, s: S, part: &KeyPart<'_>, heads: usize, p: &mut [f32]) {
        let (n, d, base) = (self.visible.len(), part.d, self.base());
        let query = |h: usize| &part.q[(self.t * self.args.heads + self.first + h) * d..][..d];
        if part.per_head {
            for h in 0..heads {
                let head = self.first + h;
                let key = |i: usize| part.k.head(base + self.visible.at(i), head, self.args.heads);
                let keys: Vec<&[f32]> = (0..n).map(key).collect();
                products(s, &[query(h)], &keys, |_, i, v| p[h * n + i] += v);
            }
        } else {
            let queries: Vec<&[f32]> = (0..heads).map(query).collect();
            let keys: Vec<&[f32]> = (0..n).map(|i| part.k.row(base + self.visible.at(i))).collect();
            products(s, &queries, &keys, |h, i, v| p[h * n + i] += v);
        }
    }

    #[inline(always)]
    fn weigh<S: Simd>(self, s: S, p: &[&[f32]]) {
        let (a, dv, base) = (self.args, self.args.dv, self.base());
        let mut out: Vec<&mut [f32]> = self.out.chunks_exact_mut(dv).collect();
        if a.v_per_head {
            for (h, (p, out)) in p.chunks(1).zip(out.chunks_mut(1)).enumerate() {
                let head = self.first + h;
                let value = |i: usize| a.v.head(base + self.visible.at(i), head, a.heads);
                weighted(s, p, &value, out);
            }
        } else {
            weighted(s, p, &|i| a.v.row(base + self.visible.at(i)), &mut out);
        }
    }
}

/// In place; the slice is not empty. NaN scores make NaN weights. The largest score and the sum of exponentials.
#[inline(always)]
fn softmax<S: Simd>(s: S, p: &mut [f32], scale: f32) -> (f32, f32) {
    p.iter_mut().for_each(|v| *v *= scale);
    let most = math::max(p);
    p.iter_mut().for_each(|v| *v = math::exp(*v - most));
    let sum = math::sum(s, p);
    let inverse = 1.0 / sum;
    p.iter_mut().for_each(|v| *v *= inverse);
    (most, sum)
}

#[cfg(test)]
mod tests;
