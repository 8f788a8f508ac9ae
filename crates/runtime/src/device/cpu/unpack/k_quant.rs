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

/// `d * scale` (0..8) and `-dmin * minimum` (8..16) of the eight sub-blocks of q4_K and q5_K, whose blocks begin alike:
/// d, dmin and twelve packed bytes. Kept in memory, from where a broadcast is as cheap as a load.
#[inline(always)]
fn runs_of_32<S: Simd>(s: S, block: &[u8]) -> [f32; 16] {
    let (d, dmin) = (half_at(s, block, 0), half_at(s, block, 2));
    let all = s.u8x16(&six_bit_fields(part(block, 4)));
    let mut out = times(s, all, d);
    out[8..].copy_from_slice(&times(s, all, -dmin)[8..]);
    out
}

/// The eight scales, then the eight minima, of q4_K and q5_K from their twelve packed bytes.
#[inline(always)]
pub(crate) fn six_bit_fields(packed: &[u8; 12]) -> [u8; 16] {
    // Four fields at a time, as bytes of a word.
    let w0 = u32::from_le_bytes(*part(packed, 0));
    let w1 = u32::from_le_bytes(*part(packed, 4));
    let w2 = u32::from_le_bytes(*part(packed, 8));
    let high = |w: u32| (w >> 2) & 0x3030_3030;
    let scales = u64::from(w0 & 0x3f3f_3f3f) | (u64::from((w2 & 0x0f0f_0f0f) | high(w0)) << 32);
    let mins = u64::from(w1 & 0x3f3f_3f3f) | (u64::from(((w2 >> 4) & 0x0f0f_0f0f) | high(w1)) << 32);
    (u128::from(scales) | (u128::from(mins) << 64)).to_le_bytes()
}

/// The lanes times one factor, in memory.
#[inline(always)]
fn times<S: Simd>(s: S, lanes: S::F, by: f32) -> [f32; 16] {
    let mut out = [0.0; 16];
    s.store(s.mul(lanes, s.splat(by)), &mut out);
    out
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
        let runs = runs_of_32(s, block);
        unrolled!(C in [0 1 2 3] {
            let q = s.bytes(part(block, 16 + 32 * C));
            let low = s.tab(runs[2 * C], runs[8 + 2 * C]);
            let high = s.tab(runs[2 * C + 1], runs[9 + 2 * C]);
            let [low, high] = s.look_both(low, high, q);
            sink.put(64 * C, low);
            sink.put(64 * C + 32, high);
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
        let runs = runs_of_32(s, block);
        let qh = s.bytes(part(block, 16));
        unrolled!(J in [0 1 2 3 4 5 6 7] {
            let low = s.and(shift(s, s.bytes(part(block, 48 + 32 * (J / 2))), 4 * (J as i32 % 2)), 15);
            let high = s.and(shift(s, qh, J as i32 - 4), 16);
            let scale = s.splat(runs[J]);
            let base = s.splat(runs[8 + J]);
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
        let runs = times(s, s.i8x16(part(block, 192)), half_at(s, block, 208));
        unrolled!(I in [0 1 2 3 4 5 6 7] {
            let (h, k) = (I / 4, I % 4);
            let low = s.bytes(part(block, 64 * h + 32 * (k % 2)));
            let low = s.and(shift(s, low, 4 * (k as i32 / 2)), 15);
            let high = s.and(shift(s, s.bytes(part(block, 128 + 32 * h)), 2 * k as i32 - 4), 0x30);
            let [a, b] = s.widen_i8(s.sub(s.or(low, high), 32));
            let scale_a = s.splat(runs[2 * I]);
            let scale_b = s.splat(runs[2 * I + 1]);
            sink.put(32 * I, [s.mul(scale_a, a), s.mul(scale_b, b)]);
        });
    }
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
        let packed = s.bytes(part(block, 0));
        let scales = times(s, s.widen_u8(s.and(packed, 15))[0], half_at(s, block, 80));
        let bases = times(s, s.widen_u8(s.and(s.shr::<4>(packed), 15))[0], -half_at(s, block, 82));
        unrolled!(I in [0 1 2 3 4 5 6 7] {
            let q = s.and(shift(s, s.bytes(part(block, 16 + 32 * (I / 4))), 2 * (I as i32 % 4)), 3);
            let [a, b] = s.widen_u8(q);
            let a = s.fma(a, s.splat(scales[2 * I]), s.splat(bases[2 * I]));
            let b = s.fma(b, s.splat(scales[2 * I + 1]), s.splat(bases[2 * I + 1]));
            sink.put(32 * I, [a, b]);
        });
    }
}

/// The sixteen signed scales of q3_K, as bytes, from their twelve packed bytes: four bits of each in the first eight
/// bytes, two more in the last four.
#[inline(always)]
fn q3_scales(packed: &[u8; 12]) -> [u8; 16] {
    let low = u64::from_le_bytes(*part(packed, 0));
    let top = u128::from(u32::from_le_bytes(*part(packed, 8)));
    let low = u128::from(low & 0x0f0f_0f0f_0f0f_0f0f) | (u128::from((low >> 4) & 0x0f0f_0f0f_0f0f_0f0f) << 64);
    // Byte j takes bits 2 (j / 4) and up of byte j % 4.
    let top = top | (top >> 2) << 32 | (top >> 4) << 64 | (top >> 6) << 96;
    let all = low | ((top & 0x0303_0303_0303_0303_0303_0303_0303_0303) << 4);
    let mut scales = all.to_le_bytes();
    for scale in &mut scales {
        *scale = scale.wrapping_sub(32);
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
        let runs = times(s, s.i8x16(&q3_scales(part(block, 96))), half_at(s, block, 108));
        let hmask = s.bytes(part(block, 0));
        unrolled!(I in [0 1 2 3 4 5 6 7] {
            let low = s.and(shift(s, s.bytes(part(block, 32 + 32 * (I / 4))), 2 * (I as i32 % 4)), 3);
            let high = s.and(shift(s, hmask, I as i32 - 2), 4);
            let [a, b] = s.widen_i8(s.sub(s.or(low, high), 4));
            let (scale_a, scale_b) = (s.splat(runs[2 * I]), s.splat(runs[2 * I + 1]));
            sink.put(32 * I, [s.mul(scale_a, a), s.mul(scale_b, b)]);
        });
    }
}
