//! The contract `swiglu`: `y = silu(x.gate) * x.up` (Shazeer, 2020). The halves are taken by name.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;

/// `y = silu(gate) * up`, `x [.., {gate, up}]` in one buffer, or gate and up in two.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwigluKernel {
    /// The names of the gate and up pieces of a joined operand; empty when they are two operands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<String>,
}

impl KernelDef for SwigluKernel {
    const NAME: &'static str = "swiglu";

    fn params(&self) -> Vec<ParamSpec> {
        let ins = if self.pieces.is_empty() { reads(["gate", "up"]) } else { reads(["x"]) };
        [ins, writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let (gate, up) = match (self.pieces.as_slice(), inputs) {
            ([], [gate, up]) => (*gate, *up),
            ([g, u], [x]) => (b.piece(*x, g)?, b.piece(*x, u)?),
            _ => return Err(Diagnostic::new("bad-attribute", "`swiglu` needs two pieces or none")),
        };
        let (gate, up) = (decoded(b, gate)?, decoded(b, up)?);
        super::gate_up::swiglu(b, gate, up)
    }
}
