//! `all_gather`: a value split over an axis, put together; each rank of the axis then holds the whole.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, moved};
use crate::collective::{Collective, CollectiveKind};
use crate::op::OpDef;
use crate::placement::DimRule;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Axis, SymValues, TensorType};

/// See the module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllGather {
    /// The mesh axis whose ranks take part.
    pub axis: Axis,
}

impl OpDef for AllGather {
    const NAME: &'static str = "all_gather";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        moved(Self::NAME, args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        DimRule::elementwise(args, results)
    }

    fn collective(&self) -> Option<Collective> {
        let kind = CollectiveKind::AllGather;
        Some(Collective { kind, axis: self.axis.clone() })
    }

    /// The identity: a collective never changes a value, only where it lives.
    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        Ok(vec![args[0].clone()])
    }

    fn flops(&self, _: &[&TensorType], _: &[TensorType], _: &SymValues) -> u64 {
        0
    }
}
