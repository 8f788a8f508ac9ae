// f32, f16, bf16: an element is its own block.
#pragma once
#include "quant/common.cuh"

struct F32 {
  static constexpr u32 ELEMS = 1, BYTES = 4;
  GLMC_DEVICE static f32 at(const u8* p, u32) { return *reinterpret_cast<const f32*>(p); }
};
struct F16 {
  static constexpr u32 ELEMS = 1, BYTES = 2;
  GLMC_DEVICE static f32 at(const u8* p, u32) { return glmc_half_to_float(*reinterpret_cast<const u16*>(p)); }
};
struct BF16 {
  static constexpr u32 ELEMS = 1, BYTES = 2;
  GLMC_DEVICE static f32 at(const u8* p, u32) { return bf16_to_float(*reinterpret_cast<const u16*>(p)); }
};
