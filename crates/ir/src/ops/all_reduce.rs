//! `all_reduce`: a value pending over an axis, merged; each rank of the axis then holds the whole. What merging is
//! depends on what is pending: a sum, a maximum, a softmax over keys, a selection.

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
pub struct AllReduce {
    /// The mesh axis whose ranks take part.
    pub axis: Axis,
}

impl OpDef for AllReduce {
    const NAME: &'static str = "all_reduce";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        moved(Self::NAME, args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        DimRule::elementwise(args, results)
    }

    fn collective(&self) -> Option<Collective> {
        let kind = CollectiveKind::AllReduce;
        Some(Collective { kind, axis: self.axis.clone() })
    }

    /// The identity: a collective never changes a value, only where it lives.
    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        Ok(vec![args[0].clone()])
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        super::elementwise::flops(args[0], syms, 1)
    }
}
