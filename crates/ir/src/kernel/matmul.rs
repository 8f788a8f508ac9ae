//! The contract `matmul`: one activation against one or several right operands, each decoded from its own storage
//! format on the way. Right operands may be weights or activations.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::Matmul;

/// `y = x * decode(w)` by a named-axis spec; see [`Matmul`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulKernel {
    /// As in [`Matmul::spec`].
    pub spec: String,
    /// As in [`Matmul::names`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl KernelDef for MatmulKernel {
    const NAME: &'static str = "matmul";

    fn params(&self) -> Vec<ParamSpec> {
        let rhs = if self.names.is_empty() {
            vec!["w".to_owned()]
        } else {
            self.names.iter().map(|n| format!("w.{n}")).collect()
        };
        [reads(["x"]), reads(rhs), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let mut args = vec![decoded(b, inputs[0])?];
        for w in &inputs[1..] {
            args.push(decoded(b, *w)?);
        }
        b.op(Matmul { spec: self.spec.clone(), names: self.names.clone() }, &args)
    }
}
