//! `iq2_xxs`, `iq2_xs` and `iq2_s`: eight elements a code, magnitudes from a grid, signs apart.
//!
//! | bytes | iq2_xxs (66) | bytes | iq2_xs (74) | bytes | iq2_s (82) |
//! |---|---|---|---|---|---|
//! | 0..2 | d f16 | 0..2 | d f16 | 0..2 | d f16 |
//! | 2..66 | 8 bytes a run of 32: 4 indices, then a u32 | 2..66 | a u16 for 8 elements | 2..34 | low 8 bits of the index |
//! | | | 66..74 | scales, a nibble for 16 elements | 34..66 | signs, a byte for 8 elements |
//! | | | | | 66..74 | high 2 bits of the index |
//! | | | | | 74..82 | scales, a nibble for 16 elements |
//!
//! The u32 of `iq2_xxs` holds four sign codes of 7 bits and the scale in its top 4 bits; the u16 of `iq2_xs` holds the
//! index (9 bits) and a sign code (7 bits). `y = d * (0.5 + scale) / 4 * (+-)grid[index][j]`.

use super::bytes::{even_signs, f16_at, signed, u16_at, u32_at};
use super::grids::{IQ2S, IQ2XS, IQ2XXS, mean_square8};
use super::synth::{Aim, Draw, put};

fn eight(out: &mut [f32], scale: f32, grid: u64, signs: u8) {
    for (j, (y, magnitude)) in out.iter_mut().zip(grid.to_le_bytes()).enumerate() {
        *y = signed(scale * f32::from(magnitude), signs, j);
    }
}

fn run_scale(d: f32, code: u8) -> f32 {
    d * (0.5 + f32::from(code)) * 0.25
}

/// The scale code of group `g` of eight elements: one nibble for two groups.
fn nibble(scales: &[u8], g: usize) -> u8 {
    scales[g / 4] >> (4 * (g / 2 % 2)) & 15
}

pub(super) fn decode_xxs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (g, out) in out.chunks_exact_mut(8).enumerate() {
        let (run, k) = (&block[2 + 8 * (g / 4)..], g % 4);
        let tail = u32_at(run, 4);
        let signs = even_signs((tail >> (7 * k) & 127) as u8);
        eight(out, run_scale(d, (tail >> 28) as u8), IQ2XXS[usize::from(run[k])], signs);
    }
}

pub(super) fn decode_xs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (g, out) in out.chunks_exact_mut(8).enumerate() {
        let code = u16_at(block, 2 + 2 * g);
        let scale = run_scale(d, nibble(&block[66..], g));
        eight(out, scale, IQ2XS[usize::from(code & 511)], even_signs((code >> 9) as u8));
    }
}

pub(super) fn decode_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (g, out) in out.chunks_exact_mut(8).enumerate() {
        let high = block[66 + g / 4] >> (2 * (g % 4)) & 3;
        let index = usize::from(block[2 + g]) | usize::from(high) << 8;
        eight(out, run_scale(d, nibble(&block[74..], g)), IQ2S[index], block[34 + g]);
    }
}

/// Mean square of `(0.5 + scale) / 4` over the 16 scale codes.
const SCALE_SQUARE: f32 = 85.25 / 16.0;
pub(super) const SQUARE_XXS: f32 = SCALE_SQUARE * mean_square8(&IQ2XXS);
pub(super) const SQUARE_XS: f32 = SCALE_SQUARE * mean_square8(&IQ2XS);
pub(super) const SQUARE_S: f32 = SCALE_SQUARE * mean_square8(&IQ2S);

pub(super) fn synth_xxs(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.scale(aim));
}

pub(super) fn synth_xs(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.scale(aim));
}

pub(super) fn synth_s(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.scale(aim));
}
