// Rows put together from pieces of other rows: copied, normed or rotated. A block a row.
// Config: rows(args), place(args, row) (where it goes; negative: nowhere), row(args, row, to, scratch), which calls the
// pieces.
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

// The thread's share of the sum of a piece, or of the squares of its distances from `mean`: squares of large means would
// cancel.
template <class X, u32 N>
GLMC_DEVICE f32 sum_piece(const u8* x, u64 from) {
  f32 sum = 0.0f;
  for (u32 i = glmc_thread(); i < N; i += glmc_threads()) sum += element<X>(x, from + i);
  return sum;
}

template <class X, u32 N>
GLMC_DEVICE f32 spread_piece(const u8* x, u64 from, f32 mean) {
  f32 sum = 0.0f;
  for (u32 i = glmc_thread(); i < N; i += glmc_threads()) {
    f32 d = element<X>(x, from + i) - mean;
    sum = glmc_fma(d, d, sum);
  }
  return sum;
}

// A row of which `w` and `b` scale and shift the elements from `at` on, once mean and spread are taken off.
template <class X, class W, class B>
struct NormedPiece {
  const u8 *x, *w, *b;
  u64 from;
  u32 at;
  f32 mean, inverse;
  GLMC_DEVICE f32 operator()(u32 i) const {
    return element<W>(w, at + i) * ((element<X>(x, from + i) - mean) * inverse) + element<B>(b, at + i);
  }
};

template <class PUT, u32 N, class V>
GLMC_DEVICE void put_piece(const V& v, u8* y, u64 to) {
  for (u32 i = glmc_thread(); i < N; i += glmc_threads()) PUT::put(y, to + i, v(i));
}

template <class PUT, u32 N, class V>
GLMC_DEVICE void put_rotated_piece(const V& v, u8* y, u64 to, const f64* frequencies, i32 pos) {
  for (u32 j = glmc_thread(); j < N / 2; j += glmc_threads())
    put_rotated<PUT>(v(2 * j), v(2 * j + 1), y, to + 2 * j, f64(pos) * frequencies[j]);
}

// Where token `row` of `count` goes in a pool of `rows` rows: nowhere if its id is none, or if a later token has it.
GLMC_DEVICE i64 place_in_pool(const i32* ids, u64 row, u64 count, u32 rows) {
  i32 to = ids[row];
  bool later = false;
  for (u64 u = row + 1 + glmc_thread(); u < count; u += glmc_threads()) later |= ids[u] == to;
  later = glmc_sync_any(later);
  return to < 0 || u32(to) >= rows || later ? -1 : i64(to);
}

template <class C>
GLMC_DEVICE void rows_of_pieces(const typename C::Arguments& args) {
  GLMC_SHARED(f32, scratch, 0);
  glmc_launch_trigger();
  glmc_launch_wait();
  u64 rows = C::rows(args);
  for (u64 row = glmc_block_x(); row < rows; row += glmc_grid_x()) {
    i64 to = C::place(args, row);
    if (to >= 0) C::row(args, row, u64(to), scratch);
  }
}
