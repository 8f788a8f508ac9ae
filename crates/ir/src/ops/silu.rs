//! `silu`: SiLU: `y = x * sigmoid(x) = x / (1 + exp(-x))`.

use serde::{Deserialize, Serialize};

use super::elementwise;
use super::rules::Infer;
use crate::op::OpDef;
use crate::placement::DimRule;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// SiLU: `y = x * sigmoid(x) = x / (1 + exp(-x))`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Silu {}

impl OpDef for Silu {
    const NAME: &'static str = "silu";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        elementwise::unary(Self::NAME, args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        DimRule::elementwise(args, results)
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        elementwise::map(args[0], |x| x / (1.0 + (-x).exp()))
    }

    fn keeps_zero(&self) -> bool {
        true
    }

    fn stored(&self, _: usize) -> bool {
        true
    }

    fn flops(&self, _: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64 {
        elementwise::flops(&results[0], syms, 4)
    }
}
