//! The contract `grouped_down`: the experts' last projection, weighted and summed over a token's experts on the way.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{GroupedMatmul, Matmul};

/// `y[t] = sum_j weights[t, j] * decode(w)[ids[t, j]] x[t, (j)]`; see [`GroupedMatmul`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedDownKernel {}

impl GroupedDownKernel {
    /// The sum over a token's experts.
    pub const COMBINE: &'static str = "tj,tjd->td";
}

impl KernelDef for GroupedDownKernel {
    const NAME: &'static str = "grouped_down";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "w", "ids", "weights"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let w = decoded(b, inputs[1])?;
        let y = b.one(GroupedMatmul {}, &[inputs[0], w, inputs[2]])?;
        b.op(Matmul::new(Self::COMBINE), &[inputs[3], y])
    }
}
