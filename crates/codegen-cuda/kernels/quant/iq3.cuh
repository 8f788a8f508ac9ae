// iq3_xxs: y = d (0.5 + scale) / 2 * (+-)grid[index][j]; iq3_s: y = d (1 + 2 scale) * (+-)grid[index][j]; four elements
// an index.
#pragma once
#include "grids.cuh"
#include "quant/common.cuh"

struct IQ3_XXS {
  static constexpr u32 ELEMS = 256, BYTES = 98;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 g = j / 4, tail = u32_at(b + 66 + 4 * (g / 8));
    u32 signs = even_signs(tail >> (7 * (g / 2 % 4)));
    f32 scale = half_at(b) * (0.5f + f32(tail >> 28)) * 0.5f;
    return with_sign(scale * f32(u8(IQ3XXS_GRID[b[2 + g]] >> (8 * (j % 4)))), signs, j % 8);
  }
};
struct IQ3_S {
  static constexpr u32 ELEMS = 256, BYTES = 110;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 g = j / 4, run = g / 8;
    u32 code = b[106 + run / 2] >> (4 * (run % 2)) & 15u;
    u32 index = b[2 + g] | (b[66 + g / 8] >> (g % 8) & 1u) << 8;
    f32 scale = half_at(b) * (1.0f + 2.0f * f32(code));
    return with_sign(scale * f32(u8(IQ3S_GRID[index] >> (8 * (j % 4)))), b[74 + g / 2], j % 8);
  }
};
