//! Owns what `rotate` takes for a norm: an op that norms rows, with the stored weights behind its operands.

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{Inst, Value};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::ops::Dequant;
use glmc_ir::ty::TensorType;

/// A norm apart from its operands. Equal ones at the end of a function are one function.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Norm {
    op: Op,
    /// For each weight its type as stored, and whether an op of its own decodes it.
    pub(super) weights: Vec<(TensorType, bool)>,
}

/// A norm in a function.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Found {
    /// Its instruction.
    pub(super) inst: Inst,
    /// What it norms.
    pub(super) x: Value,
    /// Its weights as stored.
    pub(super) weights: Vec<Value>,
    /// The instructions that decode them.
    pub(super) decodes: Vec<Inst>,
    /// What it is.
    pub(super) norm: Norm,
}

impl Norm {
    /// Builds it over `x` and weights as stored.
    pub(super) fn build(&self, b: &mut Builder<'_>, x: Value, weights: &[Value]) -> Result<Value, Diagnostic> {
        let mut args = vec![x];
        for (w, (_, decoded)) in weights.iter().zip(&self.weights) {
            args.push(if *decoded { b.one(Dequant {}, &[*w])? } else { *w });
        }
        b.one(self.op.clone(), &args)
    }

    /// Whether it gives zeros for a row of zeros, as `gather` does for a row that is none: then rows may be chosen
    /// before or after it.
    pub(super) fn keeps_zero_rows(&self) -> bool {
        matches!(&self.op, Op::RmsNorm(n) if n.eps > 0.0)
    }
}

/// The norm that `inst` is.
pub(super) fn find(f: &Function, inst: Inst) -> Option<Found> {
    let data = &f.insts[inst];
    let InstKind::Op(op @ (Op::RmsNorm(_) | Op::LayerNorm(_))) = &data.kind else { return None };
    let (x, rest) = data.args.split_first()?;
    let (mut weights, mut types, mut decodes) = (Vec::new(), Vec::new(), Vec::new());
    for a in rest {
        let decode = made_by(f, *a, |k| matches!(k, InstKind::Op(Op::Dequant(_)))).map(|(inst, _)| inst);
        let stored = decode.map_or(*a, |d| f.insts[d].args[0]);
        types.push((f.ty(stored).clone(), decode.is_some()));
        weights.push(stored);
        decodes.extend(decode);
    }
    Some(Found { inst, x: *x, weights, decodes, norm: Norm { op: op.clone(), weights: types } })
}

/// The instruction of such a kind that makes `v`, and which of its results `v` is.
pub(super) fn made_by(f: &Function, v: Value, kind: impl Fn(&InstKind) -> bool) -> Option<(Inst, usize)> {
    match f.values[v].def {
        ValueDef::Result(inst, k) if kind(&f.insts[inst].kind) => Some((inst, k as usize)),
        _ => None,
    }
}

/// The call that makes `v`, and which result `v` is. A callee that only hands on a parameter or a weight makes nothing.
pub(super) fn called(m: &Module, f: &Function, v: Value) -> Option<(Inst, usize)> {
    let (inst, k) = made_by(f, v, |kind| matches!(kind, InstKind::Call { .. }))?;
    let InstKind::Call { func, .. } = f.insts[inst].kind else { return None };
    let callee = &m.funcs[func];
    let (_, inside) = callee.results.get(k)?;
    matches!(callee.values[*inside].def, ValueDef::Result(..)).then_some((inst, k))
}

/// Whether `v` is there before any instruction.
pub(super) fn at_hand(f: &Function, v: Value) -> bool {
    !matches!(f.values[v].def, ValueDef::Result(..))
}

/// How often `v` is read or returned.
pub(super) fn uses(f: &Function, v: Value) -> usize {
    let read = f.body.iter().flat_map(|i| &f.insts[*i].args);
    read.chain(f.results.iter().map(|(_, r)| r)).filter(|r| **r == v).count()
}
