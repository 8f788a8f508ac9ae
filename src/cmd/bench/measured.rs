//! What was measured, as it came from a device.

use serde_json::Value;

use super::classes::{Class, Piece, Split};
use super::machine::Machine;
use super::plan::{Job, Predicted};
use super::session::Seen;

/// A kernel, timed alone.
pub(super) struct KernelRow {
    /// Its number in the launch program.
    pub(super) number: usize,
    pub(super) config: String,
    /// Of one call.
    pub(super) seconds: f64,
    /// The steps that call it.
    pub(super) steps: Vec<usize>,
}

/// Bytes of a device's memory in use.
pub(super) struct MemoryUse {
    /// By everything on the device, the driver's context and graphs too.
    pub(super) used: u64,
    /// By the plan's own pieces.
    pub(super) own: u64,
}

/// A step of one phase.
#[derive(Default)]
pub(super) struct Timed {
    pub(super) phase: usize,
    /// The step on the device alone.
    pub(super) device_s: f64,
    /// The step that the pieces are of, which is longer for being looked at.
    pub(super) traced_s: f64,
    pub(super) pieces: Vec<Piece>,
    /// Names of the kernels by their numbers.
    pub(super) names: Vec<String>,
    pub(super) kernels: Vec<KernelRow>,
}

/// Everything that was measured.
pub(super) struct Measured {
    pub(super) device: Value,
    pub(super) machine: Machine,
    pub(super) seen: Seen,
    pub(super) decode: Timed,
    /// The last chunk of a prompt, on a GPU.
    pub(super) prefill: Option<Timed>,
    pub(super) memory: Option<MemoryUse>,
}

/// A kernel with its bytes.
pub(super) struct Row<'a> {
    pub(super) k: &'a KernelRow,
    pub(super) name: &'a str,
    pub(super) contract: &'static str,
    /// Weights and cache rows of one call.
    pub(super) bytes: f64,
    /// Seconds of all calls of the step, alone.
    pub(super) alone: f64,
    /// The same within the step.
    pub(super) within: f64,
}

pub(super) fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

pub(super) fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

impl Timed {
    /// What turns seconds of pieces into those of a step that nobody looks at.
    pub(super) fn scale(&self) -> f64 {
        if self.traced_s > 0.0 { self.device_s / self.traced_s } else { 1.0 }
    }

    /// The step by class, where it takes `wall` with the host.
    pub(super) fn split(&self, job: &Job, p: &Predicted, gap: f64, wall: f64) -> Split {
        let phase = &job.plan.phases[self.phase];
        let class = |x: &Piece| (Class::of(&phase.steps[x.step], &p.steps[x.step]), *x);
        let classed: Vec<(Class, Piece)> = self.pieces.iter().map(class).collect();
        Split::of(&classed, gap, self.scale(), self.device_s, wall)
    }

    /// The kernels, those first that the step spends most time in.
    pub(super) fn rows<'a>(&'a self, p: &Predicted) -> Vec<Row<'a>> {
        let mut within = vec![0.0; self.names.len()];
        let mut before = 0.0f64;
        for x in &self.pieces {
            if let Some(sum) = x.kernel.and_then(|k| within.get_mut(k)) {
                *sum += (x.end - before).max(0.0) * self.scale();
            }
            before = before.max(x.end);
        }
        let row = |k: &'a KernelRow| {
            let n = k.steps.len().max(1) as f64;
            let bytes = k.steps.iter().map(|s| p.steps[*s].bytes.weights + p.steps[*s].bytes.caches).sum::<u64>();
            Row {
                k,
                name: self.names.get(k.number).map_or("", String::as_str),
                contract: k.steps.first().map_or("", |s| p.steps[*s].kernel),
                bytes: bytes as f64 / n,
                alone: n * k.seconds,
                within: within.get(k.number).copied().unwrap_or(0.0),
            }
        };
        let mut rows: Vec<Row<'a>> = self.kernels.iter().map(row).collect();
        rows.sort_by(|a, b| b.within.total_cmp(&a.within));
        rows
    }
}
