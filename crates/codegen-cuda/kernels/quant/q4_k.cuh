// q4_K: y = d scale q - dmin minimum; a scale and a minimum of six bits for each 32 elements, packed in 12 bytes.
#pragma once
#include "quant/common.cuh"

// Scale and minimum of run r (0..8) from the 12 packed bytes that q4_K and q5_K share.
GLMC_DEVICE void scale_min(const u8* p, u32 r, u32* scale, u32* min) {
  if (r < 4) {
    *scale = p[r] & 63u;
    *min = p[r + 4] & 63u;
  } else {
    *scale = (p[r + 4] & 15u) | p[r - 4] >> 6 << 4;
    *min = p[r + 4] >> 4 | p[r] >> 6 << 4;
  }
}

struct Q4_K {
  static constexpr u32 ELEMS = 256, BYTES = 144;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 scale, min;
    scale_min(b + 4, j / 32, &scale, &min);
    u32 q = b[16 + 32 * (j / 64) + j % 32] >> (4 * (j / 32 % 2)) & 15u;
    return half_at(b) * f32(scale) * f32(q) - half_at(b + 2) * f32(min);
  }
};
