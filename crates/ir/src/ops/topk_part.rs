//! `topk_part`: what [`TopK`] over some of the entries gives before it is merged with the others: the positions `at` of
//! the `k` largest entries of each row and their values `score`, side by side; padded with position -1, score -inf.
//!
//! A rank's part of a top-k that is pending a merge is this, its positions counted in the whole row. Parts merge by
//! selecting again: larger score first, of equal ones the smaller position. Positions are stored as floats, exact below
//! 2^24 in f32, which longer rows are refused for.

use serde::{Deserialize, Serialize};

use super::rules::Infer;
use super::topk::{TopK, largest};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role, topk_part};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// Rows longer than this have positions that f32 does not hold.
pub(crate) const MOST_ENTRIES: u64 = 1 << 24;

/// `x [T, S]` to `f32[T, {at: k, score: k}]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopKPart {
    /// How many; the row may be shorter.
    pub k: u64,
}

impl OpDef for TopKPart {
    const NAME: &'static str = "topk_part";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        let whole = TopK { k: self.k }.infer(args)?;
        if args[0].dims[1].extent.as_const().is_some_and(|n| n > MOST_ENTRIES) {
            let m = format!("`{}` of rows longer than {MOST_ENTRIES}: {}", Self::NAME, args[0]);
            return Err(Diagnostic::new("bad-extent", m));
        }
        Ok(whole.iter().map(topk_part).collect())
    }

    fn dim_rule(&self, _: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let (t, s, k) = (rule.label(Role::Map), rule.label(Role::Whole), rule.label(Role::Whole));
        rule.args = vec![vec![t, s]];
        rule.results = vec![vec![t, k]];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = args[0].floats()?;
        let (rows, width, k) = (args[0].shape[0], args[0].shape[1], self.k as usize);
        let mut out = Vec::with_capacity(rows * 2 * k);
        for r in 0..rows {
            let row = &x[r * width..(r + 1) * width];
            if row.iter().any(|v| v.is_nan()) {
                return Err(EvalError::new(format!("row {r} holds NaN")));
            }
            let best = largest(row, k);
            out.extend(best.iter().map(|i| *i as f64).chain(std::iter::repeat(-1.0)).take(k));
            out.extend(best.iter().map(|i| row[*i]).chain(std::iter::repeat(f64::NEG_INFINITY)).take(k));
        }
        Ok(vec![Tensor::f(vec![rows, 2 * k], out)])
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        args[0].elems(syms).unwrap_or(u64::MAX)
    }

    fn discrete(&self) -> bool {
        true
    }
}
