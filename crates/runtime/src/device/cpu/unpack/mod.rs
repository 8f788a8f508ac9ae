//! Quantised blocks become f32 lanes in registers.
//!
//! Owns one unpacker per hot type and a generic one, over the reference decoder, for the rest; each gives the bits of
//! the reference decoder. It never multiplies by an activation: what happens to the lanes is the [`Sink`]'s business.

mod float;
mod k_quant;
mod legacy;

use super::simd::Simd;
use glmc_ir::quant::QuantType;

pub(crate) use float::{Bf16, F16, F32};
pub(crate) use k_quant::{Q2K, Q3K, Q4K, Q5K, Q6K, six_bit_fields};
pub(crate) use legacy::{Q4_0, Q5_0, Q8_0};

/// Longest block of any type, in elements.
pub(crate) const MAX_BLOCK: usize = 256;

/// Takes the weights of one block, 32 at a time, in element order.
pub(crate) trait Sink<S: Simd> {
    /// Weights `at .. at + 32` of the block.
    fn put(&mut self, at: usize, w: [S::F; 2]);
}

/// How one type's block is unpacked. A float type's "block" here is 32 elements.
pub(crate) trait Unpack: Copy + Send + Sync {
    /// Elements of a block: a multiple of 32, at most [`MAX_BLOCK`].
    fn elems(self) -> usize;
    /// Bytes of a block.
    fn bytes(self) -> usize;
    /// Unpacks one block of exactly [`Self::bytes`] bytes.
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>);
}

/// Any type, through the reference decoder.
#[derive(Clone, Copy)]
pub(crate) struct Generic(pub(crate) QuantType);

impl Unpack for Generic {
    #[inline(always)]
    fn elems(self) -> usize {
        self.0.block_elems()
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        self.0.block_bytes()
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let mut w = [0.0; MAX_BLOCK];
        let w = &mut w[..self.elems()];
        self.0.decode_block(block, w);
        for (i, pair) in w.as_chunks::<32>().0.iter().enumerate() {
            let (halves, _) = pair.as_chunks::<16>();
            sink.put(32 * i, [s.load(&halves[0]), s.load(&halves[1])]);
        }
    }
}

/// Evaluates an expression with the unpacker of a [`QuantType`] bound to a name.
macro_rules! with_unpack {
    ($ty:expr, $u:ident => $body:expr) => {{
        use $crate::device::cpu::unpack as u;
        match $ty {
            glmc_ir::quant::QuantType::F32 => {
                let $u = u::F32;
                $body
            }
            glmc_ir::quant::QuantType::F16 => {
                let $u = u::F16;
                $body
            }
            glmc_ir::quant::QuantType::BF16 => {
                let $u = u::Bf16;
                $body
            }
            glmc_ir::quant::QuantType::Q8_0 => {
                let $u = u::Q8_0;
                $body
            }
            glmc_ir::quant::QuantType::Q4_0 => {
                let $u = u::Q4_0;
                $body
            }
            glmc_ir::quant::QuantType::Q5_0 => {
                let $u = u::Q5_0;
                $body
            }
            glmc_ir::quant::QuantType::Q2_K => {
                let $u = u::Q2K;
                $body
            }
            glmc_ir::quant::QuantType::Q3_K => {
                let $u = u::Q3K;
                $body
            }
            glmc_ir::quant::QuantType::Q4_K => {
                let $u = u::Q4K;
                $body
            }
            glmc_ir::quant::QuantType::Q5_K => {
                let $u = u::Q5K;
                $body
            }
            glmc_ir::quant::QuantType::Q6_K => {
                let $u = u::Q6K;
                $body
            }
            other => {
                let $u = u::Generic(other);
                $body
            }
        }
    }};
}
pub(crate) use with_unpack;

/// Repeats a block of code with a constant counting up: unrolling that does not depend on the optimiser's mood.
macro_rules! unrolled {
    ($i:ident in [$($n:literal)*] $body:block) => { $({ const $i: usize = $n; $body })* };
}
use unrolled;

/// The `N` bytes of a block from `at` on.
#[inline(always)]
fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..at + N].as_array().expect("a slice of N bytes")
}

/// The little-endian half at `at`, as f32.
#[inline(always)]
fn half_at<S: Simd>(s: S, block: &[u8], at: usize) -> f32 {
    s.half(u16::from_le_bytes(*part(block, at)))
}

/// Each byte moved right by `by` bits (left if negative). The shifted-in bits are unspecified. `by` is a constant
/// wherever the callers' loops are unrolled, so the choice costs nothing.
#[inline(always)]
fn shift<S: Simd>(s: S, v: S::B, by: i32) -> S::B {
    match by {
        -4 => s.shl::<4>(v),
        -3 => s.shl::<3>(v),
        -2 => s.shl::<2>(v),
        -1 => s.shl::<1>(v),
        1 => s.shr::<1>(v),
        2 => s.shr::<2>(v),
        3 => s.shr::<3>(v),
        4 => s.shr::<4>(v),
        5 => s.shr::<5>(v),
        6 => s.shr::<6>(v),
        _ => v,
    }
}
