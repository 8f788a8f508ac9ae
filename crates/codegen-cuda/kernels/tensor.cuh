// Matrices against many vectors (columns) on tensor cores, sums in f32. A block of 8 warps makes 64 M rows by COLUMNS
// columns: four warps share the rows, and two of each quarter take turns at 16 columns. 32 of the summed index at a time go through shared memory: columns, split by
// a launch before (split.cuh), by asynchronous copies some steps ahead; weights are loaded a step ahead and decoded into
// one of two buffers while the tensor cores read the other. Each 32 (or 16) products are summed on their own and then
// added to the total, so that what tensor cores lose in adding stays small.
//
// Config: M, COLUMNS, V (see split.cuh), W (Codes or Floats below), PUT, w(args).
#pragma once
#include "quant/lane.cuh"
#include "split.cuh"

constexpr u32 TILE_K = 32, TILE_WARPS = 8, TILE_THREADS = 256, TILE_STAGES = 3, LINE = 2 * TILE_K;

// Byte of chunk `chunk` (of 4, 16 bytes each) of line `line`. Equal chunks of eight lines lie in different banks.
GLMC_DEVICE u32 chunk_at(u32 line, u32 chunk) { return line * LINE + ((chunk ^ (line >> 1 & 3u)) << 4); }

// Where a block's rows are: from row `row` of the matrix that starts at element `matrix` on.
struct TileRows {
  u64 matrix;
  u32 row, rows;
};

// Weights of the lane layout: their codes are exact as halves, and scales go to the sums. A thread a row.
template <class L, u64 UNITS, u32 K, u32 M>
struct Codes {
  static constexpr bool PAIRS = L::HALVES, MIN = L::MIN;
  static constexpr u32 PLANES = 1, ROWS = 64 * M;
  struct Held {
    Raw raw;
  };
  // The first unit of the thread's row. Rows past the last one repeat it; they are not written.
  GLMC_DEVICE static u32 place(const TileRows& t) {
    u32 row = glmc_thread() < t.rows ? glmc_thread() : t.rows - 1;
    return u32(t.matrix / 32) + (t.row + row) * (K / 32);
  }
  GLMC_DEVICE static void load(const u8* base, const TileRows&, u32 place, u32 step, Held& h) {
    Planes p;
    find_planes<L>(base, UNITS, p);
    U4 header = h.raw.b;
    h.raw = L::load(p, u64(place) + step);
    // Eight units share a header; the load that is not needed is left out.
    if (MIN && K % 256 == 0 && step % 8) h.raw.b = header;
  }
  GLMC_DEVICE static void store(const Held& h, u32 place, u32 step, u8* lines, f32* scales) {
    constexpr u32 LESS = 0x6400u + (L::SIGNED ? 128u : L::BIAS);
    u32 row = glmc_thread();
    if (row >= ROWS) return;
    Unit u = L::unpack(h.raw, (place + step) % 8);
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      u32 a = u.codes[2 * c], b = u.codes[2 * c + 1];
      // Signed bytes are made unsigned first.
      if (L::SIGNED) a ^= 0x80808080u, b ^= 0x80808080u;
      U4 v = {glmc_byte_halves(a, 0, LESS * 0x10001u), glmc_byte_halves(a, 1, LESS * 0x10001u),
              glmc_byte_halves(b, 0, LESS * 0x10001u), glmc_byte_halves(b, 1, LESS * 0x10001u)};
      *reinterpret_cast<U4*>(lines + chunk_at(row, c)) = v;
    }
    scales[row] = u.scale[0];
    if (PAIRS) scales[ROWS + row] = u.scale[1];
    if (MIN) scales[ROWS + row] = -u.min;
  }
};

