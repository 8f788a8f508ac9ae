//! Products of activations with quantised weight matrices: plain, batched over heads, and grouped by expert.
//!
//! Owns the cutting of the work into tasks and the choice between the two paths: streaming (a few vectors: each weight
//! row is read once) and panels (many vectors: weights are decoded once into a tile). Outputs do not depend on the
//! number of threads. It never changes a weight's layout.

use super::align::Rows;
use super::dot::{dot_rows, row_bytes};
use super::error::{KernelError, want_len};
use super::fixed::Fixed;
use super::gemm::gemm_rows;
use super::simd;
use glmc_ir::quant::QuantType;
use rayon::prelude::*;

/// Most vectors that the streaming path takes.
const STREAM: usize = 8;
/// Weight bytes that one streaming task reads, about.
const TASK_BYTES: usize = 1 << 16;
/// Weight rows of one panel task: a panel of them stays in the first-level cache while the vectors stream past.
const TASK_ROWS: usize = 16;

/// Packed rows of one storage type: `[n, k]`, each row `k` elements along the contiguous dim.
///
/// Stacked weights (`[H, C, N]`, `[E, N, K]`) are given with `n` the product of the outer dims.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    ty: QuantType,
    bytes: &'a [u8],
    n: usize,
    k: usize,
}

impl<'a> WeightView<'a> {
    /// Checks that `bytes` holds exactly `n` rows of `k` elements.
    ///
    /// # Errors
    /// [`KernelError::Row`] if `k` is not a whole number of blocks, [`KernelError::Length`] if the bytes do not fit.
    pub fn new(ty: QuantType, bytes: &'a [u8], n: usize, k: usize) -> Result<Self, KernelError> {
        let row = row_bytes(ty, k).ok_or(KernelError::Row { ty, k })?;
        want_len("weight bytes", bytes.len(), &[n, row])?;
        Ok(WeightView { ty, bytes, n, k })
    }

    /// Storage type.
    pub fn ty(self) -> QuantType {
        self.ty
    }

    /// Number of rows.
    pub fn n(self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub fn k(self) -> usize {
        self.k
    }

    /// Bytes of a row.
    pub fn row_bytes(self) -> usize {
        row_bytes(self.ty, self.k).unwrap_or(0)
    }

    /// The rows' bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Rows `from .. from + n`.
    pub(super) fn rows(self, from: usize, n: usize) -> WeightView<'a> {
        let row = self.row_bytes();
        WeightView { bytes: &self.bytes[from * row..(from + n) * row], n, ..self }
    }
}

/// `y[t, n] = sum_k w[n, k] x[t, k]`.
///
/// `x` is `[t, k]`; row t of the result starts at `t * y_stride` of `y`, whose other elements are kept.
///
/// # Errors
/// If the slices do not fit the shapes (`y` needs `(t - 1) * y_stride + n` elements at least).
pub fn matmul(w: WeightView<'_>, x: &[f32], t: usize, y: &mut [f32], y_stride: usize) -> Result<(), KernelError> {
    want_len("x", x.len(), &[t, w.k])?;
    if y_stride < w.n {
        return Err(KernelError::Dim { what: "y_stride", have: y_stride, need: "at least the rows of the weight" });
    }
    let want = if t == 0 { 0 } else { (t - 1).saturating_mul(y_stride).saturating_add(w.n) };
    if y.len() < want {
        return Err(KernelError::Length { what: "y", want, have: y.len() });
    }
    if t == 0 || w.n == 0 {
        return Ok(());
    }
    let out = y.chunks_mut(y_stride).take(t).map(|row| &mut row[..w.n]).collect();
    let x = Rows::new(x, w.k);
    run(vec![Unit { w, xs: (0..t).map(|t| x.row(t)).collect(), out }]);
    Ok(())
}

/// `out[t, h, c] = sum_n x[t, h, n] w[h, c, n]`: one product a head.
///
/// `w` holds `heads * C` rows; `x` is `[t, heads, n]`, `out` is `[t, heads, C]`.
///
/// # Errors
/// If the slices do not fit the shapes or `heads` does not divide the rows of `w`.
pub fn batched_matmul(
    w: WeightView<'_>,
    heads: usize,
    x: &[f32],
    t: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let c = split(w.n, heads, "heads")?;
    want_len("x", x.len(), &[t, heads, w.k])?;
    want_len("out", out.len(), &[t, heads, c])?;
    if out.is_empty() {
        return Ok(());
    }
    let x = Rows::new(x, w.k);
    let mut units: Vec<Unit<'_, '_>> = (0..heads)
        .map(|h| Unit {
            w: w.rows(h * c, c),
            xs: (0..t).map(|t| x.row(t * heads + h)).collect(),
            out: Vec::with_capacity(t),
        })
        .collect();
    for (i, row) in out.chunks_mut(c).enumerate() {
        units[i % heads].out.push(row);
    }
    run(units);
    Ok(())
}

