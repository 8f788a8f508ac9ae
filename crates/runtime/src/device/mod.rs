//! The devices that can execute a plan's steps.
//!
//! Owns what a device computes; never decides which step runs where.

pub mod cpu;
pub mod cuda;
mod params;

pub use params::own_param;

use std::fmt;

use glmc_ir::plan::{Phase, Plan};
use glmc_ir::ty::SymValues;

use crate::error::RuntimeError;
use crate::load::Weights;
use cpu::{CpuDevice, CpuGroup, Observer};

/// What runs a plan's steps: all its ranks, with their memory.
pub trait Device: fmt::Debug + Send {
    /// Whether every output is filled with NaN before each launch writes it.
    fn set_poison(&mut self, on: bool);

    /// Runs phase `index` of `plan` at the symbol values `syms` with whole `params` in order (32-bit words). `see` gets
    /// the outputs of every step, of several ranks the parts of rank 0.
    ///
    /// # Errors
    /// The launch that failed, with its provenance.
    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError>;

    /// The floats of a whole result of the phase that ran last.
    ///
    /// # Errors
    /// A result that is not there, is not `f32`, or is in parts.
    fn result(&self, plan: &Plan, phase: &Phase, name: &str, syms: &SymValues) -> Result<&[f32], RuntimeError>;
}

/// The CPU device of a plan: one rank, or several that meet.
pub(crate) fn cpu_of(plan: &Plan) -> Result<Box<dyn Device>, RuntimeError> {
    Ok(if plan.mesh.is_empty() { Box::new(CpuDevice::new(plan)?) } else { Box::new(CpuGroup::new(plan)?) })
}

impl Device for CpuDevice {
    fn set_poison(&mut self, on: bool) {
        self.poison = on;
    }

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        match weights.first() {
            Some(w) => CpuDevice::run(self, plan, index, w, syms, params, see),
            None => Err(RuntimeError::Request("the plan has no rank".into())),
        }
    }

    fn result(&self, _: &Plan, phase: &Phase, name: &str, syms: &SymValues) -> Result<&[f32], RuntimeError> {
        CpuDevice::result(self, phase, name, syms)
    }
}

impl Device for CpuGroup {
    fn set_poison(&mut self, on: bool) {
        CpuGroup::set_poison(self, on);
    }

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        CpuGroup::run(self, plan, index, weights, syms, params, see)
    }

    fn result(&self, plan: &Plan, phase: &Phase, name: &str, syms: &SymValues) -> Result<&[f32], RuntimeError> {
        CpuGroup::result(self, plan, phase, name, syms)
    }
}
