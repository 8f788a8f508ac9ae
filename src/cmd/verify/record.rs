//! What a plan's steps wrote in one run of a phase, on every rank. Never judges.

use std::collections::HashMap;

use glmc_ir::plan::Plan;
use glmc_ir::shard_map::Shard;
use glmc_ir::tensor::{Data, Tensor};
use glmc_ir::ty::{SymValues, TensorType};
use glmc_runtime::RuntimeError;
use glmc_runtime::device::{Output, Seen};
use glmc_runtime::engine::{Engine, Running, Watch};

use crate::error::CliError;

/// One run of a phase.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Index of the phase.
    pub(super) phase: usize,
    pub(super) syms: SymValues,
    /// Whole parameters.
    pub(super) params: Vec<Vec<i32>>,
    /// By step and output the part of each rank, as far as the run came.
    pub(super) parts: HashMap<(usize, usize), Vec<Option<Tensor>>>,
    pub(super) logits: Vec<f32>,
    /// Why it ended early, or without logits that are numbers.
    pub(super) ended: Option<RuntimeError>,
}

impl Recorded {
    /// Records what `run` makes the engine do.
    ///
    /// # Errors
    /// A run that showed no step.
    pub(super) fn of(
        engine: &mut Engine,
        run: impl FnOnce(&mut Engine, Watch<'_>) -> Result<Vec<f32>, RuntimeError>,
    ) -> Result<Recorded, CliError> {
        let ranks = engine.plan().target.ranks as usize;
        let mut r = Recorded::default();
        let mut see = |running: &Running<'_>, s: Seen<'_>| {
            if r.parts.is_empty() {
                (r.phase, r.syms, r.params) = (running.phase, running.syms.clone(), running.params.to_vec());
            }
            let part = match s.data {
                Output::F32(v) => Tensor::f(s.shape.to_vec(), v.iter().map(|x| f64::from(*x)).collect()),
                Output::I32(v) => Tensor::i(s.shape.to_vec(), v.iter().map(|x| i64::from(*x)).collect()),
            };
            let parts = r.parts.entry((s.step, s.output)).or_insert_with(|| vec![None; ranks]);
            if let Some(slot) = parts.get_mut(s.rank) {
                *slot = Some(part);
            }
            Ok(())
        };
        let ended = run(engine, &mut see);
        match ended {
            Ok(logits) => r.logits = logits,
            Err(e) if r.parts.is_empty() => return Err(e.into()),
            Err(e) => r.ended = Some(e),
        }
        Ok(r)
    }

    /// Every rank's part of an output, if all were shown.
    pub(super) fn all(&self, at: (usize, usize)) -> Option<Vec<&Tensor>> {
        self.parts.get(&at)?.iter().map(Option::as_ref).collect()
    }

    /// Integers put together from the ranks' parts; none if something is not there, or is no integer.
    pub(super) fn whole_ids(&self, plan: &Plan, at: (usize, usize), ty: &TensorType) -> Option<Tensor> {
        let shape: Vec<usize> = ty.shape(&self.syms)?.into_iter().map(|n| n as usize).collect();
        if ty.pending.is_some() {
            return None;
        }
        let mut out: Vec<Option<i64>> = vec![None; shape.iter().product()];
        for (rank, part) in self.parts.get(&at)?.iter().enumerate() {
            let Data::I(v) = &part.as_ref()?.data else { return None };
            let shard = Shard::of(ty, &plan.mesh, rank as u64, &self.syms).ok()?;
            let held: Vec<Vec<u64>> = shard.ranges.iter().map(|r| r.iter().flat_map(|r| r.clone()).collect()).collect();
            for (mut flat, x) in v.iter().enumerate() {
                let (mut to, mut stride) = (0, 1);
                for (held, n) in held.iter().zip(&shape).rev() {
                    to += *held.get(flat % held.len().max(1))? as usize * stride;
                    (flat, stride) = (flat / held.len().max(1), stride * n);
                }
                *out.get_mut(to)? = Some(*x);
            }
        }
        Some(Tensor::i(shape, out.into_iter().collect::<Option<_>>()?))
    }

    /// A parameter of the phase as a whole tensor.
    pub(super) fn param(&self, index: usize, shape: Vec<usize>) -> Option<Tensor> {
        let v = self.params.get(index)?;
        let fits = shape.iter().product::<usize>() == v.len();
        fits.then(|| Tensor::i(shape, v.iter().map(|x| i64::from(*x)).collect()))
    }
}
