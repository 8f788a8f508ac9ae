// Matrices against many vectors (columns): a block makes TILE_ROWS rows by TILE_COLUMNS columns, TILE_K of the summed
// index at a time through shared memory, so that a decoded weight serves a whole tile. The columns are tokens, or the
// choices of one expert.
//
// Config: X, W, PUT, K, RUN, MATH (TileF32 or TileBF16), w(args).
#pragma once
#include "quant/run.cuh"

constexpr u32 TILE_ROWS = 64, TILE_K = 32;

// One tile: rows `rows` from element `w` on; column c starts at element x[c] and its results at y[c].
struct TileAt {
  u64 w;
  u32 rows, columns;
  u64 *x, *y;
};

// Exact: 64 columns, a thread 4 rows by 4 columns, operands by k in shared memory.
struct TileF32 {
  static constexpr u32 COLUMNS = 64, STEP = TILE_ROWS + 4, SHARED = 2 * TILE_K * STEP * 4;
  f32 sum[4][4];

  GLMC_DEVICE void clear() {
    for (u32 a = 0; a < 4; ++a)
      for (u32 b = 0; b < 4; ++b) sum[a][b] = 0.0f;
  }
  // Eight elements of line `line` (of the first operand, or the second), from `at` on.
  GLMC_DEVICE static void store(u8* shared, bool second, u32 line, u32 at, const f32 (&v)[8]) {
    f32* to = reinterpret_cast<f32*>(shared) + (second ? TILE_K * STEP : 0);
#pragma unroll
    for (u32 e = 0; e < 8; ++e) to[(at + e) * STEP + line] = v[e];
  }
  GLMC_DEVICE void multiply(const u8* shared) {
    const f32* ws = reinterpret_cast<const f32*>(shared) + glmc_thread() / 16 * 4;
    const f32* xs = reinterpret_cast<const f32*>(shared) + TILE_K * STEP + glmc_thread() % 16 * 4;
#pragma unroll 8
    for (u32 i = 0; i < TILE_K; ++i) {
      F4 wv = *reinterpret_cast<const F4*>(ws + i * STEP), xv = *reinterpret_cast<const F4*>(xs + i * STEP);
      f32 wl[4] = {wv.x, wv.y, wv.z, wv.w}, xl[4] = {xv.x, xv.y, xv.z, xv.w};
#pragma unroll
      for (u32 a = 0; a < 4; ++a)
#pragma unroll
        for (u32 b = 0; b < 4; ++b) sum[a][b] = glmc_fma(wl[a], xl[b], sum[a][b]);
    }
  }
  template <class PUT>
  GLMC_DEVICE void write(u8* out, const TileAt& t) const {
    u32 r = glmc_thread() / 16 * 4, c = glmc_thread() % 16 * 4;
#pragma unroll
    for (u32 b = 0; b < 4; ++b)
#pragma unroll
      for (u32 a = 0; a < 4; ++a)
        if (c + b < t.columns && r + a < t.rows) PUT::put(out, t.y[c + b] + r + a, sum[a][b]);
  }
};

// Tensor cores, sums in f32: 128 columns, a warp 16 rows by 64 columns. Columns are rounded to bf16; a weight is the
// sum of two bf16, so that only the columns' rounding is left in the result.
struct TileBF16 {
  static constexpr u32 COLUMNS = 128, STEP = TILE_K + 8;
  static constexpr u32 PLANE = TILE_ROWS * STEP * 2, SHARED = 2 * PLANE + COLUMNS * STEP * 2;
  f32 sum[8][4];

