// iq1_s, iq1_m: y = d (2 scale + 1) (grid[index][j] +- 1/8), eight elements an index.
#pragma once
#include "grids.cuh"
#include "quant/common.cuh"

GLMC_DEVICE f32 iq1_value(f32 scale, u32 index, u32 j, bool down) {
  f32 step = f32(i8(IQ1S_GRID[index] >> (8 * j)));
  return scale * (step + (down ? -0.125f : 0.125f));
}

struct IQ1_S {
  static constexpr u32 ELEMS = 256, BYTES = 50;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 g = j / 8, head = u16_at(b + 34 + 2 * (g / 4));
    u32 index = b[2 + g] | (head >> (3 * (g % 4)) & 7u) << 8;
    f32 scale = half_at(b) * f32(2 * (head >> 12 & 7u) + 1);
    return iq1_value(scale, index, j % 8, head >> 15);
  }
};
struct IQ1_M {
  static constexpr u32 ELEMS = 256, BYTES = 56;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    const u8* words = b + 48;
    u32 bits = 0;
    for (u32 i = 0; i < 4; ++i) bits |= u16_at(words + 2 * i) >> 12 << (4 * i);
    u32 g = j / 8, run = g / 2;
    u32 code = u16_at(words + 2 * (run / 4)) >> (3 * (run % 4)) & 7u;
    u32 nibble = b[32 + run] >> (4 * (g % 2)) & 15u;
    f32 scale = glmc_half_to_float(u16(bits)) * f32(2 * code + 1);
    return iq1_value(scale, b[g] | (nibble & 7u) << 8, j % 8, nibble & 8u);
  }
};
