// Few tokens against a matrix in the lane layout, the weights of a block in shared memory: one bulk copy a plane,
// issued before the wait for the launch that makes x, since weights depend on no launch. So the copies hide the
// launch, and whatever the launch before waits for. With experts the ids come first. A block whose rows do not fit
// goes through them in stages, each with a barrier of its own.
//
// Config: L (lane type), X, PUT, K, ROWS, BLOCK_ROWS, STAGE_ROWS, STAGES, SHARED_WEIGHTS, LANES (of a row), TOKENS,
// UNITS_TOTAL, BULK, INT8, FREE, XSTEP, YSTEP, YFIRST, tokens(args), w(args); experts also SLOTS, PER_SLOT, EXPERTS.
#pragma once
#include "quant/lane.cuh"

// Activations in shared memory, by unit: in f32 eight planes of four floats and the sums of both halves; in 8 bits two
// planes of 16 bytes, the scale and both sums.
template <class C>
struct Activation {
  static constexpr u32 UNITS = C::K / 32, STEP = UNITS + 1;
  static constexpr u32 PLANES = C::INT8 ? 2 : 8;
  static constexpr u32 SUMS = PLANES * STEP * 16, BYTES = SUMS + (UNITS * 8 + 15) / 16 * 16;
};

// One token's vector of K elements from `from` on. A thread takes four elements, eight neighbours share a unit.
template <class C>
GLMC_DEVICE void load_activation(u8* to, const u8* x, u64 from) {
  typedef Activation<C> A;
  for (u32 base = 0; base < C::K / 4; base += glmc_threads()) {
    u32 i = base + glmc_thread(), unit = i / 8, group = i % 8;
    bool here = i < C::K / 4;
    f32 v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (here) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) v[e] = element<typename C::X>(x, from + 4 * i + e);
    }
    if (C::INT8) {
      f32 most = glmc_max(glmc_max(glmc_abs(v[0]), glmc_abs(v[1])), glmc_max(glmc_abs(v[2]), glmc_abs(v[3])));
      for (u32 m = 4; m; m >>= 1) most = glmc_max(most, glmc_shuffle_xor(most, m));
      f32 scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f;
      u32 word = 0;
      i32 sum = 0;
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        i32 q = glmc_round(v[e] * inverse);
        sum += q;
        word |= (u32(q) & 255u) << (8 * e);
      }
      sum += glmc_shuffle_xor(sum, 1);
      sum += glmc_shuffle_xor(sum, 2);
      i32 other = glmc_shuffle_xor(sum, 4);
      // NaN would vanish in the rounding: the scale carries it on.
      f32 check = (v[0] + v[1]) + (v[2] + v[3]);
      for (u32 m = 4; m; m >>= 1) check += glmc_shuffle_xor(check, m);
      if (here) {
        reinterpret_cast<u32*>(to + (group / 4 * A::STEP + unit) * 16)[group % 4] = word;
        if (group == 0) {
          U2* sums = reinterpret_cast<U2*>(to + A::SUMS) + unit;
          *sums = {glmc_float_to_bits(check - check == 0.0f ? scale : check - check),
                   (u32(sum) & 0xffffu) | u32(other) << 16};
        }
      }
    } else {
      f32 sum = (v[0] + v[1]) + (v[2] + v[3]);
      sum += glmc_shuffle_xor(sum, 1);
      sum += glmc_shuffle_xor(sum, 2);
      if (here) {
        *reinterpret_cast<F4*>(to + (group * A::STEP + unit) * 16) = {v[0], v[1], v[2], v[3]};
        if (group % 4 == 0) reinterpret_cast<f32*>(to + A::SUMS)[2 * unit + group / 4] = sum;
      }
    }
  }
}

