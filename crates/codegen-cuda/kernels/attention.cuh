// Softmax attention, a block a token, HEADS heads and one part of the keys. A warp scores a key (lanes over its width,
// one load for all heads), the block updates the running maximum, sum and output (threads over the width of the
// values). Parts leave (maximum, sum, output) in scratch; the last block to arrive merges them in order.
// With PART each row ends with the largest score and the sum of exp(score - largest), for the merge with other ranks.
// Config: PARTS of the context, PART, HEADS (of a block), GROUPS (of heads), ALL_HEADS, QWIDTH (all parts), DV, COLUMNS,
// TILE, SCALE, LIST (most selected positions; 0: no selection), WORDS (of the position bitmap), tokens(args),
// keys(args), sequences(args), load_q(args, t, h, d), score functor `dot(args, q, row, h, sum)`, value(args, row, h,
// d); PAGED: rows are those of a pool that place(args, position) names, negative ones of zeros.
#pragma once
#include "quant/float.cuh"
#include "scan.cuh"

// Makes the ascending list of distinct selected positions below `seen`; their number.
template <class C>
GLMC_DEVICE u32 visible_list(const typename C::Arguments& args, u32 t, u32 seen, u32* bits, u32* list, u32* scratch) {
  for (u32 i = glmc_thread(); i < C::WORDS; i += glmc_threads()) bits[i] = 0;
  glmc_sync();
  for (u32 i = glmc_thread(); i < C::LIST; i += glmc_threads()) {
    i32 s = C::selected(args, t, i);
    if (s >= 0 && u32(s) < seen) glmc_atomic_or(&bits[s / 32], 1u << (s % 32));
  }
  glmc_sync();
  u32 count = 0;
  for (u32 base = 0; base * 32 < seen; base += glmc_threads()) {
    u32 i = base + glmc_thread(), word = i < C::WORDS ? bits[i] : 0, total;
    u32 at = count + block_prefix(glmc_popcount(word), scratch, &total);
    for (; word; word &= word - 1) list[at++] = i * 32 + glmc_first_bit(word);
    count += total;
  }
  glmc_sync();
  return count;
}

// Where output `d` of a head of a token is, and what a rank's part of the keys leaves behind it.
template <class C>
GLMC_DEVICE u64 output_at(u32 t, u32 head, u32 d) {
  return (u64(t) * C::ALL_HEADS + head) * (C::DV + (C::PART ? 2 : 0)) + d;
}
template <class C>
GLMC_DEVICE void put_state(const typename C::Arguments& args, u32 t, u32 head, u32 count, f32 most, f32 total) {
  if (!C::PART || glmc_thread() != 0) return;
  C::PUT::put(args.o, output_at<C>(t, head, C::DV), count ? most : minus_infinity());
  C::PUT::put(args.o, output_at<C>(t, head, C::DV + 1), count ? total : 0.0f);
}

// `none` is what a token without keys gets.
template <class C>
GLMC_DEVICE void merge_parts(const typename C::Arguments& args, u32 t, u32 group, const f32* all, u32 count, f32 none) {
  constexpr u32 STEP = C::HEADS * (C::DV + 2);
  for (u32 h = 0; h < C::HEADS; ++h) {
    u32 head = group * C::HEADS + h;
    if (head >= C::ALL_HEADS) return;
    const f32* part = all + h * (C::DV + 2);
    f32 most = minus_infinity(), total = 0.0f;
    for (u32 p = 0; p < C::PARTS; ++p) most = glmc_max(most, glmc_load_shared_by_blocks(part + p * STEP));
    for (u32 p = 0; p < C::PARTS; ++p) {
      // An empty part has the sum zero and a maximum that says nothing.
      f32 m = glmc_load_shared_by_blocks(part + p * STEP), l = glmc_load_shared_by_blocks(part + p * STEP + 1);
      if (l != 0.0f) total = glmc_fma(glmc_exp(m - most), l, total);
    }
    for (u32 d = glmc_thread(); d < C::DV; d += glmc_threads()) {
      f32 sum = 0.0f;
      for (u32 p = 0; p < C::PARTS; ++p) {
        f32 m = glmc_load_shared_by_blocks(part + p * STEP), l = glmc_load_shared_by_blocks(part + p * STEP + 1);
        if (l != 0.0f) sum = glmc_fma(glmc_exp(m - most), glmc_load_shared_by_blocks(part + p * STEP + 2 + d), sum);
      }
      C::PUT::put(args.o, output_at<C>(t, head, d), count ? sum / total : none);
    }
    put_state<C>(args, t, head, count, most, total);
  }
}

