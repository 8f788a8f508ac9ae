// Softmax attention of many queries on tensor cores: a block takes ROWS queries of one head and walks over KEYS keys at a
// time. Queries and keys are sums of two scaled halves, values and weights of two bf16 (a launch before splits them), so
// that scores and results are as exact as in f32. Of 8 warps four share the rows of a group in two columns: halves of the
// keys for scores, then of the values' width.
//
// Config: HEADS, KEY_HEADS, VALUE_HEADS (1 where heads share them), WIDTH of queries and keys, D (the same, a multiple of
// 16), DV, VALUES (the same, a multiple of 64), ROWS, KEYS, SCALE, LIST, WORDS, PART as in attention.cuh, tokens(args),
// sequences(args), keys(args), load_q(args, t, h, d), load_k(args, row, h, d), load_v(args, row, h, d), selected(args, t,
// i), and the parts of scratch: queries, key_rows, values (of a plane), query_scales, key_scales, bits.
#pragma once
#include "attention.cuh"
#include "split.cuh"

// Queries, keys and values as they are multiplied; a warp a row, two elements a lane.
template <class C>
GLMC_DEVICE void split_attention(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  u64 rows = u64(C::sequences(args)) * C::keys(args), queries = u64(C::tokens(args)) * C::HEADS;
  u64 keys = rows * C::KEY_HEADS, values = rows * C::VALUE_HEADS;
  constexpr u32 MOST = C::D > C::VALUES ? C::D : C::VALUES, ROUNDS = (MOST + 63) / 64;
  for (u64 n = global_thread() / WARP; n < queries + keys + values; n += global_threads() / WARP) {
    bool q = n < queries, v = n >= queries + keys;
    u64 row = q ? n : v ? n - queries - keys : n - queries;
    u32 width = v ? C::DV : C::WIDTH, padded = v ? C::VALUES : C::D, most = 0;
    f32 x[ROUNDS][2];
#pragma unroll
    for (u32 i = 0; i < ROUNDS; ++i)
#pragma unroll
      for (u32 e = 0; e < 2; ++e) {
        u32 d = 64 * i + 2 * glmc_lane() + e;
        x[i][e] = d >= width ? 0.0f
                  : q        ? C::load_q(args, u32(row / C::HEADS), u32(row % C::HEADS), d)
                  : v        ? C::load_v(args, row / C::VALUE_HEADS, u32(row % C::VALUE_HEADS), d)
                             : C::load_k(args, row / C::KEY_HEADS, u32(row % C::KEY_HEADS), d);
        most = glmc_max(most, glmc_float_to_bits(x[i][e]) & 0x7fffffffu);
      }
#pragma unroll
    for (u32 m = 16; m; m >>= 1) most = glmc_max(most, glmc_shuffle_xor(most, m));
    PowerOfTwo power = near_top(most);
    if (!v && glmc_lane() == 0) (q ? C::query_scales(args) : C::key_scales(args))[row] = power.inverse;
#pragma unroll
    for (u32 i = 0; i < ROUNDS; ++i) {
      u32 d = 64 * i + 2 * glmc_lane();
      f32 a = v ? x[i][0] : x[i][0] * power.scale, b = v ? x[i][1] : x[i][1] * power.scale;
#pragma unroll
      for (u32 part = 0; part < 2; ++part) {
        u32 w = v ? glmc_pack_bf16(a, b) : glmc_pack_half(a, b);
        a -= v ? bf16_to_float(u16(w)) : glmc_half_to_float(u16(w));
        b -= v ? bf16_to_float(u16(w >> 16)) : glmc_half_to_float(u16(w >> 16));
        u8* to = q ? C::queries(args, part) : v ? C::values(args, part) : C::key_rows(args, part);
        if (d < padded) *reinterpret_cast<u32*>(to + 2 * (row * padded + d)) = w;
      }
    }
  }
}

// The selected positions of a token as bits; a block a token.
template <class C>
GLMC_DEVICE void selection_bits(const typename C::Arguments& args) {
  GLMC_SHARED(u32, bits, 0);
  glmc_launch_wait();
  glmc_launch_trigger();
  for (u32 t = glmc_block_x(); t < C::tokens(args); t += glmc_grid_x()) {
    glmc_sync();
    for (u32 i = glmc_thread(); i < C::WORDS; i += glmc_threads()) bits[i] = 0;
    glmc_sync();
    for (u32 i = glmc_thread(); i < C::LIST; i += glmc_threads()) {
      i32 s = C::selected(args, t, i);
      if (s >= 0 && u32(s) < 32 * C::WORDS) glmc_atomic_or(&bits[s / 32], 1u << (s % 32));
    }
    glmc_sync();
    for (u32 i = glmc_thread(); i < C::WORDS; i += glmc_threads()) C::bits(args)[u64(t) * C::WORDS + i] = bits[i];
  }
}

