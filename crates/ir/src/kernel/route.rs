//! The contract `moe_route`, its bias decoded on the way.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::MoeRoute;

/// See [`MoeRoute`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RouteKernel(
    /// The attributes.
    pub MoeRoute,
);

impl KernelDef for RouteKernel {
    const NAME: &'static str = "moe_route";

    fn params(&self) -> Vec<ParamSpec> {
        let bias = if self.0.bias { reads(["bias"]) } else { Vec::new() };
        [reads(["logits"]), bias, writes(["ids", "weights"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let mut args = inputs.to_vec();
        for a in &mut args[1..] {
            *a = decoded(b, *a)?;
        }
        b.op(self.0.clone(), &args)
    }
}
