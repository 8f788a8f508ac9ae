//! What a device shows of a step while it runs, and what it fills memory with that nothing has written yet.

use crate::error::RuntimeError;

/// What poisoned memory holds, word by word: NaN as `f32`, and as an index one that no table has.
pub const POISON: u32 = 0x7fff_dead;

/// Numbers of an output.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// Floats.
    F32(&'a [f32]),
    /// Integers.
    I32(&'a [i32]),
}

/// One output of a step on one rank: its part, at the current values of the symbols.
///
/// A step that makes rows where a pool keeps them has no output; it shows those rows as output 0, in the order of their
/// tokens: those that the rank's part of the pool took, so none of a padded token.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The rank.
    pub rank: usize,
    /// Index of the step in its phase.
    pub step: usize,
    /// Index among the step's outputs.
    pub output: usize,
    /// Shape of the rank's part.
    pub shape: &'a [usize],
    /// The part, row-major.
    pub data: Output<'a>,
}

/// Called after each step of each rank with each of its outputs; an error stops the run of all ranks. A rank's steps come
/// in their order (a collective that steps run beside comes when it is done), ranks in any.
pub type Observer<'a> = &'a mut (dyn FnMut(Seen<'_>) -> Result<(), RuntimeError> + Send);
