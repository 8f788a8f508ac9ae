// q5_K: as q4_K with a fifth bit, bit j / 32 of byte j % 32.
#pragma once
#include "quant/q4_k.cuh"

struct Q5_K {
  static constexpr u32 ELEMS = 256, BYTES = 176;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 scale, min;
    scale_min(b + 4, j / 32, &scale, &min);
    u32 low = b[48 + 32 * (j / 64) + j % 32] >> (4 * (j / 32 % 2)) & 15u;
    u32 q = low | (b[16 + j % 32] >> (j / 32) & 1u) << 4;
    return half_at(b) * f32(scale) * f32(q) - half_at(b + 2) * f32(min);
  }
};
