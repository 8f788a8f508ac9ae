//! Integer products of q4_K and q5_K rows with 24-bit activations, by the byte dot products of AVX-512 VNNI.
//!
//! A nibble times three signed bytes, one plane after the other with a shift between, is exact in 32 bits: four products
//! a lane of at most 31 * 128 * 2^16. So a group of 64 weights takes three instructions where f32 takes eight.

#![allow(clippy::needless_range_loop, reason = "indices into arrays of registers: unrolled, and the same on all sides")]

use crate::device::cpu::fixed::{Fixed, FixedBlock, GROUPS};
use crate::device::cpu::unpack::six_bit_fields;
use glmc_ir::quant::QuantType;
use std::arch::x86_64::*;

/// Rows that share each load of a vector: it comes from the second-level cache as often as from the first, whose
/// lines the weights stream through.
const ROWS: usize = 4;

/// Whether this machine has the instructions and `ty` the packing.
pub(super) fn takes(ty: QuantType) -> bool {
    matches!(ty, QuantType::Q4_K | QuantType::Q5_K)
        && super::isa() == super::Isa::Avx512
        && is_x86_feature_detected!("avx512vnni")
}

/// `out[t][r] = rows[r] . xs[t]`; the caller has asked [`takes`]. Rows and vectors beyond the shorter of their
/// counts of blocks are not read.
pub(super) fn dot_rows(ty: QuantType, rows: &[u8], row_bytes: usize, xs: &[&Fixed], out: &mut [&mut [f32]]) {
    debug_assert!(takes(ty));
    for (x, out) in xs.iter().zip(out) {
        // SAFETY: `takes` found every feature that the functions are compiled for.
        unsafe {
            if ty == QuantType::Q4_K {
                dot_one::<Q4, 144>(rows, row_bytes, &x.blocks, out);
            } else {
                dot_one::<Q5, 176>(rows, row_bytes, &x.blocks, out);
            }
        }
    }
}

/// A block of `N` bytes: sixteen bytes of scales, the fifth bits if there are any, the nibbles.
trait Packed<const N: usize> {
    /// The nibbles.
    fn nibbles(block: &[u8; N]) -> &[u8; 128];
    /// The fifth bits.
    fn high(block: &[u8; N]) -> Option<&[u8; 32]>;
}

struct Q4;
struct Q5;

impl Packed<144> for Q4 {
    #[inline(always)]
    fn nibbles(block: &[u8; 144]) -> &[u8; 128] {
        block[16..].as_array().expect("128 bytes")
    }
    #[inline(always)]
    fn high(_: &[u8; 144]) -> Option<&[u8; 32]> {
        None
    }
}

impl Packed<176> for Q5 {
    #[inline(always)]
    fn nibbles(block: &[u8; 176]) -> &[u8; 128] {
        block[48..].as_array().expect("128 bytes")
    }
    #[inline(always)]
    fn high(block: &[u8; 176]) -> Option<&[u8; 32]> {
        block[16..48].as_array()
    }
}

/// One vector against all rows, [`ROWS`] at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn dot_one<P: Packed<N>, const N: usize>(rows: &[u8], row_bytes: usize, x: &[FixedBlock], out: &mut [f32]) {
    let mut sets = rows.chunks_exact(ROWS * row_bytes);
    let mut outs = out.chunks_exact_mut(ROWS);
    for (set, out) in (&mut sets).zip(&mut outs) {
        let rows = std::array::from_fn(|r| set[r * row_bytes..(r + 1) * row_bytes].as_chunks::<N>().0);
        out.copy_from_slice(&dot_set::<P, N, ROWS>(rows, x));
    }
    for (row, out) in sets.remainder().chunks_exact(row_bytes).zip(outs.into_remainder()) {
        [*out] = dot_set::<P, N, 1>([row.as_chunks::<N>().0], x);
    }
}

