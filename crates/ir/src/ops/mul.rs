//! `mul`: `y = a * b`, `b` broadcast where its extent is 1.

use serde::{Deserialize, Serialize};

use super::elementwise;
use super::rules::Infer;
use crate::op::OpDef;
use crate::placement::DimRule;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// `y = a * b`, `b` broadcast where its extent is 1.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mul {}

impl OpDef for Mul {
    const NAME: &'static str = "mul";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        elementwise::binary(Self::NAME, args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        DimRule::elementwise(args, results)
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        elementwise::zip(args[0], args[1], |a, b| a * b)
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

    fn linear_in(&self, _: usize) -> bool {
        true
    }
}
