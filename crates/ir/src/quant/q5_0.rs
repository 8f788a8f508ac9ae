//! `q5_0` and `q5_1`: 32 five-bit codes with one scale, `q5_1` also with one offset.
//!
//! | bytes | q5_0 (22) | bytes | q5_1 (24) |
//! |---|---|---|---|
//! | 0..2 | d f16 | 0..2 | d f16 |
//! | 2..6 | fifth bits, bit i for element i | 2..4 | m f16 |
//! | 6..22 | low four bits, low nibbles first | 4..8 | fifth bits |
//! | | | 8..24 | low four bits |
//!
//! `y = d * (q - 16)` and `y = d * q + m`.

use super::bytes::{bit, f16_at, n32};
use super::synth::{Aim, Draw, put, times};

fn code(high: &[u8], low: &[u8], i: usize) -> f32 {
    f32::from(n32(low, i) | bit(high, i) << 4)
}

pub(super) fn decode_q5_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, y) in out.iter_mut().enumerate() {
        *y = d * (code(&block[2..6], &block[6..], i) - 16.0);
    }
}

pub(super) fn decode_q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (i, y) in out.iter_mut().enumerate() {
        *y = d * code(&block[4..8], &block[8..], i) + m;
    }
}

/// Mean and variance of 0..32.
const MEAN: f32 = 15.5;
pub(super) const VARIANCE: f32 = 85.25;

pub(super) fn synth_q5_0(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}

pub(super) fn synth_q5_1(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    let d = draw.signed_scale(aim);
    put(block, 0, d);
    put(block, 2, times(d, -MEAN));
}
