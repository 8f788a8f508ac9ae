// iq4_nl: y = d level[q]; iq4_xs: y = d (scale - 32) level[q].
#pragma once
#include "grids.cuh"
#include "quant/common.cuh"

struct IQ4_NL {
  static constexpr u32 ELEMS = 32, BYTES = 18;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return half_at(b) * f32(IQ4_LEVELS[nibble32(b + 2, j)]); }
};
struct IQ4_XS {
  static constexpr u32 ELEMS = 256, BYTES = 136;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 r = j / 32, low = b[4 + r / 2] >> (4 * (r % 2)) & 15u;
    i32 scale = i32(low | (u16_at(b + 2) >> (2 * r) & 3u) << 4) - 32;
    return half_at(b) * f32(scale) * f32(IQ4_LEVELS[nibble32(b + 8 + 16 * r, j % 32)]);
  }
};
