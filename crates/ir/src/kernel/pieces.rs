//! The contracts `split` and `join`: between a joined last dim and one buffer a piece.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::Join;

/// Writes the named pieces of `x`, each to its own buffer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitKernel {
    /// Which pieces, in output order.
    pub names: Vec<String>,
}

impl KernelDef for SplitKernel {
    const NAME: &'static str = "split";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x"]), writes(self.names.iter().map(|n| format!("y.{n}")))].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        self.names.iter().map(|n| b.piece(inputs[0], n)).collect()
    }
}

/// See [`Join`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinKernel {
    /// As in [`Join::names`].
    pub names: Vec<String>,
}

impl KernelDef for JoinKernel {
    const NAME: &'static str = "join";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(self.names.iter().map(|n| format!("x.{n}"))), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(Join { names: self.names.clone() }, inputs)
    }
}
