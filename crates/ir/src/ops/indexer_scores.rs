//! `indexer_scores`: the lightning indexer of DeepSeek sparse attention:
//! `I[t, s] = sum_h w[t, h] * relu(scale * q[t, h] . k[s])` for `s < len[t]`, `-inf` for keys that are not visible.
//! The ReLU is per head, before the weighting; weights may be negative. Invisible keys never enter the arithmetic.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, float, int, rank, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Elem, PendingKind, SymValues, TensorType};

/// `q [T, Hi, d]`, `k [Q, S, d]`, `w [T, Hi]`, `seq i32[T]`, `len i32[T]` to `f32[T, S]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexerScores {
    /// Multiplies the dot products; positive.
    pub scale: f64,
}

impl OpDef for IndexerScores {
    const NAME: &'static str = "indexer_scores";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        const OP: &str = IndexerScores::NAME;
        arity(OP, args, 5)?;
        stateless(OP, args, None)?;
        for (i, n) in [3, 3, 2, 1, 1].into_iter().enumerate() {
            if i < 3 {
                float(OP, args, i)?
            } else {
                int(OP, args, i)?
            }
            rank(OP, args, i, n)?;
        }
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(Diagnostic::new("bad-attribute", format!("`{OP}` with scale {}", self.scale)));
        }
        same_dim(OP, "key width", &args[0].dims[2], &args[1].dims[2])?;
        same_dim(OP, "heads", &args[0].dims[1], &args[2].dims[1])?;
        for a in &args[2..] {
            same_dim(OP, "tokens", &args[0].dims[0], &a.dims[0])?;
        }
        // Scores stay f32 whatever the inputs are: near ties decide what is attended to.
        Ok(vec![TensorType::new(Elem::F32, [args[0].dims[0].clone(), args[1].dims[1].clone()])])
    }

    fn dim_rule(&self, _: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let (t, s) = (rule.label(Role::Map), rule.label(Role::Map));
        let (q, d) = (rule.label(Role::Whole), rule.label(Role::Whole));
        let h = rule.label(Role::Reduce(PendingKind::Sum));
        rule.args = vec![vec![t, h, d], vec![q, s, d], vec![t, h], vec![t], vec![t]];
        rule.results = vec![vec![t, s]];
        rule.counts = vec![(4, s)];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (q, k, w) = (args[0].floats()?, args[1].floats()?, args[2].floats()?);
        let (tokens, heads, d) = (args[0].shape[0], args[0].shape[1], args[0].shape[2]);
        let (seqs, keys) = (args[1].shape[0], args[1].shape[1]);
        let mut out = vec![f64::NEG_INFINITY; tokens * keys];
        let visible = super::attention::visible_keys(args[3], args[4], None, seqs, keys)?;
        for (t, (seq, seen)) in visible.iter().enumerate() {
            for s in seen {
                let key = &k[(seq * keys + s) * d..(seq * keys + s + 1) * d];
                let head = |h: usize| -> f64 {
                    let row = &q[(t * heads + h) * d..(t * heads + h + 1) * d];
                    let dot = self.scale * row.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
                    w[t * heads + h] * if dot < 0.0 { 0.0 } else { dot }
                };
                out[t * keys + s] = (0..heads).map(head).sum();
            }
        }
        Ok(vec![Tensor::f(vec![tokens, keys], out)])
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        let keys = args[1].shape(syms).map_or(u64::MAX, |s| s[1]);
        args[0].elems(syms).unwrap_or(u64::MAX).saturating_mul(2).saturating_mul(keys)
    }

    fn linear_in(&self, i: usize) -> bool {
        i == 2
    }
}
