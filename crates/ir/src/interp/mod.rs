//! Owns the reference interpreters: machines with one meaning, written for clarity and shared with no device.
//!
//! - [`global`]: whole tensors, op by op: graph and sharded level (a collective is the identity on the value).
//! - [`ranks`]: N simulated ranks, each with its own parts: sharded level.
//! - [`launch`]: one launch of a plan, on the parts of ranks.
//! - [`plan`]: bytes in buffers, launch by launch, by each contract's meaning.

pub mod global;
pub mod launch;
pub mod plan;
pub mod ranks;

use crate::ty::Elem;

/// How values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arith {
    /// f64 and no rounding at values: a wrong axis cannot hide in rounding noise.
    Real,
    /// Each value rounded to its element: the reference for kernels.
    Typed,
}

impl Arith {
    fn keep(self, t: crate::tensor::Tensor, elem: Elem) -> crate::tensor::Tensor {
        match self {
            Arith::Real => t,
            Arith::Typed => t.rounded(elem),
        }
    }
}
