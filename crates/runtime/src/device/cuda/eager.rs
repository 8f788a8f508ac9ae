//! A plan step by step: each step launched and waited for, so that an error names it, its outputs poisoned before and
//! shown after. Slow; graphs do the same without a stop.

use glmc_ir::kernel::Access;
use glmc_ir::placement::local_type;
use glmc_ir::plan::{Mem, Phase, Plan, Step};
use glmc_ir::ty::{Elem, SymValues};

use super::CudaError;
use super::exec::CudaDevice;
use crate::device::cpu::{Observer, Output};
use crate::error::RuntimeError;

impl CudaDevice {
    /// Each step launched and waited for, its outputs shown.
    pub(super) fn step_by_step(
        &mut self,
        plan: &Plan,
        index: usize,
        syms: &SymValues,
        mut see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let phase = &plan.phases[index];
        for i in 0..self.launches.phases[index].calls.len() {
            let call = self.launches.phases[index].calls[i].clone();
            let Some(step) = phase.steps.get(call.step) else { continue };
            let named = |source| RuntimeError::Cuda { step: step.name.clone(), source };
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
                self.show(plan, phase, call.step, syms, see)?;
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
                self.stream.fill(arena, buffer.offset, buffer.bytes / 4, u32::MAX)?;
            }
        }
        Ok(())
    }

    /// The outputs of rank 0.
    fn show(
        &self,
        plan: &Plan,
        phase: &Phase,
        index: usize,
        syms: &SymValues,
        see: &mut Observer<'_>,
    ) -> Result<(), RuntimeError> {
        let step = &phase.steps[index];
        let named = |source| RuntimeError::Cuda { step: step.name.clone(), source };
        let outputs = step.args.iter().filter(|a| a.access == Access::Write);
        for (k, a) in outputs.enumerate() {
            let Mem::Buf(b) = a.mem else { continue };
            let told = |m: String| RuntimeError::Request(format!("step `{}`: {m}", step.name));
            let local = local_type(&a.ty, &plan.mesh, 0, syms).map_err(|d| told(d.message))?;
            let shape = local.shape(syms).ok_or_else(|| told(format!("no size of {}", a.ty)))?;
            let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
            let mut bytes = vec![0u32; shape.iter().product()];
            let to = bytemuck::cast_slice_mut(&mut bytes);
            self.places.arenas[0].download(phase.buffers[b].offset, to).map_err(named)?;
            match local.elem {
                Elem::I32 => see(index, k, &shape, Output::I32(bytemuck::cast_slice(&bytes))),
                _ => see(index, k, &shape, Output::F32(bytemuck::cast_slice(&bytes))),
            }
        }
        Ok(())
    }
}
