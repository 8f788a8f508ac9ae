//! Owns the execution of a plan on the host: the plan's own buffers, recipes and steps, each launch by its contract's
//! CPU kernel. It does what the plan says and nothing else. It shares no evaluation with the interpreters but the
//! quant decoder.

use glmc_ir::kernel::Kernel;
use glmc_ir::plan::{Mem, Phase, Plan};
use glmc_ir::ty::{Elem, SymValues};

use super::arena::{Arena, Lent, Pool};
use super::call::{Call, Source, sources};
use super::error::KernelError;
use super::gather;
use super::prepare::{Op, Operand, Prepared, Step, symbol_values};
use super::share::Place;
use crate::device::{Device, Observer, Output, Seen};
use crate::error::RuntimeError;
use crate::load::Weights;

/// One CPU rank: arena and cache pools.
#[derive(Debug)]
pub struct CpuDevice {
    pub(super) arena: Arena,
    pub(super) states: Vec<Pool>,
    pub(super) phases: Vec<Prepared>,
    /// The rows that the last `append_row` put into its pool, for observers.
    made: Vec<f32>,
    /// Fill every output with poison before it is written.
    pub(super) poison: bool,
}

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

    /// Shows what step `index` wrote on `rank`.
    pub(super) fn show(
        &self,
        rank: usize,
        step: &Step,
        syms: &[usize],
        index: usize,
        see: &mut Observer<'_>,
    ) -> Result<(), RuntimeError> {
        if let Op::AppendRow(_) = step.op {
            let width = step.inputs[0].shape(syms)[1];
            let shape = [self.made.len().checked_div(width).unwrap_or(0), width];
            see(Seen { rank, step: index, output: 0, shape: &shape, data: Output::F32(&self.made) })?;
        }
        for (output, o) in step.outputs.iter().enumerate() {
            let shape = o.shape(syms);
            let Some(range) = o.range(&shape) else { continue };
            let bytes = self.arena.bytes(range);
            let data = match o.elem {
                Elem::I32 => Output::I32(bytemuck::cast_slice(bytes)),
                _ => Output::F32(bytemuck::cast_slice(bytes)),
            };
            see(Seen { rank, step: index, output, shape: &shape, data })?;
        }
        Ok(())
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
        if rows.iter().any(|r| *r < 0) {
            let kept = made.chunks_exact(width.max(1)).zip(&rows).filter(|(_, r)| **r >= 0);
            made = kept.flat_map(|(x, _)| x.iter().copied()).collect();
        }
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

impl Device for CpuDevice {
    fn set_poison(&mut self, on: bool) {
        self.poison = on;
    }

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        mut see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let [weights] = weights else {
            return Err(RuntimeError::Request(format!("the weights of {} ranks for one", weights.len())));
        };
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
                    self.show(0, step, &values, i, see)?;
                }
            }
            Ok(())
        });
        self.phases[index].steps = prepared;
        result
    }

    fn result(&self, _: &Plan, phase: &Phase, name: &str, syms: &SymValues) -> Result<&[f32], RuntimeError> {
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
}
