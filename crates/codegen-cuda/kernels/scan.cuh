// Prefix sums over a block.
#pragma once
#include "prim.cuh"

// The sum of v over the threads before this one; `*total` over all. `scratch` holds 33 words.
GLMC_DEVICE u32 block_prefix(u32 v, u32* scratch, u32* total) {
  u32 lane = glmc_lane(), warp = glmc_warp(), warps = (glmc_threads() + WARP - 1) / WARP, sum = v;
  for (u32 by = 1; by < WARP; by <<= 1) {
    u32 other = glmc_shuffle_up(sum, by);
    if (lane >= by) sum += other;
  }
  glmc_sync();
  if (lane == WARP - 1) scratch[warp] = sum;
  glmc_sync();
  u32 before = 0, all = 0;
  for (u32 w = 0; w < warps; ++w) {
    if (w == warp) before = all;
    all += scratch[w];
  }
  *total = all;
  return before + sum - v;
}
