//! What a CPU kernel refuses.

use glmc_ir::quant::QuantType;
use thiserror::Error;

/// Why a kernel did not run. Outputs are unspecified after an error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// A slice's length does not fit the shape.
    #[error("{what}: {have} elements where the shape needs {want}")]
    Length {
        /// Which operand.
        what: &'static str,
        /// Elements that the shape needs.
        want: usize,
        /// Elements given.
        have: usize,
    },
    /// A dimension is out of the kernel's range.
    #[error("{what} is {have}: {need}")]
    Dim {
        /// Which dimension.
        what: &'static str,
        /// Its value.
        have: usize,
        /// What is needed.
        need: &'static str,
    },
    /// A quantised row would not be a whole number of blocks.
    #[error("a {ty} row of {k} elements is not a whole number of blocks")]
    Row {
        /// The storage type.
        ty: QuantType,
        /// Elements of the row.
        k: usize,
    },
    /// An index points outside its table.
    #[error("{what}[{at}] = {value} is outside 0..{bound}")]
    Index {
        /// Which table of indices.
        what: &'static str,
        /// Position in that table.
        at: usize,
        /// The index.
        value: i64,
        /// One past the largest allowed.
        bound: usize,
    },
    /// A selection met a NaN.
    #[error("{what} of row {row} is NaN at index {at}: nothing can be chosen")]
    Nan {
        /// What was to be ordered.
        what: &'static str,
        /// Row of the input.
        row: usize,
        /// Index in the row.
        at: usize,
    },
}

/// Fails unless a slice has exactly the length that the product of dims needs.
pub(super) fn want_len(what: &'static str, have: usize, dims: &[usize]) -> Result<(), KernelError> {
    let want = dims.iter().try_fold(1_usize, |a, &d| a.checked_mul(d)).unwrap_or(usize::MAX);
    if have == want { Ok(()) } else { Err(KernelError::Length { what, want, have }) }
}
