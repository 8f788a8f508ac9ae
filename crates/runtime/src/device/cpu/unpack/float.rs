//! f32, f16 and bf16 rows, 32 elements at a time.
//!
//! Never rounds: each value widens to f32 exactly.

use super::{Sink, Unpack, part};
use crate::device::cpu::simd::Simd;

/// f32 elements.
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// IEEE half elements.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// bfloat16 elements.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Unpack for F32 {
    #[inline(always)]
    fn elems(self) -> usize {
        32
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        128
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        sink.put(0, [s.load(&le_f32(part(block, 0))), s.load(&le_f32(part(block, 64)))]);
    }
}

#[inline(always)]
fn le_f32(bytes: &[u8; 64]) -> [f32; 16] {
    std::array::from_fn(|i| f32::from_le_bytes(*part(bytes, 4 * i)))
}

impl Unpack for F16 {
    #[inline(always)]
    fn elems(self) -> usize {
        32
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        64
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        sink.put(0, [s.f16(part(block, 0)), s.f16(part(block, 32))]);
    }
}

impl Unpack for Bf16 {
    #[inline(always)]
    fn elems(self) -> usize {
        32
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        64
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        sink.put(0, [s.bf16(part(block, 0)), s.bf16(part(block, 32))]);
    }
}