// Shared memory in bytes; lines are padded so that equal columns of eight lines lie in different banks.
template <class C>
struct AttentionMemory {
  static constexpr u32 Q_LINE = 2 * C::D + 16, V_LINE = 2 * C::VALUES + 16, P_LINE = 2 * C::KEYS + 16;
  static constexpr u32 Q_PLANE = C::ROWS * Q_LINE, K_PLANE = C::KEYS * Q_LINE, V_PLANE = C::KEYS * V_LINE;
  static constexpr u32 P_PLANE = C::ROWS * P_LINE, Q = 0, K = 2 * Q_PLANE, V = K + 2 * K_PLANE, P = V + 2 * V_PLANE;
  static constexpr u32 MOST = P + 2 * P_PLANE, SEEN = MOST + 8 * C::ROWS, SEQUENCE = SEEN + 4 * C::ROWS;
};

// Lines `first` .. of a matrix of `count` lines of WIDTH 16-bit elements, `step` lines apart; those past the end are
// zero.
template <u32 WIDTH, u32 LINES>
GLMC_DEVICE void copy_lines(u8* to, const u8* from, u64 first, u32 step, u32 count) {
  constexpr u32 CHUNKS = WIDTH / 8;
  for (u32 i = glmc_thread(); i < LINES * CHUNKS; i += glmc_threads()) {
    u32 line = i / CHUNKS, chunk = i % CHUNKS;
    u8* at = to + line * (2 * WIDTH + 16) + 16 * chunk;
    if (line < count) glmc_copy16(at, from + ((first + u64(line) * step) * CHUNKS + chunk) * 16);
    else *reinterpret_cast<U4*>(at) = {0, 0, 0, 0};
  }
}

// acc[n] += the rows at `a` by the lines at `b` of 16 elements of the summed index: both in two planes, without the
// product of what is left of both. PAIRS of 8 columns twice.
template <u32 PAIRS, bool BF16, bool TRANSPOSED>
GLMC_DEVICE void add_products(f32 (&acc)[2 * PAIRS][4], const u32 (&a)[2][4], const u8* b, u32 plane, u32 pair_step) {
#pragma unroll
  for (u32 p = 0; p < PAIRS; ++p)
#pragma unroll
    for (u32 part = 0; part < 2; ++part) {
      u32 f[4];
      if (TRANSPOSED) glmc_load_transposed(f, b + part * plane + p * pair_step);
      else glmc_load_matrices(f, b + part * plane + p * pair_step);
#pragma unroll
      for (u32 of = 0; of < 2 - part; ++of)
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
          u32 two[2] = {f[2 * n], f[2 * n + 1]};
          if (BF16) glmc_mma_bf16(acc[2 * p + n], a[of], two);
          else glmc_mma_f16(acc[2 * p + n], a[of], two);
        }
    }
}

