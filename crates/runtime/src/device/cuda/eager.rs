//! A plan step by step: each step launched and waited for, so that an error names it, its outputs poisoned before and
//! shown after. Slow; graphs do the same without a stop.

use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::placement::local_type;
use glmc_ir::plan::{Mem, Phase, Plan, Step};
use glmc_ir::shard_map::Shard;
use glmc_ir::ty::{Elem, SymValues};

use super::CudaError;
use super::exec::CudaDevice;
use crate::device::{Observer, Output, POISON, Seen};
use crate::error::RuntimeError;

impl CudaDevice {
    /// Each step launched and waited for, its outputs shown, those of all ranks.
    pub(super) fn step_by_step(
        &mut self,
        plan: &Plan,
        index: usize,
        syms: &SymValues,
        params: &[Vec<i32>],
        mut see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let phase = &plan.phases[index];
        for i in 0..self.launches.phases[index].calls.len() {
            let call = self.launches.phases[index].calls[i].clone();
            let Some(step) = phase.steps.get(call.step) else { continue };
            let ranks = plan.target.ranks;
            let rank = self.launches.ranks.get(call.rank).copied().unwrap_or(call.rank);
            let named = |source| {
                let e = RuntimeError::Cuda { step: format!("{}` of phase `{}", step.name, phase.name), source };
                if ranks > 1 { RuntimeError::Rank { rank, source: Box::new(e) } } else { e }
            };
            let neighbour = |i: Option<usize>| i.and_then(|i| self.launches.phases[index].calls.get(i));
            let first = neighbour(i.checked_sub(1)).is_none_or(|c| c.step != call.step);
            let last = neighbour(Some(i + 1)).is_none_or(|c| c.step != call.step);
            if self.poison && first {
                self.poison_outputs(phase, step).map_err(named)?;
            }
            self.transfers(phase, index, i).map_err(named)?;
            self.launch(phase, index, &call, false).map_err(named)?;
            let kernel = &self.kernels[call.kernel].name;
            self.guard.wait(&self.stream, &format!("kernel {kernel}")).map_err(named)?;
            if let (true, Some(see)) = (last, see.as_mut()) {
                self.show(plan, phase, call.step, syms, params, see)?;
            }
        }
        let end = self.launches.phases[index].calls.len();
        let named = |source| RuntimeError::Cuda { step: phase.name.clone(), source };
        self.transfers(phase, index, end).map_err(named)?;
        Ok(())
    }

    /// Poisons what a step writes, of every rank.
    fn poison_outputs(&mut self, phase: &Phase, step: &Step) -> Result<(), CudaError> {
        for a in step.args.iter().filter(|a| a.access == Access::Write) {
            let Mem::Buf(b) = a.mem else { continue };
            let buffer = &phase.buffers[b];
            for arena in &mut self.places.arenas {
                self.stream.fill(arena, buffer.offset, buffer.bytes / 4, POISON)?;
            }
        }
        Ok(())
    }

    /// What a step wrote on every rank.
    fn show(
        &self,
        plan: &Plan,
        phase: &Phase,
        index: usize,
        syms: &SymValues,
        params: &[Vec<i32>],
        see: &mut Observer<'_>,
    ) -> Result<(), RuntimeError> {
        let step = &phase.steps[index];
        let told = |m: String| RuntimeError::Request(format!("step `{}`: {m}", step.name));
        let outputs: Vec<_> = step.args.iter().filter(|a| a.access == Access::Write).collect();
        for (own, rank) in self.launches.ranks.iter().copied().enumerate() {
            if let Kernel::AppendRow(_) = step.kernel {
                self.show_rows(plan, step, own, index, syms, params, see)?;
            }
            for (output, a) in outputs.iter().enumerate() {
                let Mem::Buf(b) = a.mem else { continue };
                let local = local_type(&a.ty, &plan.mesh, rank as u64, syms).map_err(|d| told(d.message))?;
                let shape = local.shape(syms).ok_or_else(|| told(format!("no size of {}", a.ty)))?;
                let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
                let mut words = vec![0u32; shape.iter().product()];
                let to = bytemuck::cast_slice_mut(&mut words);
                let got = self.places.arenas[own].download(phase.buffers[b].offset, to);
                got.map_err(|source| RuntimeError::Cuda { step: step.name.clone(), source })?;
                let data = match local.elem {
                    Elem::I32 => Output::I32(bytemuck::cast_slice(&words)),
                    _ => Output::F32(bytemuck::cast_slice(&words)),
                };
                see(Seen { rank, step: index, output, shape: &shape, data })?;
            }
        }
        Ok(())
    }

    /// The rows that a step put into a rank's part of a pool.
    #[allow(clippy::too_many_arguments, reason = "a step with its surroundings")]
    fn show_rows(
        &self,
        plan: &Plan,
        step: &Step,
        own: usize,
        index: usize,
        syms: &SymValues,
        params: &[Vec<i32>],
        see: &mut Observer<'_>,
    ) -> Result<(), RuntimeError> {
        let told = |m: String| RuntimeError::Request(format!("step `{}`: {m}", step.name));
        let rank = self.launches.ranks.get(own).copied().unwrap_or(own);
        let [Some(Mem::State(s)), Some(Mem::Param(p))] = [0, 1].map(|i| step.args.get(i).map(|a| a.mem)) else {
            return Err(told("its rows are named by no step parameter".into()));
        };
        let s = s.as_u32() as usize;
        let (state, rows) = (plan.states.values().nth(s), params.get(p.as_u32() as usize));
        let (Some(state), Some(rows)) = (state, rows) else { return Err(told("no pool or no rows".into())) };
        let shard = Shard::of(&state.ty, &plan.mesh, rank as u64, syms).map_err(|d| told(d.message))?;
        let width = shard.shape().into_iter().skip(1).product::<u64>();
        let at = self.places.state_at.get(own).and_then(|r| r.get(s)).copied().unwrap_or(0);
        let kept: Vec<u64> = rows.iter().filter_map(|r| shard.place(0, u64::try_from(*r).ok()?)).collect();
        let mut words = vec![0u32; kept.len() * width as usize];
        for (row, to) in kept.iter().zip(words.chunks_exact_mut(width.max(1) as usize)) {
            let got = self.places.states[own].download(at + 4 * row * width, bytemuck::cast_slice_mut(to));
            got.map_err(|source| RuntimeError::Cuda { step: step.name.clone(), source })?;
        }
        let shape = [kept.len(), width as usize];
        see(Seen { rank, step: index, output: 0, shape: &shape, data: Output::F32(bytemuck::cast_slice(&words)) })
    }
}
