//! `append`: writes rows into a cache pool, `pool[rows[t], :] = x[t, :]`; a negative row is not written (a padded
//! token). It consumes the pool and returns the changed one: whoever reads the old pool afterwards is refused.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, int, rank, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// `pool state [R, W]`, `rows i32[T]`, `x [T, W]` to the pool.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Append {}

impl OpDef for Append {
    const NAME: &'static str = "append";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 3)?;
        stateless(Self::NAME, args, Some(0))?;
        if !args[0].state {
            return Err(Diagnostic::new("bad-state", format!("`append` needs state, found {}", args[0])));
        }
        int(Self::NAME, args, 1)?;
        rank(Self::NAME, args, 0, 2)?;
        rank(Self::NAME, args, 1, 1)?;
        rank(Self::NAME, args, 2, 2)?;
        if args[0].elem != args[2].elem {
            return Err(Diagnostic::new("bad-elem", format!("`append` of {} to {}", args[2], args[0])));
        }
        same_dim(Self::NAME, "tokens", &args[1].dims[0], &args[2].dims[0])?;
        same_dim(Self::NAME, "width", &args[0].dims[1], &args[2].dims[1])?;
        Ok(vec![args[0].clone()])
    }

    fn dim_rule(&self, _: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        // Of a pool split by rows a rank writes the rows it holds.
        let (rows, tokens, width) = (rule.label(Role::Map), rule.label(Role::Whole), rule.label(Role::Map));
        rule.args = vec![vec![rows, width], vec![tokens], vec![tokens, width]];
        rule.results = vec![vec![rows, width]];
        rule.positions = vec![(1, rows)];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (rows, x) = (args[1].ints()?, args[2].floats()?);
        let mut pool = args[0].floats()?.to_vec();
        let (count, width) = (args[0].shape[0], args[0].shape[1]);
        for (t, row) in rows.iter().enumerate() {
            let Ok(r) = usize::try_from(*row) else { continue };
            if r >= count {
                return Err(EvalError::new(format!("row {r} of a pool of {count}")));
            }
            pool[r * width..(r + 1) * width].copy_from_slice(&x[t * width..(t + 1) * width]);
        }
        Ok(vec![Tensor::f(args[0].shape.clone(), pool)])
    }

    fn flops(&self, _: &[&TensorType], _: &[TensorType], _: &SymValues) -> u64 {
        0
    }

    fn bytes_read(&self, args: &[&TensorType], _: &[TensorType], i: usize, syms: &SymValues) -> u64 {
        if i == 0 { 0 } else { args[i].bytes(syms).unwrap_or(u64::MAX) }
    }

    fn bytes_written(&self, args: &[&TensorType], _: &[TensorType], _: usize, syms: &SymValues) -> u64 {
        args[2].bytes(syms).unwrap_or(u64::MAX)
    }

    fn consumes(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }
}
