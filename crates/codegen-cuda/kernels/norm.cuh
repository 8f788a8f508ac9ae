// Norms over rows: a block a row. The row is read twice (the second time from the cache).
// Config: X, W (and B), PUT, WIDTH, EPS, rows(args).
#pragma once
#include "quant/float.cuh"

template <class C>
GLMC_DEVICE void rms_norm(const typename C::Arguments& args) {
  GLMC_SHARED(f32, scratch, 0);
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 rows = C::rows(args);
  for (u32 row = glmc_block_x(); row < rows; row += glmc_grid_x()) {
    u64 first = u64(row) * C::WIDTH;
    f32 sum = 0.0f;
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads()) {
      f32 v = element<typename C::X>(args.x, first + i);
      sum = glmc_fma(v, v, sum);
    }
    f32 inverse = 1.0f / glmc_sqrt(block_sum(sum, scratch) / f32(C::WIDTH) + C::EPS);
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads()) {
      f32 v = element<typename C::X>(args.x, first + i) * inverse;
      C::PUT::put(args.y, first + i, element<typename C::W>(args.w, i) * v);
    }
  }
}

// The variance is a second pass over differences: squares of large means would cancel.
template <class C>
GLMC_DEVICE void layer_norm(const typename C::Arguments& args) {
  GLMC_SHARED(f32, scratch, 0);
  glmc_launch_wait();
  glmc_launch_trigger();
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
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 rows = C::rows(args);
  for (u32 row = glmc_block_x(); row < rows; row += glmc_grid_x()) {
    u64 first = u64(row) * C::WIDTH;
    f32 squares = 0.0f;
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads()) {
      f32 v = C::sum(args, first + i);
      C::H::put(args.h, first + i, v);
      squares = glmc_fma(v, v, squares);
    }
    f32 inverse = 1.0f / glmc_sqrt(block_sum(squares, scratch) / f32(C::WIDTH) + C::EPS);
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads())
      C::PUT::put(args.n, first + i, element<typename C::W>(args.w, i) * (C::sum(args, first + i) * inverse));
  }
}
