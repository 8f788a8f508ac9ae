//! The contracts `rope_join`, `latent_row` and `index_row`: rows in the form in which a cache keeps them, their rotary
//! piece rotated among the others. The pieces are taken by name from a joined row, which may hold more than they use.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{Join, LayerNorm, RmsNorm, Rope};

/// `y = {names[i]: x.from[i], ..}`, the piece `rope` of it rotated; see [`Rope`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeJoinKernel {
    /// As in [`Rope::theta`].
    pub theta: f64,
    /// Pieces of the operand, in the order of the result.
    pub from: Vec<String>,
    /// What the result calls them.
    pub names: Vec<String>,
    /// Which piece of the result is rotated.
    pub rope: String,
}

impl KernelDef for RopeJoinKernel {
    const NAME: &'static str = "rope_join";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x", "pos"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        rows(b, inputs[0], [&self.from, &self.names], |b, name, part| {
            if name == self.rope { b.one(Rope { theta: self.theta }, &[part, inputs[1]]) } else { Ok(part) }
        })
    }
}

/// As [`RopeJoinKernel`], every other piece normed; see [`RmsNorm`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentRowKernel {
    /// As in [`RmsNorm::eps`].
    pub eps: f64,
    /// As in [`Rope::theta`].
    pub theta: f64,
    /// Pieces of the operand, in the order of the result.
    pub from: Vec<String>,
    /// What the result calls them.
    pub names: Vec<String>,
    /// Which piece of the result is rotated.
    pub rope: String,
}

impl KernelDef for LatentRowKernel {
    const NAME: &'static str = "latent_row";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["z", "w", "pos"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let w = decoded(b, inputs[1])?;
        rows(b, inputs[0], [&self.from, &self.names], |b, name, part| {
            if name == self.rope {
                b.one(Rope { theta: self.theta }, &[part, inputs[2]])
            } else {
                b.one(RmsNorm { eps: self.eps }, &[part, w])
            }
        })
    }
}

/// As [`RopeJoinKernel`], the row normed as a whole before a piece of it is rotated; see [`LayerNorm`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexRowKernel {
    /// As in [`LayerNorm::eps`].
    pub eps: f64,
    /// As in [`Rope::theta`].
    pub theta: f64,
    /// Pieces of the operand, in the order of the result.
    pub from: Vec<String>,
    /// What the result calls them.
    pub names: Vec<String>,
    /// Which piece of the result is rotated.
    pub rope: String,
}

impl KernelDef for IndexRowKernel {
    const NAME: &'static str = "index_row";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["z", "w", "b", "pos"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let (w, bias) = (decoded(b, inputs[1])?, decoded(b, inputs[2])?);
        let row = rows(b, inputs[0], [&self.from, &self.names], |_, _, part| Ok(part))?;
        let normed = b.one(LayerNorm { eps: self.eps }, &[row[0], w, bias])?;
        rows(b, normed, [&self.names, &self.names], |b, name, part| {
            if name == self.rope { b.one(Rope { theta: self.theta }, &[part, inputs[3]]) } else { Ok(part) }
        })
    }
}

/// The pieces `from` of `x`, each through `each`, side by side as `names`.
fn rows(
    b: &mut Builder<'_>,
    x: Value,
    [from, names]: [&Vec<String>; 2],
    mut each: impl FnMut(&mut Builder<'_>, &str, Value) -> Result<Value, Diagnostic>,
) -> Result<Vec<Value>, Diagnostic> {
    if from.len() != names.len() {
        let what = format!("{} pieces under {} names", from.len(), names.len());
        return Err(Diagnostic::new("bad-attribute", what));
    }
    let mut parts = Vec::new();
    for (from, name) in from.iter().zip(names) {
        let part = b.piece(x, from)?;
        parts.push(each(b, name, part)?);
    }
    b.op(Join { names: names.clone() }, &parts)
}
