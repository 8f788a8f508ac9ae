// From the file's layout to the lane layout: a thread a unit. Config: UNITS.
#pragma once
#include "quant/lane.cuh"

struct Q4_K_FILE {
  typedef Q4_K_LANE L;
  GLMC_DEVICE static void unit(const u8* file, u64 u, u8* const (&to)[MOST_PLANES]) {
    const u8* block = file + u / 8 * 144;
    u32 run = u32(u % 8);
    const u8* codes = block + 16 + 32 * (run / 2);
    u32 shift = 4 * (run % 2);
    for (u32 i = 0; i < 16; ++i)
      to[0][16 * u + i] = u8((codes[i] >> shift & 15u) | (codes[16 + i] >> shift & 15u) << 4);
    if (run == 0)
      for (u32 i = 0; i < 16; ++i) to[1][u / 8 * 16 + i] = block[i];
  }
};
struct Q5_K_FILE {
  typedef Q5_K_LANE L;
  GLMC_DEVICE static void unit(const u8* file, u64 u, u8* const (&to)[MOST_PLANES]) {
    const u8* block = file + u / 8 * 176;
    u32 run = u32(u % 8), shift = 4 * (run % 2), high = 0;
    const u8* codes = block + 48 + 32 * (run / 2);
    for (u32 i = 0; i < 16; ++i) {
      to[0][16 * u + i] = u8((codes[i] >> shift & 15u) | (codes[16 + i] >> shift & 15u) << 4);
      u32 at = 8 * (i % 4) + i / 4;
      high |= (block[16 + i] >> run & 1u) << at | (block[32 + i] >> run & 1u) << (at + 4);
    }
    *reinterpret_cast<u32*>(to[1] + 4 * u) = high;
    if (run == 0)
      for (u32 i = 0; i < 16; ++i) to[2][u / 8 * 16 + i] = block[i];
  }
};
struct Q6_K_FILE {
  typedef Q6_K_LANE L;
  GLMC_DEVICE static void unit(const u8* file, u64 u, u8* const (&to)[MOST_PLANES]) {
    const u8* block = file + u / 8 * 210;
    u32 run = u32(u % 8), half = run / 4, part = run % 4;
    const u8* low = block + 64 * half + 32 * (part % 2);
    const u8* high = block + 128 + 32 * half;
    u32 words[2] = {0, 0};
    for (u32 i = 0; i < 32; ++i) {
      u32 q = low[i] >> (4 * (part / 2)) & 15u;
      if (i < 16) to[0][16 * u + i] = u8(q | (low[i + 16] >> (4 * (part / 2)) & 15u) << 4);
      words[i / 16] |= (high[i] >> (2 * part) & 3u) << (8 * (i % 4) + 2 * (i % 16 / 4));
    }
    *reinterpret_cast<U2*>(to[1] + 8 * u) = {words[0], words[1]};
    to[2][2 * u] = block[192 + 2 * run];
    to[2][2 * u + 1] = block[193 + 2 * run];
    if (run == 0) {
      to[3][u / 8 * 2] = block[208];
      to[3][u / 8 * 2 + 1] = block[209];
    }
  }
};
struct Q8_0_FILE {
  typedef Q8_0_LANE L;
  GLMC_DEVICE static void unit(const u8* file, u64 u, u8* const (&to)[MOST_PLANES]) {
    const u8* block = file + 34 * u;
    for (u32 i = 0; i < 16; ++i) {
      to[0][16 * u + i] = block[2 + i];
      to[1][16 * u + i] = block[18 + i];
    }
    to[2][2 * u] = block[0];
    to[2][2 * u + 1] = block[1];
  }
};

template <class F, class C>
GLMC_DEVICE void repack(const typename C::Arguments& args) {
  typedef typename F::L L;
  glmc_launch_wait();
  u8* to[MOST_PLANES] = {};
  u8* base = args.y;
  for (u32 i = 0; i < L::PLANES; ++i) {
    to[i] = base;
    u64 bytes = L::bytes(i, C::UNITS), padded = (bytes + 15) / 16 * 16;
    // Padding is read by bulk copies: it holds zeros.
    if (global_thread() < padded - bytes) base[bytes + global_thread()] = 0;
    base += padded;
  }
  for (u64 u = global_thread(); u < C::UNITS; u += global_threads()) F::unit(args.w, u, to);
}