// Any weights, each the sum of two halves; 32 of a row are scaled by a power of two as vectors are. Element (r, k) of a matrix is at (r / INNER K + k) INNER + r % INNER.
template <class Q, u32 RUN, u32 K, u32 INNER, u32 M>
struct Floats {
  static constexpr bool PAIRS = false, MIN = false;
  static constexpr u32 PLANES = 2, ROWS = 64 * M, RUNS = M, PLANE = ROWS * LINE;
  struct Held {
    f32 v[RUNS][8];
  };
  GLMC_DEVICE static u32 place(const TileRows&) { return 0; }
  GLMC_DEVICE static void load(const u8* base, const TileRows& t, u32, u32 step, Held& h) {
#pragma unroll
    for (u32 i = 0; i < RUNS; ++i) {
#pragma unroll
      for (u32 e = 0; e < 8; ++e) h.v[i][e] = 0.0f;
      if constexpr (INNER == 1) {
        u32 row = glmc_thread() / 4 + 64 * i, k = step * TILE_K + glmc_thread() % 4 * 8;
        if (row < t.rows) read_eight<Q, RUN>(base, t.matrix + u64(t.row + row) * K, k, K, h.v[i]);
      } else {
        // Eight rows of one k: lanes over k.
        u32 row = 8 * (glmc_warp() + TILE_WARPS * i), k = step * TILE_K + glmc_lane();
        if (row >= t.rows || k >= K) continue;
        if constexpr (RUN == 8) {
          u32 r = t.row + row;
          Run<Q, 8>::read(base, t.matrix + (u64(r / INNER) * K + k) * INNER + r % INNER, h.v[i]);
        } else {
#pragma unroll
          for (u32 e = 0; e < 8; ++e) {
            u32 r = t.row + row + e;
            if (row + e < t.rows) h.v[i][e] = element<Q>(base, t.matrix + (u64(r / INNER) * K + k) * INNER + r % INNER);
          }
        }
      }
    }
  }
  GLMC_DEVICE static void store(Held& h, u32, u32, u8* lines, f32* scales) {
#pragma unroll
    for (u32 i = 0; i < RUNS; ++i) {
      if constexpr (INNER == 1) {
        u32 row = glmc_thread() / 4 + 64 * i, most = largest(h.v[i]);
        most = glmc_max(most, glmc_shuffle_xor(most, 1));
        PowerOfTwo power = near_top(glmc_max(most, glmc_shuffle_xor(most, 2)));
#pragma unroll
        for (u32 e = 0; e < 8; ++e) h.v[i][e] *= power.scale;
        if (glmc_thread() % 4 == 0) scales[row] = power.inverse;
#pragma unroll
        for (u32 plane = 0; plane < 2; ++plane)
          *reinterpret_cast<U4*>(lines + plane * PLANE + chunk_at(row, glmc_thread() % 4)) = take_half(h.v[i]);
      } else {
        u32 row = 8 * (glmc_warp() + TILE_WARPS * i);
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
          u32 most = glmc_float_to_bits(h.v[i][e]) & 0x7fffffffu;
#pragma unroll
          for (u32 n = 16; n; n >>= 1) most = glmc_max(most, glmc_shuffle_xor(most, n));
          PowerOfTwo power = near_top(most);
          if (glmc_lane() == e) scales[row + e] = power.inverse;
          h.v[i][e] *= power.scale;
        }
#pragma unroll
        for (u32 plane = 0; plane < 2; ++plane) {
          U4 v = take_half(h.v[i]);
          u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (u32 e = 0; e < 8; ++e)
            *reinterpret_cast<u16*>(lines + plane * PLANE + chunk_at(row + e, glmc_lane() / 8) + glmc_lane() % 8 * 2) =
                u16(words[e / 2] >> (16 * (e % 2)));
        }
      }
    }
  }
};

// Shared memory of a block in bytes; the generator counts the same.
template <class C>
struct TileMemory {
  static constexpr u32 ROWS = 64 * C::M, X_PLANE = C::COLUMNS * LINE, X_STAGE = C::V::PARTS * X_PLANE;
  static constexpr u32 W_STAGE = C::W::PLANES * ROWS * LINE, X = 0, W = TILE_STAGES * X_STAGE;
  static constexpr u32 SCALES = W + 2 * W_STAGE, SCALE_STAGE = 2 * ROWS;
  static constexpr u32 SUMS = SCALES + 8 * SCALE_STAGE, Y = SUMS + 8 * C::COLUMNS, VECTORS = Y + 8 * C::COLUMNS;
  static constexpr u32 INVERSES = VECTORS + 4 * C::COLUMNS;
};

// A warp's first row, and which of its quarter's columns it takes.
template <u32 M>
GLMC_DEVICE u32 tile_row() {
  return glmc_warp() % 4 * 16 * M;
}
GLMC_DEVICE u32 tile_side() { return glmc_warp() / 4; }

