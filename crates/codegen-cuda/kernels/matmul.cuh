// Matmuls with operands decoded where they are read; sums in f32.
#pragma once
#include "quant/run.cuh"

// Any contraction: a warp an output element, lanes over the summed index.
// Config: X, W, PUT, outputs(args), sums(args), origin(args, o, &x, &w, &y), step(args, k, &x, &w), w(args).
template <class C>
GLMC_DEVICE void matmul_any(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  u64 outputs = C::outputs(args), sums = C::sums(args);
  for (u64 o = global_thread() / WARP; o < outputs; o += global_threads() / WARP) {
    u64 x, w, y;
    C::origin(args, o, &x, &w, &y);
    f32 sum = 0.0f;
    for (u64 k = glmc_lane(); k < sums; k += WARP) {
      u64 dx, dw;
      C::step(args, k, &dx, &dw);
      sum = glmc_fma(element<typename C::X>(args.x, x + dx), element<typename C::W>(C::w(args), w + dw), sum);
    }
    sum = warp_sum(sum);
    if (glmc_lane() == 0) C::PUT::put(args.y, y, sum);
  }
}

// y[t, r] = x[t, r / FREE, :] . w[r, :], few tokens: a warp a row and TOKENS tokens; the row is decoded once for them.
// Config: X, W, PUT, ROWS, FREE, K, RUN, TOKENS, XSTEP, YSTEP, YFIRST, tokens(args), w(args).
template <class C>
GLMC_DEVICE void matmul_rows(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 tokens = C::tokens(args), warps = glmc_threads() / WARP;
  for (u32 t = glmc_block_y() * C::TOKENS; t < tokens; t += glmc_grid_y() * C::TOKENS) {
    for (u32 row = glmc_block_x() * warps + glmc_warp(); row < C::ROWS; row += glmc_grid_x() * warps) {
      u64 w = u64(row) * C::K, x[C::TOKENS];
      f32 sum[C::TOKENS];
#pragma unroll
      for (u32 j = 0; j < C::TOKENS; ++j) {
        // Tokens past the end repeat the last one; they are not written.
        u32 token = t + j < tokens ? t + j : tokens - 1;
        x[j] = u64(token) * C::XSTEP + u64(row / C::FREE) * C::K;
        sum[j] = 0.0f;
      }
      for (u32 k = glmc_lane() * C::RUN; k < C::K; k += WARP * C::RUN) {
        f32 wv[C::RUN], xv[C::RUN];
        Run<typename C::W, C::RUN>::read(C::w(args), w + k, wv);
#pragma unroll
        for (u32 j = 0; j < C::TOKENS; ++j) {
          Run<typename C::X, C::RUN>::read(args.x, x[j] + k, xv);
#pragma unroll
          for (u32 e = 0; e < C::RUN; ++e) sum[j] = glmc_fma(xv[e], wv[e], sum[j]);
        }
      }
#pragma unroll
      for (u32 j = 0; j < C::TOKENS; ++j) {
        f32 total = warp_sum(sum[j]);
        if (glmc_lane() == 0 && t + j < tokens) C::PUT::put(args.y, u64(t + j) * C::YSTEP + C::YFIRST + row, total);
      }
    }
  }
}

// The same for many tokens: a block makes 64 rows of one batch by 64 tokens, 32 of K at a time through shared memory;
// a thread makes 4 by 4. Blocks: x over batches and row tiles, y over token tiles.
constexpr u32 TILE = 64, TILE_K = 32, TILE_STEP = TILE + 4;
constexpr u32 TILE_SHARED = 2 * TILE_K * TILE_STEP * 4;

// Writes TILE lines of 32 elements, line by line from `first + line * step`, as columns of `to`. Zeros past the ends.
template <class Q, u32 RUN>
GLMC_DEVICE void load_tile(f32* to, const u8* base, u64 first, u64 step, u32 lines, u32 k, u32 end) {
  u32 line = glmc_thread() / 4, at = glmc_thread() % 4 * 8;
#pragma unroll
  for (u32 r = 0; r < 8; r += RUN) {
    f32 v[RUN];
    if (line < lines && k + at + r < end) {
      Run<Q, RUN>::read(base, first + line * step + k + at + r, v);
    } else {
      for (u32 e = 0; e < RUN; ++e) v[e] = 0.0f;
    }
#pragma unroll
    for (u32 e = 0; e < RUN; ++e) to[(at + r + e) * TILE_STEP + line] = v[e];
  }
}

template <class C>
GLMC_DEVICE void matmul_tile(const typename C::Arguments& args) {
  GLMC_SHARED(f32, ws, 0);
  GLMC_SHARED(f32, xs, TILE_SHARED / 2);
  glmc_launch_wait();
  glmc_launch_trigger();
  constexpr u32 TILES = (C::FREE + TILE - 1) / TILE;
  u32 batch = glmc_block_x() / TILES, row = glmc_block_x() % TILES * TILE;
  u32 rows = C::FREE - row < TILE ? C::FREE - row : TILE;
  u32 tokens = C::tokens(args);
  u32 r = glmc_thread() / 16 * 4, c = glmc_thread() % 16 * 4;
  for (u32 t = glmc_block_y() * TILE; t < tokens; t += glmc_grid_y() * TILE) {
    u32 columns = tokens - t < TILE ? tokens - t : TILE;
    f32 sum[4][4] = {};
    for (u32 k = 0; k < C::K; k += TILE_K) {
      load_tile<typename C::W, C::RUN>(ws, C::w(args), u64(batch * C::FREE + row) * C::K, C::K, rows, k, C::K);
      load_tile<typename C::X, C::RUN>(xs, args.x, u64(t) * C::XSTEP + u64(batch) * C::K, C::XSTEP, columns, k, C::K);
      glmc_sync();
#pragma unroll 8
      for (u32 i = 0; i < TILE_K; ++i) {
        F4 wv = *reinterpret_cast<const F4*>(ws + i * TILE_STEP + r);
        F4 xv = *reinterpret_cast<const F4*>(xs + i * TILE_STEP + c);
        f32 wl[4] = {wv.x, wv.y, wv.z, wv.w}, xl[4] = {xv.x, xv.y, xv.z, xv.w};
#pragma unroll
        for (u32 a = 0; a < 4; ++a)
#pragma unroll
          for (u32 b = 0; b < 4; ++b) sum[a][b] = glmc_fma(wl[a], xl[b], sum[a][b]);
      }
      glmc_sync();
    }
#pragma unroll
    for (u32 b = 0; b < 4; ++b) {
      if (c + b >= columns) continue;
      u64 y = u64(t + c + b) * C::YSTEP + C::YFIRST + batch * C::FREE + row;
#pragma unroll
      for (u32 a = 0; a < 4; ++a)
        if (r + a < rows) C::PUT::put(args.y, y + r + a, sum[a][b]);
    }
  }
}
