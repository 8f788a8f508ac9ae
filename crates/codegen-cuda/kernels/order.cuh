// The order of floats as numbers of 32 bits.
#pragma once
#include "prim.cuh"

// Larger floats have larger keys; keys up to that of minus infinity, and 0 for NaN, stand for nothing.
constexpr u32 KEY_NONE = 0x007fffffu;
GLMC_DEVICE u32 order_key(f32 x) {
  u32 b = glmc_float_to_bits(x);
  if (x != x) return 0;
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