// Products of KS pieces of 16 of the summed index, from piece `from` on, added to the totals of a warp by `scales`, a
// float a row; with WITH_MIN also `min` times the columns' sums.
template <class C, u32 KS, bool WITH_MIN>
GLMC_DEVICE void multiply(const u8* x, const u8* w, u32 from, const f32* scales, const f32* min, const f32* sums,
                          u32 columns, f32 (&total)[C::M][C::COLUMNS / 16][4]) {
  typedef TileMemory<C> S;
  constexpr u32 M = C::M, PLANES = C::W::PLANES;
  u32 lane = glmc_lane(), first = tile_row<M>(), side = tile_side(), g = lane / 4, j = lane % 4 * 2;
  u32 a[M][KS][PLANES][4];
  f32 scale[M][2], less[M][2];
#pragma unroll
  for (u32 m = 0; m < M; ++m) {
#pragma unroll
    for (u32 k = 0; k < KS; ++k)
#pragma unroll
      for (u32 plane = 0; plane < PLANES; ++plane)
        glmc_load_matrices(
            a[m][k][plane],
            w + plane * S::ROWS * LINE + chunk_at(first + 16 * m + lane % 16, 2 * (from + k) + lane / 16));
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      u32 row = first + 16 * m + 8 * h + g;
      scale[m][h] = scales[row];
      less[m][h] = WITH_MIN ? min[row] : 0.0f;
    }
  }
#pragma unroll
  for (u32 i = 0; i < C::COLUMNS / 32; ++i) {
    // Past the last column nothing is computed; the branch also keeps registers few.
    u32 column = 32 * i + 16 * side;
    if (column >= columns) continue;
    f32 acc[M][2][4] = {};
#pragma unroll
    for (u32 k = 0; k < KS; ++k)
#pragma unroll
      for (u32 part = 0; part < C::V::PARTS; ++part) {
        u32 b[4], line = column + lane / 16 * 8 + lane % 8;
        glmc_load_matrices(b, x + part * S::X_PLANE + chunk_at(line, 2 * (from + k) + lane / 8 % 2));
        // What is left of both is too small to matter.
#pragma unroll
        for (u32 plane = 0; plane < PLANES - (PLANES > 1 ? part : 0); ++plane)
#pragma unroll
          for (u32 m = 0; m < M; ++m)
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
              u32 two[2] = {b[2 * n], b[2 * n + 1]};
              glmc_mma_f16(acc[m][n], a[m][k][plane], two);
            }
      }
#pragma unroll
    for (u32 n = 0; n < 2; ++n) {
      U2 sum = {0, 0};
      if (WITH_MIN) sum = load8(reinterpret_cast<const u8*>(sums + column + 8 * n + j));
#pragma unroll
      for (u32 m = 0; m < M; ++m)
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          f32& t = total[m][2 * i + n][e];
          t = glmc_fma(scale[m][e / 2], acc[m][n][e], t);
          if (WITH_MIN) t = glmc_fma(less[m][e / 2], glmc_bits_to_float(e % 2 ? sum.y : sum.x), t);
        }
    }
  }
}

