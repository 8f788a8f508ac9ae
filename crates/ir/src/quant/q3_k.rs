//! `q3_K`: 256 three-bit codes; each run of 16 has a signed six-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | third bits: bit `i / 32` of byte `i % 32` |
//! | 32..96 | low two bits in bit planes |
//! | 96..108 | scales: low four bits of run j in 8 bytes, high two bits in the 4 bytes after |
//! | 108..110 | d f16 |
//!
//! `y = d * (scale - 32) * (q - 4)`.

use super::bytes::{f16_at, plane};
use super::synth::{Aim, Draw, put};

/// The scale of run `j` (0..16) from the 12 packed bytes, in -32..32.
pub(super) fn scale(packed: &[u8], j: usize) -> i8 {
    let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
    let high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
    (low | high << 4) as i8 - 32
}

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 108);
    for (t, run) in out.chunks_exact_mut(16).enumerate() {
        let (low, shift) = plane(&block[32..96], t);
        let high = &block[16 * (t % 2)..][..16];
        let scale = d * f32::from(scale(&block[96..108], t));
        for (y, (low, high)) in run.iter_mut().zip(low.iter().zip(high)) {
            let q = (low >> shift & 3 | (high >> (t / 2) & 1) << 2) as i8 - 4;
            *y = scale * f32::from(q);
        }
    }
}

pub(super) fn synth(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 108, draw.scale(aim));
}
