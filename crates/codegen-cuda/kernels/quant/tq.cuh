// tq1_0, tq2_0: y = d (digit - 1). A byte of tq1_0 is a fraction whose base-3 digits are elements that lie far apart.
#pragma once
#include "quant/common.cuh"

struct TQ1_0 {
  static constexpr u32 ELEMS = 256, BYTES = 54;
  GLMC_DEVICE static u32 digit(u32 byte, u32 n) {
    constexpr u32 POWER[5] = {1, 3, 9, 27, 81};
    return (byte * POWER[n] & 255u) * 3 >> 8;
  }
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 first = j < 160 ? 0 : j < 240 ? 160 : 240;
    u32 start = j < 160 ? 0 : j < 240 ? 32 : 48;
    u32 bytes = j < 160 ? 32 : j < 240 ? 16 : 4;
    u32 i = j - first;
    return half_at(b + 52) * (f32(digit(b[start + i % bytes], i / bytes)) - 1.0f);
  }
};
struct TQ2_0 {
  static constexpr u32 ELEMS = 256, BYTES = 66;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return half_at(b + 64) * (f32(plane2(b, j)) - 1.0f); }
};
