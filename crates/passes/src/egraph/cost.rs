//! Owns what a node costs: the hook that extraction asks. The formula is [`crate::cost::launch_seconds`], the numbers are
//! the target's.

use glmc_ir::op::Op;
use glmc_ir::ty::{SymValues, TensorType};

use crate::cost::{Unit, launch_seconds};
use crate::lower::single;
use crate::target::Target;

/// What extraction minimises.
pub trait Cost {
    /// Seconds of one execution of `op` on operands of these types; 0 for views.
    fn op(&self, op: &Op, args: &[&TensorType], results: &[TensorType]) -> f64;
}

/// A target at given values of the symbols.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// The target.
    pub target: Target,
    /// Values of the symbols; those that are missing have their bounds.
    pub syms: SymValues,
}

impl Machine {
    /// `target` with `tune_ctx` visible positions.
    pub fn new(target: &Target, tune_ctx: u64) -> Self {
        Machine { target: target.clone(), syms: SymValues::default().with("S", tune_ctx) }
    }
}

impl Cost for Machine {
    fn op(&self, op: &Op, args: &[&TensorType], results: &[TensorType]) -> f64 {
        // Views: consumers read the same bytes.
        if matches!(op, Op::Reshape(_) | Op::Piece(_)) {
            return 0.0;
        }
        let w = op.work(args, results, &self.syms);
        let unit = single(op).map_or(Unit::F32, |kernel| Unit::of(&kernel, args, &self.target));
        launch_seconds(&self.target, w.read.saturating_add(w.write), w.flops, unit)
    }
}