// The product of a unit of weights with the same unit of a token.
template <class C>
GLMC_DEVICE f32 unit_dot(const Unit& w, const u8* x, u32 unit) {
  typedef Activation<C> A;
  if (C::INT8) {
    U2 sums = reinterpret_cast<const U2*>(x + A::SUMS)[unit];
    f32 result = 0.0f;
    i32 all = 0;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      U4 v = load16(x + (half * A::STEP + unit) * 16);
      i32 sum = half ? i32(sums.y) >> 16 : i32(i16(sums.y)), dot = -i32(C::L::BIAS) * sum;
      dot = glmc_dp4a_us(w.codes[4 * half], v.x, dot);
      dot = glmc_dp4a_us(w.codes[4 * half + 1], v.y, dot);
      dot = glmc_dp4a_us(w.codes[4 * half + 2], v.z, dot);
      dot = glmc_dp4a_us(w.codes[4 * half + 3], v.w, dot);
      result = glmc_fma(w.scale[half], f32(dot), result);
      all += sum;
    }
    return glmc_bits_to_float(sums.x) * glmc_fma(-w.min, f32(all), result);
  }
  const f32* sums = reinterpret_cast<const f32*>(x + A::SUMS) + 2 * unit;
  f32 result = -w.min * (sums[0] + sums[1]);
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    f32 dot = 0.0f;
#pragma unroll
    for (u32 g = 4 * half; g < 4 * half + 4; ++g) {
      F4 v = *reinterpret_cast<const F4*>(x + (g * A::STEP + unit) * 16);
      dot = glmc_fma(code_value<typename C::L>(w.codes[g], 0), v.x, dot);
      dot = glmc_fma(code_value<typename C::L>(w.codes[g], 1), v.y, dot);
      dot = glmc_fma(code_value<typename C::L>(w.codes[g], 2), v.z, dot);
      dot = glmc_fma(code_value<typename C::L>(w.codes[g], 3), v.w, dot);
    }
    result = glmc_fma(w.scale[half], dot, result);
  }
  return result;
}

// Barriers, then the stages.
constexpr u32 BARRIERS = 64;

template <class C>
struct Weights {
  static constexpr u32 UNITS = C::K / 32;
  static constexpr u32 END = BARRIERS + (C::BULK ? C::SHARED_WEIGHTS : 0);
  // Bytes that a copy of `rows` rows takes. Planes are padded to 16 bytes, so the last rows may bring up to 15 more.
  GLMC_DEVICE static constexpr u32 copied(u32 plane, u32 rows) {
    return (u32(C::L::bytes(plane, rows * UNITS)) + 15) / 16 * 16;
  }
  // Where a plane of a stage lies.
  GLMC_DEVICE static constexpr u32 start(u32 plane) {
    u32 at = BARRIERS;
    for (u32 i = 0; i < plane; ++i) at += copied(i, C::STAGE_ROWS);
    return at;
  }
  static constexpr u32 STAGE = C::SHARED_WEIGHTS / C::STAGES;
};

// The planes of a tensor from unit `unit` on.
template <class C>
GLMC_DEVICE void planes_from(const typename C::Arguments& args, u64 unit, Planes& p) {
  find_planes<typename C::L>(C::w(args), C::UNITS_TOTAL, p);
#pragma unroll
  for (u32 i = 0; i < C::L::PLANES; ++i) p[i] += C::L::bytes(i, unit);
}

// Starts the copies of stage n of `rows` rows whose planes are `p`. One thread.
template <class C>
GLMC_DEVICE void issue_stage(const Planes& p, u32 n, u32 rows) {
  typedef Weights<C> W;
  GLMC_SHARED(u64, barriers, 0);
  GLMC_SHARED(u8, shared, n % C::STAGES * W::STAGE);
  u32 first = n * C::STAGE_ROWS, here = rows - first < C::STAGE_ROWS ? rows - first : C::STAGE_ROWS, total = 0;
  u64* barrier = barriers + n % C::STAGES;
#pragma unroll
  for (u32 i = 0; i < C::L::PLANES; ++i) total += W::copied(i, here);
  glmc_barrier_expect(barrier, total);
#pragma unroll
  for (u32 i = 0; i < C::L::PLANES; ++i)
    glmc_bulk_copy(shared + W::start(i), p[i] + C::L::bytes(i, u64(first) * W::UNITS), W::copied(i, here), barrier);
}

template <class C>
GLMC_DEVICE void prepare_barriers() {
  GLMC_SHARED(u64, barriers, 0);
  if (!C::BULK) return;
  if (glmc_thread() == 0)
    for (u32 i = 0; i < C::STAGES; ++i) glmc_barrier_init(barriers + i);
  glmc_sync();
}

// Starts as many stages as there is room for.
template <class C>
GLMC_DEVICE void begin_weights(const Planes& p, u32 rows) {
  if (!C::BULK || glmc_thread() != 0) return;
  for (u32 n = 0; n < C::STAGES && n * C::STAGE_ROWS < rows; ++n) issue_stage<C>(p, n, rows);
}

