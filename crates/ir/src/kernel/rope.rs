//! The contract `rope`.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::Rope;

/// See [`Rope`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeKernel {
    /// As in [`Rope::theta`].
    pub theta: f64,
}

impl KernelDef for RopeKernel {
    const NAME: &'static str = "rope";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "pos"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(Rope { theta: self.theta }, inputs)
    }
}
