// q6_K: y = d scale (q - 32); a signed byte of scale for each 16 elements.
#pragma once
#include "quant/common.cuh"

struct Q6_K {
  static constexpr u32 ELEMS = 256, BYTES = 210;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 low = b[64 * (j / 128) + j % 64] >> (4 * (j % 128 / 64)) & 15u;
    i32 q = i32(low | plane2(b + 128, j) << 4) - 32;
    return half_at(b + 208) * f32(i8(b[192 + j / 16])) * f32(q);
  }
};
