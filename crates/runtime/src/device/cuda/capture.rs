//! The graphs of a device: each segment of each phase captured once, with what a library moves between its calls.

use glmc_ir::launch::{Moves, Part, Place};
use glmc_ir::plan::{Phase, Plan};

use super::CudaError;
use super::exec::CudaDevice;
use super::nccl::Moved;
use crate::error::RuntimeError;

impl CudaDevice {
    /// Captures all phases, where graphs are wanted.
    pub(super) fn capture_all(&mut self, plan: &Plan) -> Result<(), RuntimeError> {
        let phases = if self.options.graphs { plan.phases.len() } else { 0 };
        (0..phases).try_for_each(|i| self.capture(&plan.phases[i], i))
    }

    /// What a library moves before call `at` of a phase; whether it moves anything.
    pub(super) fn transfers(&self, phase: &Phase, index: usize, at: usize) -> Result<bool, CudaError> {
        let mut any = false;
        for t in self.launches.phases[index].transfers.iter().filter(|t| t.before == at) {
            any = true;
            let missing = || CudaError::Program("it has transfers, and no library is asked for".into());
            let meets = self.places.meets.as_ref().ok_or_else(missing)?;
            let comms = meets.comms.as_ref().ok_or_else(missing)?;
            let layout = &self.phases[index].layout;
            let address = |p: Place| self.places.address(phase, layout, p);
            match &t.moves {
                Moves::Reduce { from, to, words, what } => {
                    comms.all_reduce(meets.me, &self.stream, [address(*from)?, address(*to)?], *words, *what)?;
                }
                Moves::Parts(parts) => {
                    let slab = meets.slabs.get(meets.me).copied().ok_or_else(missing)?;
                    let one = |p: &Part| {
                        let at = p.from.map_or(Ok(slab + meets.first_slot + p.at), address)?;
                        Ok(Moved { send: p.from.is_some(), at, words: p.words, peer: p.peer })
                    };
                    let parts = parts.iter().map(one).collect::<Result<Vec<_>, CudaError>>()?;
                    comms.parts(meets.me, &self.stream, &parts)?;
                }
            }
        }
        Ok(any)
    }

    /// Captures the segments of a phase.
    fn capture(&mut self, phase: &Phase, index: usize) -> Result<(), RuntimeError> {
        let mut graphs = Vec::new();
        for segment in &phase.segments {
            let steps = segment.first..segment.first + segment.count;
            let launched = self.launches.phases[index].launched();
            let calls = launched.iter().enumerate().filter(|(_, c)| steps.contains(&c.step));
            let end = launched.len();
            let last = phase.segments.last().is_some_and(|s| s.first == segment.first);
            let mut failed = None;
            let graph = self.stream.capture(|_| {
                calls.enumerate().try_for_each(|(i, (at, call))| {
                    let start = || {
                        let moved = self.transfers(phase, index, at)?;
                        // The first launch of a graph follows a copy or another graph.
                        let dependent = self.options.dependent && i > 0 && !moved;
                        self.launch(phase, index, call, dependent)
                    };
                    start().inspect_err(|_| failed = Some(call.step))
                })?;
                // Behind the last call.
                if last { self.transfers(phase, index, end).map(|_| ()) } else { Ok(()) }
            });
            let step = failed.and_then(|i| phase.steps.get(i)).map_or(phase.name.clone(), |s| s.name.clone());
            let mut graph = graph.map_err(|source| RuntimeError::Cuda { step, source })?;
            let failed = |source| RuntimeError::Cuda { step: phase.name.clone(), source };
            self.stream.prepare(&mut graph).map_err(failed)?;
            graphs.push(graph);
        }
        self.stream
            .wait("graphs to be ready")
            .map_err(|source| RuntimeError::Cuda { step: phase.name.clone(), source })?;
        self.phases[index].graphs = graphs;
        Ok(())
    }
}
