//! The devices that can execute a plan's steps.
//!
//! Owns what a device computes; never decides which step runs where.

pub mod cpu;
pub mod cuda;
mod params;
mod seen;

pub use params::own_param;

use std::fmt;

use glmc_ir::plan::{Phase, Plan};
use glmc_ir::ty::SymValues;

use crate::error::RuntimeError;
use crate::load::Weights;
use cpu::{CpuDevice, CpuGroup};

pub use seen::{Observer, Output, POISON, Seen};

/// What runs a plan's steps: all its ranks, with their memory.
pub trait Device: fmt::Debug + Send {
    /// Whether every output is filled with [`POISON`] before each launch writes it.
    fn set_poison(&mut self, on: bool);

    /// Runs phase `index` of `plan` at the symbol values `syms` with whole `params` in order (32-bit words). `see` gets
    /// the outputs of every step on every rank.
    ///
    /// # Errors
    /// The launch that failed, with its provenance and of several ranks its rank, or what `see` gave; all ranks have then
    /// stopped.
    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError>;

    /// Lets the thread of a rank die in the next run, before this step of it, or before all where a device's steps are
    /// one piece. A testing aid.
    ///
    /// # Errors
    /// The device has no such rank, or none with a thread of its own.
    fn kill(&mut self, rank: usize, step: usize) -> Result<(), RuntimeError> {
        let _ = step;
        Err(RuntimeError::Request(format!("rank {rank} has no thread of its own that could die here")))
    }

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
