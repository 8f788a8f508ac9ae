//! [`Simd`](super::Simd) with AVX2, FMA and F16C: two registers stand for sixteen lanes.
//!
//! Never built without the features: the token's constructor is unsafe.

use super::{Simd, pair};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    #[inline(always)]
    pub(super) unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

// Loads and stores are transmutes of arrays rather than the load intrinsics: those go through pointers, whose checks in
// builds with debug assertions cost more than the arithmetic.
impl Simd for Avx2 {
    type F = [__m256; 2];
    type B = __m256i;
    type Tab = (f32, f32);
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        // SAFETY: features by token.
        unsafe { [_mm256_set1_ps(v); 2] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        // SAFETY: the same size, and any bits are floats.
        unsafe { transmute::<[f32; 16], [__m256; 2]>(*from) }
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; 16]) {
        // SAFETY: the same size, and any bits are floats.
        *to = unsafe { transmute::<[__m256; 2], [f32; 16]>(v) };
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: features by token.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: features by token.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: features by token.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        // SAFETY: features by token.
        unsafe { sum128(fold(v)) }
    }
    #[inline(always)]
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4] {
        // SAFETY: features by token; four floats are four floats.
        unsafe {
            let (a, b, c, d) = (fold(v[0]), fold(v[1]), fold(v[2]), fold(v[3]));
            transmute::<__m128, [f32; 4]>(transpose_add(a, b, c, d))
        }
    }
    #[inline(always)]
    fn bytes(self, from: &[u8; 32]) -> Self::B {
        // SAFETY: the same size, and any bits are bytes.
        unsafe { transmute::<[u8; 32], __m256i>(*from) }
    }
    #[inline(always)]
    fn nibbles(self, from: &[u8; 16]) -> Self::B {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe {
            let b = transmute::<[u8; 16], __m128i>(*from);
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(b), b);
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn and(self, v: Self::B, mask: u8) -> Self::B {
        // SAFETY: features by token.
        unsafe { _mm256_and_si256(v, _mm256_set1_epi8(mask.cast_signed())) }
    }
    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        // SAFETY: features by token.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    fn shr<const N: i32>(self, v: Self::B) -> Self::B {
        // SAFETY: features by token.
        unsafe { _mm256_srli_epi16::<N>(v) }
    }
    #[inline(always)]
    fn shl<const N: i32>(self, v: Self::B) -> Self::B {
        // SAFETY: features by token.
        unsafe { _mm256_slli_epi16::<N>(v) }
    }
    #[inline(always)]
    fn sub(self, v: Self::B, by: u8) -> Self::B {
        // SAFETY: features by token.
        unsafe { _mm256_sub_epi8(v, _mm256_set1_epi8(by.cast_signed())) }
    }
    #[inline(always)]
    fn bit_to_16(self, bits: u32) -> Self::B {
        // SAFETY: features by token.
        unsafe {
            // Byte i takes byte i/8 of `bits`, then keeps bit i%8 of it.
            let spread = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits.cast_signed()), spread);
            let pick = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, pick), pick);
            _mm256_and_si256(set, _mm256_set1_epi8(16))
        }
    }
    #[inline(always)]
    fn widen_u8(self, v: Self::B) -> [Self::F; 2] {
        // SAFETY: features by token.
        unsafe {
            pair(
                [_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)],
                #[inline(always)]
                |h| {
                    [
                        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(h)),
                        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(h))),
                    ]
                },
            )
        }
    }
    #[inline(always)]
    fn widen_i8(self, v: Self::B) -> [Self::F; 2] {
        // SAFETY: features by token.
        unsafe {
            pair(
                [_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)],
                #[inline(always)]
                |h| {
                    [
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(h)),
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(h))),
                    ]
                },
            )
        }
    }
    #[inline(always)]
    fn u8x16(self, from: &[u8; 16]) -> Self::F {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe {
            let h = transmute::<[u8; 16], __m128i>(*from);
            [
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(h)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(h))),
            ]
        }
    }
    #[inline(always)]
    fn i8x16(self, from: &[u8; 16]) -> Self::F {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe {
            let h = transmute::<[u8; 16], __m128i>(*from);
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(h)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(h))),
            ]
        }
    }
    #[inline(always)]
    fn tab(self, scale: f32, base: f32) -> (f32, f32) {
        (scale, base)
    }
    #[inline(always)]
    fn look(self, (scale, base): (f32, f32), v: Self::B) -> [Self::F; 2] {
        pair(
            self.widen_u8(self.and(v, 15)),
            #[inline(always)]
            |q| self.fma(q, self.splat(scale), self.splat(base)),
        )
    }
    #[inline(always)]
    fn bf16(self, from: &[u8; 32]) -> Self::F {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe {
            let p = transmute::<[u8; 32], [__m128i; 2]>(*from);
            pair(
                [p[0], p[1]],
                #[inline(always)]
                |h| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(h))),
            )
        }
    }
    #[inline(always)]
    fn f16(self, from: &[u8; 32]) -> Self::F {
        // SAFETY: features by token; the same size, and any bits are bytes.
        unsafe {
            let p = transmute::<[u8; 32], [__m128i; 2]>(*from);
            [_mm256_cvtph_ps(p[0]), _mm256_cvtph_ps(p[1])]
        }
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

/// # Safety
/// Needs F16C.
#[inline(always)]
pub(super) unsafe fn half(bits: u16) -> f32 {
    let value: __m128;
    // Two fixed instructions: from the intrinsics the compiler makes `vpinsrw`, which waits for the last use of the
    // register it inserts into and so chains each block's scale to the block before (three times slower rows).
    // SAFETY: the caller has F16C; the instructions read one register and write another.
    unsafe {
        std::arch::asm!(
            "vmovd {value}, {bits:e}",
            "vcvtph2ps {value}, {value}",
            bits = in(reg) u32::from(bits),
            value = lateout(xmm_reg) value,
            options(pure, nomem, nostack, preserves_flags)
        );
        _mm_cvtss_f32(value)
    }
}

/// Lanes i, i+4, i+8, i+12 added, in the order of [`Simd::sum`].
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn fold(v: [__m256; 2]) -> __m128 {
    // SAFETY: the caller has AVX2.
    unsafe { fold256(_mm256_add_ps(v[0], v[1])) }
}

/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(super) unsafe fn fold256(v: __m256) -> __m128 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)) }
}

/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(super) unsafe fn sum128(v: __m128) -> f32 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// Sums of the lanes of four vectors, each as [`sum128`] forms it.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(super) unsafe fn transpose_add(a: __m128, b: __m128, c: __m128, d: __m128) -> __m128 {
    // SAFETY: the caller has AVX2.
    unsafe {
        // ab = a0+a2, b0+b2, a1+a3, b1+b3
        let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab))
    }
}
