//! `iq3_xxs` and `iq3_s`: four elements a code, magnitudes from a grid, signs apart.
//!
//! | bytes | iq3_xxs (98) | bytes | iq3_s (110) |
//! |---|---|---|---|
//! | 0..2 | d f16 | 0..2 | d f16 |
//! | 2..66 | an index for 4 elements | 2..66 | low 8 bits of the index for 4 elements |
//! | 66..98 | a u32 a run of 32 | 66..74 | ninth bits of the index, a byte a run of 32 |
//! | | | 74..106 | signs, a byte for 8 elements |
//! | | | 106..110 | scales, a nibble a run of 32 |
//!
//! The u32 holds four sign codes of 7 bits (one for 8 elements) and the scale in its top 4 bits.
//! `iq3_xxs`: `y = d * (0.5 + scale) / 2 * (+-)grid[index][j]`; `iq3_s`: `y = d * (1 + 2 * scale) * (+-)grid[index][j]`.

use super::bytes::{bit, even_signs, f16_at, signed, u32_at};
use super::grids::{IQ3S, IQ3XXS, mean_square4};
use super::synth::{Aim, Draw, put};

/// `signs` has the bits of these four elements lowest.
fn four(out: &mut [f32], scale: f32, grid: u32, signs: u8) {
    for (j, (y, magnitude)) in out.iter_mut().zip(grid.to_le_bytes()).enumerate() {
        *y = signed(scale * f32::from(magnitude), signs, j);
    }
}

pub(super) fn decode_xxs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (g, out) in out.chunks_exact_mut(4).enumerate() {
        let tail = u32_at(block, 66 + 4 * (g / 8));
        let signs = even_signs((tail >> (7 * (g / 2 % 4)) & 127) as u8) >> (4 * (g % 2));
        let scale = d * (0.5 + (tail >> 28) as f32) * 0.5;
        four(out, scale, IQ3XXS[usize::from(block[2 + g])], signs);
    }
}

pub(super) fn decode_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (g, out) in out.chunks_exact_mut(4).enumerate() {
        let run = g / 8;
        let code = block[106 + run / 2] >> (4 * (run % 2)) & 15;
        let index = usize::from(block[2 + g]) | usize::from(bit(&block[66..74], g)) << 8;
        let signs = block[74 + g / 2] >> (4 * (g % 2));
        four(out, d * (1.0 + 2.0 * f32::from(code)), IQ3S[index], signs);
    }
}

/// Mean square of `0.5 + scale` over the 16 scale codes.
const SCALE_SQUARE: f32 = 85.25;
pub(super) const SQUARE_XXS: f32 = SCALE_SQUARE / 4.0 * mean_square4(&IQ3XXS);
pub(super) const SQUARE_S: f32 = SCALE_SQUARE * 4.0 * mean_square4(&IQ3S);

pub(super) fn synth_xxs(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.scale(aim));
}

pub(super) fn synth_s(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.scale(aim));
}
