//! `rms_norm`: `y_j = w_j * x_j / sqrt(mean_j(x_j^2) + eps)` over the last dim (Zhang and Sennrich, 2019).

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, float, rank, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// RMS normalisation: `x [.., D]`, `w [D]` to the type of `x`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    /// Added to the mean square; explicit on every norm, since models differ in it.
    pub eps: f64,
}

impl OpDef for RmsNorm {
    const NAME: &'static str = "rms_norm";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 2)?;
        norm_args(Self::NAME, args, self.eps)?;
        Ok(vec![args[0].clone()])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        norm_rule(args)
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (args[0].floats()?, args[1].floats()?);
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(w.len().max(1)) {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / w.len() as f64;
            let inv = 1.0 / (mean + self.eps).sqrt();
            out.extend(row.iter().zip(w).map(|(v, g)| g * (v * inv)));
        }
        Ok(vec![Tensor::f(args[0].shape.clone(), out)])
    }

    fn stored(&self, i: usize) -> bool {
        i == 1
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        super::elementwise::flops(args[0], syms, 4)
    }
}

/// The checks that both norms share: `x` floats with a last dim, vectors of that size, a sane eps.
pub(super) fn norm_args(op: &str, args: &[&TensorType], eps: f64) -> Result<(), Diagnostic> {
    stateless(op, args, None)?;
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(Diagnostic::new("bad-attribute", format!("`{op}` with eps {eps}")));
    }
    let Some(last) = args[0].last() else {
        return Err(Diagnostic::new("bad-rank", format!("`{op}` of a scalar")));
    };
    float(op, args, 0)?;
    for i in 1..args.len() {
        float(op, args, i)?;
        rank(op, args, i, 1)?;
        same_dim(op, "last dim", last, &args[i].dims[0])?;
    }
    Ok(())
}

/// Rows are independent; the normalised dim must be whole.
pub(super) fn norm_rule(args: &[&TensorType]) -> DimRule {
    let mut rule = DimRule::default();
    let mut x = rule.labels(args[0], Role::Map);
    let last = rule.label(Role::Whole);
    if let Some(l) = x.last_mut() {
        *l = last;
    }
    rule.args = std::iter::once(x.clone()).chain((1..args.len()).map(|_| vec![last])).collect();
    rule.results = vec![x];
    rule
}
