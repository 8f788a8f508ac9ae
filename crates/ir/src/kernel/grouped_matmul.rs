//! The contract `grouped_matmul`: each token against the experts it chose, their weights decoded on the way. Each
//! expert that is used is streamed once a launch.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::GroupedMatmul;

/// `y[t, j] = decode(w)[ids[t, j]] * x[t, (j)]`; see [`GroupedMatmul`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedMatmulKernel {}

impl KernelDef for GroupedMatmulKernel {
    const NAME: &'static str = "grouped_matmul";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "w", "ids"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let w = decoded(b, inputs[1])?;
        b.op(GroupedMatmul {}, &[inputs[0], w, inputs[2]])
    }
}
