//! `join`: puts values side by side in a last dim with named pieces; the inverse of taking every `piece`.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, float, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, Extent, Piece, SymValues, TensorType};

/// `[.., n], [.., m]` to `[.., {a: n, b: m}]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The name of each operand's piece.
    pub names: Vec<String>,
}

impl OpDef for Join {
    const NAME: &'static str = "join";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        if args.is_empty() || args.len() != self.names.len() {
            return Err(Diagnostic::new(
                "bad-arity",
                format!("`join` of {} operands with {} names", args.len(), self.names.len()),
            ));
        }
        stateless(Self::NAME, args, None)?;
        let mut pieces: Vec<(Piece, u64)> = Vec::new();
        for (i, (a, name)) in args.iter().zip(&self.names).enumerate() {
            float(Self::NAME, args, i)?;
            if a.rank() != args[0].rank() || a.rank() == 0 || a.elem != args[0].elem {
                return Err(Diagnostic::new("shape-mismatch", format!("`join` of {} and {a}", args[0])));
            }
            for d in 0..a.rank() - 1 {
                same_dim(Self::NAME, &format!("dim {d}"), &args[0].dims[d], &a.dims[d])?;
            }
            let Some(Extent::Const(n)) = a.last().map(|d| &d.extent) else {
                return Err(Diagnostic::new("shape-mismatch", format!("`join` takes plain last dims, found {a}")));
            };
            if pieces.iter().any(|(p, _)| p.as_str() == name) {
                return Err(Diagnostic::new("piece-order", format!("`join` names `{name}` twice")));
            }
            pieces.push((Piece::from(name.as_str()), *n));
        }
        let mut dims = args[0].dims.clone();
        if let Some(d) = dims.last_mut() {
            *d = Dim { extent: Extent::Joined(pieces), split: None };
        }
        Ok(vec![args[0].with_dims(dims)])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let labels = rule.labels(args[0], Role::Map);
        rule.args = args.iter().map(|_| labels.clone()).collect();
        rule.results = vec![labels];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        concat_last(args).map(|t| vec![t])
    }

    fn flops(&self, _: &[&TensorType], _: &[TensorType], _: &SymValues) -> u64 {
        0
    }

    fn linear_in(&self, _: usize) -> bool {
        true
    }
}

/// Concatenation along the last dim.
pub(super) fn concat_last(parts: &[&Tensor]) -> Result<Tensor, EvalError> {
    let widths: Vec<usize> = parts.iter().map(|p| p.shape.last().copied().unwrap_or(1)).collect();
    let rows: usize = parts[0].shape[..parts[0].shape.len() - 1].iter().product();
    let data: Vec<&[f64]> = parts.iter().map(|p| p.floats()).collect::<Result<_, _>>()?;
    let mut out = Vec::with_capacity(rows * widths.iter().sum::<usize>());
    for r in 0..rows {
        for (d, w) in data.iter().zip(&widths) {
            out.extend_from_slice(&d[r * w..(r + 1) * w]);
        }
    }
    let mut shape = parts[0].shape.clone();
    if let Some(d) = shape.last_mut() {
        *d = widths.iter().sum();
    }
    Ok(Tensor::f(shape, out))
}
