//! `reshape`: the same entries in the same order under other dims. Costs nothing: a view.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Mesh, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, Extent, SymValues, TensorType};

/// `x [..]` to `[dims]`, of equal size for every value of the symbols.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// The new dims, in text form.
    pub dims: Vec<Dim>,
}

/// How many leading dims keep their size.
fn same_dims(a: &TensorType, r: &TensorType) -> usize {
    a.dims.iter().zip(&r.dims).take_while(|(a, r)| a.extent.same_size(&r.extent)).count()
}

/// For the first pair of dims that differ, if both are plain and one is a multiple of the other's entries: its place
/// and how many entries of the rest one index of each stands for.
fn scales(a: &TensorType, r: &TensorType) -> Option<(usize, u64, u64)> {
    let at = same_dims(a, r);
    let plain = |t: &TensorType| matches!(t.dims.get(at).map(|d| &d.extent), Some(Extent::Const(_)));
    let rest = |t: &TensorType| t.with_dims(t.dims[at + 1..].to_vec()).size_monomial();
    if !plain(a) || !plain(r) {
        return None;
    }
    let ((na, sa), (nr, sr)) = (rest(a)?, rest(r)?);
    (sa == sr && na > 0 && nr > 0).then_some((at, na, nr))
}

impl Reshape {
    /// Turns the unit of the pair of dims that differ from the operand's entries into the result's.
    pub(crate) fn scale_units(arg: &TensorType, result: &mut TensorType) {
        let Some((at, na, nr)) = scales(arg, result) else { return };
        if let Some(s) = &mut result.dims[at].split {
            let entries = s.unit.saturating_mul(na);
            // What is no whole number of the result's entries may still be cut alike on the mesh: see `cuts_agree`.
            s.unit = if entries.is_multiple_of(nr) { entries / nr } else { 1 };
        }
    }

    /// `split-mismatch`: ranks hold other entries of the result than of the operand.
    pub(crate) fn cuts_agree(arg: &TensorType, result: &TensorType, mesh: &Mesh) -> Result<(), Diagnostic> {
        let Some((at, na, nr)) = scales(arg, result) else { return Ok(()) };
        let (Some(a), Some(r)) = (&arg.dims[at].split, &result.dims[at].split) else { return Ok(()) };
        let size = mesh.get(&a.axis).copied().unwrap_or(1).max(1);
        let even = |d: &Dim| d.extent.as_const().is_some_and(|n| n % size == 0);
        let units = a.unit.checked_mul(na).is_some_and(|u| Some(u) == r.unit.checked_mul(nr));
        if units || (a.unit == 1 && r.unit == 1 && even(&arg.dims[at]) && even(&result.dims[at])) {
            return Ok(());
        }
        let m = format!("`reshape` of {arg} to {result}: a rank's part of one is no part of the other");
        Err(Diagnostic::new("split-mismatch", m).help("split it in units that both have, or gather it first"))
    }
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
        let (arg, result) = (args[0], &results[0]);
        let same = same_dims(arg, result);
        let pair = scales(arg, result).is_some();
        let mut shared = Vec::new();
        for i in 0..same + usize::from(pair) {
            // Pieces against a plain dim of one size are cut at other entries.
            let alike = i == same || arg.dims[i].extent == result.dims[i].extent;
            shared.push(rule.label(if alike { Role::Map } else { Role::Whole }));
        }
        let mut of = |t: &TensorType| -> Vec<usize> {
            (0..t.rank()).map(|i| shared.get(i).copied().unwrap_or_else(|| rule.label(Role::Whole))).collect()
        };
        let (a, r) = (of(arg), of(result));
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
