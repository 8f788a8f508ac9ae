//! The vector instructions of the CPU kernels and the run-time choice between them.
//!
//! Owns every `unsafe` block of the CPU device: the wrappers of the machine's vector instructions and the calls into
//! functions compiled for more features than the build's baseline. Kernels are written once against [`Simd`], sixteen
//! f32 lanes at a time, as a [`Kernel`]; [`dispatch`] runs it with the widest set that the machine has.
//! It never decides what is computed or how work is cut between threads.
#![allow(unsafe_code, reason = "the only module of this folder that may call vector intrinsics")]

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_256;
#[cfg(target_arch = "x86_64")]
mod x86_512;

#[cfg(target_arch = "x86_64")]
mod vnni;

use super::fixed::Fixed;
use glmc_ir::quant::QuantType;
use std::sync::OnceLock;

/// Sixteen f32 lanes and thirty-two byte lanes, as one instruction set offers them.
///
/// A value of the type is the proof that the machine has the instructions.
pub(crate) trait Simd: Copy {
    /// Sixteen f32 lanes.
    type F: Copy;
    /// Thirty-two byte lanes.
    type B: Copy;
    /// A prepared map from a nibble `q` to `scale * q + base`.
    type Tab: Copy;
    /// True when a register file of 32 wide registers allows large register blocks.
    const WIDE: bool;

    /// All lanes equal `v`.
    fn splat(self, v: f32) -> Self::F;
    /// Reads sixteen values.
    fn load(self, from: &[f32; 16]) -> Self::F;
    /// Writes sixteen values.
    fn store(self, v: Self::F, to: &mut [f32; 16]);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the set has it.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Sum of the lanes, by halving: lane i + lane i+8, then i+4, i+2, i+1.
    fn sum(self, v: Self::F) -> f32;
    /// Sums of the lanes of four vectors; each sum is formed in the same order.
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4];
    /// Reads 32 bytes.
    fn bytes(self, from: &[u8; 32]) -> Self::B;
    /// Low nibbles of 16 bytes, then their high nibbles, each in a byte of its own.
    fn nibbles(self, from: &[u8; 16]) -> Self::B;
    /// Each byte AND `mask`.
    fn and(self, v: Self::B, mask: u8) -> Self::B;
    /// Bytewise OR.
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// Shift right by N bits; the upper N bits of each byte are then unspecified (mask them away).
    fn shr<const N: i32>(self, v: Self::B) -> Self::B;
    /// Shift left by N bits; the lower N bits of each byte are then unspecified (mask them away).
    fn shl<const N: i32>(self, v: Self::B) -> Self::B;
    /// Each byte minus `by`, wrapping.
    fn sub(self, v: Self::B, by: u8) -> Self::B;
    /// Byte i is 16 where bit i is set, else 0.
    fn bit_to_16(self, bits: u32) -> Self::B;
    /// Unsigned bytes as f32.
    fn widen_u8(self, v: Self::B) -> [Self::F; 2];
    /// Signed bytes as f32.
    fn widen_i8(self, v: Self::B) -> [Self::F; 2];
    /// Sixteen unsigned bytes as f32.
    fn u8x16(self, from: &[u8; 16]) -> Self::F;
    /// Sixteen signed bytes as f32.
    fn i8x16(self, from: &[u8; 16]) -> Self::F;
    /// The map `q -> scale * q + base` for q in 0..16.
    fn tab(self, scale: f32, base: f32) -> Self::Tab;
    /// Applies the map to the low four bits of each byte; the other bits are ignored.
    fn look(self, tab: Self::Tab, v: Self::B) -> [Self::F; 2];
    /// One map on the low nibbles of all bytes, another on the high nibbles.
    #[inline(always)]
    fn look_both(self, low: Self::Tab, high: Self::Tab, v: Self::B) -> [[Self::F; 2]; 2] {
        [self.look(low, v), self.look(high, self.shr::<4>(v))]
    }
    /// The map on [`Self::nibbles`].
    #[inline(always)]
    fn look_nibbles(self, tab: Self::Tab, from: &[u8; 16]) -> [Self::F; 2] {
        self.look(tab, self.nibbles(from))
    }
    /// Sixteen little-endian bf16 values.
    fn bf16(self, from: &[u8; 32]) -> Self::F;
    /// Sixteen little-endian IEEE half values.
    fn f16(self, from: &[u8; 32]) -> Self::F;
    /// One IEEE half value from its bits.
    fn half(self, bits: u16) -> f32;
    /// Asks for the cache line at `at`, which may lie anywhere: nothing is read.
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
}

/// Applies a function to both halves. The methods of arrays are not certain to be inlined into a function with more
/// features, and an intrinsic that is not inlined costs a call; so hot code uses this, loops, and closures marked
/// `#[inline(always)]`.
#[inline(always)]
pub(crate) fn pair<A, B>(v: [A; 2], f: impl Fn(A) -> B) -> [B; 2] {
    let [a, b] = v;
    [f(a), f(b)]
}

/// A computation written against [`Simd`]. Implementations mark `run` `#[inline(always)]`, and everything hot that it
/// calls as well, so that the whole of it is compiled with the chosen instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Out;
    /// Runs with the given instructions.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// The instruction sets there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, whatever the build's baseline makes of it.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ, with the above.
    Avx512,
}

/// The widest instruction set of this machine; found once.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Portable
}

/// Runs a kernel with the widest instructions of this machine.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Out {
    dispatch_as(isa(), kernel)
}

/// Runs a kernel with the given instructions, or with the best of this machine where it lacks them.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn dispatch_as<K: Kernel>(wanted: Isa, kernel: K) -> K::Out {
    let have = isa();
    match wanted {
        // SAFETY: `isa` found every feature that `run_512` is compiled for.
        Isa::Avx512 if have == Isa::Avx512 => unsafe { run_512(kernel) },
        // SAFETY: both other sets of `isa` include every feature that `run_256` is compiled for.
        Isa::Avx512 | Isa::Avx2 if have != Isa::Portable => unsafe { run_256(kernel) },
        _ => kernel.run(portable::Portable),
    }
}

/// Runs a kernel with the only instructions there are.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn dispatch_as<K: Kernel>(_wanted: Isa, kernel: K) -> K::Out {
    kernel.run(portable::Portable)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn run_512<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: this function's features are exactly the ones that the token stands for.
    kernel.run(unsafe { x86_512::Avx512::new() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_256<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: this function's features are exactly the ones that the token stands for.
    kernel.run(unsafe { x86_256::Avx2::new() })
}

/// How far ahead of its use a weight is asked for, in bytes: the same place of a later set of `set` bytes. Farther than
/// what is read in the time that memory takes to answer, and not so far that the second-level cache loses it again.
#[inline(always)]
pub(super) fn ahead(set: usize) -> usize {
    const LEAST: usize = 8192;
    LEAST.next_multiple_of(set.max(1))
}

/// Whether rows of `ty` are multiplied in integers on this machine (see [`super::fixed`]).
pub(super) fn takes_fixed(ty: QuantType) -> bool {
    #[cfg(target_arch = "x86_64")]
    return vnni::takes(ty);
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// `out[t][r] = rows[r] . xs[t]` of a type that [`takes_fixed`] takes.
pub(super) fn dot_fixed(ty: QuantType, rows: &[u8], row_bytes: usize, xs: &[&Fixed], out: &mut [&mut [f32]]) {
    assert!(takes_fixed(ty), "the caller asks first");
    #[cfg(target_arch = "x86_64")]
    vnni::dot_rows(ty, rows, row_bytes, xs, out);
}

#[cfg(test)]
mod tests;
