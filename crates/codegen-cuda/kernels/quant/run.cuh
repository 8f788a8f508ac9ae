// Runs of 8 elements: what matmuls read at a time.
#pragma once
#include "quant/float.cuh"

// Elements i .. i + N of a packed tensor, all of one block (N divides the block, or the block is one element).
template <class Q, u32 N>
struct Run {
  GLMC_DEVICE static void read(const u8* base, u64 i, f32 (&out)[N]) {
    if (Q::ELEMS == 1) {
#pragma unroll
      for (u32 e = 0; e < N; ++e) out[e] = element<Q>(base, i + e);
    } else {
      const u8* block = base + i / Q::ELEMS * Q::BYTES;
      u32 j = u32(i % Q::ELEMS);
#pragma unroll
      for (u32 e = 0; e < N; ++e) out[e] = Q::at(block, j + e);
    }
  }
};

// Floats at a multiple of 8 elements: two loads of 16 bytes.
template <>
struct Run<F32, 8> {
  GLMC_DEVICE static void read(const u8* base, u64 i, f32 (&out)[8]) {
    const F4* p = reinterpret_cast<const F4*>(base + 4 * i);
    F4 a = p[0], b = p[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
  }
};
template <>
struct Run<BF16, 8> {
  GLMC_DEVICE static void read(const u8* base, u64 i, f32 (&out)[8]) {
    U4 v = *reinterpret_cast<const U4*>(base + 2 * i);
    u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 e = 0; e < 8; ++e) out[e] = bf16_to_float(u16(words[e / 2] >> (16 * (e % 2))));
  }
};
template <>
struct Run<F16, 8> {
  GLMC_DEVICE static void read(const u8* base, u64 i, f32 (&out)[8]) {
    U4 v = *reinterpret_cast<const U4*>(base + 2 * i);
    u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 e = 0; e < 8; ++e) out[e] = glmc_half_to_float(u16(words[e / 2] >> (16 * (e % 2))));
  }
};
