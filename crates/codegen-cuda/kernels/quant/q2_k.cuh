// q2_K: y = d scale q - dmin minimum; a scale and a minimum of four bits for each 16 elements.
#pragma once
#include "quant/common.cuh"

struct Q2_K {
  static constexpr u32 ELEMS = 256, BYTES = 84;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 sm = b[j / 16];
    f32 scale = half_at(b + 80) * f32(sm & 15u), min = half_at(b + 82) * f32(sm >> 4);
    return scale * f32(plane2(b + 16, j)) - min;
  }
};
