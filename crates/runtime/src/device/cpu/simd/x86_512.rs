//! [`Simd`](super::Simd) with AVX-512: one register is sixteen lanes.
//!
//! Never built without the features: the token's constructor is unsafe.

use super::x86_256::{fold256, half, sum128};
use super::{Simd, pair};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Proof that the machine has AVX-512 F, BW, VL, DQ, AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine must have AVX-512 F, BW, VL, DQ, AVX2, FMA and F16C.
    #[inline(always)]
    pub(super) unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

impl Simd for Avx512 {
    type F = __m512;
    type B = __m256i;
    type Tab = __m512;
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, v: f32) -> __m512 {
        // SAFETY: features by token.
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> __m512 {
        // SAFETY: the same size, and any bits are floats.
        unsafe { transmute::<[f32; 16], __m512>(*from) }
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; 16]) {
        // SAFETY: the same size, and any bits are floats.
        *to = unsafe { transmute::<__m512, [f32; 16]>(v) };
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: features by token.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: features by token.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: features by token.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: features by token.
        unsafe { sum128(fold256(halves(v))) }
    }
    #[inline(always)]
    fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
        // SAFETY: features by token; four floats are four floats.
        unsafe {
            let [a, b, c, d] = v;
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            // Each 128-bit lane: the sums of a, b, c, d over that lane.
            let abcd = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xEE>(ab, cd));
            transmute::<__m128, [f32; 4]>(fold256(halves(abcd)))
        }
    }
    #[inline(always)]
    fn bytes(self, from: &[u8; 32]) -> __m256i {
        // SAFETY: the same size, and any bits are bytes.
        unsafe { transmute::<[u8; 32], __m256i>(*from) }
    }
    #[inline(always)]
    fn nibbles(self, from: &[u8; 16]) -> __m256i {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe {
            let b = transmute::<[u8; 16], __m128i>(*from);
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(b), b);
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn and(self, v: __m256i, mask: u8) -> __m256i {
        // SAFETY: features by token.
        unsafe { _mm256_and_si256(v, _mm256_set1_epi8(mask.cast_signed())) }
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: features by token.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    fn shr<const N: i32>(self, v: __m256i) -> __m256i {
        // SAFETY: features by token.
        unsafe { _mm256_srli_epi16::<N>(v) }
    }
    #[inline(always)]
    fn shl<const N: i32>(self, v: __m256i) -> __m256i {
        // SAFETY: features by token.
        unsafe { _mm256_slli_epi16::<N>(v) }
    }
    #[inline(always)]
    fn sub(self, v: __m256i, by: u8) -> __m256i {
        // SAFETY: features by token.
        unsafe { _mm256_sub_epi8(v, _mm256_set1_epi8(by.cast_signed())) }
    }
    #[inline(always)]
    fn bit_to_16(self, bits: u32) -> __m256i {
        // SAFETY: features by token.
        unsafe { _mm256_maskz_set1_epi8(bits, 16) }
    }
    #[inline(always)]
    fn widen_u8(self, v: __m256i) -> [__m512; 2] {
        // SAFETY: features by token.
        unsafe {
            pair(
                [_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)],
                #[inline(always)]
                |h| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(h)),
            )
        }
    }
    #[inline(always)]
    fn widen_i8(self, v: __m256i) -> [__m512; 2] {
        // SAFETY: features by token.
        unsafe {
            pair(
                [_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)],
                #[inline(always)]
                |h| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(h)),
            )
        }
    }
    #[inline(always)]
    fn u8x16(self, from: &[u8; 16]) -> Self::F {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(transmute::<[u8; 16], __m128i>(*from))) }
    }
    #[inline(always)]
    fn i8x16(self, from: &[u8; 16]) -> Self::F {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(transmute::<[u8; 16], __m128i>(*from))) }
    }
    #[inline(always)]
    fn tab(self, scale: f32, base: f32) -> __m512 {
        // SAFETY: features by token.
        unsafe {
            let iota = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            _mm512_fmadd_ps(iota, _mm512_set1_ps(scale), _mm512_set1_ps(base))
        }
    }
    #[inline(always)]
    fn look(self, tab: __m512, v: __m256i) -> [__m512; 2] {
        // SAFETY: features by token. The permute reads only the low four bits of each index.
        unsafe {
            pair(
                [_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)],
                #[inline(always)]
                |h| _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(h), tab),
            )
        }
    }
    #[inline(always)]
    fn look_both(self, low: __m512, high: __m512, v: __m256i) -> [[__m512; 2]; 2] {
        // One widening for both nibbles; the permute ignores all but four bits.
        // SAFETY: features by token.
        unsafe {
            let a = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(v));
            let b = _mm512_cvtepu8_epi32(_mm256_extracti128_si256::<1>(v));
            let (a_high, b_high) = (_mm512_srli_epi32::<4>(a), _mm512_srli_epi32::<4>(b));
            [
                [_mm512_permutexvar_ps(a, low), _mm512_permutexvar_ps(b, low)],
                [_mm512_permutexvar_ps(a_high, high), _mm512_permutexvar_ps(b_high, high)],
            ]
        }
    }
    #[inline(always)]
    fn look_nibbles(self, tab: __m512, from: &[u8; 16]) -> [__m512; 2] {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe {
            let v = _mm512_cvtepu8_epi32(transmute::<[u8; 16], __m128i>(*from));
            [_mm512_permutexvar_ps(v, tab), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(v), tab)]
        }
    }
    #[inline(always)]
    fn bf16(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: features by token.
        unsafe {
            let h = self.bytes(from);
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(h)))
        }
    }
    #[inline(always)]
    fn f16(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: features by token.
        unsafe { _mm512_cvtph_ps(self.bytes(from)) }
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        // SAFETY: features by token.
        unsafe { half(bits) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// Lane i + lane i+8.
///
/// # Safety
/// Needs AVX-512 F and DQ.
#[inline(always)]
unsafe fn halves(v: __m512) -> __m256 {
    // SAFETY: the caller has the features.
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }
}
