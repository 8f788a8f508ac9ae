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

use super::bytes::{f16_at, two_bits};
use super::synth::{Draw, put};

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 208);
    for (i, y) in out.iter_mut().enumerate() {
        let byte = block[64 * (i / 128) + i % 64];
        let low = if i % 128 < 64 { byte & 15 } else { byte >> 4 };
        let q = (low | two_bits(&block[128..192], i) << 4) as i8 - 32;
        *y = d * f32::from(block[192 + i / 16] as i8) * f32::from(q);
    }
}

pub(super) fn synth(draw: &Draw, rms: f32, block: &mut [u8]) {
    put(block, 208, draw.scale(rms, 5461.5 * 341.5)); // mean squares of -128..128 and -32..32
}
