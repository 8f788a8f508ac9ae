//! `mxfp4` and `nvfp4`: four-bit floats (e2m1) with small float scales.
//!
//! | bytes | mxfp4 (17, 32 elements) | bytes | nvfp4 (36, 64 elements) |
//! |---|---|---|---|
//! | 0 | scale e8m0 | 0..4 | scales e4m3, one a run of 16 |
//! | 1..17 | codes, low nibbles first | 4..36 | codes, 8 bytes a run, low nibbles first |
//!
//! The table holds twice each value, so the scales are halved: `2^(e - 128)`, and half of the e4m3 value. The sign bit
//! of an e4m3 scale is ignored. An e8m0 scale of 255 is NaN.

use super::bytes::n32;
use super::iq4::mean_square;
use super::synth::{Aim, Draw};

/// Twice the value of each e2m1 code.
pub const DOUBLED_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn level(code: u8) -> f32 {
    f32::from(DOUBLED_E2M1[usize::from(code)])
}

/// `2^(e - 128)`. The two smallest are subnormal: they must not be flushed.
pub(super) fn half_e8m0(e: u8) -> f32 {
    match e {
        255 => f32::NAN,
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// Half of an unsigned e4m3 scale; the code 7F, which stands for NaN elsewhere, is zero.
pub(super) fn half_e4m3(code: u8) -> f32 {
    if code == 0x7f {
        return 0.0;
    }
    let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    if e == 0 { m * 2f32.powi(-10) } else { (8.0 + m) * 2f32.powi(e - 11) }
}

pub(super) fn decode_mxfp4(block: &[u8], out: &mut [f32]) {
    let scale = half_e8m0(block[0]);
    for (i, y) in out.iter_mut().enumerate() {
        *y = level(n32(&block[1..], i)) * scale;
    }
}

pub(super) fn decode_nvfp4(block: &[u8], out: &mut [f32]) {
    for (s, run) in out.chunks_exact_mut(16).enumerate() {
        let scale = half_e4m3(block[s]);
        for (i, y) in run.iter_mut().enumerate() {
            let byte = block[4 + 8 * s + i % 8];
            *y = level(if i < 8 { byte & 15 } else { byte >> 4 }) * scale;
        }
    }
}

/// Mean square of the levels.
pub(super) const LEVEL_SQUARE: f32 = mean_square(&DOUBLED_E2M1);

/// How often the code after `low` is taken, whose values are `a` and `b`, so that the mean square is `target` squared.
fn share(target: f32, a: f32, b: f32) -> f32 {
    (target * target - a * a) / (b * b - a * a)
}

/// The lower code of scales near `target`, and how often the next is taken.
pub(super) fn step_mxfp4(target: f32) -> (u32, f32) {
    // The exponent field of 2^(e - 128) is e - 1. Below 2, scales are subnormal: nothing real is that small.
    let low = ((target.to_bits() >> 23) as u8).clamp(2, 252) + 1;
    (u32::from(low), share(target / half_e8m0(low), 1.0, 2.0))
}

/// As [`step_mxfp4`].
pub(super) fn step_nvfp4(target: f32) -> (u32, f32) {
    // As an e4m3 number, twice the target: subnormal steps are 2^-9, else the top bits of the f32 serve.
    let whole = 2.0 * target;
    let low = if whole < 2f32.powi(-6) { (whole * 512.0) as u32 } else { (whole.to_bits() >> 20) - (120 << 3) };
    let low = low.min(0x7d) as u8;
    (u32::from(low), share(target, half_e4m3(low), half_e4m3(low + 1)))
}

pub(super) fn synth_mxfp4(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    block[0] = draw.code(aim, 0);
}

pub(super) fn synth_nvfp4(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    for (s, code) in block[..4].iter_mut().enumerate() {
        *code = draw.code(aim, s as u64);
    }
}
