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

use super::bytes::{f16_at, two_bits};

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (i, y) in out.iter_mut().enumerate() {
        let run = block[i / 16];
        let q = f32::from(two_bits(&block[16..80], i));
        *y = d * f32::from(run & 15) * q - dmin * f32::from(run >> 4);
    }
}
