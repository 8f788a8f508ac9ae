//! Owns what elementwise ops share: one rule, one loop. Never owns a scalar formula; those stand in each op's file.

use super::rules::{Infer, arity, float, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

/// The type rule of a unary op: floats to the same type.
pub(super) fn unary(op: &str, args: &[&TensorType]) -> Infer {
    arity(op, args, 1)?;
    float(op, args, 0)?;
    stateless(op, args, None)?;
    Ok(vec![args[0].clone()])
}

/// The type rule of a binary op: equal ranks, and each dim of the second argument equal to the first's or 1.
pub(super) fn binary(op: &str, args: &[&TensorType]) -> Infer {
    arity(op, args, 2)?;
    float(op, args, 0)?;
    float(op, args, 1)?;
    stateless(op, args, None)?;
    if args[0].elem != args[1].elem {
        return Err(Diagnostic::new("bad-elem", format!("`{op}` of {} and {}", args[0], args[1])));
    }
    if args[0].rank() != args[1].rank() {
        return Err(Diagnostic::new("bad-rank", format!("`{op}` of {} and {}", args[0], args[1])));
    }
    for (i, (a, b)) in args[0].dims.iter().zip(&args[1].dims).enumerate() {
        if b.extent.as_const() != Some(1) {
            same_dim(op, &format!("dim {i}"), a, b)?;
        }
    }
    Ok(vec![args[0].clone()])
}

/// Applies `f` to every entry.
pub(super) fn map(a: &Tensor, f: impl Fn(f64) -> f64) -> Result<Vec<Tensor>, EvalError> {
    Ok(vec![Tensor::f(a.shape.clone(), a.floats()?.iter().map(|x| f(*x)).collect())])
}

/// Applies `f` to pairs, the second argument broadcast where its extent is 1.
pub(super) fn zip(a: &Tensor, b: &Tensor, f: impl Fn(f64, f64) -> f64) -> Result<Vec<Tensor>, EvalError> {
    let (x, y) = (a.floats()?, b.floats()?);
    let mut out = Vec::with_capacity(x.len());
    for (flat, xv) in x.iter().enumerate() {
        let (mut rest, mut at, mut stride) = (flat, 0, 1);
        for d in (0..a.shape.len()).rev() {
            let i = rest % a.shape[d];
            rest /= a.shape[d];
            if b.shape[d] != 1 {
                at += i * stride;
            }
            stride *= b.shape[d];
        }
        out.push(f(*xv, y[at]));
    }
    Ok(vec![Tensor::f(a.shape.clone(), out)])
}

/// `per` operations for each entry of `t`.
pub(super) fn flops(t: &TensorType, syms: &SymValues, per: u64) -> u64 {
    t.elems(syms).unwrap_or(u64::MAX).saturating_mul(per)
}
