//! `reshape`: the same entries in the same order under other dims. Costs nothing: a view.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, SymValues, TensorType};

/// `x [..]` to `[dims]`, of equal size for every value of the symbols.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// The new dims, in text form.
    pub dims: Vec<Dim>,
}

impl OpDef for Reshape {
    const NAME: &'static str = "reshape";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 1)?;
        stateless(Self::NAME, args, None)?;
        if matches!(args[0].elem, crate::ty::Elem::Quant(_)) {
            return Err(Diagnostic::new("bad-elem", format!("`reshape` of stored blocks: {}", args[0]))
                .help("declare the weight with the dims it is used with"));
        }
        if let Some(d) = self.dims.iter().find(|d| d.split.is_some()) {
            return Err(Diagnostic::new("bad-attribute", format!("`reshape` states a placement: {d}"))
                .help("placements follow from the operand"));
        }
        let t = args[0].with_dims(self.dims.clone());
        if t.size_monomial().is_none() || t.size_monomial() != args[0].size_monomial() {
            return Err(Diagnostic::new("shape-mismatch", format!("`reshape` of {} to {t}", args[0])));
        }
        if self.dims.iter().filter(|d| d.extent.as_const().is_none()).count() > 1 {
            return Err(Diagnostic::new("bad-attribute", format!("`reshape` to more than one symbolic dim: {t}")));
        }
        Ok(vec![t])
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        // Dims that keep their place from the outside in pass their split; in the first pair that differs, the
        // outermost parts of a merge or of a cut hold the same entries on each rank, so that one passes too.
        let mut rule = DimRule::default();
        let same = args[0].dims.iter().zip(&results[0].dims).take_while(|(a, b)| a.extent.same_size(&b.extent)).count();
        let shared: Vec<usize> = (0..=same).map(|_| rule.label(Role::Map)).collect();
        let mut of = |t: &TensorType| -> Vec<usize> {
            (0..t.rank()).map(|i| if i <= same { shared[i] } else { rule.label(Role::Whole) }).collect()
        };
        let (a, r) = (of(args[0]), of(&results[0]));
        rule.args = vec![a];
        rule.results = vec![r];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let known: usize = self.dims.iter().filter_map(|d| d.extent.as_const()).map(|n| n as usize).product();
        let rest = args[0].len().checked_div(known).unwrap_or(0);
        let shape = self.dims.iter().map(|d| d.extent.as_const().map_or(rest, |n| n as usize)).collect();
        Ok(vec![Tensor { shape, data: args[0].data.clone() }])
    }

    fn flops(&self, _: &[&TensorType], _: &[TensorType], _: &SymValues) -> u64 {
        0
    }

    fn bytes_read(&self, _: &[&TensorType], _: &[TensorType], _: usize, _: &SymValues) -> u64 {
        0
    }

    fn bytes_written(&self, _: &[&TensorType], _: &[TensorType], _: usize, _: &SymValues) -> u64 {
        0
    }

    fn linear_in(&self, _: usize) -> bool {
        true
    }
}
