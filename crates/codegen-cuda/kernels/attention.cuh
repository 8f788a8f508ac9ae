// Softmax attention, a block a token, HEADS heads and one part of the keys. A warp scores a key (lanes over its width,
// one load for all heads), the block updates the running maximum, sum and output (threads over the width of the
// values). Parts leave (maximum, sum, output) in scratch; a second launch merges them in order. STAGED: rows of ROW floats
// of one pool hold keys and values, and a tile of them is copied to shared memory at once.
// SETTLED: all but the queries was made before the launch before; it is read while that still runs.
// As many parts are used as the positions at hand fill. FOURS: queries and rows are floats whose pieces lie in fours.
// With PART each row ends with the largest score and the sum of exp(score - largest), for the merge with other ranks.
// Config: PARTS (most) of the context, PART, HEADS (of a block), GROUPS (of heads), ALL_HEADS, QWIDTH (all parts), DV, COLUMNS,
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
GLMC_DEVICE void put_state(const typename C::Arguments& args, u32 t, u32 head, bool some, f32 most, f32 total) {
  if (!C::PART) return;
  C::PUT::put(args.o, output_at<C>(t, head, C::DV), some ? most : minus_infinity());
  C::PUT::put(args.o, output_at<C>(t, head, C::DV + 1), some ? total : 0.0f);
}

// What a token sees: how many positions, and whether its sequence and length are possible.
template <class C>
GLMC_DEVICE bool possible(const typename C::Arguments& args, u32 t, u32 keys, i32* seq, u32* seen) {
  i32 len = reinterpret_cast<const i32*>(args.len)[t];
  *seq = reinterpret_cast<const i32*>(args.seq)[t];
  *seen = len > 0 ? u32(len) : 0;
  return *seen == 0 || (*seq >= 0 && u32(*seq) < C::sequences(args) && *seen <= keys);
}

// Parts that share the keys of a token that sees `seen` positions: each has a tile at least.
template <class C>
GLMC_DEVICE u32 parts_in_use(u32 seen) {
  u32 most = C::LIST > 0 && seen > C::LIST ? C::LIST : seen, parts = ceil_div(most, C::TILE);
  return parts < 1 ? 1 : parts < C::PARTS ? parts : C::PARTS;
}

// Starts the copies of a token's queries to shared memory.
template <class C>
GLMC_DEVICE void stage_queries(const typename C::Arguments& args, u32 t, u32 head, u32 heads, f32* q) {
  constexpr u32 CHUNKS = C::QWIDTH / 4;
  for (u32 c = glmc_thread(); c < heads * CHUNKS; c += glmc_threads())
    glmc_copy16(q + c * 4, C::query_chunk(args, t, head + c / CHUNKS, c % CHUNKS * 4));
  glmc_copy_commit();
}

// Copies the rows of a tile to shared memory, all of them on their way at once.
template <class C>
GLMC_DEVICE void stage_rows(const typename C::Arguments& args, const i32* place, u32 here, f32* rows) {
  constexpr u32 CHUNKS = C::ROW / 4;
  for (u32 c = glmc_thread(); c < here * CHUNKS; c += glmc_threads()) {
    i32 row = place[c / CHUNKS];
    f32* to = rows + c * 4;
    if (row >= 0 && u32(row) < C::pool_rows(args)) {
      glmc_copy16(to, C::pool(args) + (u64(row) * CHUNKS + c % CHUNKS) * 16);
    } else {
      // A row past the pool makes the scores no numbers, and so the result; it is not read.
      f32 fill = row < 0 ? 0.0f : not_a_number();
      to[0] = to[1] = to[2] = to[3] = fill;
    }
  }
  glmc_copy_commit();
}

