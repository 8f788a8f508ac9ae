// iq2_xxs, iq2_xs, iq2_s: y = d (0.5 + scale) / 4 * (+-)grid[index][j], eight elements an index.
#pragma once
#include "grids.cuh"
#include "quant/common.cuh"

GLMC_DEVICE f32 iq2_value(f32 d, u32 code, u64 grid, u32 signs, u32 j) {
  f32 scale = d * (0.5f + f32(code)) * 0.25f;
  return with_sign(scale * f32(u8(grid >> (8 * j))), signs, j);
}
// The scale code of group g of eight elements: one nibble for two groups.
GLMC_DEVICE u32 iq2_nibble(const u8* scales, u32 g) { return scales[g / 4] >> (4 * (g / 2 % 2)) & 15u; }

struct IQ2_XXS {
  static constexpr u32 ELEMS = 256, BYTES = 66;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 g = j / 8, k = g % 4;
    const u8* run = b + 2 + 8 * (g / 4);
    u32 tail = u32_at(run + 4);
    return iq2_value(half_at(b), tail >> 28, IQ2XXS_GRID[run[k]], even_signs(tail >> (7 * k)), j % 8);
  }
};
struct IQ2_XS {
  static constexpr u32 ELEMS = 256, BYTES = 74;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 g = j / 8, code = u16_at(b + 2 + 2 * g);
    return iq2_value(half_at(b), iq2_nibble(b + 66, g), IQ2XS_GRID[code & 511u], even_signs(code >> 9), j % 8);
  }
};
struct IQ2_S {
  static constexpr u32 ELEMS = 256, BYTES = 82;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 g = j / 8, index = b[2 + g] | (b[66 + g / 4] >> (2 * (g % 4)) & 3u) << 8;
    return iq2_value(half_at(b), iq2_nibble(b + 74, g), IQ2S_GRID[index], b[34 + g], j % 8);
  }
};