// One tile; all threads of the block. Column c is vector `vectors[c]`, its results start at y[c]; both lie in shared
// memory and are complete for all COLUMNS.
template <class C>
GLMC_DEVICE void tensor_tile(const typename C::Arguments& args, const TileRows& t, u32 columns, const u32* vectors,
                             const u64* y) {
  typedef TileMemory<C> S;
  typedef typename C::V V;
  typedef typename C::W W;
  constexpr u32 STEPS = V::PADDED / TILE_K, COPIES = C::COLUMNS / 64;
  GLMC_SHARED(u8, x, S::X);
  GLMC_SHARED(u8, w, S::W);
  GLMC_SHARED(f32, scales, S::SCALES);
  GLMC_SHARED(f32, sums, S::SUMS);
  GLMC_SHARED(f32, inverses, S::INVERSES);
  // Read behind the barrier of the first step.
  if (glmc_thread() < C::COLUMNS) inverses[glmc_thread()] = V::inverse(args)[vectors[glmc_thread()]];
  auto copy = [&](u32 step) {
#pragma unroll
    for (u32 i = 0; i < COPIES; ++i) {
      u32 c = glmc_thread() / 4 + 64 * i, chunk = glmc_thread() % 4;
      // Sixteen columns are multiplied at once.
      if (step >= STEPS || c / 16 * 16 >= columns) continue;
      u64 from = (u64(step) * V::COUNT + vectors[c]) * LINE + chunk * 16;
#pragma unroll
      for (u32 part = 0; part < V::PARTS; ++part)
        glmc_copy16(x + step % TILE_STAGES * S::X_STAGE + part * S::X_PLANE + chunk_at(c, chunk),
                    V::halves(args, part) + from);
    }
    glmc_copy_commit();
  };
  u32 place = W::place(t);
  typename W::Held held = {};
  f32 sum = 0.0f;
  auto load = [&](u32 step) {
    if (step >= STEPS) return;
    W::load(C::w(args), t, place, step, held);
    if (W::MIN && glmc_thread() < C::COLUMNS) sum = V::sums(args)[u64(step) * V::COUNT + vectors[glmc_thread()]];
  };
  auto store = [&](u32 step) {
    if (step >= STEPS) return;
    u32 buffer = step % 2;
    W::store(held, place, step, w + buffer * S::W_STAGE, scales + buffer * S::SCALE_STAGE);
    if (W::MIN && glmc_thread() < C::COLUMNS) sums[buffer * C::COLUMNS + glmc_thread()] = sum;
  };
  auto prepare = [&](u32 step) {
    copy(step + 2);
    store(step + 1);
    load(step + 2);
  };
  copy(0);
  copy(1);
  load(0);
  store(0);
  load(1);
  f32 total[C::M][C::COLUMNS / 16][4] = {};
  u32 row = tile_row<C::M>() + glmc_lane() / 4;
  for (u32 step = 0; step < STEPS; ++step) {
    glmc_copy_wait<1>();
    glmc_sync();
    // One of the two warps that share a scheduler prepares what comes while the other keeps the tensor cores busy.
    bool before = tile_side() == 0;
    if (before) prepare(step);
    // Rows past the last one are nobody's.
    if (tile_row<C::M>() < t.rows) {
      const u8 *xs = x + step % TILE_STAGES * S::X_STAGE, *ws = w + step % 2 * S::W_STAGE;
      const f32 *scale = scales + step % 2 * S::SCALE_STAGE, *second = scale + S::ROWS;
      const f32* sum_of = sums + step % 2 * C::COLUMNS;
      if constexpr (W::PAIRS) {
        // Sixteen weights have a scale of their own.
        multiply<C, 1, false>(xs, ws, 0, scale, nullptr, nullptr, columns, total);
        multiply<C, 1, false>(xs, ws, 1, second, nullptr, nullptr, columns, total);
      } else {
        multiply<C, 2, W::MIN>(xs, ws, 0, scale, second, sum_of, columns, total);
      }
    }
    if (!before) prepare(step);
  }
  glmc_copy_wait_all();
  u32 left = row < t.rows ? t.rows - row : 0;
#pragma unroll
  for (u32 n = 0; n < C::COLUMNS / 16; ++n)
#pragma unroll
    for (u32 e = 0; e < 2; ++e) {
      u32 c = 32 * (n / 2) + 16 * tile_side() + 8 * (n % 2) + glmc_lane() % 4 * 2 + e;
      if (c >= columns) continue;
      f32 inverse = inverses[c];
      u64 to = y[c] + row;
#pragma unroll
      for (u32 m = 0; m < C::M; ++m)
#pragma unroll
        for (u32 h = 0; h < 2; ++h)
          if (16 * m + 8 * h < left) C::PUT::put(args.y, to + 16 * m + 8 * h, total[m][n][2 * h + e] * inverse);
    }
}

// y[t, r] = x[t, r / FREE, :] . w[r, :], or with INNER as in Floats. Block: of batches and row tiles; y over token tiles.
// Config further: FREE, BATCHES, YSTEP, YFIRST, tokens(args).
template <class C>
GLMC_DEVICE void matmul_tensor(const typename C::Arguments& args, u32 block) {
  constexpr u32 ROWS = 64 * C::M, TILES = (C::FREE + ROWS - 1) / ROWS;
  GLMC_SHARED(u64, y, TileMemory<C>::Y);
  GLMC_SHARED(u32, vectors, TileMemory<C>::VECTORS);
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 batch = block / TILES, row = block % TILES * ROWS, tokens = C::tokens(args);
  TileRows rows = {u64(batch) * C::FREE * C::V::K, row, C::FREE - row < ROWS ? C::FREE - row : ROWS};
  for (u32 t = glmc_block_y() * C::COLUMNS; t < tokens; t += glmc_grid_y() * C::COLUMNS) {
    u32 columns = tokens - t < C::COLUMNS ? tokens - t : C::COLUMNS;
    glmc_sync();
    for (u32 c = glmc_thread(); c < C::COLUMNS; c += glmc_threads()) {
      u32 token = t + (c < columns ? c : columns - 1);
      vectors[c] = token * C::BATCHES + batch;
      y[c] = u64(token) * C::YSTEP + C::YFIRST + u64(batch) * C::FREE + row;
    }
    glmc_sync();
    tensor_tile<C>(args, rows, columns, vectors, y);
  }
}
