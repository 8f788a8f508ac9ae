//! Launches of attention and of the indexer, over rows of a buffer or rows of a pool. Owns how their operands are read
//! off a launch; the arithmetic is that of [`super::attention`] and [`super::indexer`].

use glmc_ir::kernel::PagedAttentionKernel;
use glmc_ir::ops::Attention;

use super::attention::{AttentionArgs, KeyPart, attention, attention_part};
use super::cached::Cached;
use super::call::Call;
use super::error::KernelError;
use super::indexer::{IndexerArgs, indexer_scores};

impl Call<'_> {
    /// See [`glmc_ir::kernel::AttentionKernel`].
    pub(super) fn attention(&self, a: &Attention, y: &mut [f32]) -> Result<(), KernelError> {
        let p = a.parts;
        let cached = |i: usize| {
            let width = self.in_shapes[i][2..].iter().product();
            self.f32(i).map(|data| Cached::dense(data, width))
        };
        let part = |i: usize| {
            let (q, k) = (&self.in_shapes[i], &self.in_shapes[p + i]);
            Ok(KeyPart { q: self.f32(i)?, k: cached(p + i)?, d: q[2], per_head: k.len() == 4 })
        };
        let parts = (0..p).map(part).collect::<Result<Vec<_>, KernelError>>()?;
        let v = &self.in_shapes[2 * p];
        let args = AttentionArgs {
            parts: &parts,
            v: cached(2 * p)?,
            dv: v[v.len() - 1],
            v_per_head: v.len() == 4,
            heads: self.in_shapes[0][1],
            seqs: v[0],
            positions: v[1],
            seq: self.i32(2 * p + 1)?,
            len: self.i32(2 * p + 2)?,
            sel: if a.selected { Some(self.i32(2 * p + 3)?) } else { None },
            scale: a.scale as f32,
        };
        if self.merge().is_some() { attention_part(&args, y) } else { attention(&args, y) }
    }

    /// See [`PagedAttentionKernel`].
    pub(super) fn paged_attention(&self, a: &PagedAttentionKernel, y: &mut [f32]) -> Result<(), KernelError> {
        let p = a.keys.len();
        let (pool, table) = (self.f32(p)?, self.i32(p + 1)?);
        let stride = self.in_shapes[p][1];
        let zeros = vec![0.0; stride];
        let rows = |name: &str| {
            let piece = self.piece_of(p, name)?;
            Cached::paged(pool, (stride, piece.start, piece.len()), table, &zeros)
        };
        let part = |(i, name): (usize, &String)| -> Result<KeyPart<'_>, KernelError> {
            Ok(KeyPart { q: self.f32(i)?, k: rows(name)?, d: self.in_shapes[i][2], per_head: false })
        };
        let parts = a.keys.iter().enumerate().map(part).collect::<Result<Vec<_>, KernelError>>()?;
        let args = AttentionArgs {
            parts: &parts,
            v: rows(&a.value)?,
            dv: self.piece_of(p, &a.value)?.len(),
            v_per_head: false,
            heads: self.in_shapes[0][1],
            seqs: self.in_shapes[p + 1][0],
            positions: self.in_shapes[p + 1][1],
            seq: self.i32(p + 2)?,
            len: self.i32(p + 3)?,
            sel: if a.selected { Some(self.i32(p + 4)?) } else { None },
            scale: a.scale as f32,
        };
        if self.merge().is_some() { attention_part(&args, y) } else { attention(&args, y) }
    }

    /// See [`glmc_ir::kernel::IndexerKernel`].
    pub(super) fn indexer(&self, scale: f64, y: &mut [f32]) -> Result<(), KernelError> {
        let keys = &self.in_shapes[1];
        self.scores(scale, Cached::dense(self.f32(1)?, keys[2]), (keys[0], keys[1]), 2, y)
    }

    /// See [`glmc_ir::kernel::PagedIndexerKernel`].
    pub(super) fn paged_indexer(&self, scale: f64, y: &mut [f32]) -> Result<(), KernelError> {
        let (width, table) = (self.in_shapes[1][1], &self.in_shapes[2]);
        let zeros = vec![0.0; width];
        let keys = Cached::paged(self.f32(1)?, (width, 0, width), self.i32(2)?, &zeros)?;
        self.scores(scale, keys, (table[0], table[1]), 3, y)
    }

    /// Scores of `Q x S` keys; operand `w` and those that follow are weights, sequences and lengths.
    fn scores(
        &self,
        scale: f64,
        k: Cached<'_>,
        (seqs, positions): (usize, usize),
        w: usize,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        let q = &self.in_shapes[0];
        let args = IndexerArgs {
            q: self.f32(0)?,
            w: self.f32(w)?,
            k,
            heads: q[1],
            d: q[2],
            seqs,
            positions,
            seq: self.i32(w + 1)?,
            len: self.i32(w + 2)?,
            scale: scale as f32,
        };
        indexer_scores(&args, y)
    }
}
