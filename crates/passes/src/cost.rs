//! Owns the cost model: seconds and bytes of launches, collectives and whole phases on a target. Every number about the
//! machine comes from the target, every number about the work from a contract's own `work`. `docs/cost.md` has the
//! formulas. Never chooses anything.

mod collective;
mod experts;
mod overlap;
mod phase;
mod step;
#[cfg(test)]
mod tests;

pub use collective::{CollectiveCost, Exchange, Form, collective};
pub use experts::{Spread, fullest};
pub use overlap::{StepTime, step_time};
pub use phase::{PhaseCost, TokenBytes, bytes_per_token, decode, local_bytes, phase_costs, smallest_decode};
pub use step::{Bound, StepCost, step_costs};

use std::ops::AddAssign;

use glmc_ir::kernel::Kernel;
use glmc_ir::ty::{Elem, TensorType};
use serde::Serialize;

use crate::target::Target;

/// The context that a step is costed at unless `--tune-ctx` says otherwise, in tokens.
pub const TUNE_CTX: u64 = 8192;

/// What does the arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Scalar or vector f32.
    F32,
    /// Matrix units on bf16.
    Bf16,
    /// Matrix units on 8-bit integers.
    Int8,
}

impl Unit {
    /// The unit that a launch of `kernel` on these inputs uses on `target`: a processor computes in f32; a GPU feeds
    /// products to its matrix units, but those with f32 weights (router, indexer projection) stay f32.
    pub fn of(kernel: &Kernel, inputs: &[&TensorType], target: &Target) -> Unit {
        let matrix = match kernel {
            Kernel::Matmul(_)
            | Kernel::GroupedMatmul(_)
            | Kernel::GateUp(_)
            | Kernel::GroupedGateUp(_)
            | Kernel::GroupedDown(_) => inputs.iter().any(|t| !matches!(t.elem, Elem::F32 | Elem::I32)),
            Kernel::Attention(_) | Kernel::Indexer(_) | Kernel::PagedAttention(_) | Kernel::PagedIndexer(_) => true,
            _ => false,
        };
        if matrix && target.arch != "cpu" { Unit::Bf16 } else { Unit::F32 }
    }

    /// Operations a second, two for a multiply-add.
    pub fn per_s(self, target: &Target) -> f64 {
        match self {
            Unit::F32 => target.device.f32_flops_per_s,
            Unit::Bf16 => target.device.bf16_flops_per_s,
            Unit::Int8 => target.device.int8_ops_per_s,
        }
    }
}

/// Seconds of one launch that moves `bytes` and computes `flops` on `unit`:
/// `max(bytes / bandwidth, flops / rate) + launch`.
pub fn launch_seconds(target: &Target, bytes: u64, flops: u64, unit: Unit) -> f64 {
    let memory = bytes as f64 / target.device.read_bytes_per_s;
    memory.max(flops as f64 / unit.per_s(target)) + target.device.launch_s
}

/// Bytes that a launch moves, by what they belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Bytes {
    /// Weights as stored.
    pub weights: u64,
    /// Cache rows, read and written.
    pub caches: u64,
    /// Activations and step parameters, read and written.
    pub other: u64,
}

impl Bytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.caches).saturating_add(self.other)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, b: Bytes) {
        self.weights = self.weights.saturating_add(b.weights);
        self.caches = self.caches.saturating_add(b.caches);
        self.other = self.other.saturating_add(b.other);
    }
}

/// Seconds of a step by class. They add up to the step.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Classes {
    /// Reading weights.
    pub weights: f64,
    /// Reading and writing caches.
    pub caches: f64,
    /// Ranks waiting for each other and for each other's bytes.
    pub collectives: f64,
    /// Starting launches, those of collectives too.
    pub launches: f64,
    /// Moving activations, and arithmetic that takes longer than the bytes of its launch.
    pub other: f64,
}

impl Classes {
    /// The whole step.
    pub fn total(&self) -> f64 {
        self.weights + self.caches + self.collectives + self.launches + self.other
    }

    /// Adds a launch; the classes grow by [`launch_seconds`] in sum.
    pub fn add_launch(&mut self, target: &Target, bytes: Bytes, flops: u64, unit: Unit) {
        let bandwidth = target.device.read_bytes_per_s;
        self.weights += bytes.weights as f64 / bandwidth;
        self.caches += bytes.caches as f64 / bandwidth;
        let arithmetic = flops as f64 / unit.per_s(target) - bytes.total() as f64 / bandwidth;
        self.other += bytes.other as f64 / bandwidth + arithmetic.max(0.0);
        self.launches += target.device.launch_s;
    }

    /// Adds a collective, which is a launch too.
    pub fn add_collective(&mut self, target: &Target, cost: &CollectiveCost) {
        self.collectives += cost.seconds;
        self.launches += target.device.launch_s;
    }
}
