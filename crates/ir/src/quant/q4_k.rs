//! `q4_K`: 256 four-bit codes; each run of 32 has a six-bit scale and a six-bit minimum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d f16 |
//! | 2..4 | dmin f16 |
//! | 4..16 | scales and minima, packed |
//! | 16..144 | codes: 32 bytes hold 64 elements, the first 32 in the low nibbles |
//!
//! `y = d * scale * q - dmin * minimum`. The packing, shared with `q5_K`: bytes 0..4 and 4..8 hold scales and minima
//! of runs 0..4 in their low six bits; bytes 8..12 hold the low four bits of scales (low nibble) and minima (high
//! nibble) of runs 4..8, whose upper two bits sit on top of bytes 0..4 and 4..8.

use super::bytes::f16_at;
use super::synth::{Aim, Draw, put, times};

/// Scale and minimum of run `j` (0..8) from the 12 packed bytes.
pub(super) fn scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (j, run) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = &block[16 + 32 * (j / 2)..][..32];
        for (y, code) in run.iter_mut().zip(codes) {
            *y = scale * f32::from(code >> (4 * (j % 2)) & 15) - min;
        }
    }
}

/// Packs the scales and minima (all below 64) of 8 runs into 12 bytes.
pub(super) fn pack_scale_mins(scales: [u8; 8], mins: [u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
    }
    packed
}

/// Makes minima follow the scales but for two bits, so that each run has a mean near 0.
pub(super) fn synth_scale_mins(packed: &mut [u8]) {
    let pairs: [(u8, u8); 8] = std::array::from_fn(|j| scale_min(packed, j));
    packed.copy_from_slice(&pack_scale_mins(pairs.map(|p| p.0), pairs.map(|p| p.0 ^ p.1 & 3)));
}

/// Mean square of 0..64, and of the distance between such a number and itself with two random bits flipped.
const SCALE_SQUARE: f32 = 1333.5;
const FLIP_SQUARE: f32 = 2.5;

/// Mean squares of values: of the codes times that of scales, and what minima that do not quite follow leave.
pub(super) const Q4_SQUARE: f32 = SCALE_SQUARE * 21.25 + 7.5 * 7.5 * FLIP_SQUARE;
pub(super) const Q5_SQUARE: f32 = SCALE_SQUARE * 85.25 + 15.5 * 15.5 * FLIP_SQUARE;

pub(super) fn synth(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    synth_scale_mins(&mut block[4..16]);
    let d = draw.scale(aim);
    put(block, 0, d);
    put(block, 2, times(d, 7.5));
}
