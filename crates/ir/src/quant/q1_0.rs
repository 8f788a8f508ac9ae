//! `q1_0` and `q2_0`: one-bit signs and two-bit codes with one scale, in element order.
//!
//! | bytes | q1_0 (18, 128 elements) | q2_0 (18, 64 elements) |
//! |---|---|---|
//! | 0..2 | d f16 | d f16 |
//! | 2..18 | sign bits, lowest first; 1 is plus | codes, lowest bits first |
//!
//! `y = (+-)d` and `y = d * (q - 1)`.

use super::bytes::{bit, f16_at};
use super::synth::{Aim, Draw, put};

pub(super) fn decode_q1_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, y) in out.iter_mut().enumerate() {
        *y = if bit(&block[2..], i) == 1 { d } else { -d };
    }
}

pub(super) fn decode_q2_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, y) in out.iter_mut().enumerate() {
        *y = d * (f32::from(block[2 + i / 4] >> (2 * (i % 4)) & 3) - 1.0);
    }
}

pub(super) fn synth_q1_0(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}

pub(super) fn synth_q2_0(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    put(block, 0, draw.signed_scale(aim));
}