/// What the tokens of a grouped product multiply with.
#[derive(Clone, Copy, Debug)]
pub enum GroupedInput<'a> {
    /// `x[t, k]`: all of a token's experts see one vector.
    PerToken(&'a [f32]),
    /// `x[t, j, k]`: each chosen expert has a vector of its own.
    PerSlot(&'a [f32]),
}

/// `y[t, j, n] = sum_k w[ids[t, j], n, k] x[t, k]` (or `x[t, j, k]`): the experts' products.
///
/// `w` holds `experts * N` rows, `ids` is `[t, j]`, `y` is `[t, j, N]`. A negative id gives zeros. The weights of each
/// used expert are read once.
///
/// # Errors
/// If the slices do not fit the shapes or an id is not below `experts`.
pub fn grouped_matmul(
    w: WeightView<'_>,
    experts: usize,
    x: GroupedInput<'_>,
    ids: &[i32],
    t: usize,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let n = split(w.n, experts, "experts")?;
    let j = ids.len().checked_div(t).unwrap_or(0);
    want_len("ids", ids.len(), &[t, j])?;
    want_len("y", y.len(), &[t, j, n])?;
    let (x, per, vectors) = match x {
        GroupedInput::PerToken(x) => (x, j.max(1), t),
        GroupedInput::PerSlot(x) => (x, 1, ids.len()),
    };
    want_len("x", x.len(), &[vectors, w.k])?;
    if let Some((at, &id)) = ids.iter().enumerate().find(|&(_, &id)| id >= 0 && id as usize >= experts) {
        return Err(KernelError::Index { what: "ids", at, value: i64::from(id), bound: experts });
    }
    if y.is_empty() {
        return Ok(());
    }
    let x = Rows::new(x, w.k);
    let mut units: Vec<Option<Unit<'_, '_>>> = (0..experts).map(|_| None).collect();
    for ((slot, &id), row) in ids.iter().enumerate().zip(y.chunks_mut(n)) {
        let Ok(e) = usize::try_from(id) else {
            row.fill(0.0);
            continue;
        };
        let unit = units[e].get_or_insert_with(|| Unit { w: w.rows(e * n, n), xs: Vec::new(), out: Vec::new() });
        unit.xs.push(x.row(slot / per));
        unit.out.push(row);
    }
    run(units.into_iter().flatten().collect());
    Ok(())
}

fn split(n: usize, parts: usize, what: &'static str) -> Result<usize, KernelError> {
    match n.checked_rem(parts) {
        Some(0) => Ok(n / parts),
        _ => Err(KernelError::Dim { what, have: parts, need: "a divisor of the weight's rows" }),
    }
}

/// One matrix and the vectors that meet it.
struct Unit<'a, 'y> {
    w: WeightView<'a>,
    xs: Vec<&'a [f32]>,
    out: Vec<&'y mut [f32]>,
}

/// Some rows of a unit.
struct Job<'u, 'y> {
    w: WeightView<'u>,
    xs: &'u [&'u [f32]],
    fixed: &'u [&'u Fixed],
    out: Vec<&'y mut [f32]>,
}

fn run(units: Vec<Unit<'_, '_>>) {
    let mut shared = Shared::default();
    let units: Vec<_> = units.into_iter().map(|u| (shared.fixed(u.w, &u.xs), u)).collect();
    let fixed_xs = shared.vectors;
    let (heads, outs): (Vec<_>, Vec<_>) = units
        .into_iter()
        .map(|(at, u)| {
            let fixed: Vec<&Fixed> = at.iter().map(|i| &fixed_xs[*i]).collect();
            ((u.w, u.xs, fixed), u.out)
        })
        .unzip();
    let mut jobs = Vec::new();
    for ((w, xs, fixed), outs) in heads.iter().zip(outs) {
        let rows = task_rows(*w, xs.len());
        let first = jobs.len();
        jobs.extend((0..w.n.div_ceil(rows)).map(|i| Job {
            w: w.rows(i * rows, rows.min(w.n - i * rows)),
            xs,
            fixed,
            out: Vec::with_capacity(xs.len()),
        }));
        for out in outs {
            for (job, part) in jobs[first..].iter_mut().zip(out.chunks_mut(rows)) {
                job.out.push(part);
            }
        }
    }
    jobs.into_par_iter().with_max_len(1).for_each(Job::run);
}

/// The vectors of streaming products as integers, each converted once however many units it meets.
#[derive(Default)]
struct Shared<'a> {
    seen: Vec<&'a [f32]>,
    vectors: Vec<Fixed>,
}

impl<'a> Shared<'a> {
    /// Where the vectors of a unit are; empty where type, machine or values do not allow integers.
    fn fixed(&mut self, w: WeightView<'_>, xs: &[&'a [f32]]) -> Vec<usize> {
        if xs.len() > STREAM || !simd::takes_fixed(w.ty) {
            return Vec::new();
        }
        xs.iter().map(|x| self.one(x)).collect::<Option<_>>().unwrap_or_default()
    }

    fn one(&mut self, x: &'a [f32]) -> Option<usize> {
        if let Some(at) = self.seen.iter().position(|s| std::ptr::eq(*s, x)) {
            return Some(at);
        }
        self.vectors.push(Fixed::new(x)?);
        self.seen.push(x);
        Some(self.seen.len() - 1)
    }
}

/// Rows of one task. It never changes a result, only the balance.
fn task_rows(w: WeightView<'_>, t: usize) -> usize {
    if t <= STREAM { (TASK_BYTES / w.row_bytes().max(1)).clamp(1, 4096) } else { TASK_ROWS }
}

impl Job<'_, '_> {
    fn run(mut self) {
        let row = self.w.row_bytes();
        if row > 0 && !self.fixed.is_empty() {
            simd::dot_fixed(self.w.ty, self.w.bytes, row, self.fixed, &mut self.out);
        } else if self.xs.len() <= STREAM || row == 0 {
            dot_rows(self.w.ty, self.w.bytes, self.w.k, self.xs, &mut self.out);
        } else {
            gemm_rows(self.w.ty, self.w.bytes, row, self.w.k, self.xs, &mut self.out);
        }
    }
}

#[cfg(test)]
mod tests;
