//! `f32`, `f16` and `bf16`: one element a block, no scale.
//!
//! | type | bytes | value |
//! |---|---|---|
//! | f32 | 4 | IEEE single |
//! | f16 | 2 | IEEE half |
//! | bf16 | 2 | the upper half of an f32 |

use half::{bf16, f16};

use super::bytes::{f16_at, u16_at, u32_at};
use super::synth::{Aim, Draw, put};

// Alone among the decoders these take any number of blocks: a call for each element would cost more than the element.

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (y, x) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *y = f32::from_bits(u32_at(x, 0));
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (y, x) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *y = f16_at(x, 0);
    }
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (y, x) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *y = f32::from_bits(u32::from(u16_at(x, 0)) << 16);
    }
}

pub(super) fn synth_f32(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    block.copy_from_slice(&(draw.value(aim)).to_le_bytes());
}

pub(super) fn synth_f16(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    let largest = f16::MAX.to_f32();
    put(block, 0, f16::from_f32((draw.value(aim)).clamp(-largest, largest)));
}

pub(super) fn synth_bf16(draw: &Draw, aim: &Aim, block: &mut [u8]) {
    block.copy_from_slice(&bf16::from_f32(draw.value(aim)).to_bits().to_le_bytes());
}
