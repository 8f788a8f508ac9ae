//! What a plan's steps wrote in one run of a phase, on every rank. Never judges.

use std::collections::HashMap;

use glmc_ir::tensor::Tensor;
use glmc_ir::ty::SymValues;
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

    /// A parameter of the phase as a whole tensor.
    pub(super) fn param(&self, index: usize, shape: Vec<usize>) -> Option<Tensor> {
        let v = self.params.get(index)?;
        let fits = shape.iter().product::<usize>() == v.len();
        fits.then(|| Tensor::i(shape, v.iter().map(|x| i64::from(*x)).collect()))
    }
}
