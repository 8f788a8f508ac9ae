//! Owns what a node costs: the hook that extraction asks. The formula is [`crate::cost::launch_seconds`], the numbers are
//! the target's.

use glmc_ir::graph::Module;
use glmc_ir::op::Op;
use glmc_ir::ty::{SymValues, TensorType};

use crate::cost::{Unit, launch_seconds};
use crate::lower::single;
use crate::target::Target;
use crate::validate::shrink::Sizes;

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
    /// Where a module is the small stand-in of another one, the sizes that its sizes stand for; costs are of those.
    pub(crate) stands_for: Sizes,
}

impl Machine {
    /// `target` with `tune_ctx` visible positions.
    pub fn new(target: &Target, tune_ctx: u64) -> Self {
        let syms = SymValues::default().with("S", tune_ctx);
        Machine { target: target.clone(), syms, stands_for: Sizes::default() }
    }

    /// The same for a stand-in of `full`, whose sizes stand for others by `sizes`.
    pub fn standing_for(mut self, sizes: Sizes, full: &Module) -> Self {
        for (s, bound) in &full.syms {
            let nominal = self.syms.get(s).unwrap_or(*bound).min(*bound);
            self.syms.0.insert(s.clone(), nominal);
        }
        self.stands_for = sizes;
        self
    }

    /// Values of the symbols for costs of `m`.
    pub fn nominal(&self, m: &Module) -> SymValues {
        let mut syms = self.syms.clone();
        for (s, bound) in &m.syms {
            // A stand-in has small bounds, and the values of what it stands for.
            if !self.stands_for.0.is_empty() && syms.get(s).is_some() {
                continue;
            }
            let bound = self.stands_for.of(*bound);
            let nominal = syms.get(s).or_else(|| syms.get(&s.base())).unwrap_or(bound).min(bound);
            syms.0.insert(s.clone(), nominal);
        }
        syms
    }
}

impl Cost for Machine {
    fn op(&self, op: &Op, args: &[&TensorType], results: &[TensorType]) -> f64 {
        // Views: consumers read the same bytes.
        if matches!(op, Op::Reshape(_) | Op::Piece(_)) {
            return 0.0;
        }
        if !self.stands_for.0.is_empty() {
            let full = Machine { stands_for: Sizes::default(), ..self.clone() };
            let args: Vec<TensorType> = args.iter().map(|t| self.stands_for.ty(t)).collect();
            let results: Vec<TensorType> = results.iter().map(|t| self.stands_for.ty(t)).collect();
            return full.op(&self.stands_for.op(op), &args.iter().collect::<Vec<_>>(), &results);
        }
        let w = op.work(args, results, &self.syms);
        let unit = single(op).map_or(Unit::F32, |kernel| Unit::of(&kernel, args, &self.target));
        launch_seconds(&self.target, w.read.saturating_add(w.write), w.flops, unit)
    }
}
