//! The 256-element types q2_K to q6_K: sub-blocks of 16 or 32 with small integer scales under one or two halves.
//!
//! The products of half scale and integer scale are exact in f32, so each weight is rounded once, as in the reference.

use super::{Sink, Unpack, half_at, part, shift, unrolled};
use crate::device::cpu::simd::Simd;

/// Two bits, sub-blocks of 16 with scale and minimum.
#[derive(Clone, Copy)]
pub(crate) struct Q2K;
/// Three bits, sub-blocks of 16 with a signed scale.
#[derive(Clone, Copy)]
pub(crate) struct Q3K;
/// Four bits, sub-blocks of 32 with scale and minimum.
#[derive(Clone, Copy)]
pub(crate) struct Q4K;
/// Five bits, sub-blocks of 32 with scale and minimum.
#[derive(Clone, Copy)]
pub(crate) struct Q5K;
/// Six bits, sub-blocks of 16 with a signed scale.
#[derive(Clone, Copy)]
pub(crate) struct Q6K;

/// Scales and minima of the eight sub-blocks from the twelve packed bytes of q4_K and q5_K.
#[inline(always)]
fn scales_mins(a: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    // Four six-bit fields at a time, as bytes of a word.
    let w0 = u32::from_le_bytes(*part(a, 0));
    let w1 = u32::from_le_bytes(*part(a, 4));
    let w2 = u32::from_le_bytes(*part(a, 8));
    let scales = u64::from(w0 & 0x3f3f_3f3f) | (u64::from((w2 & 0x0f0f_0f0f) | ((w0 >> 2) & 0x3030_3030)) << 32);
    let mins = u64::from(w1 & 0x3f3f_3f3f) | (u64::from(((w2 >> 4) & 0x0f0f_0f0f) | ((w1 >> 2) & 0x3030_3030)) << 32);
    (scales.to_le_bytes(), mins.to_le_bytes())
}

impl Unpack for Q4K {
    #[inline(always)]
    fn elems(self) -> usize {
        256
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        144
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let (d, dmin) = (half_at(s, block, 0), half_at(s, block, 2));
        let (scales, mins) = scales_mins(part(block, 4));
        unrolled!(C in [0 1 2 3] {
            let q = s.bytes(part(block, 16 + 32 * C));
            let low = s.tab(d * f32::from(scales[2 * C]), -(dmin * f32::from(mins[2 * C])));
            sink.put(64 * C, s.look(low, q));
            let high = s.tab(d * f32::from(scales[2 * C + 1]), -(dmin * f32::from(mins[2 * C + 1])));
            sink.put(64 * C + 32, s.look(high, s.shr::<4>(q)));
        });
    }
}

impl Unpack for Q5K {
    #[inline(always)]
    fn elems(self) -> usize {
        256
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        176
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let (d, dmin) = (half_at(s, block, 0), half_at(s, block, 2));
        let (scales, mins) = scales_mins(part(block, 4));
        let qh = s.bytes(part(block, 16));
        unrolled!(J in [0 1 2 3 4 5 6 7] {
            let low = s.and(shift(s, s.bytes(part(block, 48 + 32 * (J / 2))), 4 * (J as i32 % 2)), 15);
            let high = s.and(shift(s, qh, J as i32 - 4), 16);
            let scale = s.splat(d * f32::from(scales[J]));
            let base = s.splat(-(dmin * f32::from(mins[J])));
            let [a, b] = s.widen_u8(s.or(low, high));
            sink.put(32 * J, [s.fma(a, scale, base), s.fma(b, scale, base)]);
        });
    }
}

impl Unpack for Q6K {
    #[inline(always)]
    fn elems(self) -> usize {
        256
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        210
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let d = half_at(s, block, 208);
        let scales: &[u8; 16] = part(block, 192);
        unrolled!(I in [0 1 2 3 4 5 6 7] {
            let (h, k) = (I / 4, I % 4);
            let low = s.bytes(part(block, 64 * h + 32 * (k % 2)));
            let low = s.and(shift(s, low, 4 * (k as i32 / 2)), 15);
            let high = s.and(shift(s, s.bytes(part(block, 128 + 32 * h)), 2 * k as i32 - 4), 0x30);
            let [a, b] = s.widen_i8(s.sub(s.or(low, high), 32));
            let scale_a = s.splat(d * f32::from(scales[2 * I].cast_signed()));
            let scale_b = s.splat(d * f32::from(scales[2 * I + 1].cast_signed()));
            sink.put(32 * I, [s.mul(scale_a, a), s.mul(scale_b, b)]);
        });
    }
}

/// Sixteen codes under one byte of scale (low nibble) and minimum (high nibble).
#[inline(always)]
fn q2_run<S: Simd>(s: S, q: S::F, scale_min: u8, d: f32, dmin: f32) -> S::F {
    s.fma(q, s.splat(d * f32::from(scale_min & 15)), s.splat(-(dmin * f32::from(scale_min >> 4))))
}

impl Unpack for Q2K {
    #[inline(always)]
    fn elems(self) -> usize {
        256
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        84
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let scales: &[u8; 16] = part(block, 0);
        let (d, dmin) = (half_at(s, block, 80), half_at(s, block, 82));
        unrolled!(I in [0 1 2 3 4 5 6 7] {
            let q = s.and(shift(s, s.bytes(part(block, 16 + 32 * (I / 4))), 2 * (I as i32 % 4)), 3);
            let [a, b] = s.widen_u8(q);
            sink.put(32 * I, [q2_run(s, a, scales[2 * I], d, dmin), q2_run(s, b, scales[2 * I + 1], d, dmin)]);
        });
    }
}

/// The sixteen signed scales of q3_K from their twelve packed bytes.
#[inline(always)]
fn q3_scales(a: &[u8; 12]) -> [i8; 16] {
    let mut scales = [0; 16];
    for (j, scale) in scales.iter_mut().enumerate() {
        let low = if j < 8 { a[j] & 15 } else { a[j - 8] >> 4 };
        let high = (a[8 + j % 4] >> (2 * (j / 4))) & 3;
        *scale = (low | (high << 4)).cast_signed() - 32;
    }
    scales
}

impl Unpack for Q3K {
    #[inline(always)]
    fn elems(self) -> usize {
        256
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        110
    }
    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, block: &[u8], sink: &mut impl Sink<S>) {
        let scales = q3_scales(part(block, 96));
        let d = half_at(s, block, 108);
        let hmask = s.bytes(part(block, 0));
        unrolled!(I in [0 1 2 3 4 5 6 7] {
            let low = s.and(shift(s, s.bytes(part(block, 32 + 32 * (I / 4))), 2 * (I as i32 % 4)), 3);
            let high = s.and(shift(s, hmask, I as i32 - 2), 4);
            let [a, b] = s.widen_i8(s.sub(s.or(low, high), 4));
            let (scale_a, scale_b) = (s.splat(d * f32::from(scales[2 * I])), s.splat(d * f32::from(scales[2 * I + 1])));
            sink.put(32 * I, [s.mul(scale_a, a), s.mul(scale_b, b)]);
        });
    }
}
