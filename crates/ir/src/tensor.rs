//! Owns the values that the reference interpreters compute on: plain shapes with f64, i64 or raw block data.
//! Never optimised and never shared with a device: the CPU device has its own evaluation.

use std::sync::Arc;

use crate::quant::QuantType;
use crate::ty::{Elem, SymValues, TensorType};

/// A concrete tensor, row-major.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The entries.
    pub data: Data,
}

/// The entries of a [`Tensor`].
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    /// Floats of any dtype; Typed arithmetic keeps them rounded to theirs.
    F(Vec<f64>),
    /// Integers.
    I(Vec<i64>),
    /// Quantised blocks as stored.
    Q(QuantType, Arc<[u8]>),
}

/// An evaluation that has no answer: a value the types allow and the numbers do not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(pub String);

impl EvalError {
    /// An error with a message.
    pub fn new(m: impl Into<String>) -> Self {
        EvalError(m.into())
    }
}

impl Tensor {
    /// Floats.
    pub fn f(shape: Vec<usize>, data: Vec<f64>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Tensor { shape, data: Data::F(data) }
    }

    /// Integers.
    pub fn i(shape: Vec<usize>, data: Vec<i64>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Tensor { shape, data: Data::I(data) }
    }

    /// A tensor of `ty` filled with poison: NaN, or the most negative integer.
    pub fn poison(ty: &TensorType, syms: &SymValues) -> Result<Self, EvalError> {
        let shape = concrete(ty, syms)?;
        let n = shape.iter().product();
        let data =
            if ty.elem == Elem::I32 { Data::I(vec![i64::from(i32::MIN); n]) } else { Data::F(vec![f64::NAN; n]) };
        Ok(Tensor { shape, data })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The floats, or an error that says what was there instead.
    pub fn floats(&self) -> Result<&[f64], EvalError> {
        match &self.data {
            Data::F(v) => Ok(v),
            Data::I(_) => Err(EvalError::new("expected floats, found integers")),
            Data::Q(q, _) => Err(EvalError::new(format!("expected floats, found {} blocks", q.name()))),
        }
    }

    /// The integers, or an error.
    pub fn ints(&self) -> Result<&[i64], EvalError> {
        match &self.data {
            Data::I(v) => Ok(v),
            _ => Err(EvalError::new("expected integers, found floats")),
        }
    }

    /// Entry bytes as stored in `elem`, little-endian. Floats are rounded to the element.
    pub fn to_bytes(&self, elem: Elem) -> Result<Vec<u8>, EvalError> {
        Ok(match (&self.data, elem) {
            (Data::I(v), Elem::I32) => v.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
            (Data::F(v), Elem::F32) => v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
            (Data::F(v), Elem::F16) => v.iter().flat_map(|x| half::f16::from_f64(*x).to_le_bytes()).collect(),
            (Data::F(v), Elem::BF16) => v.iter().flat_map(|x| half::bf16::from_f64(*x).to_le_bytes()).collect(),
            (Data::Q(q, b), e) if Elem::from(*q) == e => b.to_vec(),
            (_, e) => return Err(EvalError::new(format!("cannot store this tensor as {e}"))),
        })
    }

    /// The inverse of [`Tensor::to_bytes`].
    pub fn from_bytes(elem: Elem, shape: Vec<usize>, bytes: &[u8]) -> Result<Self, EvalError> {
        let n: usize = shape.iter().product();
        let (be, bb) = elem.block();
        let need = n / be as usize * bb as usize;
        if !n.is_multiple_of(be as usize) || bytes.len() < need {
            return Err(EvalError::new(format!("{n} {elem} entries need {need} bytes, found {}", bytes.len())));
        }
        let bytes = &bytes[..need];
        let data = match elem {
            Elem::I32 => Data::I(bytes.chunks_exact(4).map(|c| i64::from(i32::from_le_bytes(four(c)))).collect()),
            Elem::F32 => Data::F(bytes.chunks_exact(4).map(|c| f64::from(f32::from_le_bytes(four(c)))).collect()),
            Elem::F16 => {
                Data::F(bytes.chunks_exact(2).map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f64()).collect())
            }
            Elem::BF16 => {
                Data::F(bytes.chunks_exact(2).map(|c| half::bf16::from_le_bytes([c[0], c[1]]).to_f64()).collect())
            }
            Elem::Quant(q) => Data::Q(q, bytes.into()),
        };
        Ok(Tensor { shape, data })
    }

    /// Rounds every float to `elem` (Typed arithmetic).
    pub fn rounded(mut self, elem: Elem) -> Self {
        if let Data::F(v) = &mut self.data {
            match elem {
                Elem::F32 => v.iter_mut().for_each(|x| *x = f64::from(*x as f32)),
                Elem::F16 => v.iter_mut().for_each(|x| *x = half::f16::from_f64(*x).to_f64()),
                Elem::BF16 => v.iter_mut().for_each(|x| *x = half::bf16::from_f64(*x).to_f64()),
                Elem::I32 | Elem::Quant(_) => {}
            }
        }
        self
    }
}

fn four(c: &[u8]) -> [u8; 4] {
    [c[0], c[1], c[2], c[3]]
}

/// The concrete shape of `ty`, or an error naming it.
pub fn concrete(ty: &TensorType, syms: &SymValues) -> Result<Vec<usize>, EvalError> {
    let shape = ty.shape(syms).ok_or_else(|| EvalError::new(format!("a symbol of {ty} has no value")))?;
    Ok(shape.into_iter().map(|n| n as usize).collect())
}
