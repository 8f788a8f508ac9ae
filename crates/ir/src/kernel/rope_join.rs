//! The contracts `rope_join` and `latent_row`: rows in the form in which a cache keeps them, their rotary piece rotated
//! in place among the others.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{Join, RmsNorm, Rope};
use crate::ty::Extent;

/// The pieces of `x`'s last dim, in order.
fn names(b: &Builder<'_>, x: Value) -> Vec<String> {
    match b.ty(x).last().map(|d| &d.extent) {
        Some(Extent::Joined(p)) => p.iter().map(|(n, _)| n.to_string()).collect(),
        _ => Vec::new(),
    }
}

/// `y = x` with its piece `rope` rotated; see [`Rope`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeJoinKernel {
    /// As in [`Rope::theta`].
    pub theta: f64,
    /// Which piece is rotated.
    pub rope: String,
}

impl KernelDef for RopeJoinKernel {
    const NAME: &'static str = "rope_join";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "pos"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let names = names(b, inputs[0]);
        let mut parts = Vec::new();
        for name in &names {
            let part = b.piece(inputs[0], name)?;
            let rope = Rope { theta: self.theta };
            parts.push(if *name == self.rope { b.one(rope, &[part, inputs[1]])? } else { part });
        }
        b.op(Join { names }, &parts)
    }
}

/// `y = z` with its piece `rope` rotated and every other piece normed; see [`Rope`] and [`RmsNorm`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentRowKernel {
    /// As in [`RmsNorm::eps`].
    pub eps: f64,
    /// As in [`Rope::theta`].
    pub theta: f64,
    /// Which piece is rotated.
    pub rope: String,
}

impl KernelDef for LatentRowKernel {
    const NAME: &'static str = "latent_row";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["z", "w", "pos"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let names = names(b, inputs[0]);
        let w = decoded(b, inputs[1])?;
        let mut parts = Vec::new();
        for name in &names {
            let part = b.piece(inputs[0], name)?;
            parts.push(if *name == self.rope {
                b.one(Rope { theta: self.theta }, &[part, inputs[2]])?
            } else {
                b.one(RmsNorm { eps: self.eps }, &[part, w])?
            });
        }
        b.op(Join { names }, &parts)
    }
}
