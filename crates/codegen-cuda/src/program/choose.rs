//! The one place where it is chosen how weights lie and how activations are rounded.

use glmc_ir::kernel::Kernel;
use glmc_ir::plan::Mem;
use glmc_ir::ty::{PendingKind, SymValues, TensorType};

use super::build::Inputs;
use crate::repack::lane_bytes;
use crate::request::{Activations, Options, Storage};

/// How a plan's products may round their activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Precision {
    /// Nothing that shows.
    #[default]
    Exact,
    /// To 8 bits where few rows meet a weight, to bf16 where many do; what no kernel rounds so stays exact.
    Fast,
}

/// Rows of activations that count as few.
pub const FEW_ROWS: u64 = 8;

impl Precision {
    /// What a launch on these inputs may do.
    pub fn activations(self, inputs: &[TensorType], bounds: &SymValues) -> Activations {
        let rows = || inputs.first()?.shape(bounds)?.first().copied();
        match self {
            Precision::Exact => Activations::F32,
            // Products of nothing are nothing to round.
            Precision::Fast if rows().unwrap_or(0) <= FEW_ROWS => Activations::Int8,
            Precision::Fast => Activations::BF16,
        }
    }

    /// The coarsest that any launch does.
    pub fn coarsest(self) -> Activations {
        self.activations(&[], &SymValues::default())
    }
}

/// What is chosen for a whole plan.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Choices {
    /// How matmuls may round their activations.
    pub precision: Precision,
    /// Whether every weight stays as in the file.
    pub rows_only: bool,
    /// See [`Options::multiprocessors`].
    pub multiprocessors: Option<u32>,
    /// Most bytes of a value that an all-reduce over several devices sends whole to each; `None` counts as 128 KiB.
    pub small_bytes: Option<u64>,
    /// Whether a library moves what devices exchange, in place of kernels that wait for each other.
    pub library: bool,
}

/// Contracts whose kernels stream the lane layout.
pub const LANE_KERNELS: [&str; 5] = ["gate_up", "grouped_down", "grouped_gate_up", "grouped_matmul", "matmul"];

impl Choices {
    pub(super) fn small_bytes(&self) -> u64 {
        self.small_bytes.unwrap_or(128 << 10)
    }

    /// The options of a launch on these inputs, which lie so, and whose output awaits this merge.
    pub(super) fn options(
        &self,
        inputs: &Inputs,
        bounds: &SymValues,
        storage: Vec<Storage>,
        merge: Option<PendingKind>,
    ) -> Options {
        let activations = self.precision.activations(&inputs.types, bounds);
        let fixed = inputs.mems.iter().map(|m| matches!(m, Mem::Weight(_))).collect();
        Options { activations, storage, multiprocessors: self.multiprocessors, tuning: None, fixed, merge }
    }

    /// Whether a weight of this type is worth the lane layout if `kernels` are all that read it.
    pub(super) fn wants_lane<'k>(&self, ty: &TensorType, kernels: impl IntoIterator<Item = &'k Kernel>) -> bool {
        let fits = || {
            let elems = ty.elems(&Default::default())?;
            lane_bytes(ty.elem.storage()?, elems)
        };
        let streams = |k: &Kernel| LANE_KERNELS.contains(&k.name());
        !self.rows_only && fits().is_some_and(|n| n > 0) && kernels.into_iter().any(streams)
    }
}
