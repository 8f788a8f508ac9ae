//! Owns the execution of a plan on the host: the plan's own buffers, recipes and steps, each launch by its contract's
//! CPU kernel. It does what the plan says and nothing else. It shares no evaluation with the interpreters but the
//! quant decoder.

use glmc_ir::kernel::Kernel;
use glmc_ir::plan::{Mem, Phase, Plan};
use glmc_ir::ty::{Elem, PendingKind, SymValues};

use super::arena::{Arena, Lent, Pool};
use super::error::KernelError;
use super::fusions::Rows;
use super::matmul::{GroupedInput, WeightView, batched_matmul, grouped_matmul, matmul};
use super::prepare::{Contract, Op, Operand, Prepared, Step, symbol_values};
use super::route::{Gating, RouteArgs, route};
use super::share::{Along, Place};
use super::{elementwise, gather, matmul_mid, norm, rope, strided, topk};
use crate::error::RuntimeError;
use crate::load::Weights;

/// One CPU rank: arena and cache pools.
#[derive(Debug)]
pub struct CpuDevice {
    pub(super) arena: Arena,
    pub(super) states: Vec<Pool>,
    pub(super) phases: Vec<Prepared>,
    /// The rows that the last `append_row` made, for observers.
    made: Vec<f32>,
    /// Fill every output with NaN before it is written.
    pub poison: bool,
}

