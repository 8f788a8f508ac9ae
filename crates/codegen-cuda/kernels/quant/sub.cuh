// Runs of 32 elements of q4_K, q5_K and q6_K blocks, each with its own scales: rows that are cut inside blocks.
#pragma once
#include "quant/common.cuh"

struct Q4_K_SUB {
  static constexpr u32 ELEMS = 32, BYTES = 22;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    return half_at(b) * f32(u32(b[4])) * f32(nibble32(b + 6, j)) - half_at(b + 2) * f32(u32(b[5]));
  }
};
struct Q5_K_SUB {
  static constexpr u32 ELEMS = 32, BYTES = 26;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 q = nibble32(b + 10, j) | (u32_at(b + 6) >> j & 1u) << 4;
    return half_at(b) * f32(u32(b[4])) * f32(q) - half_at(b + 2) * f32(u32(b[5]));
  }
};
struct Q6_K_SUB {
  static constexpr u32 ELEMS = 32, BYTES = 28;
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 high = b[20 + j % 8] >> (2 * (j / 8)) & 3u;
    i32 q = i32(nibble32(b + 4, j) | high << 4) - 32;
    return half_at(b) * f32(i8(b[2 + j / 16])) * f32(q);
  }
};
