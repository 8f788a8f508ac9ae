// q1_0: y = (+-)d, a set bit is plus. q2_0: y = d (q - 1). Codes in element order, lowest bits first.
#pragma once
#include "quant/common.cuh"

struct Q1_0 {
  static constexpr u32 ELEMS = 128, BYTES = 18;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    f32 d = half_at(b);
    return b[2 + j / 8] >> (j % 8) & 1u ? d : -d;
  }
};
struct Q2_0 {
  static constexpr u32 ELEMS = 64, BYTES = 18;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    return half_at(b) * (f32(b[2 + j / 4] >> (2 * (j % 4)) & 3u) - 1.0f);
  }
};
