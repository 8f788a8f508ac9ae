//! The contracts `gate_up` and `grouped_gate_up`: both projections of a gated feed-forward and their product, so that
//! neither projection is written to memory.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{GroupedMatmul, Matmul, Mul, Silu};

/// `silu(gate) * up` of one type: nothing is broadcast.
pub(super) fn swiglu(b: &mut Builder<'_>, gate: Value, up: Value) -> Result<Vec<Value>, Diagnostic> {
    if b.ty(gate) != b.ty(up) {
        return Err(Diagnostic::new("shape-mismatch", format!("gate {} and up {}", b.ty(gate), b.ty(up))));
    }
    let s = b.one(Silu {}, &[gate])?;
    b.op(Mul {}, &[s, up])
}

/// `y = silu(x gate) * (x up)`, both products by `spec`; see [`Matmul`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateUpKernel {
    /// As in [`Matmul::spec`].
    pub spec: String,
}

impl KernelDef for GateUpKernel {
    const NAME: &'static str = "gate_up";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "gate", "up"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let (x, gate, up) = (decoded(b, inputs[0])?, decoded(b, inputs[1])?, decoded(b, inputs[2])?);
        let gate = b.one(Matmul::new(&self.spec), &[x, gate])?;
        let up = b.one(Matmul::new(&self.spec), &[x, up])?;
        swiglu(b, gate, up)
    }
}

/// `y[t, j] = silu(gate[ids[t, j]] x) * (up[ids[t, j]] x)`; see [`GroupedMatmul`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedGateUpKernel {}

impl KernelDef for GroupedGateUpKernel {
    const NAME: &'static str = "grouped_gate_up";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "gate", "up", "ids"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let (x, ids) = (inputs[0], inputs[3]);
        let (gate, up) = (decoded(b, inputs[1])?, decoded(b, inputs[2])?);
        let gate = b.one(GroupedMatmul {}, &[x, gate, ids])?;
        let up = b.one(GroupedMatmul {}, &[x, up, ids])?;
        swiglu(b, gate, up)
    }
}
