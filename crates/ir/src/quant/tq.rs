//! `tq1_0` and `tq2_0`: 256 ternary elements with one scale.
//!
//! | bytes | tq1_0 (54) | bytes | tq2_0 (66) |
//! |---|---|---|---|
//! | 0..32 | 160 elements, five a byte | 0..64 | two-bit codes in bit planes |
//! | 32..48 | 80 elements, five a byte | 64..66 | d f16 |
//! | 48..52 | 16 elements, four a byte | | |
//! | 52..54 | d f16 | | |
//!
//! `y = d * (digit - 1)`. A byte of `tq1_0` is a fixed-point fraction whose base-3 digits are the elements; digit `n` of
//! all bytes of a part comes before digit `n + 1`, so a byte's elements lie far apart and the type is not cut.

use super::bytes::{f16_at, plane};
use super::synth::{Aim, Draw, put};

/// Digit `n` of the fraction `byte / 256` in base 3.
fn digit(byte: u8, n: u32) -> u8 {
    let shifted = byte.wrapping_mul(3u8.pow(n));
    ((u16::from(shifted) * 3) >> 8) as u8
}

/// (first byte, bytes, first element) of the three parts of a `tq1_0` block.
const PARTS: [(usize, usize, usize); 3] = [(0, 32, 0), (32, 16, 160), (48, 4, 240)];

pub(super) fn decode_tq1_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 52);
    for (i, y) in out.iter_mut().enumerate() {
        let (byte, bytes, first) = PARTS[if i < 160 {
            0
        } else if i < 240 {
            1
        } else {
            2
        }];
        let at = i - first;
        *y = d * (f32::from(digit(block[byte + at % bytes], (at / bytes) as u32)) - 1.0);
    }
}

pub(super) fn decode_tq2_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 64);
    for (t, run) in out.chunks_exact_mut(16).enumerate() {
        let (codes, shift) = plane(&block[..64], t);
        for (y, code) in run.iter_mut().zip(codes) {
            *y = d * (f32::from(code >> shift & 3) - 1.0);
        }
    }
}

pub(super) fn synth_tq1_0(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 52, draw.signed_scale(aim));
}

pub(super) fn synth_tq2_0(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    for byte in &mut block[..64] {
        // The code 3 is not used: it becomes 1, so half of the values are 0.
        *byte ^= (*byte & *byte >> 1 & 0x55) << 1;
    }
    put(block, 64, draw.signed_scale(aim));
}
