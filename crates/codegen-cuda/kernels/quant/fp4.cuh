// mxfp4, nvfp4: four-bit floats with small float scales. The level table holds twice each value, so scales are halved.
#pragma once
#include "grids.cuh"
#include "quant/common.cuh"

struct MXFP4 {
  static constexpr u32 ELEMS = 32, BYTES = 17;
  // 2^(e - 128); 255 is NaN, the two smallest are subnormal.
  GLMC_DEVICE static f32 half_scale(u32 e) {
    if (e == 255) return not_a_number();
    return glmc_bits_to_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
  GLMC_DEVICE static f32 at(const u8* b, u32 j) { return f32(E2M1_DOUBLED[nibble32(b + 1, j)]) * half_scale(b[0]); }
};
struct NVFP4 {
  static constexpr u32 ELEMS = 64, BYTES = 36;
  // Half of an unsigned e4m3 value; the sign is ignored and 7F is zero.
  GLMC_DEVICE static f32 half_scale(u32 code) {
    if (code == 0x7f) return 0.0f;
    u32 e = code >> 3 & 15u, m = code & 7u;
    return e == 0 ? f32(m) * 0x1p-10f : f32(8 + m) * glmc_bits_to_float((e + 116) << 23);
  }
  GLMC_DEVICE static f32 at(const u8* b, u32 j) {
    u32 s = j / 16, i = j % 16, byte = b[4 + 8 * s + i % 8];
    return f32(E2M1_DOUBLED[i < 8 ? byte & 15u : byte >> 4]) * half_scale(b[s]);
  }
};