template <class C>
GLMC_DEVICE void attention_tiles(const typename C::Arguments& args) {
  typedef AttentionMemory<C> S;
  constexpr u32 GROUPS = C::ROWS / 16, PAIRS = C::KEYS / 32, WIDE = C::VALUES / 64;
  GLMC_SHARED(u8, q, S::Q);
  GLMC_SHARED(u8, k, S::K);
  GLMC_SHARED(u8, v, S::V);
  GLMC_SHARED(u8, weights, S::P);
  GLMC_SHARED(f32, most_of, S::MOST);
  GLMC_SHARED(u32, seen_of, S::SEEN);
  GLMC_SHARED(i32, sequence_of, S::SEQUENCE);
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 tokens = C::tokens(args), keys = C::keys(args);
  // The last tokens see most: they come first.
  u32 tile = glmc_grid_x() - 1 - glmc_block_x(), head = glmc_block_y(), first = tile * C::ROWS;
  if (first >= tokens) return;
  u32 rows = tokens - first < C::ROWS ? tokens - first : C::ROWS;
  for (u32 r = glmc_thread(); r < C::ROWS; r += glmc_threads()) {
    i32 seq = -1;
    u32 seen = 0;
    bool known = r < rows && possible<C>(args, first + r, keys, &seq, &seen);
    seen_of[r] = known ? seen : 0;
    // -1: nothing to see; -2: impossible.
    sequence_of[r] = r < rows && !known ? -2 : seen ? seq : -1;
  }
#pragma unroll
  for (u32 part = 0; part < 2; ++part)
    copy_lines<C::D, C::ROWS>(q + part * S::Q_PLANE, C::queries(args, part), u64(first) * C::HEADS + head, C::HEADS, rows);
  glmc_copy_commit();
  glmc_sync();
  u32 lane = glmc_lane(), group = glmc_warp() % GROUPS, side = glmc_warp() / GROUPS, g = lane / 4, j = lane % 4 * 2;
  u32 line = 16 * group + lane % 16;
  f32 most[2] = {minus_infinity(), minus_infinity()}, total[2] = {0.0f, 0.0f}, scale[2];
  f32 out[4 * WIDE][4] = {};
  u32 row[2], token[2];
#pragma unroll
  for (u32 h = 0; h < 2; ++h) {
    row[h] = 16 * group + 8 * h + g;
    token[h] = first + (row[h] < rows ? row[h] : 0);
    scale[h] = C::query_scales(args)[u64(token[h]) * C::HEADS + head] * C::SCALE;
  }
  for (i32 seq = 0; seq < i32(C::sequences(args)); ++seq) {
    u32 end = 0;
    for (u32 r = 0; r < rows; ++r) end = sequence_of[r] == seq ? glmc_max(end, seen_of[r]) : end;
    if (end == 0) continue;
    u32 limit[2];
#pragma unroll
    for (u32 h = 0; h < 2; ++h) limit[h] = sequence_of[row[h]] == seq ? seen_of[row[h]] : 0;
    auto copy_keys = [&](u32 from) {
#pragma unroll
      for (u32 part = 0; part < 2; ++part)
        if (from < end)
          copy_lines<C::D, C::KEYS>(k + part * S::K_PLANE, C::key_rows(args, part),
                                    (u64(seq) * keys + from) * C::KEY_HEADS + (C::KEY_HEADS > 1 ? head : 0), C::KEY_HEADS,
                                    end - from);
      glmc_copy_commit();
    };
    glmc_sync();
    copy_keys(0);
    for (u32 from = 0; from < end; from += C::KEYS) {
      glmc_copy_wait<0>();
      glmc_sync();
      // Values come while scores are made, the next keys while values are added.
#pragma unroll
      for (u32 part = 0; part < 2; ++part)
        copy_lines<C::VALUES, C::KEYS>(v + part * S::V_PLANE, C::values(args, part),
                                       (u64(seq) * keys + from) * C::VALUE_HEADS + (C::VALUE_HEADS > 1 ? head : 0),
                                       C::VALUE_HEADS, end - from);
      glmc_copy_commit();
      // What the scores of these keys need beside their products; keys past the end count as the last one and are masked.
      u32 base_key = from + side * C::KEYS / 2, bits[2] = {~0u, ~0u};
      f32 key_scale[2 * PAIRS][2];
#pragma unroll
      for (u32 h = 0; h < 2; ++h)
        if (C::LIST > 0 && base_key / 32 < C::WORDS) bits[h] = C::bits(args)[u64(token[h]) * C::WORDS + base_key / 32];
#pragma unroll
      for (u32 n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
        for (u32 e = 0; e < 2; ++e) {
          u32 s = base_key + 8 * n + j + e;
          u64 of = u64(seq) * keys + (s < end ? s : end - 1);
          key_scale[n][e] = C::key_scales(args)[of * C::KEY_HEADS + (C::KEY_HEADS > 1 ? head : 0)];
        }
      f32 score[2 * PAIRS][4] = {};
      const u8* b = k + (side * C::KEYS / 2 + lane / 16 * 8 + lane % 8) * S::Q_LINE + lane / 8 % 2 * 16;
#pragma unroll 1
      for (u32 base = 0; base < C::D; base += 64) {
        f32 acc[2 * PAIRS][4] = {};
#pragma unroll
        for (u32 d = 0; d < 64; d += 16) {
          if (base + d >= C::D) continue;
          u32 a[2][4];
#pragma unroll
          for (u32 part = 0; part < 2; ++part)
            glmc_load_matrices(a[part], q + part * S::Q_PLANE + line * S::Q_LINE + 2 * (base + d) + lane / 16 * 16);
          add_products<PAIRS, false, false>(acc, a, b + 2 * (base + d), S::K_PLANE, 16 * S::Q_LINE);
        }
        // What tensor cores lose in adding stays small if they add few products.
#pragma unroll
        for (u32 n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
          for (u32 e = 0; e < 4; ++e) score[n][e] += acc[n][e];
      }
      f32 now[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
      for (u32 n = 0; n < 2 * PAIRS; ++n) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          u32 s = base_key + 8 * n + j + e % 2;
          bool visible = s < limit[e / 2] && (bits[e / 2] >> (s % 32) & 1u);
          f32 x = visible ? score[n][e] * (scale[e / 2] * key_scale[n][e % 2]) : minus_infinity();
          score[n][e] = x;
          // Not a number is carried on by the weights.
          now[e / 2] = glmc_max(now[e / 2], x);
        }
      }
#pragma unroll
      for (u32 h = 0; h < 2; ++h) {
        now[h] = glmc_max(now[h], glmc_shuffle_xor(now[h], 1));
        now[h] = glmc_max(now[h], glmc_shuffle_xor(now[h], 2));
        if (lane % 4 == 0) most_of[side * C::ROWS + row[h]] = now[h];
      }
      glmc_sync();
      copy_keys(from + C::KEYS);
      f32 shrink[2];
#pragma unroll
      for (u32 h = 0; h < 2; ++h) {
        f32 old = most[h];
        most[h] = glmc_max(old, glmc_max(most_of[row[h]], most_of[C::ROWS + row[h]]));
        shrink[h] = old > minus_infinity() ? glmc_exp(old - most[h]) : 0.0f;
        total[h] *= shrink[h];
      }
#pragma unroll
      for (u32 n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
          f32 p[2];
#pragma unroll
          for (u32 e = 0; e < 2; ++e) {
            f32 x = score[n][2 * h + e];
            p[e] = x == minus_infinity() ? 0.0f : glmc_exp(x - most[h]);
            total[h] += p[e];
          }
#pragma unroll
          for (u32 part = 0; part < 2; ++part) {
            u32 w = glmc_pack_bf16(p[0], p[1]);
            p[0] -= bf16_to_float(u16(w));
            p[1] -= bf16_to_float(u16(w >> 16));
            u8* to = weights + part * S::P_PLANE + row[h] * S::P_LINE;
            *reinterpret_cast<u32*>(to + 2 * (side * C::KEYS / 2 + 8 * n + j)) = w;
          }
        }
      glmc_copy_wait<1>();
      glmc_sync();
      const u8* values = v + (lane / 8 % 2 * 8 + lane % 8) * S::V_LINE + side * C::VALUES + lane / 16 * 16;
#pragma unroll
      for (u32 wide = 0; wide < WIDE; ++wide) {
        f32 acc[4][4] = {};
#pragma unroll
        for (u32 s = 0; s < C::KEYS; s += 16) {
          u32 a[2][4];
#pragma unroll
          for (u32 part = 0; part < 2; ++part)
            glmc_load_matrices(a[part], weights + part * S::P_PLANE + line * S::P_LINE + 2 * s + lane / 16 * 16);
          add_products<2, true, true>(acc, a, values + s * S::V_LINE + 64 * wide, S::V_PLANE, 32);
        }
#pragma unroll
        for (u32 n = 0; n < 4; ++n)
#pragma unroll
          for (u32 e = 0; e < 4; ++e) out[4 * wide + n][e] = glmc_fma(out[4 * wide + n][e], shrink[e / 2], acc[n][e]);
      }
    }
  }
  glmc_copy_wait_all();
  // The sums of both sides.
#pragma unroll
  for (u32 h = 0; h < 2; ++h) {
    total[h] += glmc_shuffle_xor(total[h], 1);
    total[h] += glmc_shuffle_xor(total[h], 2);
  }
  glmc_sync();
  if (lane % 4 == 0)
    for (u32 h = 0; h < 2; ++h) most_of[side * C::ROWS + row[h]] = total[h];
  glmc_sync();
#pragma unroll
  for (u32 h = 0; h < 2; ++h) {
    if (row[h] >= rows) continue;
    f32 all = most_of[row[h]] + most_of[C::ROWS + row[h]], none = sequence_of[row[h]] == -2 ? not_a_number() : 0.0f;
    bool some = all != 0.0f;
    u32 t = first + row[h];
#pragma unroll
    for (u32 n = 0; n < 4 * WIDE; ++n)
#pragma unroll
      for (u32 e = 0; e < 2; ++e) {
        u32 d = side * C::VALUES / 2 + 8 * n + j + e;
        if (d < C::DV) C::PUT::put(args.o, output_at<C>(t, head, d), some ? out[n][2 * h + e] / all : none);
      }
    if (side == 0 && j == 0) put_state<C>(args, t, head, some, most[h], all);
  }
}
