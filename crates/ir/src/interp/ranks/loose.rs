//! Owns what an interpreter does where nobody has checked anything: a part is memory, and each reader sees it by its own
//! type. Never used on verified code, and never mends: what lies beyond a part's end is poison.

use crate::op::Op;
use crate::placement::DimRule;
use crate::tensor::{Data, EvalError, Tensor, concrete};
use crate::ty::{Dim, Elem, Extent, SymValues, TensorType};

/// Whether parts must fit their types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rules {
    /// What does not fit is an error.
    Kept,
    /// What is written is done.
    Ignored,
}

/// The memory of `t` seen as a `ty` of constant dims: cut short or filled up with poison, floats and integers by their
/// 32 bits.
///
/// # Errors
/// Stored blocks that are not there: poison.
pub(crate) fn seen_as(t: &Tensor, ty: &TensorType) -> Result<Tensor, EvalError> {
    let shape = concrete(ty, &SymValues::default())?;
    let n: usize = shape.iter().product();
    let float = |x: &i64| f64::from(f32::from_bits((*x as i32).cast_unsigned()));
    let int = |x: &f64| i64::from((*x as f32).to_bits().cast_signed());
    let data = match (&t.data, ty.elem) {
        (Data::Q(q, bytes), Elem::Quant(e)) if *q == e => {
            let need = n / q.block_elems() * q.block_bytes();
            let held = bytes.get(..need).filter(|_| n.is_multiple_of(q.block_elems()));
            Data::Q(*q, held.ok_or_else(|| poison(t, ty))?.into())
        }
        (Data::Q(..), _) | (_, Elem::Quant(_)) => return Err(poison(t, ty)),
        (Data::I(v), Elem::I32) => Data::I(filled(v.clone(), n, i64::from(i32::MIN))),
        (Data::F(v), Elem::I32) => Data::I(filled(v.iter().map(int).collect(), n, i64::from(i32::MIN))),
        (Data::F(v), _) => Data::F(filled(v.clone(), n, f64::NAN)),
        (Data::I(v), _) => Data::F(filled(v.iter().map(float).collect(), n, f64::NAN)),
    };
    Ok(Tensor { shape, data })
}

fn poison(t: &Tensor, ty: &TensorType) -> EvalError {
    EvalError::new(format!("reads poison: {:?} entries seen as {ty}", t.shape))
}

fn filled<T: Copy>(mut v: Vec<T>, n: usize, poison: T) -> Vec<T> {
    v.resize(n, poison);
    v
}

/// What a gather of parts that are no parts of one dim leaves: the ranks' memory, one after the other.
///
/// # Errors
/// Stored blocks: no launch makes them.
pub(super) fn one_after_the_other(parts: &[&Tensor]) -> Result<Tensor, EvalError> {
    let first = parts.first().ok_or_else(|| EvalError::new("nothing to join"))?;
    let mut data = first.data.clone();
    for p in &parts[1..] {
        match (&mut data, &p.data) {
            (Data::F(v), Data::F(w)) => v.extend(w),
            (Data::I(v), Data::I(w)) => v.extend(w),
            _ => return Err(EvalError::new("a gather of stored blocks")),
        }
    }
    let n = match &data {
        Data::F(v) => v.len(),
        Data::I(v) => v.len(),
        Data::Q(..) => 0,
    };
    Ok(Tensor { shape: vec![n], data })
}

/// The types by which `op` sees operands stated as `types`: `piece` counts offsets by its own list.
pub(super) fn as_the_op_sees(op: &Op, types: &[&TensorType]) -> Vec<TensorType> {
    let mut out: Vec<TensorType> = types.iter().map(|t| (*t).clone()).collect();
    if let (Op::Piece(p), Some(last)) = (op, out.first_mut().and_then(|t| t.dims.last_mut())) {
        last.extent = Extent::Joined(p.of.clone());
    }
    out
}

/// Local types that agree on the size of each dim that is one dim of one size in the whole: stored blocks have the say,
/// then earlier operands. So a kernel takes its sizes from one operand and walks the others by them. Along `apart` each
/// has its own.
pub(super) fn agreed(rule: &DimRule, apart: Option<usize>, types: &[&TensorType], local: &mut [TensorType]) {
    let mut sizes: Vec<(usize, &Extent, Option<u64>)> = Vec::new();
    let stored = |t: &TensorType| matches!(t.elem, Elem::Quant(_));
    let mut order: Vec<usize> = (0..local.len()).collect();
    order.sort_by_key(|i| !stored(&local[*i]));
    for i in order {
        let (Some(labels), Some(ty)) = (rule.args.get(i), types.get(i)) else { continue };
        for ((dim, whole), label) in local[i].dims.iter_mut().zip(&ty.dims).zip(labels) {
            if Some(*label) == apart {
                continue;
            }
            let n = dim.extent.as_const();
            match sizes.iter().find(|(l, e, _)| l == label && e.same_size(&whole.extent)) {
                None => sizes.push((*label, &whole.extent, n)),
                Some((_, _, Some(m))) if n != Some(*m) => *dim = Dim::new(*m),
                Some(_) => {}
            }
        }
    }
}
