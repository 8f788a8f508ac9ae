// Matmuls with operands decoded where they are read; sums in f32.
#pragma once
#include "quant/run.cuh"

// Any contraction: a warp an output element, lanes over the summed index.
// Config: X, W, PUT, outputs(args), sums(args), origin(args, o, &x, &w, &y), step(args, k, &x, &w), w(args).
template <class C>
GLMC_DEVICE void matmul_any(const typename C::Arguments& args) {
  glmc_launch_trigger();
  glmc_launch_wait();
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
// Config: X, W, PUT, ROWS, FREE, K, RUN, TOKENS, XSTEP, YSTEP, YFIRST, LATE (the next launch starts behind the wait),
// tokens(args), w(args).
template <class C>
GLMC_DEVICE void matmul_rows(const typename C::Arguments& args) {
  if (!C::LATE) glmc_launch_trigger();
  glmc_launch_wait();
  if (C::LATE) glmc_launch_trigger();
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

// y[r] = x . w[r, :] for one token: a block GROUP rows, its threads runs of their columns. What a thread reads of the
// weights is all on its way at once, and where no launch writes them before the wait.
// Config: X, W, PUT, ROWS, K, GROUP, HELD (most runs of a thread), YFIRST, FIXED, tokens(args), w(args).
template <class C>
GLMC_DEVICE void matmul_columns(const typename C::Arguments& args, u32 block) {
  constexpr u32 RUNS = C::K / 8;
  GLMC_SHARED(f32, partial, 0);
  f32 w[C::GROUP][C::HELD][8], x[C::HELD][8];
  u32 first = block * C::GROUP, warps = glmc_threads() / WARP;
  glmc_launch_trigger();
  if (!C::FIXED) glmc_launch_wait();
#pragma unroll
  for (u32 g = 0; g < C::GROUP; ++g)
#pragma unroll
    for (u32 n = 0; n < C::HELD; ++n) {
      u32 run = glmc_thread() + n * glmc_threads();
      // A row past the end repeats the last one; it is not written.
      u32 row = first + g < C::ROWS ? first + g : C::ROWS - 1;
      if (run < RUNS) Run<typename C::W, 8>::read(C::w(args), u64(row) * C::K + run * 8, w[g][n]);
    }
  if (C::FIXED) glmc_launch_wait();
#pragma unroll
  for (u32 n = 0; n < C::HELD; ++n) {
    u32 run = glmc_thread() + n * glmc_threads();
    if (run < RUNS) Run<typename C::X, 8>::read(args.x, run * 8, x[n]);
  }
#pragma unroll
  for (u32 g = 0; g < C::GROUP; ++g) {
    f32 sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < C::HELD; ++n) {
      if (glmc_thread() + n * glmc_threads() >= RUNS) continue;
#pragma unroll
      for (u32 e = 0; e < 8; ++e) sum = glmc_fma(x[n][e], w[g][n][e], sum);
    }
    sum = warp_sum(sum);
    if (glmc_lane() == 0) partial[g * WARP + glmc_warp()] = sum;
  }
  glmc_sync();
  u32 g = glmc_thread();
  if (g >= C::GROUP || first + g >= C::ROWS || C::tokens(args) == 0) return;
  f32 sum = 0.0f;
  for (u32 i = 0; i < warps; ++i) sum += partial[g * WARP + i];
  C::PUT::put(args.y, C::YFIRST + first + g, sum);
}
