//! The steps in which the ranks of a plan meet. Owns what a rank gives and gets in one; the back end [`local`] brings
//! the parts together for ranks of one process. Never computes a step of its own, never chooses a placement.
//!
//! A rank's arena is its own: it hands over a copy of its part and reads the copies of the others, so nothing but the
//! back end ever sees the numbers of two ranks.

mod cut;
mod local;
mod meeting;
mod merge;

use glmc_ir::collective::{Collective, CollectiveKind};
use glmc_ir::kernel::Access;
use glmc_ir::plan::Step;
use glmc_ir::ty::TensorType;

pub(crate) use cut::take;
pub(crate) use local::Seat;
pub(crate) use meeting::Meeting;

/// A collective step: what it does and the placed types of what it takes and gives.
#[derive(Debug)]
pub(crate) struct Exchange {
    collective: Collective,
    arg: TensorType,
    result: TensorType,
}

impl Exchange {
    /// The exchange that `step` is, if it is one.
    pub(crate) fn of(step: &Step) -> Option<Self> {
        let collective = step.kernel.collective()?;
        let ty = |access| step.args.iter().find(|a| a.access == access).map(|a| a.ty.clone());
        Some(Exchange { collective, arg: ty(Access::Read)?, result: ty(Access::Write)? })
    }

    fn kind(&self) -> CollectiveKind {
        self.collective.kind
    }
}

/// Why a rank did not come out of a collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeetError {
    /// Another rank failed and says why.
    #[error("another rank failed")]
    Stopped,
    /// A rank did not come and made no step meanwhile.
    #[error("rank {rank} did not come within {seconds} s; it is at its step {at}")]
    Late {
        /// The rank waited for.
        rank: usize,
        /// How long it made no step.
        seconds: u64,
        /// Index of the step it began last.
        at: usize,
    },
    /// A part does not fit its type, or a type its mesh.
    #[error("{0}")]
    Shape(String),
}

impl MeetError {
    fn length(what: &str, have: usize, want: usize) -> Self {
        MeetError::Shape(format!("{what} has {have} numbers, its type needs {want}"))
    }
}
