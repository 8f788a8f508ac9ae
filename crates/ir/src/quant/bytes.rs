//! Reading fields of a block: little-endian numbers at a byte offset, nibbles, signs.
//!
//! Never casts a pointer: block sizes are not multiples of any alignment.

use half::f16;

/// The f16 at byte `at`, as f32. Exact, subnormals included.
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_bits(u16_at(block, at)).to_f32()
}

pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Code `i` of 32 four-bit codes in 16 bytes: low nibbles first, then high nibbles. Adjacent elements are not pairs.
pub(super) fn n32(codes: &[u8], i: usize) -> u8 {
    if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 }
}

/// Bit `i` of a bit string, bit 0 of byte 0 first.
pub(super) fn bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 8] >> (i % 8) & 1
}

/// Where the two-bit codes of run `t` (16 elements) are, as q2_K, q3_K, q6_K and tq2_0 store them: (16 bytes, shift).
/// Each stretch of 32 bytes holds 128 elements in four bit planes of 32.
pub(super) fn plane(qs: &[u8], t: usize) -> (&[u8], usize) {
    (&qs[32 * (t / 8) + 16 * (t % 2)..][..16], 2 * (t % 8 / 2))
}

/// The eight sign bits that seven bits stand for: the eighth makes the number of minus signs even.
pub(super) fn even_signs(code: u8) -> u8 {
    let code = code & 127;
    code | ((code.count_ones() & 1) as u8) << 7
}

/// `x`, negated if bit `j` of `signs` is set.
pub(super) fn signed(x: f32, signs: u8, j: usize) -> f32 {
    if signs >> j & 1 == 1 { -x } else { x }
}
