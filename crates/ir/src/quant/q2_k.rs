//! `q2_K`: 256 two-bit codes; each run of 16 has a four-bit scale and a four-bit minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | one byte a run: scale in the low nibble, minimum in the high |
//! | 16..80 | codes in bit planes |
//! | 80..82 | d f16 |
//! | 82..84 | dmin f16 |
//!
//! `y = d * scale * q - dmin * minimum`.

use super::bytes::{f16_at, plane};
use super::synth::{Aim, Draw, put, times};

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (t, run) in out.chunks_exact_mut(16).enumerate() {
        let (codes, shift) = plane(&block[16..80], t);
        let (scale, min) = (d * f32::from(block[t] & 15), dmin * f32::from(block[t] >> 4));
        for (y, code) in run.iter_mut().zip(codes) {
            *y = scale * f32::from(code >> shift & 3) - min;
        }
    }
}

/// Mean square of the values at d = 1, dmin = 1.5: scale^2 * variance(0..4) + 1.5^2 * (scale - minimum)^2.
pub(super) const MEAN_SQUARE: f32 = 77.5 * 1.25 + 2.25 * 0.5;

pub(super) fn synth(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    for run in &mut block[..16] {
        // The minimum follows the scale but for one bit, so that each run has a mean near 0.
        let scale = *run & 15;
        *run = scale | (scale ^ *run >> 4 & 1) << 4;
    }
    let d = draw.scale(aim);
    put(block, 80, d);
    put(block, 82, times(d, 1.5));
}
