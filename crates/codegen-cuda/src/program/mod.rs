//! From a plan to what a stream runs: each step as launches of generated kernels whose arguments name memory, so that
//! the driver and the host emulation execute the same program.
//!
//! Owns which kernel a step becomes, how weights lie, and where scratch is. Never owns an address.

pub(crate) mod adds;
mod alone;
mod beside;
mod build;
mod choose;
mod exchange;
mod graph;
mod library;
pub mod links;
mod local;
mod meet;
mod own;
mod ranks;
pub(crate) mod settle;
mod share;

pub use choose::{Choices, FEW_ROWS, LANE_KERNELS, Precision};

use glmc_ir::launch::Launches;

use crate::arch::Arch;
use crate::request::{GenerateError, Generated};

/// A plan's kernels and how they are launched.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// The machine it is for.
    pub arch: Arch,
    /// Each kernel once: those of the calls, and those that repack weights. Calls name them by their places here.
    pub kernels: Vec<Generated>,
    /// The calls, and the memory that they need.
    pub launches: Launches,
}

/// The programs of a plan whose ranks are on several devices of one architecture.
#[derive(Clone, PartialEq, Debug)]
pub struct Spread {
    /// The machine they are for.
    pub arch: Arch,
    /// Each kernel of any of them once.
    pub kernels: Vec<Generated>,
    /// The calls of each device.
    pub devices: Vec<Launches>,
}

/// Why a plan has no program.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ProgramError {
    /// A step has no kernel.
    #[error("step `{step}` of {phase}: {error}")]
    Step {
        /// Provenance of the step.
        step: String,
        /// The phase's name.
        phase: String,
        /// Why.
        error: Box<GenerateError>,
    },
    /// A step that this device does not run.
    #[error("step `{step}` of {phase}: {why}")]
    Unsupported {
        /// Provenance of the step.
        step: String,
        /// The phase's name.
        phase: String,
        /// Why.
        why: String,
    },
    /// A part of the plan has no size.
    #[error("{what}: {why}")]
    Size {
        /// Which part.
        what: String,
        /// Why.
        why: String,
    },
}
