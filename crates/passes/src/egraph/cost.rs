//! Owns what a node costs: the hook that extraction asks. Numbers of real machines stand in target files.

use glmc_ir::op::Op;
use glmc_ir::ty::{SymValues, TensorType};

/// What extraction minimises.
pub trait Cost {
    /// Seconds of one execution of `op` on operands of these types; 0 for views.
    fn op(&self, op: &Op, args: &[&TensorType], results: &[TensorType]) -> f64;
}

/// A machine as one roofline, at given values of the symbols.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Bytes read or written a second.
    pub bytes_per_s: f64,
    /// Floating-point operations a second.
    pub flops_per_s: f64,
    /// Seconds of a launch beside its work.
    pub launch_s: f64,
    /// Values of the symbols.
    pub syms: SymValues,
}

impl Cost for Machine {
    fn op(&self, op: &Op, args: &[&TensorType], results: &[TensorType]) -> f64 {
        // Views: consumers read the same bytes.
        if matches!(op, Op::Reshape(_) | Op::Piece(_)) {
            return 0.0;
        }
        let w = op.work(args, results, &self.syms);
        let bytes = w.read.saturating_add(w.write) as f64;
        (bytes / self.bytes_per_s).max(w.flops as f64 / self.flops_per_s) + self.launch_s
    }
}