// Rows [first, first + rows) against the tokens in shared memory.
template <class C>
GLMC_DEVICE void multiply(const typename C::Arguments& args, const Planes& p, const u8* x, u32 first, u32 rows,
                          u32 tokens, u64 y) {
  typedef Activation<C> A;
  constexpr u32 PER_WARP = WARP / C::LANES;
  u32 warps = glmc_threads() / WARP, lane = glmc_lane() % C::LANES;
  for (u32 base = glmc_warp() * PER_WARP; base < rows; base += warps * PER_WARP) {
    u32 row = base + glmc_lane() / C::LANES;
    f32 sum[C::TOKENS] = {};
    if (row < rows) {
#pragma unroll 2
      for (u32 u = lane; u < A::UNITS; u += C::LANES) {
        Unit w = C::L::read(p, u64(row) * A::UNITS + u);
#pragma unroll
        for (u32 j = 0; j < C::TOKENS; ++j) sum[j] += unit_dot<C>(w, x + j * A::BYTES, u);
      }
    }
#pragma unroll
    for (u32 j = 0; j < C::TOKENS; ++j) {
      for (u32 m = C::LANES / 2; m; m >>= 1) sum[j] += glmc_shuffle_xor(sum[j], m);
      if (lane == 0 && row < rows && j < tokens) C::PUT::put(args.y, y + u64(j) * C::YSTEP + first + row, sum[j]);
    }
  }
}

// The block's rows, stage by stage; x is in shared memory.
template <class C>
GLMC_DEVICE void multiply_stages(const typename C::Arguments& args, const Planes& p, const u8* x, u32 first, u32 rows,
                                 u32 tokens, u64 y) {
  typedef Weights<C> W;
  if (!C::BULK) {
    glmc_sync();
    multiply<C>(args, p, x, first, rows, tokens, y);
    return;
  }
  GLMC_SHARED(u64, barriers, 0);
  glmc_sync();
  for (u32 n = 0; n * C::STAGE_ROWS < rows; ++n) {
    GLMC_SHARED(u8, shared, n % C::STAGES * W::STAGE);
    u32 at = n * C::STAGE_ROWS, here = rows - at < C::STAGE_ROWS ? rows - at : C::STAGE_ROWS;
    Planes q;
#pragma unroll
    for (u32 i = 0; i < C::L::PLANES; ++i) q[i] = shared + W::start(i);
    glmc_barrier_wait(barriers + n % C::STAGES, n / C::STAGES & 1u);
    multiply<C>(args, q, x, first + at, here, tokens, y);
    if ((n + C::STAGES) * C::STAGE_ROWS >= rows) continue;
    // Every warp has read the stage before it is filled again.
    glmc_sync();
    if (glmc_thread() == 0) issue_stage<C>(p, n + C::STAGES, rows);
  }
}

template <class C>
GLMC_DEVICE void gemv_lane(const typename C::Arguments& args) {
  typedef Activation<C> A;
  GLMC_SHARED(u8, x, Weights<C>::END);
  u32 first = glmc_block_x() * C::BLOCK_ROWS;
  if (first >= C::ROWS) return;
  u32 rows = C::ROWS - first < C::BLOCK_ROWS ? C::ROWS - first : C::BLOCK_ROWS;
  glmc_launch_trigger();
  prepare_barriers<C>();
  Planes p;
  planes_from<C>(args, u64(first) * A::UNITS, p);
  begin_weights<C>(p, rows);
  glmc_launch_wait();
  u32 tokens = C::tokens(args);
#pragma unroll
  for (u32 j = 0; j < C::TOKENS; ++j) {
    // Tokens past the end repeat the last one; they are not written.
    u64 from = u64(j < tokens ? j : tokens ? tokens - 1 : 0) * C::XSTEP + u64(first / C::FREE) * C::K;
    load_activation<C>(x + j * A::BYTES, args.x, from);
  }
  multiply_stages<C>(args, p, x, first, rows, tokens, C::YFIRST);
}

// A choice a block in y.
template <class C>
GLMC_DEVICE void grouped_lane(const typename C::Arguments& args) {
  GLMC_SHARED(u8, x, Weights<C>::END);
  u32 first = glmc_block_x() * C::BLOCK_ROWS, choice = glmc_block_y();
  u32 rows = C::ROWS - first < C::BLOCK_ROWS ? C::ROWS - first : C::BLOCK_ROWS;
  glmc_launch_trigger();
  prepare_barriers<C>();
  glmc_launch_wait();
  if (choice >= C::tokens(args)) return;
  i32 id = reinterpret_cast<const i32*>(args.ids)[choice];
  u64 y = u64(choice) * C::ROWS;
  if (id < 0 || id >= i32(C::EXPERTS)) {
    for (u32 r = glmc_thread(); r < rows; r += glmc_threads())
      C::PUT::put(args.y, y + first + r, id < 0 ? 0.0f : not_a_number());
    return;
  }
  Planes p;
  planes_from<C>(args, (u64(id) * C::ROWS + first) * (C::K / 32), p);
  begin_weights<C>(p, rows);
  load_activation<C>(x, args.x, u64(C::PER_SLOT ? choice : choice / C::SLOTS) * C::K);
  multiply_stages<C>(args, p, x, first, rows, 1, y);
}