// The second launch where keys are in parts: a block merges a head's parts, a column a lane, parts over warps. All that a
// thread reads is on its way at once.
template <class C>
GLMC_DEVICE void attention_merge(const typename C::Arguments& args) {
  constexpr u32 STEP = C::HEADS * (C::DV + 2), WARPS = C::MERGE_WARPS;
  constexpr u32 HELD = (C::PARTS + WARPS - 1) / WARPS, ROUNDS = (C::PARTS + WARP - 1) / WARP;
  GLMC_SHARED(f32, share, 0);
  GLMC_SHARED(f32, sum, 4 * C::PARTS);
  GLMC_SHARED(f32, column, 4 * C::PARTS + 16);
  glmc_launch_trigger();
  glmc_launch_wait();
  u32 t = glmc_block_x() / C::ALL_HEADS, head = glmc_block_x() % C::ALL_HEADS;
  if (t >= C::tokens(args)) return;
  i32 seq;
  u32 seen;
  bool known = possible<C>(args, t, C::keys(args), &seq, &seen);
  const f32* part = C::partials(args) +
                    (u64(t * C::GROUPS + head / C::HEADS) * C::PARTS * C::HEADS + head % C::HEADS) * (C::DV + 2);
  u32 used = known ? parts_in_use<C>(seen) : 1, d = glmc_block_y() * WARP + glmc_lane();
  f32 held[HELD];
#pragma unroll
  for (u32 k = 0; k < HELD; ++k) {
    u32 p = glmc_warp() + k * WARPS;
    held[k] = p < used && d < C::DV ? part[u64(p) * STEP + 2 + d] : 0.0f;
  }
  // Lanes over parts, in an order that depends on the number of parts alone.
  if (glmc_warp() == 0) {
    f32 largest[ROUNDS], sums[ROUNDS], most = minus_infinity(), total = 0.0f;
#pragma unroll
    for (u32 k = 0; k < ROUNDS; ++k) {
      u32 p = glmc_lane() + k * WARP;
      largest[k] = p < used ? part[u64(p) * STEP] : 0.0f;
      sums[k] = p < used ? part[u64(p) * STEP + 1] : 0.0f;
    }
#pragma unroll
    for (u32 k = 0; k < ROUNDS; ++k)
      if (sums[k] != 0.0f) most = glmc_max(most, largest[k]);
    most = warp_max(most);
#pragma unroll
    for (u32 k = 0; k < ROUNDS; ++k) {
      // An empty part has the sum zero and a maximum that says nothing.
      f32 w = sums[k] != 0.0f ? glmc_exp(largest[k] - most) : 0.0f;
      u32 p = glmc_lane() + k * WARP;
      if (p < C::PARTS) share[p] = w;
      total = glmc_fma(w, sums[k], total);
    }
    total = warp_sum(total);
    if (glmc_lane() == 0) {
      sum[0] = total;
      sum[1] = most;
    }
  }
  glmc_sync();
  f32 y = 0.0f;
#pragma unroll
  for (u32 k = 0; k < HELD; ++k)
    // What an empty part left is zero.
    if (glmc_warp() + k * WARPS < used) y = glmc_fma(share[glmc_warp() + k * WARPS], held[k], y);
  column[glmc_thread()] = y;
  glmc_sync();
  if (glmc_warp() != 0 || d >= C::DV) return;
  for (u32 w = 1; w < WARPS; ++w) y += column[w * WARP + glmc_lane()];
  f32 total = sum[0], none = known ? 0.0f : not_a_number();
  bool some = known && total != 0.0f;
  C::PUT::put(args.o, output_at<C>(t, head, d), some ? y / total : none);
  if (d == 0) put_state<C>(args, t, head, some, sum[1], total);
}

