//! `f32`, `f16` and `bf16`: one element a block, no scale.
//!
//! | type | bytes | value |
//! |---|---|---|
//! | f32 | 4 | IEEE single |
//! | f16 | 2 | IEEE half |
//! | bf16 | 2 | the upper half of an f32 |

use super::bytes::{f16_at, u16_at, u32_at};

pub(super) fn decode_f32(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_bits(u32_at(block, 0));
}

pub(super) fn decode_f16(block: &[u8], out: &mut [f32]) {
    out[0] = f16_at(block, 0);
}

pub(super) fn decode_bf16(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_bits(u32::from(u16_at(block, 0)) << 16);
}
