//! The contracts `rms_norm` and `layer_norm`, their weights decoded on the way.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{LayerNorm, RmsNorm};

/// See [`RmsNorm`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNormKernel {
    /// As in [`RmsNorm::eps`].
    pub eps: f64,
}

impl KernelDef for RmsNormKernel {
    const NAME: &'static str = "rms_norm";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "w"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let w = decoded(b, inputs[1])?;
        b.op(RmsNorm { eps: self.eps }, &[inputs[0], w])
    }
}

/// See [`LayerNorm`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNormKernel {
    /// As in [`LayerNorm::eps`].
    pub eps: f64,
}

impl KernelDef for LayerNormKernel {
    const NAME: &'static str = "layer_norm";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "w", "b"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let (w, bias) = (decoded(b, inputs[1])?, decoded(b, inputs[2])?);
        b.op(LayerNorm { eps: self.eps }, &[inputs[0], w, bias])
    }
}
