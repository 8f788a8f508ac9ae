//! `layer_norm`: `y_j = w_j * (x_j - mean) / sqrt(var + eps) + b_j` over the last dim, population variance
//! (Ba et al., 2016).

use serde::{Deserialize, Serialize};

use super::rms_norm::{norm_args, norm_rule};
use super::rules::{Infer, arity};
use crate::op::OpDef;
use crate::placement::DimRule;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// Layer normalisation: `x [.., D]`, `w [D]`, `b [D]` to the type of `x`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
}

impl OpDef for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 3)?;
        norm_args(Self::NAME, args, self.eps)?;
        Ok(vec![args[0].clone()])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        norm_rule(args)
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, w, b) = (args[0].floats()?, args[1].floats()?, args[2].floats()?);
        let n = w.len() as f64;
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(w.len().max(1)) {
            let mean = row.iter().sum::<f64>() / n;
            let var = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
            let inv = 1.0 / (var + self.eps).sqrt();
            out.extend(row.iter().zip(w).zip(b).map(|((v, g), c)| g * ((v - mean) * inv) + c));
        }
        Ok(vec![Tensor::f(args[0].shape.clone(), out)])
    }

    fn stored(&self, i: usize) -> bool {
        i >= 1
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        super::elementwise::flops(args[0], syms, 8)
    }
}
