//! Launches that fuse several ops, composed of the kernels of those ops; what lies between stays in scratch memory.
//! Never owns arithmetic of its own.

use glmc_ir::kernel::{IndexRowKernel, LatentRowKernel, RopeJoinKernel};

use super::call::{Call, floats};
use super::error::KernelError;
use super::matmul::{GroupedInput, grouped_matmul};
use super::prepare::Contract;
use super::{elementwise, norm, rope};

impl Call<'_> {
    /// `h = x + y`, `n = rms_norm(h, w)`.
    pub(super) fn add_rms_norm(&self, eps: f32, writes: &mut [&mut [u8]]) -> Result<(), KernelError> {
        let (h, n) = writes.split_at_mut(1);
        let (h, n) = (floats(h, 0)?, floats(n, 0)?);
        self.binary(h, |a, b| a + b, elementwise::add)?;
        norm::rms_norm(h, self.f32(2)?, eps, n)
    }

    /// `y = silu(x gate) * (x up)`.
    pub(super) fn gate_up(&self, contract: &Contract, y: &mut [f32]) -> Result<(), KernelError> {
        let (mut gate, mut up) = (vec![0.0; y.len()], vec![0.0; y.len()]);
        self.product(contract, 1, &mut gate, y.len(), true)?;
        self.product(contract, 2, &mut up, y.len(), true)?;
        elementwise::silu_mul(&gate, &up, y)
    }

    /// Product of the tokens with the experts of operand `w` that operand `ids` names.
    fn experts(&self, w: usize, ids: usize, y: &mut [f32]) -> Result<(), KernelError> {
        let (xs, ws) = (&self.in_shapes[0], &self.in_shapes[w]);
        let x = self.f32(0)?;
        let x = if xs.len() == 3 { GroupedInput::PerSlot(x) } else { GroupedInput::PerToken(x) };
        grouped_matmul(self.stored(w, ws[0] * ws[1], ws[2])?, ws[0], x, self.i32(ids)?, xs[0], y)
    }

    /// `y[t, j] = silu(gate x) * (up x)` of the chosen experts.
    pub(super) fn grouped_gate_up(&self, y: &mut [f32]) -> Result<(), KernelError> {
        let (mut gate, mut up) = (vec![0.0; y.len()], vec![0.0; y.len()]);
        self.experts(1, 3, &mut gate)?;
        self.experts(2, 3, &mut up)?;
        elementwise::silu_mul(&gate, &up, y)
    }

    /// `y[t] = sum_j weights[t, j] (w x)[t, j]` of the chosen experts.
    pub(super) fn grouped_down(&self, y: &mut [f32]) -> Result<(), KernelError> {
        let (slots, d) = (self.in_shapes[2][1], self.in_shapes[1][1]);
        let weights = self.f32(3)?;
        let mut each = vec![0.0; weights.len() * d];
        self.experts(1, 2, &mut each)?;
        if slots * d == 0 {
            y.fill(0.0);
            return Ok(());
        }
        let tokens = y.chunks_exact_mut(d).zip(each.chunks_exact(slots * d)).zip(weights.chunks_exact(slots));
        for ((y, each), weights) in tokens {
            y.fill(0.0);
            for (e, w) in each.chunks_exact(d).zip(weights) {
                y.iter_mut().zip(e).for_each(|(y, e)| *y += w * e);
            }
        }
        Ok(())
    }

    /// Pieces of the rows of operand 0, one rotated by the last operand's positions, the others normed by operand 1 or as
    /// they are.
    pub(super) fn rope_join(&self, rows: &Rows<'_>, y: &mut [f32]) -> Result<(), KernelError> {
        self.rows_of(self.f32(0)?, rows, |name| self.piece(name), y)
    }

    /// A row normed as a whole, then a piece of it rotated.
    pub(super) fn index_row(&self, k: &IndexRowKernel, y: &mut [f32]) -> Result<(), KernelError> {
        let (x, total) = (self.f32(0)?, self.step.inputs[0].pieces.iter().sum::<usize>());
        let pieces = k.from.iter().map(|name| self.piece(name)).collect::<Result<Vec<_>, _>>()?;
        let joined: Vec<f32> =
            x.chunks_exact(total.max(1)).flat_map(|row| pieces.iter().flat_map(|p| &row[p.clone()])).copied().collect();
        let mut normed = vec![0.0; joined.len()];
        norm::layer_norm(&joined, self.f32(1)?, self.f32(2)?, k.eps as f32, &mut normed)?;
        let ranges = |name: &str| {
            let at = k.names.iter().position(|n| n == name);
            let at = at.ok_or(KernelError::Dim { what: "a piece", have: 0, need: "a name of the row" })?;
            let start = pieces[..at].iter().map(|p| p.len()).sum();
            Ok(start..start + pieces[at].len())
        };
        self.rows_of(&normed, &Rows { from: &k.names, rope: &k.rope, theta: k.theta, eps: None }, ranges, y)
    }

    /// Rows put together from the pieces of rows of `x`, which lie where `piece` says.
    fn rows_of(
        &self,
        x: &[f32],
        rows: &Rows<'_>,
        piece: impl Fn(&str) -> Result<std::ops::Range<usize>, KernelError>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        let pos = self.i32(self.in_shapes.len() - 1)?;
        let shape = &self.in_shapes[0];
        let heads: usize = shape[1..shape.len() - 1].iter().product();
        let count: usize = shape[..shape.len() - 1].iter().product();
        let out = &self.step.outputs[0];
        let (total, made): (usize, usize) = (x.len().checked_div(count).unwrap_or(0), out.pieces.iter().sum());
        if count == 0 {
            return Ok(());
        }
        if total == 0 || made == 0 || rows.from.len() != out.pieces.len() {
            return Err(KernelError::Dim { what: "a row", have: rows.from.len(), need: "named pieces" });
        }
        let mut at = 0;
        for (from, name) in rows.from.iter().zip(&out.names) {
            let r = piece(from)?;
            if r.is_empty() {
                continue;
            }
            let part: Vec<f32> = x.chunks_exact(total).flat_map(|row| row[r.clone()].iter().copied()).collect();
            let mut done = vec![0.0; part.len()];
            match rows.eps {
                _ if name == rows.rope => rope::rope(&part, heads, r.len(), pos, rows.theta, &mut done)?,
                Some(eps) => norm::rms_norm(&part, self.f32(1)?, eps, &mut done)?,
                None => done.copy_from_slice(&part),
            }
            for (row, part) in y.chunks_exact_mut(made).zip(done.chunks_exact(r.len())) {
                row[at..at + r.len()].copy_from_slice(part);
            }
            at += r.len();
        }
        Ok(())
    }
}

/// What `rope_join` and `latent_row` do to a row.
pub(super) struct Rows<'a> {
    /// Pieces of the operand, in the order of the result.
    pub(super) from: &'a [String],
    /// Which piece of the result is rotated.
    pub(super) rope: &'a str,
    pub(super) theta: f64,
    /// Of the norm of the others, if they are normed.
    pub(super) eps: Option<f32>,
}

impl<'a> Rows<'a> {
    pub(super) fn copied(k: &'a RopeJoinKernel) -> Self {
        Rows { from: &k.from, rope: &k.rope, theta: k.theta, eps: None }
    }

    pub(super) fn normed(k: &'a LatentRowKernel) -> Self {
        Rows { from: &k.from, rope: &k.rope, theta: k.theta, eps: Some(k.eps as f32) }
    }
}