/// The dots of `R` rows with one vector. A row's value does not depend on the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn dot_set<P: Packed<N>, const N: usize, const R: usize>(rows: [&[[u8; N]]; R], x: &[FixedBlock]) -> [f32; R] {
    let nibble = _mm512_set1_epi8(15);
    let blocks = x.len().min(rows[0].len());
    let rows: [&[[u8; N]]; R] = std::array::from_fn(|r| &rows[r][..blocks]);
    let ahead = super::ahead(R * std::mem::size_of_val(rows[0]));
    let mut acc = [_mm512_setzero_ps(); R];
    for (b, x) in x[..blocks].iter().enumerate() {
        let mut scales = [_mm512_setzero_ps(); R];
        let sums = load_f32(&x.sums);
        for r in 0..R {
            let block = &rows[r][b];
            for line in 0..N.div_ceil(64) {
                // The same place of the next rows.
                _mm_prefetch::<_MM_HINT_T1>(block.as_ptr().wrapping_add(ahead + 64 * line).cast());
            }
            let head: &[u8; 16] = block[..16].as_array().expect("16 bytes");
            let all = scales_and_minima(head);
            scales[r] = _mm512_mul_ps(all, half(head[0], head[1]));
            // The first eight sums are zero, so only the minima count.
            acc[r] = _mm512_fnmadd_ps(_mm512_mul_ps(all, half(head[2], head[3])), sums, acc[r]);
        }
        for g in 0..GROUPS {
            let (p, h) = (g / 2, g % 2);
            let [p2, p1, p0] = &x.planes[g];
            let (p2, p1, p0) = (load_i8(p2), load_i8(p1), load_i8(p0));
            let (lanes, x_scale) = (load(&LANES[g]), load_f32(&x.scales[g]));
            for r in 0..R {
                let block = &rows[r][b];
                let packed = load(P::nibbles(block)[64 * p..64 * p + 64].as_array().expect("64 bytes"));
                let mut q = if h == 0 { packed } else { _mm512_srli_epi16::<4>(packed) };
                q = _mm512_and_si512(q, nibble);
                if let Some(high) = P::high(block) {
                    q = _mm512_or_si512(q, fifth_bit(high, p, h));
                }
                let sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, p2);
                let sum = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(sum), q, p1);
                let sum = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(sum), q, p0);
                let scale = _mm512_mul_ps(_mm512_permutexvar_ps(lanes, scales[r]), x_scale);
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[r]);
            }
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        out[r] = _mm512_reduce_add_ps(acc[r]);
    }
    out
}

/// A half from its two bytes, in every lane.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
fn half(low: u8, high: u8) -> __m512 {
    _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes([low, high])))))
}

/// Which of the eight scales each lane of a group takes, as little-endian lane numbers.
const LANES: [[u8; 64]; GROUPS] = {
    let mut all = [[0; 64]; GROUPS];
    let mut g = 0;
    while g < GROUPS {
        let mut lane = 0;
        while lane < 16 {
            all[g][4 * lane] = (4 * (g / 2) + g % 2 + 2 * (lane / 8)) as u8;
            lane += 1;
        }
        g += 1;
    }
    all
};

/// The eight six-bit scales, then the eight minima, as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn scales_and_minima(head: &[u8; 16]) -> __m512 {
    let fields = six_bit_fields(head[4..].as_array().expect("12 bytes"));
    // SAFETY: the same size, and any bits are bytes.
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { std::mem::transmute::<[u8; 16], __m128i>(fields) }))
}

/// 16 where the fifth bit of a weight of group `2 p + h` is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn fifth_bit(high: &[u8; 32], p: usize, h: usize) -> __m512i {
    // SAFETY: the same size, and any bits are bytes.
    let both = _mm512_broadcast_i64x4(unsafe { std::mem::transmute::<[u8; 32], __m256i>(*high) });
    let at = (4 * p + h) as i64;
    // Words, so bits of the neighbour byte come in from above; the mask takes them away.
    let spread = |n: i64| n * 0x0001_0001_0001_0001;
    let by = _mm512_set_epi64(
        spread(at + 2),
        spread(at + 2),
        spread(at + 2),
        spread(at + 2),
        spread(at),
        spread(at),
        spread(at),
        spread(at),
    );
    let bit = _mm512_and_si512(_mm512_srlv_epi16(both, by), _mm512_set1_epi8(1));
    _mm512_slli_epi16::<4>(bit)
}

// Both by value: the intrinsics that take pointers carry checks of their own in builds with debug assertions.

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the same size, and any bits are integers.
    unsafe { std::mem::transmute::<[u8; 64], __m512i>(*bytes) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_i8(bytes: &[i8; 64]) -> __m512i {
    // SAFETY: the same size, and any bits are integers.
    unsafe { std::mem::transmute::<[i8; 64], __m512i>(*bytes) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_f32(values: &[f32; 16]) -> __m512 {
    // SAFETY: the same size, and any bits are floats.
    unsafe { std::mem::transmute::<[f32; 16], __m512>(*values) }
}
