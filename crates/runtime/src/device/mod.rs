//! The devices that can execute a plan's steps.
//!
//! Owns what a device computes; never decides which step runs where.

pub mod cpu;
pub mod cuda;

use glmc_ir::plan::{Phase, Plan};
use glmc_ir::ty::SymValues;

use crate::error::RuntimeError;
use crate::load::Weights;
use cpu::{CpuDevice, CpuGroup, Observer};

/// What runs a plan's steps: one rank, or several that meet.
#[derive(Debug)]
pub(crate) enum Device {
    One(CpuDevice),
    Group(CpuGroup),
}

impl Device {
    /// Memory for every rank of `plan`.
    pub(crate) fn new(plan: &Plan) -> Result<Self, RuntimeError> {
        if plan.mesh.is_empty() {
            CpuDevice::new(plan).map(Device::One)
        } else {
            CpuGroup::new(plan).map(Device::Group)
        }
    }

    pub(crate) fn set_poison(&mut self, on: bool) {
        match self {
            Device::One(d) => d.poison = on,
            Device::Group(g) => g.set_poison(on),
        }
    }

    /// Runs phase `index`; see [`CpuDevice::run`].
    pub(crate) fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        match self {
            Device::One(d) => match weights.first() {
                Some(w) => d.run(plan, index, w, syms, params, see),
                None => Err(RuntimeError::Request("the plan has no rank".into())),
            },
            Device::Group(g) => g.run(plan, index, weights, syms, params, see),
        }
    }

    /// The floats of a whole result of the phase that ran last.
    pub(crate) fn result(
        &self,
        plan: &Plan,
        phase: &Phase,
        name: &str,
        syms: &SymValues,
    ) -> Result<&[f32], RuntimeError> {
        match self {
            Device::One(d) => d.result(phase, name, syms),
            Device::Group(g) => g.result(plan, phase, name, syms),
        }
    }
}
