//! `gather`: rows of a table by id, `y[i.., :] = table[ids[i..], :]`; a negative id gives a row of zeros. Reads
//! embeddings, cache pools (which it does not consume) and selected token rows alike.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, int, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{PendingKind, SymValues, TensorType};

/// `table [V, ..]` floats or state, `ids i32[..]` to `[ids.., ..]`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {}

impl OpDef for Gather {
    const NAME: &'static str = "gather";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 2)?;
        stateless(Self::NAME, args, Some(0))?;
        int(Self::NAME, args, 1)?;
        if args[0].rank() < 1 || !args[0].elem.is_float() {
            return Err(Diagnostic::new("bad-elem", format!("`gather` needs a table of floats, found {}", args[0])));
        }
        let dims = args[1].dims.iter().chain(&args[0].dims[1..]).cloned();
        Ok(vec![TensorType::new(args[0].elem, dims)])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        // Of a table split by rows a rank gives its own rows and zeros for the others.
        let rows = rule.label(Role::Reduce(PendingKind::Sum));
        let ids = rule.labels(args[1], Role::Map);
        let rest: Vec<usize> = args[0].dims[1..].iter().map(|_| rule.label(Role::Map)).collect();
        rule.args = vec![std::iter::once(rows).chain(rest.iter().copied()).collect(), ids.clone()];
        rule.results = vec![ids.into_iter().chain(rest).collect()];
        rule.positions = vec![(1, rows)];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (table, ids) = (args[0].floats()?, args[1].ints()?);
        let rows = args[0].shape[0];
        let width: usize = args[0].shape[1..].iter().product();
        let mut out = Vec::with_capacity(ids.len() * width);
        for id in ids {
            match usize::try_from(*id) {
                Err(_) => out.resize(out.len() + width, 0.0),
                Ok(i) if i < rows => out.extend_from_slice(&table[i * width..(i + 1) * width]),
                Ok(i) => return Err(EvalError::new(format!("row {i} of {rows}"))),
            }
        }
        let shape = args[1].shape.iter().chain(&args[0].shape[1..]).copied().collect();
        Ok(vec![Tensor::f(shape, out)])
    }

    fn stored(&self, i: usize) -> bool {
        i == 0
    }

    fn flops(&self, _: &[&TensorType], _: &[TensorType], _: &SymValues) -> u64 {
        0
    }

    /// Only the rows that are named.
    fn bytes_read(&self, args: &[&TensorType], results: &[TensorType], i: usize, syms: &SymValues) -> u64 {
        let rows = if i == 0 { &results[0].with_elem(args[0].elem) } else { args[1] };
        rows.bytes(syms).unwrap_or(u64::MAX)
    }

    fn linear_in(&self, i: usize) -> bool {
        i == 0
    }
}
