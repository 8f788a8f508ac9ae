// Vectors as sums of halves, for tensor cores: planes of the first terms, and of what is left, of each vector's
// elements, PADDED of them, those past K zero; by pieces of 32 elements, then by vector, so that neighbouring vectors are
// read together. A vector is first scaled by a power of two, so that its largest element is
// near 2^15 and nothing is lost at either end.
//
// Vectors: X, K, RUN, PADDED, COUNT (most vectors), PARTS (planes), SUMS (whether of 32 scaled elements), vectors(args), x(args),
// halves(args, part), inverse(args), sums(args).
#pragma once
#include "quant/run.cuh"

// Eight elements from element `from` + `k` on; those at `end` or past it are zero.
template <class Q, u32 RUN>
GLMC_DEVICE void read_eight(const u8* base, u64 from, u32 k, u32 end, f32 (&v)[8]) {
#pragma unroll
  for (u32 e = 0; e < 8; ++e) v[e] = 0.0f;
  if constexpr (RUN == 8) {
    if (k < end) Run<Q, 8>::read(base, from + k, v);
  } else {
#pragma unroll
    for (u32 e = 0; e < 8; ++e)
      if (k + e < end) v[e] = element<Q>(base, from + k + e);
  }
}

// Eight floats as halves, and what is left of them.
GLMC_DEVICE U4 take_half(f32 (&v)[8]) {
  u32 w[4];
#pragma unroll
  for (u32 e = 0; e < 4; ++e) {
    w[e] = glmc_pack_half(v[2 * e], v[2 * e + 1]);
    v[2 * e] -= glmc_half_to_float(u16(w[e]));
    v[2 * e + 1] -= glmc_half_to_float(u16(w[e] >> 16));
  }
  return {w[0], w[1], w[2], w[3]};
}

// The largest magnitude, as bits; NaN is more than all numbers.
GLMC_DEVICE u32 largest(const f32 (&v)[8]) {
  u32 most = 0;
#pragma unroll
  for (u32 e = 0; e < 8; ++e) most = glmc_max(most, glmc_float_to_bits(v[e]) & 0x7fffffffu);
  return most;
}

// The power of two that brings the largest magnitude (as bits) near 2^15, and its inverse.
struct PowerOfTwo {
  f32 scale, inverse;
};
GLMC_DEVICE PowerOfTwo near_top(u32 most) {
  u32 e = most >> 23, scale = 268 - e;
  // Zeros stay so; what is not finite carries itself on.
  if (most == 0 || e == 255) return {1.0f, 1.0f};
  if (scale > 253) scale = 253;
  return {glmc_bits_to_float(scale << 23), glmc_bits_to_float((254 - scale) << 23)};
}

// The largest of the threads' values; `scratch` holds a word a warp.
GLMC_DEVICE u32 block_max(u32 v, u32* scratch) {
#pragma unroll
  for (u32 m = 16; m; m >>= 1) v = glmc_max(v, glmc_shuffle_xor(v, m));
  glmc_sync();
  if (glmc_lane() == 0) scratch[glmc_warp()] = v;
  glmc_sync();
  for (u32 w = 0; w < glmc_threads() / WARP; ++w) v = glmc_max(v, scratch[w]);
  return v;
}

// A block a vector.
template <class V, class A>
GLMC_DEVICE void split_vectors(const A& args) {
  GLMC_SHARED(u32, scratch, 0);
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 count = V::vectors(args), step = 8 * glmc_threads();
  for (u32 n = glmc_block_x(); n < count; n += glmc_grid_x()) {
    u64 from = u64(n) * V::K;
    u32 most = 0;
    for (u32 k = 8 * glmc_thread(); k < V::K; k += step) {
      f32 v[8];
      read_eight<typename V::X, V::RUN>(V::x(args), from, k, V::K, v);
      most = glmc_max(most, largest(v));
    }
    PowerOfTwo power = near_top(block_max(most, scratch));
    if (glmc_thread() == 0) V::inverse(args)[n] = power.inverse;
    // Whole warps: lanes add what they hold of 32 elements.
    for (u32 base = 0; base < V::PADDED; base += step) {
      u32 k = base + 8 * glmc_thread();
      u64 piece = u64(k / 32) * V::COUNT + n;
      f32 x[8], sum = 0.0f;
      read_eight<typename V::X, V::RUN>(V::x(args), from, k, V::K, x);
#pragma unroll
      for (u32 e = 0; e < 8; ++e) x[e] *= power.scale;
#pragma unroll
      for (u32 part = 0; part < V::PARTS; ++part) {
        f32 before[8];
#pragma unroll
        for (u32 e = 0; e < 8; ++e) before[e] = x[e];
        U4 halves = take_half(x);
#pragma unroll
        for (u32 e = 0; e < 8; ++e) sum += before[e] - x[e];
        if (k < V::PADDED) *reinterpret_cast<U4*>(V::halves(args, part) + 64 * piece + 2 * (k % 32)) = halves;
      }
      if (!V::SUMS) continue;
      sum += glmc_shuffle_xor(sum, 1);
      sum += glmc_shuffle_xor(sum, 2);
      if (k < V::PADDED && glmc_lane() % 4 == 0) V::sums(args)[piece] = sum;
    }
  }
}
