//! The 256-element types q2_K to q6_K: sub-blocks of 16 or 32 with small integer scales under one or two halves.
//!
//! The products of half scale and integer scale are exact in f32, so each weight is rounded once, as in the reference.

use super::{Sink, Unpack, half_at, part, shift};
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
    let [w0, w1, w2] = [0, 4, 8].map(|at| u32::from_le_bytes(*part(a, at)));
    let high = |w: u32| (w >> 2) & 0x3030_3030;
    let scales = [w0 & 0x3f3f_3f3f, (w2 & 0x0f0f_0f0f) | high(w0)];
    let mins = [w1 & 0x3f3f_3f3f, ((w2 >> 4) & 0x0f0f_0f0f) | high(w1)];
    let join = |w: [u32; 2]| (u64::from(w[0]) | (u64::from(w[1]) << 32)).to_le_bytes();
    (join(scales), join(mins))
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
        let tab = |j: usize| s.tab(d * f32::from(scales[j]), -(dmin * f32::from(mins[j])));
        for c in 0..4 {
            let q = s.bytes(part(block, 16 + 32 * c));
            sink.put(64 * c, s.look(tab(2 * c), q));
            sink.put(64 * c + 32, s.look(tab(2 * c + 1), s.shr::<4>(q)));
        }
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
        for j in 0..8 {
            let low = s.and(shift(s, s.bytes(part(block, 48 + 32 * (j / 2))), 4 * (j as i32 % 2)), 15);
            let high = s.and(shift(s, qh, j as i32 - 4), 16);
            let scale = s.splat(d * f32::from(scales[j]));
            let base = s.splat(-(dmin * f32::from(mins[j])));
            sink.put(32 * j, s.widen_u8(s.or(low, high)).map(|q| s.fma(q, scale, base)));
        }
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
        for i in 0..8 {
            let (h, k) = (i / 4, i % 4);
            let low = s.bytes(part(block, 64 * h + 32 * (k % 2)));
            let low = s.and(shift(s, low, 4 * (k as i32 / 2)), 15);
            let high = s.and(shift(s, s.bytes(part(block, 128 + 32 * h)), 2 * k as i32 - 4), 0x30);
            let [a, b] = s.widen_i8(s.sub(s.or(low, high), 32));
            let scale = |g: usize| s.splat(d * f32::from(scales[g].cast_signed()));
            sink.put(32 * i, [s.mul(scale(2 * i), a), s.mul(scale(2 * i + 1), b)]);
        }
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
        let scales: &[u8; 16] = part(block, 0);
        let (d, dmin) = (half_at(s, block, 80), half_at(s, block, 82));
        for i in 0..8 {
            let q = s.and(shift(s, s.bytes(part(block, 16 + 32 * (i / 4))), 2 * (i as i32 % 4)), 3);
            let [a, b] = s.widen_u8(q);
            let run = |q: S::F, g: usize| {
                let scale = d * f32::from(scales[g] & 15);
                s.fma(q, s.splat(scale), s.splat(-(dmin * f32::from(scales[g] >> 4))))
            };
            sink.put(32 * i, [run(a, 2 * i), run(b, 2 * i + 1)]);
        }
    }
}

/// The sixteen signed scales of q3_K from their twelve packed bytes.
#[inline(always)]
fn q3_scales(a: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = if j < 8 { a[j] & 15 } else { a[j - 8] >> 4 };
        let high = (a[8 + j % 4] >> (2 * (j / 4))) & 3;
        (low | (high << 4)).cast_signed() - 32
    })
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
        for i in 0..8 {
            let low = s.and(shift(s, s.bytes(part(block, 32 + 32 * (i / 4))), 2 * (i as i32 % 4)), 3);
            let high = s.and(shift(s, hmask, i as i32 - 2), 4);
            let [a, b] = s.widen_i8(s.sub(s.or(low, high), 4));
            let scale = |g: usize| s.splat(d * f32::from(scales[g]));
            sink.put(32 * i, [s.mul(scale(2 * i), a), s.mul(scale(2 * i + 1), b)]);
        }
    }
}
