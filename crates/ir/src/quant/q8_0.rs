//! `q8_0`: 32 signed bytes with one scale.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | d f16 |
//! | 2..34 | codes i8 |
//!
//! `y = d * q`.

use super::bytes::f16_at;
use super::synth::{Aim, Draw, put};

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (y, &q) in out.iter_mut().zip(&block[2..]) {
        *y = d * f32::from(q as i8);
    }
}

pub(super) fn synth(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}
