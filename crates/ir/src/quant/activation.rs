//! `q8_1` and `q8_K`: eight-bit formats of activations. They exist inside matmuls and in no file.
//!
//! | bytes | q8_1 (36, 32 elements) | bytes | q8_K (292, 256 elements) |
//! |---|---|---|---|
//! | 0..2 | d f16 | 0..4 | d f32 |
//! | 2..4 | s f16, the sum of the block | 4..260 | codes i8 |
//! | 4..36 | codes i8 | 260..292 | sums of 16 codes, i16 |
//!
//! `y = d * q`. The sums let a product with a type that has minima skip a pass over the codes; decoding ignores them.

use super::bytes::{f16_at, u32_at};

/// Elements and bytes of a `q8_1` block.
pub const Q8_1: (usize, usize) = (32, 36);
/// Elements and bytes of a `q8_K` block.
pub const Q8_K: (usize, usize) = (256, 292);

/// Decodes a whole number of `q8_1` blocks, exactly.
///
/// # Panics
/// If `bytes` is not a whole number of blocks or `out` does not hold exactly their elements.
pub fn decode_q8_1(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, Q8_1, |block| (f16_at(block, 0), &block[4..]));
}

/// Decodes a whole number of `q8_K` blocks; the one product a value is rounded to f32.
///
/// # Panics
/// As [`decode_q8_1`].
pub fn decode_q8_k(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, Q8_K, |block| (f32::from_bits(u32_at(block, 0)), &block[4..260]));
}

fn blocks(bytes: &[u8], out: &mut [f32], size: (usize, usize), split: impl Fn(&[u8]) -> (f32, &[u8])) {
    let (elems, block_bytes) = size;
    assert_eq!(bytes.len() % block_bytes, 0, "whole blocks");
    assert_eq!(out.len(), bytes.len() / block_bytes * elems, "the elements of the blocks");
    for (block, out) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(elems)) {
        let (d, codes) = split(block);
        for (y, &q) in out.iter_mut().zip(codes) {
            *y = d * f32::from(q as i8);
        }
    }
}
