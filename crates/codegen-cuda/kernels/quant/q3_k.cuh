// q3_K: y = d (scale - 32) (q - 4); a scale of six bits for each 16 elements.
#pragma once
#include "quant/common.cuh"

struct Q3_K {
  static constexpr u32 ELEMS = 256, BYTES = 110;
  GLMC_DEVICE static i32 scale(const u8* packed, u32 r) {
    u32 low = r < 8 ? packed[r] & 15u : packed[r - 8] >> 4;
    u32 high = packed[8 + r % 4] >> (2 * (r / 4)) & 3u;
    return i32(low | high << 4) - 32;
  }
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    i32 q = i32(plane2(b + 32, j) | (b[j % 32] >> (j / 32) & 1u) << 2) - 4;
    return half_at(b + 108) * f32(scale(b + 96, j / 16)) * f32(q);
  }
};
