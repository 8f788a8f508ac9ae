//! `shard`: of a value that each rank holds whole, each keeps its part of `dim`. Nothing travels.

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
pub struct Shard {
    /// The mesh axis whose ranks take part.
    pub axis: Axis,
    /// The dim that becomes split.
    pub dim: usize,
    /// Entries that stay together; see [`crate::ty::Split::unit`].
    #[serde(default = "super::rules::one", skip_serializing_if = "super::rules::is_one")]
    pub unit: u64,
}

impl OpDef for Shard {
    const NAME: &'static str = "shard";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        moved(Self::NAME, args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        DimRule::elementwise(args, results)
    }

    fn collective(&self) -> Option<Collective> {
        let kind = CollectiveKind::Shard { dim: self.dim, unit: self.unit };
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
