// q5_0: y = d (q - 16). q5_1: y = d q + m. The fifth bits stand apart, bit j for element j.
#pragma once
#include "quant/common.cuh"

GLMC_DEVICE f32 code5(const u8* high, const u8* low, u32 j) {
  return f32(nibble32(low, j) | (u32_at(high) >> j & 1u) << 4);
}

struct Q5_0 {
  static constexpr u32 ELEMS = 32, BYTES = 22;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return half_at(b) * (code5(b + 2, b + 6, j) - 16.0f); }
};
struct Q5_1 {
  static constexpr u32 ELEMS = 32, BYTES = 24;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return half_at(b) * code5(b + 4, b + 8, j) + half_at(b + 2); }
};
