// Reads memory and does nothing else: the bandwidth that no other kernel exceeds. A block reads its piece once, each
// thread eight loads in flight. Config: BYTES.
#pragma once
#include "quant/lane.cuh"

template <class C>
GLMC_DEVICE void read_all(const typename C::Arguments& args) {
  constexpr u32 LOADS = 8;
  u64 piece = u64(glmc_threads()) * LOADS * 16, first = u64(glmc_block_x()) * piece + glmc_thread() * 16;
  U4 v[LOADS];
#pragma unroll
  for (u32 i = 0; i < LOADS; ++i) {
    u64 at = first + u64(i) * glmc_threads() * 16;
    v[i] = at + 16 <= C::BYTES ? load16(args.x + at) : U4{0, 0, 0, 0};
  }
  u32 all = 0;
#pragma unroll
  for (u32 i = 0; i < LOADS; ++i) all ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  // Never with the pattern that is read; the compiler does not know it.
  if (all == 0x9e3779b9u) reinterpret_cast<u32*>(args.y)[0] = all;
}
