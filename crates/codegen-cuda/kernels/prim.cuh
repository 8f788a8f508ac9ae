// The prelude of every generated kernel: integer names, and one name for each thing that a kernel may ask of the
// machine. Includes no CUDA header. Compiled by NVRTC the names stand for PTX (prim_device.cuh); compiled by a system
// C++ compiler with GLMC_HOST defined they stand for the emulation (emu/emu.h). Kernel bodies hold no inline assembly.
//
// Arithmetic is the same on both: kernels are compiled without contraction, so a multiply-add is fused only where
// `glmc_fma` says so, and decoders give the same bits everywhere.
#pragma once

#ifdef GLMC_HOST
#include "emu/emu.h"
#else
#include "prim_device.cuh"
#endif

constexpr u32 WARP = 32;

// The f32 of half bits, exact.
GLMC_DEVICE f32 half_at(const u8* p) { return glmc_half_to_float(u16(p[0] | p[1] << 8)); }
GLMC_DEVICE u32 u16_at(const u8* p) { return u32(p[0]) | u32(p[1]) << 8; }
GLMC_DEVICE u32 u32_at(const u8* p) { return u16_at(p) | u16_at(p + 2) << 16; }

GLMC_DEVICE f32 bf16_to_float(u16 bits) { return glmc_bits_to_float(u32(bits) << 16); }

// Round to nearest even; NaN stays NaN.
GLMC_DEVICE u16 float_to_bf16(f32 x) {
  u32 bits = glmc_float_to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return u16(bits >> 16 | 0x40u);
  return u16((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

GLMC_DEVICE f32 minus_infinity() { return glmc_bits_to_float(0xff800000u); }
GLMC_DEVICE f32 not_a_number() { return glmc_bits_to_float(0x7fc00000u); }

GLMC_DEVICE u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
GLMC_DEVICE u64 global_thread() { return u64(glmc_block_x()) * glmc_threads() + glmc_thread(); }
GLMC_DEVICE u64 global_threads() { return u64(glmc_grid_x()) * glmc_threads(); }

// Sums over the lanes of a warp; every lane gets the same bits.
GLMC_DEVICE f32 warp_sum(f32 v) {
  for (u32 m = 16; m; m >>= 1) v += glmc_shuffle_xor(v, m);
  return v;
}
GLMC_DEVICE f32 warp_max(f32 v) {
  for (u32 m = 16; m; m >>= 1) v = glmc_max(v, glmc_shuffle_xor(v, m));
  return v;
}

// Sums over the threads of a block, in an order that depends on the number of warps alone. `scratch` holds one float a
// warp; every thread takes part and gets the same bits. Safe to call twice in a row on one scratch.
GLMC_DEVICE f32 block_sum(f32 v, f32* scratch) {
  v = warp_sum(v);
  glmc_sync();
  if (glmc_lane() == 0) scratch[glmc_warp()] = v;
  glmc_sync();
  return warp_sum(glmc_lane() < glmc_threads() / WARP ? scratch[glmc_lane()] : 0.0f);
}

// What a float is stored as.
struct AsF32 {
  static constexpr u32 BYTES = 4;
  GLMC_DEVICE static void put(u8* p, u64 i, f32 x) { reinterpret_cast<f32*>(p)[i] = x; }
};
struct AsF16 {
  static constexpr u32 BYTES = 2;
  GLMC_DEVICE static void put(u8* p, u64 i, f32 x) { reinterpret_cast<u16*>(p)[i] = glmc_float_to_half(x); }
};
struct AsBF16 {
  static constexpr u32 BYTES = 2;
  GLMC_DEVICE static void put(u8* p, u64 i, f32 x) { reinterpret_cast<u16*>(p)[i] = float_to_bf16(x); }
};

// 1 / (1 + exp(-x)), without overflow at either end.
GLMC_DEVICE f32 sigmoid(f32 x) { return 1.0f / (1.0f + glmc_exp(-x)); }
GLMC_DEVICE f32 silu(f32 x) { return x * sigmoid(x); }
