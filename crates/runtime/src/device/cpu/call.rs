//! Owns one launch on the host: operands at hand, the contract's CPU kernel on them. It knows no plan and no arena.

use glmc_ir::kernel::Kernel;
use glmc_ir::plan::Mem;
use glmc_ir::ty::{Elem, PendingKind};

use super::arena::Pool;
use super::error::KernelError;
use super::fusions::Rows;
use super::matmul::{GroupedInput, WeightView, batched_matmul, grouped_matmul, matmul};
use super::prepare::{Contract, Op, Step};
use super::route::{Gating, RouteArgs, route};
use super::share::Along;
use super::{elementwise, gather, matmul_mid, norm, rope, strided, topk};
use crate::load::Weights;

/// Where the inputs of a launch come from; `reads` are those that lie in the arena, in order.
pub(super) fn sources<'a>(
    step: &Step,
    states: &'a [Pool],
    reads: Vec<&'a [u8]>,
    params: &[&'a [i32]],
) -> Result<Vec<Source<'a>>, KernelError> {
    let mut reads = reads.into_iter();
    let sources = step.inputs.iter().map(|o| match o.mem {
        Mem::Weight(w) => Some(Source::Weight(o.elem, w)),
        Mem::State(s) => states.get(s.as_u32() as usize).map(|v| Source::F32(v.rows())),
        Mem::Param(p) if o.elem == Elem::I32 => params.get(p.as_u32() as usize).map(|v| Source::I32(v)),
        Mem::Param(p) => params.get(p.as_u32() as usize).map(|v| Source::F32(bytemuck::cast_slice(v))),
        Mem::Buf(_) if o.elem == Elem::I32 => reads.next().map(|b| Source::I32(bytemuck::cast_slice(b))),
        Mem::Buf(_) => reads.next().map(|b| Source::F32(bytemuck::cast_slice(b))),
    });
    let missing = KernelError::Dim { what: "an operand", have: 0, need: "memory that is there" };
    sources.collect::<Option<Vec<_>>>().ok_or(missing)
}

/// Where an input comes from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Weight(Elem, glmc_ir::entities::WeightId),
    F32(&'a [f32]),
    I32(&'a [i32]),
}

/// One launch with its operands at hand.
pub(super) struct Call<'a> {
    pub(super) weights: &'a Weights,
    pub(super) sources: Vec<Source<'a>>,
    pub(super) in_shapes: Vec<Vec<usize>>,
    pub(super) out_shapes: Vec<Vec<usize>>,
    pub(super) step: &'a Step,
    pub(super) syms: &'a [usize],
}

