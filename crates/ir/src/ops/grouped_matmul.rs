//! `grouped_matmul`: each token with the experts it chose, `y[t, j, n] = sum_k w[ids[t, j], n, k] * x[t, (j,) k]`.
//! A negative id means "no expert" and gives zeros. A split over experts leaves each entry on the rank that
//! holds the chosen expert, and zeros elsewhere.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, float, int, rank, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{PendingKind, SymValues, TensorType};

/// `x [T, K]` or `[T, J, K]`, `w [E, N, K]`, `ids i32[T, J]` to `[T, J, N]`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedMatmul {}

impl OpDef for GroupedMatmul {
    const NAME: &'static str = "grouped_matmul";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        const OP: &str = GroupedMatmul::NAME;
        arity(OP, args, 3)?;
        stateless(OP, args, None)?;
        float(OP, args, 0)?;
        float(OP, args, 1)?;
        int(OP, args, 2)?;
        rank(OP, args, 1, 3)?;
        rank(OP, args, 2, 2)?;
        let (x, w, ids) = (args[0], args[1], args[2]);
        if !(2..=3).contains(&x.rank()) {
            return Err(Diagnostic::new("bad-rank", format!("`{OP}` needs [T, K] or [T, J, K], found {x}")));
        }
        same_dim(OP, "tokens", &x.dims[0], &ids.dims[0])?;
        if x.rank() == 3 {
            same_dim(OP, "chosen experts", &x.dims[1], &ids.dims[1])?;
        }
        same_dim(OP, "contracted dim", &x.dims[x.rank() - 1], &w.dims[2])?;
        Ok(vec![TensorType::new(x.elem, [ids.dims[0].clone(), ids.dims[1].clone(), w.dims[1].clone()])])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let (t, j, n) = (rule.label(Role::Map), rule.label(Role::Map), rule.label(Role::Map));
        let (e, k) = (rule.label(Role::Reduce(PendingKind::Owned)), rule.label(Role::Reduce(PendingKind::Sum)));
        let x = if args[0].rank() == 3 { vec![t, j, k] } else { vec![t, k] };
        rule.args = vec![x, vec![e, n, k], vec![t, j]];
        rule.results = vec![vec![t, j, n]];
        rule.positions = vec![(2, e)];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, w, ids) = (args[0].floats()?, args[1].floats()?, args[2].ints()?);
        let (experts, n, k) = (args[1].shape[0], args[1].shape[1], args[1].shape[2]);
        let (tokens, j) = (args[2].shape[0], args[2].shape[1]);
        let per_choice = args[0].shape.len() == 3;
        let mut out = vec![0.0; tokens * j * n];
        for (choice, id) in ids.iter().enumerate().filter(|(_, id)| **id >= 0) {
            let e = *id as usize;
            if e >= experts {
                return Err(EvalError::new(format!("expert {e} of {experts}")));
            }
            let row = if per_choice { choice } else { choice / j };
            let xr = &x[row * k..(row + 1) * k];
            for (i, y) in out[choice * n..(choice + 1) * n].iter_mut().enumerate() {
                let wr = &w[(e * n + i) * k..(e * n + i + 1) * k];
                *y = xr.iter().zip(wr).map(|(a, b)| a * b).sum();
            }
        }
        Ok(vec![Tensor::f(vec![tokens, j, n], out)])
    }

    fn stored(&self, i: usize) -> bool {
        i == 1
    }

    fn flops(&self, args: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64 {
        let k = args[1].dims[2].extent.as_const().unwrap_or(u64::MAX);
        results[0].elems(syms).unwrap_or(u64::MAX).saturating_mul(2).saturating_mul(k)
    }

    /// Of the experts, at most one a choice is read.
    fn bytes_read(&self, args: &[&TensorType], _: &[TensorType], i: usize, syms: &SymValues) -> u64 {
        let all = args[i].bytes(syms).unwrap_or(u64::MAX);
        if i != 1 {
            return all;
        }
        let experts = args[1].dims[0].extent.as_const().unwrap_or(1).max(1);
        let chosen = args[2].elems(syms).unwrap_or(experts).min(experts);
        (u128::from(all) * u128::from(chosen) / u128::from(experts)) as u64
    }

    fn linear_in(&self, i: usize) -> bool {
        i < 2
    }
}
