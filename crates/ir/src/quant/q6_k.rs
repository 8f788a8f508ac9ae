//! `q6_K`: 256 six-bit codes; each run of 16 has a signed eight-bit scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | low four bits: 64 bytes hold 128 elements, the first 64 in the low nibbles |
//! | 128..192 | high two bits in bit planes |
//! | 192..208 | scales i8 |
//! | 208..210 | d f16 |
//!
//! `y = d * scale * (q - 32)`.

use super::bytes::{f16_at, plane};
use super::synth::{Aim, Draw, put};

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 208);
    for (t, run) in out.chunks_exact_mut(16).enumerate() {
        let low = &block[64 * (t / 8) + 16 * (t % 4)..][..16];
        let (high, shift) = plane(&block[128..192], t);
        let scale = d * f32::from(block[192 + t] as i8);
        for (y, (low, high)) in run.iter_mut().zip(low.iter().zip(high)) {
            let q = (low >> (4 * (t % 8 / 4)) & 15 | (high >> shift & 3) << 4) as i8 - 32;
            *y = scale * f32::from(q);
        }
    }
}

pub(super) fn synth(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 208, draw.scale(aim));
}
