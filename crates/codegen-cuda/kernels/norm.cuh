// Norms over rows: a block a row. What a thread does not keep of a long row is read twice (the second time from the cache).
// Config: X, W (and B), PUT, WIDTH, EPS, FIXED (no launch writes W), rows(args).
#pragma once
#include "quant/float.cuh"

// Elements of a row that a thread keeps: their loads are all on their way at once, and a row no longer than that is read
// once.
constexpr u32 NORM_HELD = 8;

// The norm of rows whose elements `x(i)` gives and `seen(i, v)` is told of; `w(i)` scales them.
template <class C, class X, class S, class W, class Y>
GLMC_DEVICE void norm_row(f32* scratch, const f32 (&scale)[NORM_HELD], X x, S seen, W w, Y y) {
  u32 threads = glmc_threads(), first = glmc_thread();
  f32 held[NORM_HELD], squares = 0.0f;
#pragma unroll
  for (u32 k = 0; k < NORM_HELD; ++k) held[k] = first + k * threads < C::WIDTH ? x(first + k * threads) : 0.0f;
#pragma unroll
  for (u32 k = 0; k < NORM_HELD; ++k) {
    if (first + k * threads < C::WIDTH) seen(first + k * threads, held[k]);
    squares = glmc_fma(held[k], held[k], squares);
  }
  for (u32 i = first + NORM_HELD * threads; i < C::WIDTH; i += threads) {
    f32 v = x(i);
    seen(i, v);
    squares = glmc_fma(v, v, squares);
  }
  f32 inverse = 1.0f / glmc_sqrt(block_sum(squares, scratch) / f32(C::WIDTH) + C::EPS);
#pragma unroll
  for (u32 k = 0; k < NORM_HELD; ++k)
    if (first + k * threads < C::WIDTH) y(first + k * threads, scale[k] * (held[k] * inverse));
  for (u32 i = first + NORM_HELD * threads; i < C::WIDTH; i += threads) y(i, w(i) * (x(i) * inverse));
}

// What a thread's elements are scaled by: the same in every row.
template <class C>
GLMC_DEVICE void norm_scale(const typename C::Arguments& args, f32 (&scale)[NORM_HELD]) {
#pragma unroll
  for (u32 k = 0; k < NORM_HELD; ++k) {
    u32 i = glmc_thread() + k * glmc_threads();
    scale[k] = i < C::WIDTH ? element<typename C::W>(args.w, i) : 0.0f;
  }
}

template <class C>
GLMC_DEVICE void rms_norm(const typename C::Arguments& args) {
  GLMC_SHARED(f32, scratch, 0);
  f32 scale[NORM_HELD];
  glmc_launch_trigger();
  if (C::FIXED) norm_scale<C>(args, scale);
  glmc_launch_wait();
  if (!C::FIXED) norm_scale<C>(args, scale);
  u32 rows = C::rows(args);
  for (u32 row = glmc_block_x(); row < rows; row += glmc_grid_x()) {
    u64 first = u64(row) * C::WIDTH;
    norm_row<C>(
        scratch, scale, [&](u32 i) { return element<typename C::X>(args.x, first + i); }, [](u32, f32) {},
        [&](u32 i) { return element<typename C::W>(args.w, i); },
        [&](u32 i, f32 v) { C::PUT::put(args.y, first + i, v); });
  }
}

// The variance is a second pass over differences: squares of large means would cancel.
template <class C>
GLMC_DEVICE void layer_norm(const typename C::Arguments& args) {
  GLMC_SHARED(f32, scratch, 0);
  glmc_launch_trigger();
  glmc_launch_wait();
  u32 rows = C::rows(args);
  for (u32 row = glmc_block_x(); row < rows; row += glmc_grid_x()) {
    u64 first = u64(row) * C::WIDTH;
    f32 sum = 0.0f;
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads()) sum += element<typename C::X>(args.x, first + i);
    f32 mean = block_sum(sum, scratch) / f32(C::WIDTH);
    f32 squares = 0.0f;
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads()) {
      f32 d = element<typename C::X>(args.x, first + i) - mean;
      squares = glmc_fma(d, d, squares);
    }
    f32 inverse = 1.0f / glmc_sqrt(block_sum(squares, scratch) / f32(C::WIDTH) + C::EPS);
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads()) {
      f32 v = (element<typename C::X>(args.x, first + i) - mean) * inverse;
      C::PUT::put(args.y, first + i, element<typename C::W>(args.w, i) * v + element<typename C::B>(args.b, i));
    }
  }
}

// The norm of a sum, and the sum. Config also: H (how the sum is stored), sum(args, i).
template <class C>
GLMC_DEVICE void add_rms_norm(const typename C::Arguments& args) {
  GLMC_SHARED(f32, scratch, 0);
  f32 scale[NORM_HELD];
  glmc_launch_trigger();
  if (C::FIXED) norm_scale<C>(args, scale);
  glmc_launch_wait();
  if (!C::FIXED) norm_scale<C>(args, scale);
  u32 rows = C::rows(args);
  for (u32 row = glmc_block_x(); row < rows; row += glmc_grid_x()) {
    u64 first = u64(row) * C::WIDTH;
    norm_row<C>(
        scratch, scale, [&](u32 i) { return C::sum(args, first + i); },
        [&](u32 i, f32 v) { C::H::put(args.h, first + i, v); },
        [&](u32 i) { return element<typename C::W>(args.w, i); },
        [&](u32 i, f32 v) { C::PUT::put(args.n, first + i, v); });
  }
}
