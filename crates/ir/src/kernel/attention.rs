//! The contract `attention`.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::Attention;

/// See [`Attention`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttentionKernel(
    /// The attributes.
    pub Attention,
);

impl KernelDef for AttentionKernel {
    const NAME: &'static str = "attention";

    fn params(&self) -> Vec<ParamSpec> {
        let parts = self.0.parts;
        let numbered = |p: &str| (0..parts).map(|i| format!("{p}{i}")).collect::<Vec<_>>();
        let sel = if self.0.selected { reads(["sel"]) } else { Vec::new() };
        [reads(numbered("q")), reads(numbered("k")), reads(["v", "seq", "len"]), sel, writes(["o"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(self.0.clone(), inputs)
    }
}
