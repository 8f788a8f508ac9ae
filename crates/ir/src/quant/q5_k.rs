//! `q5_K`: as `q4_K` with a fifth bit a code.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d f16 |
//! | 2..4 | dmin f16 |
//! | 4..16 | scales and minima, packed as in `q4_K` |
//! | 16..48 | fifth bits: bit `i / 32` of byte `i % 32` |
//! | 48..176 | low four bits as in `q4_K` |
//!
//! `y = d * scale * q - dmin * minimum`.

use super::bytes::f16_at;
use super::q4_k::{scale_min, synth_scale_mins};
use super::synth::{Aim, Draw, put, times};

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (j, run) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let (low, high) = (&block[48 + 32 * (j / 2)..][..32], &block[16..48]);
        for (y, (low, high)) in run.iter_mut().zip(low.iter().zip(high)) {
            let q = low >> (4 * (j % 2)) & 15 | (high >> j & 1) << 4;
            *y = scale * f32::from(q) - min;
        }
    }
}

pub(super) fn synth(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    synth_scale_mins(&mut block[4..16]);
    let d = draw.scale(aim);
    put(block, 0, d);
    put(block, 2, times(d, 15.5));
}