impl Call<'_> {
    pub(super) fn run(&self, mut writes: Vec<&mut [u8]>) -> Result<(), KernelError> {
        let kernel = match &self.step.op {
            Op::Matmul(contract, at) => return self.matmul(contract, *at, floats(&mut writes, 0)?),
            Op::GateUp(contract) => return self.gate_up(contract, floats(&mut writes, 0)?),
            Op::Other(k) => k,
            Op::AppendRow(_) => return Err(KernelError::Dim { what: "a launch", have: 0, need: "one on a pool" }),
            Op::Meet(_) => return Err(KernelError::Dim { what: "ranks of a collective", have: 1, need: "a group" }),
        };
        match kernel {
            Kernel::AllGather(_)
            | Kernel::AllReduce(_)
            | Kernel::AllToAll(_)
            | Kernel::ReduceScatter(_)
            | Kernel::Shard(_)
            | Kernel::Matmul(_)
            | Kernel::GateUp(_)
            | Kernel::AppendRow(_)
            | Kernel::Append(_) => Err(KernelError::Dim { what: "a launch", have: 0, need: "one that was prepared" }),
            Kernel::Add(_) => self.binary(floats(&mut writes, 0)?, |a, b| a + b, elementwise::add),
            Kernel::Mul(_) => self.binary(floats(&mut writes, 0)?, |a, b| a * b, elementwise::mul),
            Kernel::Silu(_) => elementwise::silu(self.f32(0)?, floats(&mut writes, 0)?),
            Kernel::Sigmoid(_) => elementwise::sigmoid(self.f32(0)?, floats(&mut writes, 0)?),
            Kernel::Relu(_) => elementwise::relu(self.f32(0)?, floats(&mut writes, 0)?),
            Kernel::AddRmsNorm(n) => self.add_rms_norm(n.eps as f32, &mut writes),
            Kernel::GroupedGateUp(_) => self.grouped_gate_up(floats(&mut writes, 0)?),
            Kernel::GroupedDown(_) => self.grouped_down(floats(&mut writes, 0)?),
            Kernel::RopeJoin(k) => self.rope_join(&Rows::copied(k), floats(&mut writes, 0)?),
            Kernel::LatentRow(k) => self.rope_join(&Rows::normed(k), floats(&mut writes, 0)?),
            Kernel::IndexRow(k) => self.index_row(k, floats(&mut writes, 0)?),
            Kernel::Scale(s) => elementwise::scale(self.f32(0)?, s.factor as f32, floats(&mut writes, 0)?),
            Kernel::Decode(_) => self.decode(floats(&mut writes, 0)?),
            Kernel::Gather(_) => self.gather(floats(&mut writes, 0)?),
            Kernel::GroupedMatmul(_) => self.grouped(floats(&mut writes, 0)?),
            Kernel::RmsNorm(n) => norm::rms_norm(self.f32(0)?, self.f32(1)?, n.eps as f32, floats(&mut writes, 0)?),
            Kernel::LayerNorm(n) => {
                norm::layer_norm(self.f32(0)?, self.f32(1)?, self.f32(2)?, n.eps as f32, floats(&mut writes, 0)?)
            }
            Kernel::Rope(r) => {
                let shape = &self.in_shapes[0];
                let heads = shape[1..shape.len() - 1].iter().product();
                rope::rope(self.f32(0)?, heads, shape[shape.len() - 1], self.i32(1)?, r.theta, floats(&mut writes, 0)?)
            }
            Kernel::Swiglu(k) if k.pieces.is_empty() => {
                elementwise::silu_mul(self.f32(0)?, self.f32(1)?, floats(&mut writes, 0)?)
            }
            Kernel::Swiglu(k) => self.swiglu_joined(&k.pieces, floats(&mut writes, 0)?),
            Kernel::Split(s) => self.split(&s.names, &mut writes),
            Kernel::Join(_) => self.join(floats(&mut writes, 0)?),
            Kernel::Attention(a) => self.attention(&a.0, floats(&mut writes, 0)?),
            Kernel::Indexer(k) => self.indexer(k.scale, floats(&mut writes, 0)?),
            Kernel::PagedAttention(k) => self.paged_attention(k, floats(&mut writes, 0)?),
            Kernel::PagedIndexer(k) => self.paged_indexer(k.scale, floats(&mut writes, 0)?),
            Kernel::TopK(k) if self.merge().is_some() => self.topk_part(k.k as usize, floats(&mut writes, 0)?),
            Kernel::TopK(k) => topk::topk(self.f32(0)?, self.in_shapes[0][0], k.k as usize, ints(&mut writes, 0)?),
            Kernel::Route(r) => self.route(&r.0, &mut writes),
        }
    }

    pub(super) fn f32(&self, i: usize) -> Result<&[f32], KernelError> {
        match self.sources[i] {
            Source::F32(v) => Ok(v),
            Source::Weight(_, w) => Ok(self.weights.floats(w)),
            Source::I32(_) => Err(KernelError::Dim { what: "an operand", have: i, need: "floats" }),
        }
    }

    pub(super) fn i32(&self, i: usize) -> Result<&[i32], KernelError> {
        match self.sources[i] {
            Source::I32(v) => Ok(v),
            _ => Err(KernelError::Dim { what: "an operand", have: i, need: "integers" }),
        }
    }

    /// Operand `i` as `n` stored rows of `k`.
    pub(super) fn stored(&self, i: usize, n: usize, k: usize) -> Result<WeightView<'_>, KernelError> {
        use glmc_ir::quant::QuantType;
        match self.sources[i] {
            Source::Weight(elem, w) => {
                let ty = elem.storage().ok_or(KernelError::Dim {
                    what: "a weight",
                    have: i,
                    need: "a float or block type",
                })?;
                WeightView::new(ty, self.weights.bytes(w), n, k)
            }
            Source::F32(v) => WeightView::new(QuantType::F32, bytemuck::cast_slice(v), n, k),
            Source::I32(_) => Err(KernelError::Dim { what: "an operand", have: i, need: "floats" }),
        }
    }

    fn matmul(&self, contract: &Contract, last: usize, y: &mut [f32]) -> Result<(), KernelError> {
        let rhs = self.sources.len() - 1;
        if rhs == 1 {
            let width = y.len();
            return self.product(contract, 1, y, width, true);
        }
        // Operands that share the input: each fills its part of the joined last dim.
        let total: usize = self.step.outputs[0].pieces.iter().sum();
        let mut at = 0;
        for i in 0..rhs {
            let width = self.in_shapes[i + 1][last];
            if matches!(contract, Contract::Rows { .. }) && self.in_shapes[i + 1][..].len() == 2 {
                self.product(contract, i + 1, &mut y[at..], total, false)?;
            } else {
                let rows = y.len() / total.max(1);
                let mut part = vec![0.0; rows * width];
                self.product(contract, i + 1, &mut part, 0, true)?;
                for (y, p) in y.chunks_exact_mut(total).zip(part.chunks_exact(width.max(1))) {
                    y[at..at + width].copy_from_slice(p);
                }
            }
            at += width;
        }
        Ok(())
    }

    /// One product of operand 0 with operand `i`; dense, or rows `stride` apart.
    pub(super) fn product(
        &self,
        contract: &Contract,
        i: usize,
        y: &mut [f32],
        stride: usize,
        dense: bool,
    ) -> Result<(), KernelError> {
        let (x, xs, ws) = (self.f32(0)?, &self.in_shapes[0], &self.in_shapes[i]);
        let prod = |d: &[usize]| d.iter().product::<usize>();
        match contract {
            Contract::Rows { free } => {
                let (t, k) = (prod(&xs[..*free]), prod(&xs[*free..]));
                let n = prod(ws).checked_div(k).unwrap_or(0);
                matmul(self.stored(i, n, k)?, x, t, y, if dense { n } else { stride })
            }
            Contract::Mid { free } => {
                matmul_mid::matmul_mid(self.stored(i, ws[0] * ws[1], ws[2])?, ws[0], x, prod(&xs[..*free]), y)
            }
            Contract::Heads => batched_matmul(self.stored(i, ws[0] * ws[1], ws[2])?, ws[0], x, xs[0], y),
            Contract::Strided(e) => strided::contract(e, x, xs, self.f32(i)?, ws, y),
        }
    }

    fn grouped(&self, y: &mut [f32]) -> Result<(), KernelError> {
        let (xs, ws) = (&self.in_shapes[0], &self.in_shapes[1]);
        let w = self.stored(1, ws[0] * ws[1], ws[2])?;
        let x = self.f32(0)?;
        let x = if xs.len() == 3 { GroupedInput::PerSlot(x) } else { GroupedInput::PerToken(x) };
        grouped_matmul(w, ws[0], x, self.i32(2)?, xs[0], y)
    }

    fn gather(&self, y: &mut [f32]) -> Result<(), KernelError> {
        let shape = &self.in_shapes[0];
        let width = shape[1..].iter().product();
        match self.sources[0] {
            Source::F32(pool) => gather::gather_pool(pool, width, self.i32(1)?, y),
            _ => gather::gather_rows(self.stored(0, shape[0], width)?, self.i32(1)?, y),
        }
    }

    fn decode(&self, y: &mut [f32]) -> Result<(), KernelError> {
        match self.sources[0] {
            Source::Weight(elem, w) => {
                let missing = KernelError::Dim { what: "a weight", have: 0, need: "a float or block type" };
                elem.storage().ok_or(missing)?.decode(self.weights.bytes(w), y);
            }
            _ => y.copy_from_slice(self.f32(0)?),
        }
        Ok(())
    }

    pub(super) fn binary(
        &self,
        y: &mut [f32],
        f: impl Fn(f32, f32) -> f32,
        same: impl Fn(&[f32], &[f32], &mut [f32]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let (a, b) = (self.f32(0)?, self.f32(1)?);
        let (sa, sb) = (&self.in_shapes[0], &self.in_shapes[1]);
        if sa == sb {
            return same(a, b, y);
        }
        for (flat, y) in y.iter_mut().enumerate() {
            let (mut rest, mut at, mut stride) = (flat, 0, 1);
            for (n, m) in sa.iter().zip(sb).rev() {
                at += if *m == 1 { 0 } else { rest % n * stride };
                rest /= n;
                stride *= m;
            }
            *y = f(a[flat], b[at]);
        }
        Ok(())
    }

    fn swiglu_joined(&self, pieces: &[String], y: &mut [f32]) -> Result<(), KernelError> {
        let (g, u) = (self.piece(&pieces[0])?, self.piece(&pieces[1])?);
        let total: usize = self.step.inputs[0].pieces.iter().sum();
        let x = self.f32(0)?;
        for (row, y) in x.chunks_exact(total).zip(y.chunks_exact_mut(g.len())) {
            elementwise::silu_mul(&row[g.clone()], &row[u.clone()], y)?;
        }
        Ok(())
    }

    /// Where a named piece of operand 0 lies in its last dim. The verifier has compared names and order.
    pub(super) fn piece(&self, name: &str) -> Result<std::ops::Range<usize>, KernelError> {
        self.piece_of(0, name)
    }

    /// The same of operand `i`.
    pub(super) fn piece_of(&self, i: usize, name: &str) -> Result<std::ops::Range<usize>, KernelError> {
        let input = &self.step.inputs[i];
        let at = input.names.iter().position(|n| n == name);
        let at = at.ok_or(KernelError::Dim { what: "a piece", have: 0, need: "a name that the operand has" })?;
        let start: usize = input.pieces[..at].iter().sum();
        Ok(start..start + input.pieces[at])
    }

    fn split(&self, names: &[String], writes: &mut [&mut [u8]]) -> Result<(), KernelError> {
        let x = self.f32(0)?;
        let total: usize = self.step.inputs[0].pieces.iter().sum();
        for (i, name) in names.iter().enumerate() {
            let r = self.piece(name)?;
            let y = floats(writes, i)?;
            for (row, y) in x.chunks_exact(total).zip(y.chunks_exact_mut(r.len().max(1))) {
                y.copy_from_slice(&row[r.clone()]);
            }
        }
        Ok(())
    }

    fn join(&self, y: &mut [f32]) -> Result<(), KernelError> {
        let widths: Vec<usize> = self.in_shapes.iter().map(|s| s.last().copied().unwrap_or(1)).collect();
        let total: usize = widths.iter().sum();
        let parts = (0..widths.len()).map(|i| self.f32(i)).collect::<Result<Vec<_>, _>>()?;
        for (r, y) in y.chunks_exact_mut(total).enumerate() {
            let mut at = 0;
            for (p, w) in parts.iter().zip(&widths) {
                y[at..at + w].copy_from_slice(&p[r * w..(r + 1) * w]);
                at += w;
            }
        }
        Ok(())
    }

    /// The merge that the results await, and the dim it is over.
    pub(super) fn merge(&self) -> Option<&(PendingKind, Along)> {
        self.step.share.as_ref().and_then(|s| s.merge.as_ref())
    }

    fn topk_part(&self, k: usize, y: &mut [f32]) -> Result<(), KernelError> {
        let Some((_, along)) = self.merge() else { return Ok(()) };
        topk::topk_part(self.f32(0)?, self.in_shapes[0][0], k, along.outward(self.syms), y)
    }

    fn route(&self, r: &glmc_ir::ops::MoeRoute, writes: &mut [&mut [u8]]) -> Result<(), KernelError> {
        let args = RouteArgs {
            gating: match r.gating {
                glmc_ir::ops::Gating::Sigmoid => Gating::Sigmoid,
                glmc_ir::ops::Gating::Softmax => Gating::Softmax,
            },
            bias: if r.bias { Some(self.f32(1)?) } else { None },
            groups: r.groups as usize,
            groups_used: r.groups_used as usize,
            used: r.k as usize,
            normalise: r.norm,
            scale: r.scale as f32,
        };
        let (ids, weights) = writes.split_at_mut(1);
        route(self.f32(0)?, self.out_shapes[0][0], &args, ints(ids, 0)?, floats(weights, 0)?)
    }
}

pub(super) fn floats<'w>(writes: &'w mut [&mut [u8]], i: usize) -> Result<&'w mut [f32], KernelError> {
    let have = writes.len();
    let out = writes.get_mut(i).ok_or(KernelError::Dim { what: "outputs", have, need: "one more" })?;
    Ok(bytemuck::cast_slice_mut(out))
}

fn ints<'w>(writes: &'w mut [&mut [u8]], i: usize) -> Result<&'w mut [i32], KernelError> {
    let have = writes.len();
    let out = writes.get_mut(i).ok_or(KernelError::Dim { what: "outputs", have, need: "one more" })?;
    Ok(bytemuck::cast_slice_mut(out))
}
