// q8_0: y = d q.
#pragma once
#include "quant/common.cuh"

struct Q8_0 {
  static constexpr u32 ELEMS = 32, BYTES = 34;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return half_at(b) * f32(i8(b[2 + j])); }
};