  GLMC_DEVICE void clear() {
    for (u32 a = 0; a < 8; ++a)
      for (u32 b = 0; b < 4; ++b) sum[a][b] = 0.0f;
  }
  GLMC_DEVICE static U4 pack(const f32 (&v)[8]) {
    return {glmc_pack_bf16(v[0], v[1]), glmc_pack_bf16(v[2], v[3]), glmc_pack_bf16(v[4], v[5]),
            glmc_pack_bf16(v[6], v[7])};
  }
  GLMC_DEVICE static void store(u8* shared, bool second, u32 line, u32 at, const f32 (&v)[8]) {
    U4 high = pack(v);
    u32 offset = (line * STEP + at) * 2;
    *reinterpret_cast<U4*>(shared + (second ? 2 * PLANE : 0) + offset) = high;
    if (second) return;
    u32 words[4] = {high.x, high.y, high.z, high.w};
    f32 rest[8];
#pragma unroll
    for (u32 e = 0; e < 8; ++e) rest[e] = v[e] - bf16_to_float(u16(words[e / 2] >> (16 * (e % 2))));
    *reinterpret_cast<U4*>(shared + PLANE + offset) = pack(rest);
  }
  GLMC_DEVICE void multiply(const u8* shared) {
    u32 g = glmc_lane() / 4, i = glmc_lane() % 4, row = glmc_warp() % 4 * 16, column = glmc_warp() / 4 * 64;
    auto word = [&](u32 plane, u32 line, u32 k) {
      return *reinterpret_cast<const u32*>(shared + plane + (line * STEP + k) * 2);
    };
#pragma unroll
    for (u32 k = 0; k < TILE_K; k += 16) {
      u32 a[2][4];
#pragma unroll
      for (u32 part = 0; part < 2; ++part)
#pragma unroll
        for (u32 n = 0; n < 4; ++n) a[part][n] = word(part * PLANE, row + g + n % 2 * 8, k + 2 * i + n / 2 * 8);
#pragma unroll
      for (u32 n = 0; n < 8; ++n) {
        u32 b[2] = {word(2 * PLANE, column + 8 * n + g, k + 2 * i), word(2 * PLANE, column + 8 * n + g, k + 2 * i + 8)};
        glmc_mma_bf16(sum[n], a[0], b);
        glmc_mma_bf16(sum[n], a[1], b);
      }
    }
  }
  template <class PUT>
  GLMC_DEVICE void write(u8* out, const TileAt& t) const {
    u32 row = glmc_warp() % 4 * 16 + glmc_lane() / 4, column = glmc_warp() / 4 * 64 + glmc_lane() % 4 * 2;
#pragma unroll
    for (u32 n = 0; n < 8; ++n)
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        u32 r = row + e / 2 * 8, c = column + 8 * n + e % 2;
        if (c < t.columns && r < t.rows) PUT::put(out, t.y[c] + r, sum[n][e]);
      }
  }
};

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

// All threads of a block of 256; `shared` holds MATH::SHARED bytes.
template <class C>
GLMC_DEVICE void tile(const typename C::Arguments& args, const TileAt& t, u8* shared) {
  typedef typename C::MATH M;
  M math;
  math.clear();
  u32 line = glmc_thread() / 4, at = glmc_thread() % 4 * 8;
  for (u32 k = 0; k < C::K; k += TILE_K) {
    f32 v[8] = {};
    if (line < t.rows) read_eight<typename C::W, C::RUN>(C::w(args), t.w + u64(line) * C::K, k + at, C::K, v);
    glmc_sync();
    M::store(shared, false, line, at, v);
#pragma unroll
    for (u32 c = line; c < M::COLUMNS; c += 64) {
      f32 x[8] = {};
      if (c < t.columns) read_eight<typename C::X, C::RUN>(args.x, t.x[c], k + at, C::K, x);
      M::store(shared, true, c, at, x);
    }
    glmc_sync();
    math.multiply(shared);
  }
  math.template write<typename C::PUT>(args.y, t);
}

// y[t, r] = x[t, r / FREE, :] . w[r, :]. Blocks: x over batches and row tiles, y over token tiles.
// Config further: FREE, XSTEP, YSTEP, YFIRST, tokens(args).
template <class C>
GLMC_DEVICE void matmul_tile(const typename C::Arguments& args) {
  constexpr u32 COLUMNS = C::MATH::COLUMNS, TILES = (C::FREE + TILE_ROWS - 1) / TILE_ROWS;
  GLMC_SHARED(u64, x, 0);
  GLMC_SHARED(u64, y, 8 * COLUMNS);
  GLMC_SHARED(u8, shared, 16 * COLUMNS);
  u32 batch = glmc_block_x() / TILES, row = glmc_block_x() % TILES * TILE_ROWS;
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 tokens = C::tokens(args), rows = C::FREE - row < TILE_ROWS ? C::FREE - row : TILE_ROWS;
  u32 first = batch * C::FREE + row;
  for (u32 t = glmc_block_y() * COLUMNS; t < tokens; t += glmc_grid_y() * COLUMNS) {
    glmc_sync();
    for (u32 c = glmc_thread(); c < COLUMNS; c += glmc_threads()) {
      x[c] = u64(t + c) * C::XSTEP + u64(batch) * C::K;
      y[c] = u64(t + c) * C::YSTEP + C::YFIRST + first;
    }
    glmc_sync();
    TileAt at = {u64(first) * C::K, rows, tokens - t < COLUMNS ? tokens - t : COLUMNS, x, y};
    tile<C>(args, at, shared);
  }
}
