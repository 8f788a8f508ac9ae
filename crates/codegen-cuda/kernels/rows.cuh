// Rows put together from pieces of other rows: copied, normed or rotated. A block a row.
// Config: rows(args), row(args, row, scratch), which calls the pieces.
#pragma once
#include "rope.cuh"

template <class X, class PUT, u32 N>
GLMC_DEVICE void copy_piece(const u8* x, u64 from, u8* y, u64 to) {
  for (u32 i = glmc_thread(); i < N; i += glmc_threads()) PUT::put(y, to + i, element<X>(x, from + i));
}

template <class X, class W, class PUT, u32 N>
GLMC_DEVICE void norm_piece(const u8* x, u64 from, u8* y, u64 to, const u8* w, f32 eps, f32* scratch) {
  f32 sum = 0.0f;
  for (u32 i = glmc_thread(); i < N; i += glmc_threads()) {
    f32 v = element<X>(x, from + i);
    sum = glmc_fma(v, v, sum);
  }
  f32 inverse = 1.0f / glmc_sqrt(block_sum(sum, scratch) / f32(N) + eps);
  for (u32 i = glmc_thread(); i < N; i += glmc_threads())
    PUT::put(y, to + i, element<W>(w, i) * (element<X>(x, from + i) * inverse));
}

template <class X, class PUT, u32 N>
GLMC_DEVICE void rotate_piece(const u8* x, u64 from, u8* y, u64 to, const f64* frequencies, i32 pos) {
  for (u32 j = glmc_thread(); j < N / 2; j += glmc_threads())
    rotate_pair<X, PUT>(x, from + 2 * j, y, to + 2 * j, f64(pos) * frequencies[j]);
}

template <class C>
GLMC_DEVICE void rows_of_pieces(const typename C::Arguments& args) {
  GLMC_SHARED(f32, scratch, 0);
  glmc_launch_wait();
  glmc_launch_trigger();
  u64 rows = C::rows(args);
  for (u64 row = glmc_block_x(); row < rows; row += glmc_grid_x()) C::row(args, row, scratch);
}
