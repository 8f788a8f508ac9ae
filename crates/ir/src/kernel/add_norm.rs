//! The contract `add_rms_norm`: a residual sum and the norm of it in one launch; both are outputs.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{Add, RmsNorm};

/// `h = x + y`, `n = rms_norm(h, decode(w))`; see [`RmsNorm`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRmsNormKernel {
    /// As in [`RmsNorm::eps`].
    pub eps: f64,
}

impl KernelDef for AddRmsNormKernel {
    const NAME: &'static str = "add_rms_norm";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "y", "w"]), writes(["h", "n"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let h = b.one(Add {}, &inputs[..2])?;
        let w = decoded(b, inputs[2])?;
        let n = b.one(RmsNorm { eps: self.eps }, &[h, w])?;
        Ok(vec![h, n])
    }
}