template <class C>
GLMC_DEVICE void attention(const typename C::Arguments& args) {
  constexpr u32 SCORES = 4 * C::HEADS * C::QWIDTH, STATE = SCORES + 4 * C::HEADS * C::TILE;
  constexpr u32 SCRATCH = STATE + 12 * C::HEADS, BITS = SCRATCH + 160, LIST = BITS + 4 * C::WORDS;
  GLMC_SHARED(f32, q, 0);
  GLMC_SHARED(f32, score, SCORES);
  GLMC_SHARED(f32, state, STATE);
  GLMC_SHARED(u32, scratch, SCRATCH);
  GLMC_SHARED(u32, bits, BITS);
  GLMC_SHARED(u32, list, LIST);
  // The rows of a tile, looked up once.
  GLMC_SHARED(i32, place, LIST + 4 * C::LIST);
  f32 *most = state, *total = state + C::HEADS, *shrink = state + 2 * C::HEADS;
  glmc_launch_wait();
  glmc_launch_trigger();
  u32 t = glmc_block_x() / C::GROUPS, group = glmc_block_x() % C::GROUPS, part = glmc_block_y();
  if (t >= C::tokens(args)) return;
  u32 heads = C::ALL_HEADS - group * C::HEADS < C::HEADS ? C::ALL_HEADS - group * C::HEADS : C::HEADS;
  u32 keys = C::keys(args), warps = glmc_threads() / WARP;
  i32 len = reinterpret_cast<const i32*>(args.len)[t], seq = reinterpret_cast<const i32*>(args.seq)[t];
  u32 seen = len > 0 ? u32(len) : 0;
  bool known = seen == 0 || (seq >= 0 && u32(seq) < C::sequences(args) && seen <= keys);
  u32 count = known ? seen : 0;
  if (C::LIST > 0 && count) count = visible_list<C>(args, t, seen, bits, list, scratch);
  u32 begin = u32(u64(count) * part / C::PARTS), end = u32(u64(count) * (part + 1) / C::PARTS);
  for (u32 i = glmc_thread(); i < heads * C::QWIDTH; i += glmc_threads())
    q[i] = C::load_q(args, t, group * C::HEADS + i / C::QWIDTH, i % C::QWIDTH);
  for (u32 h = glmc_thread(); h < C::HEADS; h += glmc_threads()) {
    most[h] = minus_infinity();
    total[h] = 0.0f;
  }
  f32 out[C::HEADS][C::COLUMNS] = {};
  for (u32 from = begin; from < end; from += C::TILE) {
    u32 here = end - from < C::TILE ? end - from : C::TILE;
    glmc_sync();
    if (C::PAGED) {
      for (u32 i = glmc_thread(); i < here; i += glmc_threads())
        place[i] = C::place(args, u64(seq) * keys + (C::LIST > 0 ? list[from + i] : from + i));
      glmc_sync();
    }
    for (u32 i = glmc_warp(); i < here; i += warps) {
      i64 row = C::PAGED ? i64(place[i]) : i64(u64(seq) * keys + (C::LIST > 0 ? list[from + i] : from + i));
      f32 sum[C::HEADS] = {};
      C::dot(args, q, row, group * C::HEADS, heads, sum);
#pragma unroll
      for (u32 h = 0; h < C::HEADS; ++h) {
        f32 x = warp_sum(sum[h]) * C::SCALE;
        if (glmc_lane() == 0) score[h * C::TILE + i] = x;
      }
    }
    glmc_sync();
    // A warp a head: the new maximum, what the old sums shrink by, weights in place of scores.
    for (u32 h = glmc_warp(); h < heads; h += warps) {
      f32 old = most[h], now = old, sum = 0.0f;
      for (u32 i = glmc_lane(); i < here; i += WARP) now = glmc_max(now, score[h * C::TILE + i]);
      now = warp_max(now);
      for (u32 i = glmc_lane(); i < here; i += WARP) {
        f32 p = glmc_exp(score[h * C::TILE + i] - now);
        score[h * C::TILE + i] = p;
        sum += p;
      }
      sum = warp_sum(sum);
      f32 factor = old > minus_infinity() ? glmc_exp(old - now) : 0.0f;
      glmc_sync_warp();
      if (glmc_lane() == 0) {
        most[h] = now;
        shrink[h] = factor;
        total[h] = glmc_fma(total[h], factor, sum);
      }
    }
    glmc_sync();
#pragma unroll
    for (u32 h = 0; h < C::HEADS; ++h)
#pragma unroll
      for (u32 c = 0; c < C::COLUMNS; ++c)
        if (h < heads) out[h][c] *= shrink[h];
    for (u32 i = 0; i < here; ++i) {
      i64 row = C::PAGED ? i64(place[i]) : i64(u64(seq) * keys + (C::LIST > 0 ? list[from + i] : from + i));
#pragma unroll
      for (u32 c = 0; c < C::COLUMNS; ++c) {
        u32 d = glmc_thread() + c * glmc_threads();
        if (d >= C::DV) continue;
        f32 v = C::value(args, row, group * C::HEADS, d);
#pragma unroll
        for (u32 h = 0; h < C::HEADS; ++h)
          if (h < heads) out[h][c] = glmc_fma(score[h * C::TILE + i], v, out[h][c]);
      }
    }
  }
  glmc_sync();
  f32 wrong = known ? 0.0f : not_a_number();
  if (C::PARTS == 1) {
#pragma unroll
    for (u32 h = 0; h < C::HEADS; ++h)
#pragma unroll
      for (u32 c = 0; c < C::COLUMNS; ++c) {
        u32 d = glmc_thread() + c * glmc_threads();
        if (h >= heads || d >= C::DV) continue;
        f32 y = count ? out[h][c] / total[h] : wrong;
        C::PUT::put(args.o, output_at<C>(t, group * C::HEADS + h, d), y);
      }
    for (u32 h = 0; h < heads; ++h) put_state<C>(args, t, group * C::HEADS + h, count, most[h], total[h]);
    return;
  }
  u32* arrived = C::counters(args) + glmc_block_x();
  f32* all = C::partials(args) + u64(glmc_block_x()) * C::PARTS * C::HEADS * (C::DV + 2);
  f32* mine = all + u64(part) * C::HEADS * (C::DV + 2);
#pragma unroll
  for (u32 h = 0; h < C::HEADS; ++h) {
    f32* to = mine + h * (C::DV + 2);
    if (glmc_thread() == 0) {
      to[0] = most[h];
      to[1] = total[h];
    }
#pragma unroll
    for (u32 c = 0; c < C::COLUMNS; ++c) {
      u32 d = glmc_thread() + c * glmc_threads();
      if (d < C::DV) to[2 + d] = out[h][c];
    }
  }
  glmc_fence();
  glmc_sync();
  if (glmc_thread() == 0) scratch[0] = glmc_arrive(arrived);
  glmc_sync();
  if (scratch[0] != C::PARTS - 1) return;
  // The last one: the counter is left at zero for the next launch.
  if (glmc_thread() == 0) *arrived = 0;
  glmc_fence();
  merge_parts<C>(args, t, group, all, count, wrong);
}
