//! [`Simd`](super::Simd) in plain Rust arrays: the meaning of each operation, and the fallback.
//!
//! Never uses an instruction that the build's baseline lacks.

use super::Simd;
use half::{bf16, f16};

/// Plain arrays.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn map2(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = [f32; 16];
    type B = [u8; 32];
    type Tab = (f32, f32);
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, v: f32) -> [f32; 16] {
        [v; 16]
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> [f32; 16] {
        *from
    }
    #[inline(always)]
    fn store(self, v: [f32; 16], to: &mut [f32; 16]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        // `mul_add` is a library call where the baseline has no such instruction.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
        } else {
            std::array::from_fn(|i| a[i] * b[i] + c[i])
        }
    }
    #[inline(always)]
    fn sum(self, v: [f32; 16]) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }
    #[inline(always)]
    fn sum4(self, v: [[f32; 16]; 4]) -> [f32; 4] {
        v.map(|v| self.sum(v))
    }
    #[inline(always)]
    fn bytes(self, from: &[u8; 32]) -> [u8; 32] {
        *from
    }
    #[inline(always)]
    fn nibbles(self, from: &[u8; 16]) -> [u8; 32] {
        std::array::from_fn(|i| if i < 16 { from[i] & 15 } else { from[i - 16] >> 4 })
    }
    #[inline(always)]
    fn and(self, v: [u8; 32], mask: u8) -> [u8; 32] {
        v.map(|b| b & mask)
    }
    #[inline(always)]
    fn or(self, a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn shr<const N: i32>(self, v: [u8; 32]) -> [u8; 32] {
        v.map(|b| b >> N)
    }
    #[inline(always)]
    fn shl<const N: i32>(self, v: [u8; 32]) -> [u8; 32] {
        v.map(|b| b << N)
    }
    #[inline(always)]
    fn sub(self, v: [u8; 32], by: u8) -> [u8; 32] {
        v.map(|b| b.wrapping_sub(by))
    }
    #[inline(always)]
    fn bit_to_16(self, bits: u32) -> [u8; 32] {
        std::array::from_fn(|i| (((bits >> i) & 1) << 4) as u8)
    }
    #[inline(always)]
    fn widen_u8(self, v: [u8; 32]) -> [[f32; 16]; 2] {
        std::array::from_fn(|h| std::array::from_fn(|i| f32::from(v[16 * h + i])))
    }
    #[inline(always)]
    fn widen_i8(self, v: [u8; 32]) -> [[f32; 16]; 2] {
        std::array::from_fn(|h| std::array::from_fn(|i| f32::from(v[16 * h + i].cast_signed())))
    }
    #[inline(always)]
    fn u8x16(self, from: &[u8; 16]) -> [f32; 16] {
        from.map(f32::from)
    }
    #[inline(always)]
    fn i8x16(self, from: &[u8; 16]) -> [f32; 16] {
        from.map(|b| f32::from(b.cast_signed()))
    }
    #[inline(always)]
    fn tab(self, scale: f32, base: f32) -> (f32, f32) {
        (scale, base)
    }
    #[inline(always)]
    fn look(self, (scale, base): (f32, f32), v: [u8; 32]) -> [[f32; 16]; 2] {
        self.widen_u8(self.and(v, 15)).map(|q| self.fma(q, [scale; 16], [base; 16]))
    }
    #[inline(always)]
    fn bf16(self, from: &[u8; 32]) -> [f32; 16] {
        std::array::from_fn(|i| bf16::from_le_bytes([from[2 * i], from[2 * i + 1]]).to_f32())
    }
    #[inline(always)]
    fn f16(self, from: &[u8; 32]) -> [f32; 16] {
        std::array::from_fn(|i| f16::from_le_bytes([from[2 * i], from[2 * i + 1]]).to_f32())
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }
}
