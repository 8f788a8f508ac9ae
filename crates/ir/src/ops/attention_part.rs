//! `attention_part`: what [`Attention`] over some of the keys gives before it is merged with the others: for each token
//! and head the weighted mean `o` of the values, the largest score `max` and `sum = sum_s exp(score_s - max)`, side by
//! side in the last dim. Without a visible key `o` is 0, `max` -inf and `sum` 0.
//!
//! A rank's part of an attention that is pending a softmax merge is this. Parts merge as
//! `o = sum_r w_r o_r / sum_r w_r`, `w_r = sum_r exp(max_r - max)`, `max` the largest `max_r`.

use serde::{Deserialize, Serialize};

use super::attention::Attention;
use super::rules::Infer;
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role, softmax_part};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// The operands of [`Attention`]; result `[T, H, {o: dv, max: 1, sum: 1}]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionPart {
    /// See [`Attention`].
    pub parts: usize,
    /// See [`Attention`].
    pub scale: f64,
    /// See [`Attention`].
    pub selected: bool,
}

impl AttentionPart {
    fn whole(&self) -> Attention {
        Attention { parts: self.parts, scale: self.scale, selected: self.selected }
    }
}

impl From<Attention> for AttentionPart {
    fn from(a: Attention) -> Self {
        AttentionPart { parts: a.parts, scale: a.scale, selected: a.selected }
    }
}

impl OpDef for AttentionPart {
    const NAME: &'static str = "attention_part";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        let whole = self.whole().infer(args)?;
        match whole[0].last().and_then(|d| d.extent.as_const()) {
            Some(_) => Ok(whole.iter().map(softmax_part).collect()),
            None => Err(Diagnostic::new("shape-mismatch", format!("`{}` needs a constant value width", Self::NAME))),
        }
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        // As attention, but the parts of the last dim belong together and its keys must be whole: what is left to
        // merge stands in the value.
        let mut rule = self.whole().dim_rule(args, results);
        let whole = rule.label(Role::Whole);
        let p = self.parts;
        let (keys, value) = (rule.args[2 * p][1], rule.args[2 * p][rule.args[2 * p].len() - 1]);
        rule.roles[keys] = Role::Whole;
        rule.roles[value] = Role::Whole;
        rule.results[0][2] = whole;
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let part = self.whole().eval_part(args)?;
        let shape = vec![args[0].shape[0], args[0].shape[1], part.width + 2];
        let row = |r: super::attention::PartRow| r.value.into_iter().chain([r.max, r.sum]);
        Ok(vec![Tensor::f(shape, part.rows.into_iter().flat_map(row).collect())])
    }

    fn flops(&self, args: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64 {
        self.whole().flops(args, results, syms)
    }
}
