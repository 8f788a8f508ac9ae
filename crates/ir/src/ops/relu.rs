//! `relu`: `y = max(x, 0)`; NaN stays NaN.

use serde::{Deserialize, Serialize};

use super::elementwise;
use super::rules::Infer;
use crate::op::OpDef;
use crate::placement::DimRule;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// `y = max(x, 0)`; NaN stays NaN.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relu {}

impl OpDef for Relu {
    const NAME: &'static str = "relu";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        elementwise::unary(Self::NAME, args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        DimRule::elementwise(args, results)
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        elementwise::map(args[0], |x| if x < 0.0 { 0.0 } else { x })
    }

    fn keeps_zero(&self) -> bool {
        true
    }

    fn stored(&self, _: usize) -> bool {
        true
    }

    fn flops(&self, _: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64 {
        elementwise::flops(&results[0], syms, 1)
    }
}
