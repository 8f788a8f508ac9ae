//! `q4_0` and `q4_1`: 32 four-bit codes with one scale, `q4_1` also with one offset.
//!
//! | bytes | q4_0 (18) | bytes | q4_1 (20) |
//! |---|---|---|---|
//! | 0..2 | d f16 | 0..2 | d f16 |
//! | 2..18 | codes, low nibbles first | 2..4 | m f16 |
//! | | | 4..20 | codes |
//!
//! `y = d * (q - 8)` and `y = d * q + m`.

use super::bytes::{f16_at, n32};
use super::synth::{Aim, Draw, put, times};

pub(super) fn decode_q4_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, y) in out.iter_mut().enumerate() {
        *y = d * (f32::from(n32(&block[2..], i)) - 8.0);
    }
}

pub(super) fn decode_q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (i, y) in out.iter_mut().enumerate() {
        *y = d * f32::from(n32(&block[4..], i)) + m;
    }
}

/// Mean and variance of 0..16.
const MEAN: f32 = 7.5;
pub(super) const VARIANCE: f32 = 21.25;

pub(super) fn synth_q4_0(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}

pub(super) fn synth_q4_1(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    let d = draw.signed_scale(aim);
    put(block, 0, d);
    put(block, 2, times(d, -MEAN));
}
