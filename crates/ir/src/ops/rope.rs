//! `rope`: rotary position embedding on interleaved pairs over the whole last dim `d` (Su et al., 2021; the pair
//! layout of GPT-J): `y[2j] = x[2j] cos a - x[2j+1] sin a`, `y[2j+1] = x[2j] sin a + x[2j+1] cos a`,
//! `a = pos * theta^(-2j/d)`. A head that is rotated in part is split into pieces first.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, float, int, rank, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// Rotates `x [T, .., d]` by `pos i32[T]`; `d` even.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// The base of the frequencies; positive.
    pub theta: f64,
}

impl OpDef for Rope {
    const NAME: &'static str = "rope";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 2)?;
        stateless(Self::NAME, args, None)?;
        float(Self::NAME, args, 0)?;
        int(Self::NAME, args, 1)?;
        rank(Self::NAME, args, 1, 1)?;
        if !(self.theta.is_finite() && self.theta > 0.0) {
            return Err(Diagnostic::new("bad-attribute", format!("`rope` with theta {}", self.theta)));
        }
        if args[0].rank() < 2 {
            return Err(Diagnostic::new("bad-rank", format!("`rope` needs [T, .., d], found {}", args[0])));
        }
        same_dim(Self::NAME, "positions", &args[0].dims[0], &args[1].dims[0])?;
        match args[0].last().and_then(|d| d.extent.as_const()) {
            Some(d) if d % 2 == 0 => Ok(vec![args[0].clone()]),
            _ => Err(Diagnostic::new("shape-mismatch", format!("`rope` needs an even last dim, found {}", args[0]))),
        }
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let mut x = rule.labels(args[0], Role::Map);
        let whole = rule.label(Role::Whole);
        if let Some(l) = x.last_mut() {
            *l = whole;
        }
        rule.args = vec![x.clone(), vec![x[0]]];
        rule.results = vec![x];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, pos) = (args[0].floats()?, args[1].ints()?);
        let d = *args[0].shape.last().ok_or_else(|| EvalError::new("rope of a scalar"))?;
        if d == 0 {
            return Ok(vec![args[0].clone()]);
        }
        let per_token = x.len() / pos.len().max(1);
        let mut out = x.to_vec();
        for (t, p) in pos.iter().enumerate() {
            for head in out[t * per_token..(t + 1) * per_token].chunks_exact_mut(d) {
                for j in 0..d / 2 {
                    let angle = *p as f64 * self.theta.powf(-2.0 * j as f64 / d as f64);
                    let (s, c) = angle.sin_cos();
                    let (a, b) = (head[2 * j], head[2 * j + 1]);
                    head[2 * j] = a * c - b * s;
                    head[2 * j + 1] = a * s + b * c;
                }
            }
        }
        Ok(vec![Tensor::f(args[0].shape.clone(), out)])
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        super::elementwise::flops(args[0], syms, 3)
    }

    fn linear_in(&self, i: usize) -> bool {
        i == 0
    }
}
