//! `iq1_s` and `iq1_m`: eight elements a code into a grid of -1, 0, 1, shifted by an eighth up or down.
//!
//! | bytes | iq1_s (50) | bytes | iq1_m (56) |
//! |---|---|---|---|
//! | 0..2 | d f16 | 0..32 | low 8 bits of the index for 8 elements |
//! | 2..34 | low 8 bits of the index for 8 elements | 32..48 | a nibble for 8 elements: 3 high bits of the index, shift sign |
//! | 34..50 | a u16 a run of 32 | 48..56 | four u16 |
//!
//! The u16 of `iq1_s`: four times 3 high bits of an index, 3 bits of scale, the sign of the shift. Each u16 of `iq1_m`:
//! four scales of 3 bits (one for 16 elements), and in its top 4 bits a quarter of the block's f16 `d`, lowest first.
//! `y = d * (2 * scale + 1) * (grid[index][j] +- 1/8)`.

use half::f16;

use super::bytes::{f16_at, u16_at};
use super::grids::{IQ1S, mean_square8};
use super::synth::{Aim, Draw, put};

fn eight(out: &mut [f32], scale: f32, index: usize, down: bool) {
    let shift = if down { -0.125 } else { 0.125 };
    for (y, step) in out.iter_mut().zip(IQ1S[index].to_le_bytes()) {
        *y = scale * (f32::from(step as i8) + shift);
    }
}

pub(super) fn decode_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (g, out) in out.chunks_exact_mut(8).enumerate() {
        let head = u16_at(block, 34 + 2 * (g / 4));
        let index = usize::from(block[2 + g]) | usize::from(head >> (3 * (g % 4)) & 7) << 8;
        let scale = d * f32::from(2 * (head >> 12 & 7) + 1);
        eight(out, scale, index, head >> 15 == 1);
    }
}

pub(super) fn decode_m(block: &[u8], out: &mut [f32]) {
    let word = |i: usize| u16_at(block, 48 + 2 * i);
    let d = (0..4).fold(0, |bits, i| bits | word(i) >> 12 << (4 * i));
    let d = f16::from_bits(d).to_f32();
    for (g, out) in out.chunks_exact_mut(8).enumerate() {
        let run = g / 2;
        let scale = word(run / 4) >> (3 * (run % 4)) & 7;
        let nibble = block[32 + run] >> (4 * (g % 2)) & 15;
        let index = usize::from(block[g]) | usize::from(nibble & 7) << 8;
        eight(out, d * f32::from(2 * scale + 1), index, nibble & 8 != 0);
    }
}

/// Mean square at d = 1: of `2 * scale + 1` over the 8 scale codes, times that of the shifted grid.
pub(super) const MEAN_SQUARE: f32 = 85.0 * (mean_square8(&IQ1S) + 1.0 / 64.0);

pub(super) fn synth_s(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}

pub(super) fn synth_m(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    let d = draw.signed_scale(aim).to_bits();
    for i in 0..4 {
        let byte = &mut block[49 + 2 * i];
        *byte = *byte & 15 | ((d >> (4 * i) & 15) as u8) << 4;
    }
}
