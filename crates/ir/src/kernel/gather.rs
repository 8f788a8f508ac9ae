//! The contract `gather`: rows of a stored table or of a cache pool by id, decoded on the way.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::Gather;

/// `y[i] = decode(table)[ids[i]]`, zeros for negative ids; see [`Gather`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatherKernel {}

impl KernelDef for GatherKernel {
    const NAME: &'static str = "gather";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["table", "ids"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let table = decoded(b, inputs[0])?;
        b.op(Gather {}, &[table, inputs[1]])
    }
}