// Adds the lane's share of the products of queries with two rows; lanes over the width, four elements at a time.
template <class C>
GLMC_DEVICE void dot_fours(const f32* q, const f32* a, const f32* b, f32 (&sum)[C::HEADS][2]) {
#pragma unroll
  for (u32 k = 0; k < C::KEYS; ++k)
    for (u32 d = 4 * glmc_lane(); d < C::key_width(k); d += 4 * WARP) {
      F4 x = *reinterpret_cast<const F4*>(a + C::key_at(k) + d), y = *reinterpret_cast<const F4*>(b + C::key_at(k) + d);
#pragma unroll
      for (u32 h = 0; h < C::HEADS; ++h) {
        F4 w = *reinterpret_cast<const F4*>(q + h * C::QWIDTH + C::query_at(k) + d);
        sum[h][0] = glmc_fma(w.w, x.w, glmc_fma(w.z, x.z, glmc_fma(w.y, x.y, glmc_fma(w.x, x.x, sum[h][0]))));
        sum[h][1] = glmc_fma(w.w, y.w, glmc_fma(w.z, y.z, glmc_fma(w.y, y.y, glmc_fma(w.x, y.x, sum[h][1]))));
      }
    }
}

// Scores of staged rows: a warp takes two keys, so that a query is loaded once for both; lanes over the width.
template <class C>
GLMC_DEVICE void score_rows(const f32* q, const f32* rows, f32* score, u32 here, u32 heads) {
  for (u32 i = 2 * glmc_warp(); i < here; i += 2 * (glmc_threads() / WARP)) {
    // The second may be the first again; its score is then not kept.
    const f32 *a = rows + i * C::ROW, *b = i + 1 < here ? a + C::ROW : a;
    f32 sum[C::HEADS][2] = {};
    if (C::FOURS) dot_fours<C>(q, a, b, sum);
#pragma unroll
    for (u32 k = 0; k < C::KEYS && !C::FOURS; ++k)
      for (u32 d = glmc_lane(); d < C::key_width(k); d += WARP) {
        f32 x = a[C::key_at(k) + d], y = b[C::key_at(k) + d];
#pragma unroll
        for (u32 h = 0; h < C::HEADS; ++h) {
          f32 w = q[h * C::QWIDTH + C::query_at(k) + d];
          sum[h][0] = glmc_fma(w, x, sum[h][0]);
          sum[h][1] = glmc_fma(w, y, sum[h][1]);
        }
      }
#pragma unroll
    for (u32 h = 0; h < C::HEADS; ++h) {
      f32 x = warp_sum(sum[h][0]) * C::SCALE, y = warp_sum(sum[h][1]) * C::SCALE;
      if (glmc_lane() != 0 || h >= heads) continue;
      score[h * C::TILE + i] = x;
      if (i + 1 < here) score[h * C::TILE + i + 1] = y;
    }
  }
}

