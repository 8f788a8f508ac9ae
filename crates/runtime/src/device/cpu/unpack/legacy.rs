//! The 32-element types q4_0, q5_0 and q8_0: one half-precision scale a block.
//!
//! In the nibble types byte j holds element j (low nibble) and element j + 16 (high nibble).

use super::{Sink, Unpack, half_at, part};
use crate::device::cpu::simd::Simd;

/// `d * (q - 8)`.
#[derive(Clone, Copy)]
pub(crate) struct Q4_0;
/// `d * (q - 16)`, the fifth bits apart.
#[derive(Clone, Copy)]
pub(crate) struct Q5_0;
/// `d * q`, signed bytes.
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;

impl Unpack for Q4_0 {
    #[inline(always)]
    fn elems(self) -> usize {
        32
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        18
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let d = half_at(s, block, 0);
        sink.put(0, s.look_nibbles(s.tab(d, -8.0 * d), part(block, 2)));
    }
}

impl Unpack for Q5_0 {
    #[inline(always)]
    fn elems(self) -> usize {
        32
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        22
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let d = s.splat(half_at(s, block, 0));
        let high = s.bit_to_16(u32::from_le_bytes(*part(block, 2)));
        let q = s.sub(s.or(s.nibbles(part(block, 6)), high), 16);
        let [a, b] = s.widen_i8(q);
        sink.put(0, [s.mul(d, a), s.mul(d, b)]);
    }
}

impl Unpack for Q8_0 {
    #[inline(always)]
    fn elems(self) -> usize {
        32
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        34
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let d = s.splat(half_at(s, block, 0));
        let [a, b] = s.widen_i8(s.bytes(part(block, 2)));
        sink.put(0, [s.mul(d, a), s.mul(d, b)]);
    }
}
