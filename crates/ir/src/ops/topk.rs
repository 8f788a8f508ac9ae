//! `topk`: positions of the `k` largest entries of each row that are greater than `-inf`; larger first, of equal ones
//! the smaller position first; padded with -1. NaN is an error, never a choice.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, float, rank, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, Elem, PendingKind, SymValues, TensorType};

/// `x [T, S]` to `i32[T, k]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// How many; the row may be shorter.
    pub k: u64,
}

impl OpDef for TopK {
    const NAME: &'static str = "topk";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 1)?;
        stateless(Self::NAME, args, None)?;
        float(Self::NAME, args, 0)?;
        rank(Self::NAME, args, 0, 2)?;
        if self.k == 0 {
            return Err(Diagnostic::new("bad-attribute", "`topk` of 0"));
        }
        Ok(vec![TensorType::new(Elem::I32, [args[0].dims[0].clone(), Dim::new(self.k)])])
    }

    fn dim_rule(&self, _: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let (t, s) = (rule.label(Role::Map), rule.label(Role::Reduce(PendingKind::TopK)));
        let k = rule.label(Role::Whole);
        rule.args = vec![vec![t, s]];
        rule.results = vec![vec![t, k]];
        rule.found = vec![(0, s)];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = args[0].floats()?;
        let (rows, width, k) = (args[0].shape[0], args[0].shape[1], self.k as usize);
        let mut out = Vec::with_capacity(rows * k);
        for r in 0..rows {
            let row = &x[r * width..(r + 1) * width];
            if row.iter().any(|v| v.is_nan()) {
                return Err(EvalError::new(format!("row {r} holds NaN")));
            }
            let best = largest(row, k);
            out.extend(best.iter().map(|i| *i as i64).chain(std::iter::repeat(-1)).take(k));
        }
        Ok(vec![Tensor::i(vec![rows, k], out)])
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        args[0].elems(syms).unwrap_or(u64::MAX)
    }

    fn discrete(&self) -> bool {
        true
    }
}

/// Positions of the at most `k` largest entries above `-inf`, best first, ties by position.
pub(super) fn largest(row: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).filter(|i| row[*i] > f64::NEG_INFINITY).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
    order.truncate(k);
    order
}
