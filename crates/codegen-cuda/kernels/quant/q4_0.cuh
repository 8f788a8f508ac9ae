// q4_0: y = d (q - 8). q4_1: y = d q + m.
#pragma once
#include "quant/common.cuh"

struct Q4_0 {
  static constexpr u32 ELEMS = 32, BYTES = 18;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return half_at(b) * (f32(nibble32(b + 2, j)) - 8.0f); }
};
struct Q4_1 {
  static constexpr u32 ELEMS = 32, BYTES = 20;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return half_at(b) * f32(nibble32(b + 4, j)) + half_at(b + 2); }
};
