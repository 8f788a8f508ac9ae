//! `piece`: one named piece of the joined last dim. There is no slice by offset in the IR.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, float, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::DimRule;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, Extent, Piece as Name, SymValues, TensorType};

/// `x [.., {a: n, b: m}]` to `[.., n]`. Offsets are resolved once, by the type rule's order of pieces.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Which piece.
    pub name: String,
    /// All pieces of the operand, in order: what the numbers are cut by.
    pub of: Vec<(Name, u64)>,
}

impl Piece {
    /// The piece `name` of `t`'s last dim.
    ///
    /// # Errors
    /// `piece-unknown`: the last dim is not joined or has no such piece.
    pub fn of(t: &TensorType, name: &str) -> Result<Self, Diagnostic> {
        match t.last().map(|d| &d.extent) {
            Some(Extent::Joined(p)) if p.iter().any(|(n, _)| n.as_str() == name) => {
                Ok(Piece { name: name.into(), of: p.clone() })
            }
            _ => Err(Diagnostic::new("piece-unknown", format!("{t} has no piece `{name}` in its last dim"))),
        }
    }

    /// `(offset, size)` within the last dim.
    pub fn range(&self) -> (u64, u64) {
        let at = self.of.iter().position(|(n, _)| n.as_str() == self.name).unwrap_or(0);
        (self.of[..at].iter().fold(0, |sum, (_, n)| sum.saturating_add(*n)), self.of[at].1)
    }
}

impl OpDef for Piece {
    const NAME: &'static str = "piece";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 1)?;
        stateless(Self::NAME, args, None)?;
        float(Self::NAME, args, 0)?;
        let found = Piece::of(args[0], &self.name)?;
        if found.of != self.of {
            return Err(Diagnostic::new(
                "piece-order",
                format!("`piece` is cut by {}, its operand is {}", Dim::from(self.of.clone()), args[0]),
            )
            .help("producer and consumer name the same pieces in the same order"));
        }
        let mut dims = args[0].dims.clone();
        if let Some(d) = dims.last_mut() {
            *d = Dim::new(self.range().1);
        }
        Ok(vec![args[0].with_dims(dims)])
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        // A split of a joined dim is piecewise, so a piece of it is split alike.
        let mut rule = DimRule::default();
        let labels = rule.labels(args[0], crate::placement::Role::Map);
        debug_assert_eq!(args[0].rank(), results[0].rank());
        rule.args = vec![labels.clone()];
        rule.results = vec![labels];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let total: u64 = self.of.iter().map(|(_, n)| n).sum();
        let (at, n) = self.range();
        let (at, n) = (at as usize, n as usize);
        let x = args[0].floats()?;
        let out: Vec<f64> =
            x.chunks_exact((total as usize).max(1)).flat_map(|row| row[at..at + n].iter().copied()).collect();
        let mut shape = args[0].shape.clone();
        if let Some(d) = shape.last_mut() {
            *d = n;
        }
        Ok(vec![Tensor::f(shape, out)])
    }

    fn flops(&self, _: &[&TensorType], _: &[TensorType], _: &SymValues) -> u64 {
        0
    }

    fn bytes_read(&self, _: &[&TensorType], results: &[TensorType], _: usize, syms: &SymValues) -> u64 {
        results[0].bytes(syms).unwrap_or(u64::MAX)
    }

    fn linear_in(&self, _: usize) -> bool {
        true
    }
}
