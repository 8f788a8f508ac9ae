//! `iq4_nl` and `iq4_xs`: four-bit codes into a table of 16 uneven levels.
//!
//! | bytes | iq4_nl (18, 32 elements) | bytes | iq4_xs (136, 256 elements) |
//! |---|---|---|---|
//! | 0..2 | d f16 | 0..2 | d f16 |
//! | 2..18 | codes, low nibbles first | 2..4 | high two bits of the 8 scales |
//! | | | 4..8 | low four bits of the 8 scales |
//! | | | 8..136 | codes, 16 bytes a run of 32 |
//!
//! `y = d * LEVELS[q]` and `y = d * (scale - 32) * LEVELS[q]`.

use super::bytes::{f16_at, n32, u16_at};
use super::synth::{Aim, Draw, put};

/// The levels that a four-bit code of the `iq4` types stands for.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn level(codes: &[u8], i: usize) -> f32 {
    f32::from(LEVELS[usize::from(n32(codes, i))])
}

pub(super) fn decode_nl(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, y) in out.iter_mut().enumerate() {
        *y = d * level(&block[2..], i);
    }
}

pub(super) fn decode_xs(block: &[u8], out: &mut [f32]) {
    let (d, high) = (f16_at(block, 0), u16_at(block, 2));
    for (j, run) in out.chunks_exact_mut(32).enumerate() {
        let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
        let scale = (low | ((high >> (2 * j) & 3) as u8) << 4) as i8 - 32;
        for (i, y) in run.iter_mut().enumerate() {
            *y = d * f32::from(scale) * level(&block[8 + 16 * j..], i);
        }
    }
}

/// Mean square of the levels.
pub(super) const LEVEL_SQUARE: f32 = mean_square(&LEVELS);

pub(super) const fn mean_square(levels: &[i8]) -> f32 {
    let mut sum = 0;
    let mut i = 0;
    while i < levels.len() {
        sum += levels[i] as i32 * levels[i] as i32;
        i += 1;
    }
    sum as f32 / levels.len() as f32
}

pub(super) fn synth_nl(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}

pub(super) fn synth_xs(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}
