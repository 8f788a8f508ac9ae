//! `scale`: multiplication by a constant, `y = factor * x`.

use serde::{Deserialize, Serialize};

use super::elementwise;
use super::rules::Infer;
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::DimRule;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// `y = factor * x`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// The constant; finite.
    pub factor: f64,
}

impl OpDef for Scale {
    const NAME: &'static str = "scale";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        if !self.factor.is_finite() {
            return Err(Diagnostic::new("bad-attribute", format!("`scale` by {}", self.factor)));
        }
        elementwise::unary(Self::NAME, args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        DimRule::elementwise(args, results)
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        elementwise::map(args[0], |x| self.factor * x)
    }

    fn keeps_zero(&self) -> bool {
        true
    }

    fn flops(&self, _: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64 {
        elementwise::flops(&results[0], syms, 1)
    }

    fn linear_in(&self, _: usize) -> bool {
        true
    }
}
