//! Runs of 32 elements with all that decoding them needs: what a rank holds of a row that is cut inside a file's blocks.
//! No file has these types; each is made from a block of the file, exactly, and decodes to the same bits.
//!
//! | type | bytes | field |
//! |---|---|---|
//! | `q4_K_sub` | 0..4 | d, dmin f16, as the block has them |
//! | | 4..6 | the run's scale and minimum |
//! | | 6..22 | codes: low nibbles hold the first 16 |
//! | `q5_K_sub` | 0..6 | the same |
//! | | 6..10 | fifth bits, bit `i` of the 32 |
//! | | 10..26 | low four bits as above |
//! | `q6_K_sub` | 0..2 | d f16 |
//! | | 2..4 | the scales of the two runs of 16 |
//! | | 4..20 | low four bits as above |
//! | | 20..28 | high two bits: of element `i` in byte `i % 8` at `2 (i / 8)` |

use super::QuantType;
use super::bytes::{bit, f16_at, n32, plane};
use super::q4_k::scale_min;
use super::synth::{Aim, Draw, put, times};

/// Elements of a run.
pub(super) const RUN: usize = 32;

/// Appends run `j` of `block`, a block of `ty`; nothing if the type has no such form.
pub(super) fn take(ty: QuantType, block: &[u8], j: usize, out: &mut Vec<u8>) {
    match ty {
        QuantType::Q4_K => {
            let (scale, min) = scale_min(&block[4..16], j);
            out.extend_from_slice(&block[..4]);
            out.extend_from_slice(&[scale, min]);
            out.extend_from_slice(&nibbles(|i| block[16 + 32 * (j / 2) + i] >> (4 * (j % 2)) & 15));
        }
        QuantType::Q5_K => {
            let (scale, min) = scale_min(&block[4..16], j);
            out.extend_from_slice(&block[..4]);
            out.extend_from_slice(&[scale, min]);
            let fifth = (0..RUN).fold(0u32, |bits, i| bits | u32::from(block[16 + i] >> j & 1) << i);
            out.extend_from_slice(&fifth.to_le_bytes());
            out.extend_from_slice(&nibbles(|i| block[48 + 32 * (j / 2) + i] >> (4 * (j % 2)) & 15));
        }
        QuantType::Q6_K => {
            out.extend_from_slice(&block[208..210]);
            out.extend_from_slice(&block[192 + 2 * j..][..2]);
            let low = |i: usize| {
                let t = 2 * j + i / 16;
                block[64 * (t / 8) + 16 * (t % 4) + i % 16] >> (4 * (t % 8 / 4)) & 15
            };
            out.extend_from_slice(&nibbles(low));
            let high = |i: usize| {
                let (bytes, shift) = plane(&block[128..192], 2 * j + i / 16);
                bytes[i % 16] >> shift & 3
            };
            let pack = |k: usize| (0..4).fold(0, |b, q| b | high(k + 8 * q) << (2 * q));
            out.extend((0..8).map(pack));
        }
        _ => {}
    }
}

/// 32 four-bit codes as [`n32`] reads them.
fn nibbles(code: impl Fn(usize) -> u8) -> [u8; 16] {
    std::array::from_fn(|i| code(i) | code(i + 16) << 4)
}

pub(super) fn decode_q4_k(run: &[u8], out: &mut [f32]) {
    let scale = f16_at(run, 0) * f32::from(run[4]);
    let min = f16_at(run, 2) * f32::from(run[5]);
    out.iter_mut().enumerate().for_each(|(i, y)| *y = scale * f32::from(n32(&run[6..], i)) - min);
}

pub(super) fn decode_q5_k(run: &[u8], out: &mut [f32]) {
    let scale = f16_at(run, 0) * f32::from(run[4]);
    let min = f16_at(run, 2) * f32::from(run[5]);
    for (i, y) in out.iter_mut().enumerate() {
        *y = scale * f32::from(n32(&run[10..], i) | bit(&run[6..10], i) << 4) - min;
    }
}

pub(super) fn decode_q6_k(run: &[u8], out: &mut [f32]) {
    let d = f16_at(run, 0);
    for (i, y) in out.iter_mut().enumerate() {
        let scale = d * f32::from(run[2 + i / 16] as i8);
        let q = (n32(&run[4..20], i) | (run[20 + i % 8] >> (2 * (i / 8)) & 3) << 4) as i8 - 32;
        *y = scale * f32::from(q);
    }
}

/// Scale and minimum as a block's packed ones would be.
fn synth_scale_min(draw: &Draw, aim: &Aim, run: &mut [u8], code_mean: f32) {
    run[4] &= 63;
    run[5] = run[4] ^ run[5] & 3;
    let d = draw.scale(aim);
    put(run, 0, d);
    put(run, 2, times(d, code_mean));
}

pub(super) fn synth_q4_k(draw: &Draw, aim: &Aim, run: &mut [u8]) {
    synth_scale_min(draw, aim, run, 7.5);
}

pub(super) fn synth_q5_k(draw: &Draw, aim: &Aim, run: &mut [u8]) {
    synth_scale_min(draw, aim, run, 15.5);
}

pub(super) fn synth_q6_k(draw: &Draw, aim: &Aim, run: &mut [u8]) {
    put(run, 0, draw.scale(aim));
}