/// An output that a step wrote, shown to an observer.
#[derive(Debug)]
pub enum Output<'a> {
    /// Floats.
    F32(&'a [f32]),
    /// Integers.
    I32(&'a [i32]),
}

/// Called after each step with the step's index, the output's index, its current shape and its numbers; after an
/// `append_row`, which has no output, with the rows that it made as output 0.
pub type Observer<'a> = &'a mut (dyn FnMut(usize, usize, &[usize], Output<'_>) + Send);

impl CpuDevice {
    /// Memory for the only rank of `plan`; see [`super::CpuGroup`] for several. Pages of arena and pools become resident
    /// when they are first written.
    ///
    /// # Errors
    /// A plan of several ranks, memory that the system does not give, or a plan that the verifier would have refused.
    pub fn new(plan: &Plan) -> Result<Self, RuntimeError> {
        if !plan.mesh.is_empty() {
            return Err(RuntimeError::Request("one device is asked to run the ranks of a mesh".into()));
        }
        Self::of_rank(plan, 0)
    }

    /// Memory for one rank of `plan`, of the sizes of its parts.
    pub(super) fn of_rank(plan: &Plan, rank: usize) -> Result<Self, RuntimeError> {
        let place = Place { mesh: &plan.mesh, rank: rank as u64 };
        let arena = plan.phases.iter().map(|p| p.arena_bytes).max().unwrap_or(0);
        let arena = Arena::new(arena).ok_or_else(|| RuntimeError::memory("the arena", arena))?;
        let none = SymValues::default();
        let pool = |s: &glmc_ir::plan::State| {
            let elems = place.local(&s.ty, &none).ok().and_then(|t| t.elems(&none)).unwrap_or(u64::MAX);
            let failed = || RuntimeError::memory(format!("cache pool `{}`", s.name), elems.saturating_mul(4));
            Pool::new(elems).ok_or_else(failed)
        };
        let states = plan.states.values().map(pool).collect::<Result<_, _>>()?;
        let prepared = |p: &Phase| {
            Prepared::new(p, place).map_err(|source| RuntimeError::Kernel {
                step: p.name.clone(),
                kernel: "prepare",
                source,
            })
        };
        let phases = plan.phases.iter().map(prepared).collect::<Result<_, _>>()?;
        Ok(CpuDevice { arena, states, phases, made: Vec::new(), poison: false })
    }

    /// Runs phase `index` of `plan` at the symbol values `syms` with `params` in order.
    ///
    /// # Errors
    /// The launch that failed, with its provenance.
    pub fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &Weights,
        syms: &SymValues,
        params: &[Vec<i32>],
        mut see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let phase = &plan.phases[index];
        let values = symbol_values(phase, syms).map_err(|source| RuntimeError::Kernel {
            step: phase.name.clone(),
            kernel: "symbols",
            source,
        })?;
        let prepared = std::mem::take(&mut self.phases[index].steps);
        let params: Vec<&[i32]> = params.iter().map(Vec::as_slice).collect();
        // All launches from a worker of the pool: from outside, each would sleep and be woken once.
        let result = rayon::scope(|_| {
            for (i, step) in prepared.iter().enumerate() {
                self.launch(step, weights, &values, &params).map_err(|source| RuntimeError::Kernel {
                    step: phase.steps[i].name.clone(),
                    kernel: phase.steps[i].kernel.name(),
                    source,
                })?;
                if let Some(see) = see.as_mut() {
                    self.show(step, &values, i, see);
                }
            }
            Ok(())
        });
        self.phases[index].steps = prepared;
        result
    }

    /// The current floats of a result of a phase that has just run.
    ///
    /// # Errors
    /// A result that is not there or is not `f32`.
    pub fn result(&self, phase: &Phase, name: &str, syms: &SymValues) -> Result<&[f32], RuntimeError> {
        let r = phase.results.iter().find(|r| r.name == name);
        let r = r.ok_or_else(|| RuntimeError::Request(format!("phase `{}` has no result `{name}`", phase.name)))?;
        match r.mem {
            Mem::Buf(b) if r.ty.elem == Elem::F32 => {
                let start = phase.buffers[b].offset as usize;
                let bytes = r.ty.bytes(syms).unwrap_or(0) as usize;
                Ok(bytemuck::cast_slice(self.arena.bytes(start..start + bytes)))
            }
            _ => Err(RuntimeError::Request(format!("result `{name}` is {} in {}", r.ty, r.mem))),
        }
    }

    pub(super) fn show(&self, step: &Step, syms: &[usize], index: usize, see: &mut Observer<'_>) {
        if let Op::AppendRow(_) = step.op {
            let width = step.inputs[0].shape(syms)[1];
            see(index, 0, &[self.made.len().checked_div(width).unwrap_or(0), width], Output::F32(&self.made));
        }
        for (k, o) in step.outputs.iter().enumerate() {
            let shape = o.shape(syms);
            let Some(range) = o.range(&shape) else { continue };
            let bytes = self.arena.bytes(range);
            match o.elem {
                Elem::I32 => see(index, k, &shape, Output::I32(bytemuck::cast_slice(bytes))),
                _ => see(index, k, &shape, Output::F32(bytemuck::cast_slice(bytes))),
            }
        }
    }

    pub(super) fn launch(
        &mut self,
        step: &Step,
        weights: &Weights,
        syms: &[usize],
        params: &[&[i32]],
    ) -> Result<(), KernelError> {
        let in_shapes: Vec<Vec<usize>> = step.inputs.iter().map(|o| o.shape(syms)).collect();
        let out_shapes: Vec<Vec<usize>> = step.outputs.iter().map(|o| o.shape(syms)).collect();
        let ranges = |ops: &[Operand], shapes: &[Vec<usize>]| -> Vec<_> {
            ops.iter().zip(shapes).filter_map(|(o, s)| o.range(s)).collect()
        };
        let (reads, writes) = (ranges(&step.inputs, &in_shapes), ranges(&step.outputs, &out_shapes));
        if self.poison {
            writes.iter().for_each(|w| self.arena.poison(w.clone()));
        }
        if let Op::Other(Kernel::Append(_)) = step.op {
            return self.append(step, syms, params, &reads, &in_shapes);
        }
        if let Op::AppendRow(make) = &step.op {
            return self.append_row(step, make, weights, syms, params, &reads, in_shapes);
        }
        let Lent { reads, mut writes } = self.arena.lend(&reads, &writes)?;
        if let Some(share) = &step.share {
            if writes.iter().all(|w| w.is_empty()) {
                return Ok(());
            }
            if share.adds_nothing(syms) {
                writes.iter_mut().for_each(|w| w.fill(0));
                return Ok(());
            }
        }
        let mut sources = sources(step, &self.states, reads, params)?;
        let mut own: Vec<Option<Vec<i32>>> = Vec::new();
        if let Some(share) = &step.share {
            own.extend(sources.iter().enumerate().map(|(i, s)| match s {
                Source::I32(v) => share.own(i, syms, v),
                _ => None,
            }));
            for (source, own) in sources.iter_mut().zip(&own) {
                if let Some(own) = own {
                    *source = Source::I32(own);
                }
            }
        }
        let call = Call { weights, sources, in_shapes, out_shapes, step, syms };
        call.run(writes)
    }

    /// Makes rows and puts them into their pool.
    #[allow(clippy::too_many_arguments, reason = "a launch with its operands")]
    fn append_row(
        &mut self,
        step: &Step,
        make: &Step,
        weights: &Weights,
        syms: &[usize],
        params: &[&[i32]],
        reads: &[std::ops::Range<usize>],
        mut in_shapes: Vec<Vec<usize>>,
    ) -> Result<(), KernelError> {
        let Lent { reads, .. } = self.arena.lend(reads, &[])?;
        let mut sources = sources(step, &self.states, reads, params)?;
        let bad = || KernelError::Dim { what: "append_row", have: step.inputs.len(), need: "a pool, rows and a maker" };
        let (Some(Mem::State(s)), Some(Source::I32(rows))) = (step.inputs.first().map(|o| o.mem), sources.get(1))
        else {
            return Err(bad());
        };
        let own = step.share.as_ref().and_then(|s| s.own(1, syms, rows));
        let rows = own.as_deref().unwrap_or(rows).to_vec();
        let width = in_shapes[0][1];
        let mut made = vec![f32::NAN; rows.len() * width];
        let out_shapes = vec![vec![rows.len(), width]];
        let call = Call {
            weights,
            sources: sources.split_off(2),
            in_shapes: in_shapes.split_off(2),
            out_shapes,
            step: make,
            syms,
        };
        call.run(vec![bytemuck::cast_slice_mut(&mut made)])?;
        let pool = self.states.get_mut(s.as_u32() as usize).ok_or_else(bad)?;
        gather::scatter_pool(&made, width, &rows, pool.rows_mut())?;
        self.made = made;
        Ok(())
    }

    fn append(
        &mut self,
        step: &Step,
        syms: &[usize],
        params: &[&[i32]],
        reads: &[std::ops::Range<usize>],
        shapes: &[Vec<usize>],
    ) -> Result<(), KernelError> {
        let bad = || KernelError::Dim { what: "append", have: step.inputs.len(), need: "a pool, rows and values" };
        let [pool, rows, x] = step.inputs.as_slice() else { return Err(bad()) };
        let Mem::State(s) = pool.mem else { return Err(bad()) };
        let mut reads = reads.iter();
        let mut words = |o: &Operand| -> Result<&[u8], KernelError> {
            match o.mem {
                Mem::Param(p) => params.get(p.as_u32() as usize).map(|v| bytemuck::cast_slice(v)).ok_or_else(bad),
                Mem::Buf(_) => reads.next().map(|r| self.arena.bytes(r.clone())).ok_or_else(bad),
                _ => Err(bad()),
            }
        };
        let (rows, x): (&[i32], &[f32]) = (bytemuck::cast_slice(words(rows)?), bytemuck::cast_slice(words(x)?));
        let pool = self.states.get_mut(s.as_u32() as usize).ok_or_else(bad)?;
        if step.share.is_some() && x.is_empty() {
            return Ok(());
        }
        let own = step.share.as_ref().and_then(|s| s.own(1, syms, rows));
        gather::scatter_pool(x, shapes[2][1], own.as_deref().unwrap_or(rows), pool.rows_mut())
    }
}

/// Where the inputs of a launch come from; `reads` are those that lie in the arena, in order.
fn sources<'a>(
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
enum Source<'a> {
    Weight(Elem, glmc_ir::entities::WeightId),
    F32(&'a [f32]),
    I32(&'a [i32]),
}

/// One launch with its operands at hand.
pub(super) struct Call<'a> {
    weights: &'a Weights,
    sources: Vec<Source<'a>>,
    pub(super) in_shapes: Vec<Vec<usize>>,
    out_shapes: Vec<Vec<usize>>,
    pub(super) step: &'a Step,
    syms: &'a [usize],
}

impl Call<'_> {
    fn run(&self, mut writes: Vec<&mut [u8]>) -> Result<(), KernelError> {
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