// Adds staged rows by their weights, columns of the values over threads.
template <class C>
GLMC_DEVICE void add_rows(const f32* rows, const f32* score, u32 here, u32 heads, f32 (&out)[C::HEADS][C::COLUMNS]) {
#pragma unroll 4
  for (u32 i = 0; i < here; ++i) {
    f32 weight[C::HEADS];
#pragma unroll
    for (u32 h = 0; h < C::HEADS; ++h) weight[h] = h < heads ? score[h * C::TILE + i] : 0.0f;
#pragma unroll
    for (u32 c = 0; c < C::COLUMNS; ++c) {
      u32 d = glmc_thread() + c * glmc_threads();
      f32 v = d < C::DV ? rows[i * C::ROW + C::VALUE_AT + d] : 0.0f;
#pragma unroll
      for (u32 h = 0; h < C::HEADS; ++h) out[h][c] = glmc_fma(weight[h], v, out[h][c]);
    }
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
  // The rows of a tile, looked up once, and copied here where the pool holds floats.
  GLMC_SHARED(i32, place, LIST + 4 * C::LIST);
  GLMC_SHARED(f32, rows, (LIST + 4 * (C::LIST + (C::PAGED ? C::TILE : 0)) + 15) / 16 * 16);
  f32 *most = state, *total = state + C::HEADS, *shrink = state + 2 * C::HEADS;
  glmc_launch_trigger();
  if (!C::SETTLED) glmc_launch_wait();
  u32 t = glmc_block_x() / C::GROUPS, group = glmc_block_x() % C::GROUPS, part = glmc_block_y();
  if (t >= C::tokens(args)) {
    if (C::SETTLED) glmc_launch_wait();
    return;
  }
  u32 heads = C::ALL_HEADS - group * C::HEADS < C::HEADS ? C::ALL_HEADS - group * C::HEADS : C::HEADS;
  u32 keys = C::keys(args), warps = glmc_threads() / WARP;
  if (C::FOURS && !C::SETTLED) stage_queries<C>(args, t, group * C::HEADS, heads, q);
  i32 seq;
  u32 seen;
  bool known = possible<C>(args, t, keys, &seq, &seen);
  u32 count = known ? seen : 0, used = known ? parts_in_use<C>(seen) : 1;
  if (C::PARTS > 1 && part >= used) {
    if (C::SETTLED) {
      glmc_launch_wait();
    } else if (C::FOURS) {
      glmc_copy_wait_all();
    }
    return;
  }
  if (C::LIST > 0 && count) count = visible_list<C>(args, t, seen, bits, list, scratch);
  if (C::PARTS == 1) used = 1;
  u32 begin = u32(u64(count) * part / used), end = u32(u64(count) * (part + 1) / used);
  // Loads of several rounds are on their way at once.
  constexpr u32 ROUNDS = 6;
  for (u32 from = glmc_thread(); !C::FOURS && from < heads * C::QWIDTH; from += ROUNDS * glmc_threads()) {
    f32 x[ROUNDS];
#pragma unroll
    for (u32 k = 0; k < ROUNDS; ++k) {
      u32 i = from + k * glmc_threads();
      x[k] = i < heads * C::QWIDTH ? C::load_q(args, t, group * C::HEADS + i / C::QWIDTH, i % C::QWIDTH) : 0.0f;
    }
#pragma unroll
    for (u32 k = 0; k < ROUNDS; ++k)
      if (from + k * glmc_threads() < heads * C::QWIDTH) q[from + k * glmc_threads()] = x[k];
  }
  for (u32 h = glmc_thread(); h < C::HEADS; h += glmc_threads()) {
    most[h] = minus_infinity();
    total[h] = 0.0f;
  }
  if (C::SETTLED && begin >= end) glmc_launch_wait();
  // With rows to follow they are awaited together.
  if (C::FOURS && !C::SETTLED && (!C::STAGED || begin >= end)) glmc_copy_wait_all();
  f32 out[C::HEADS][C::COLUMNS] = {};
  for (u32 from = begin; from < end; from += C::TILE) {
    u32 here = end - from < C::TILE ? end - from : C::TILE;
    glmc_sync();
    if (C::PAGED) {
      for (u32 i = glmc_thread(); i < here; i += glmc_threads())
        place[i] = C::place(args, u64(seq) * keys + (C::LIST > 0 ? list[from + i] : from + i));
      glmc_sync();
      if (C::STAGED) {
        stage_rows<C>(args, place, here, rows);
        if (C::SETTLED && from == begin) {
          glmc_launch_wait();
          stage_queries<C>(args, t, group * C::HEADS, heads, q);
        }
        glmc_copy_wait_all();
        glmc_sync();
      }
    }
    if (C::STAGED) score_rows<C>(q, rows, score, here, heads);
    for (u32 i = glmc_warp(); !C::STAGED && i < here; i += warps) {
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
    if (C::STAGED) add_rows<C>(rows, score, here, heads, out);
    for (u32 i = 0; !C::STAGED && i < here; ++i) {
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
    for (u32 h = 0; h < heads; ++h)
      if (glmc_thread() == 0) put_state<C>(args, t, group * C::HEADS + h, count != 0, most[h], total[h]);
    return;
  }
  f32* mine = C::partials(args) + (u64(glmc_block_x()) * C::PARTS + part) * C::HEADS * (C::DV + 2);
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
}
