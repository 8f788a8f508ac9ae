//! Weight bytes that decode steps touch: what the contracts read, but of experts those that the ids name which the steps
//! chose.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::plan::Mem;
use glmc_ir::shard_map::Shard;
use glmc_ir::ty::{Elem, SymValues};

use super::plan::Job;
use crate::error::CliError;

/// What was counted.
#[derive(Clone, Copy, Default)]
pub(super) struct Touched {
    /// Weight bytes of a step, in the mean.
    pub(super) bytes: f64,
    /// Steps.
    pub(super) steps: u64,
    /// Different experts that a launch reads, in the mean.
    pub(super) experts: f64,
}

/// Experts that a step reads by ids.
struct Chosen {
    ids: Mem,
    /// Of the rank, its experts and the bytes of one in all weights of the step.
    held: Range<u64>,
    bytes: u64,
}

/// Counts step by step.
pub(super) struct Touch {
    /// Of all other weights.
    fixed: u64,
    chosen: Vec<Chosen>,
    /// Which buffer the outputs of steps are.
    outputs: HashMap<(usize, usize), Mem>,
    ids: HashMap<Mem, Vec<i32>>,
    sum: u64,
    experts: u64,
    steps: u64,
}

impl Touch {
    pub(super) fn of(job: &Job) -> Result<Touch, CliError> {
        let phase = &job.plan.phases[job.phase];
        let steps = job.predicted()?.steps;
        let mut t = Touch {
            fixed: 0,
            chosen: Vec::new(),
            outputs: HashMap::new(),
            ids: HashMap::new(),
            sum: 0,
            experts: 0,
            steps: 0,
        };
        for (i, (step, cost)) in phase.steps.iter().zip(&steps).enumerate() {
            let outputs = step.args.iter().filter(|a| a.access == Access::Write).enumerate();
            t.outputs.extend(outputs.filter(|(_, a)| a.ty.elem == Elem::I32).map(|(k, a)| ((i, k), a.mem)));
            if !matches!(step.kernel, Kernel::GroupedMatmul(_) | Kernel::GroupedGateUp(_) | Kernel::GroupedDown(_)) {
                t.fixed += cost.bytes.weights;
                continue;
            }
            let bug = |why: String| CliError::internal(format!("step `{}`: {why}", step.name));
            let ids = step.args.iter().find(|a| a.access == Access::Read && a.ty.elem == Elem::I32);
            let ids = ids.ok_or_else(|| bug("experts without ids".into()))?.mem;
            let (mut held, mut bytes) = (0..0, 0);
            for a in &step.args {
                let Mem::Weight(w) = a.mem else { continue };
                let shard = Shard::of(&a.ty, &job.plan.mesh, job.rank() as u64, &SymValues::default());
                let shard = shard.map_err(|d| bug(d.message))?;
                let own = shard.ranges.first().and_then(|r| r.first()).cloned().unwrap_or(0..0);
                let experts = own.end - own.start;
                bytes += job.plan.weights[w].held(&job.plan.mesh, job.rank()) / experts.max(1);
                held = own;
            }
            t.chosen.push(Chosen { ids, held, bytes });
        }
        Ok(t)
    }

    /// An output of integers.
    pub(super) fn see(&mut self, step: usize, output: usize, ids: &[i32]) {
        if let Some(mem) = self.outputs.get(&(step, output)) {
            self.ids.insert(*mem, ids.to_vec());
        }
    }

    pub(super) fn end_of_step(&mut self) {
        self.sum += self.fixed;
        self.steps += 1;
        for c in &self.chosen {
            let ids = self.ids.get(&c.ids).map_or(&[][..], Vec::as_slice);
            let own = ids.iter().filter_map(|id| u64::try_from(*id).ok()).filter(|id| c.held.contains(id));
            let different = own.collect::<BTreeSet<u64>>().len() as u64;
            self.sum += different * c.bytes;
            self.experts += different;
        }
        self.ids.clear();
    }

    pub(super) fn result(&self) -> Touched {
        let n = self.steps.max(1) as f64;
        Touched {
            bytes: self.sum as f64 / n,
            steps: self.steps,
            experts: self.experts as f64 / n / self.chosen.len().max(1) as f64,
        }
    }
}
