// Indexer scores: a thread a key. The block's keys lie in shared memory (odd stride), the token's queries beside them
// by element, four heads in one load. Config: Q, W, HEADS, WIDTH, KEYS (of a block), SCALE, tokens(args), keys(args),
// sequences(args), key(args, position, d).
#pragma once
#include "quant/float.cuh"

template <class C>
GLMC_DEVICE void indexer_scores(const typename C::Arguments& args) {
  constexpr u32 STEP = C::WIDTH + 1 - C::WIDTH % 2, HEADS4 = (C::HEADS + 3) / 4 * 4;
  GLMC_SHARED(f32, q, 0);
  GLMC_SHARED(f32, weight, 4 * C::WIDTH * HEADS4);
  GLMC_SHARED(f32, key, 4 * (C::WIDTH + 1) * HEADS4);
  glmc_launch_trigger();
  glmc_launch_wait();
  f32* scores = reinterpret_cast<f32*>(args.scores);
  u32 tokens = C::tokens(args), keys = C::keys(args), first = glmc_block_x() * C::KEYS;
  if (first >= keys) return;
  u32 here = keys - first < C::KEYS ? keys - first : C::KEYS;
  for (u32 t = glmc_block_y(); t < tokens; t += glmc_grid_y()) {
    i32 len = reinterpret_cast<const i32*>(args.len)[t], seq = reinterpret_cast<const i32*>(args.seq)[t];
    bool known = seq >= 0 && u32(seq) < C::sequences(args) && len <= i32(keys);
    u32 seen = len <= i32(first) ? 0 : u32(len) - first < here ? u32(len) - first : here;
    glmc_sync();
    if (seen && known) {
      for (u32 i = glmc_thread(); i < C::WIDTH * HEADS4; i += glmc_threads()) {
        u32 d = i / HEADS4, h = i % HEADS4;
        q[i] = h < C::HEADS ? element<typename C::Q>(args.q, (u64(t) * C::HEADS + h) * C::WIDTH + d) : 0.0f;
      }
      for (u32 h = glmc_thread(); h < HEADS4; h += glmc_threads())
        weight[h] = h < C::HEADS ? element<typename C::W>(args.w, u64(t) * C::HEADS + h) : 0.0f;
      u64 from = u64(seq) * keys + first;
      for (u32 i = glmc_thread(); i < seen * C::WIDTH; i += glmc_threads())
        key[i / C::WIDTH * STEP + i % C::WIDTH] = C::key(args, from + i / C::WIDTH, i % C::WIDTH);
    }
    glmc_sync();
    for (u32 s = glmc_thread(); s < here; s += glmc_threads()) {
      f32 score = known || len <= 0 ? minus_infinity() : not_a_number();
      if (s < seen && known) {
        score = 0.0f;
        for (u32 h = 0; h < HEADS4; h += 4) {
          f32 dot[4] = {};
          for (u32 d = 0; d < C::WIDTH; ++d) {
            F4 v = *reinterpret_cast<const F4*>(q + d * HEADS4 + h);
            f32 k = key[s * STEP + d];
            dot[0] = glmc_fma(v.x, k, dot[0]);
            dot[1] = glmc_fma(v.y, k, dot[1]);
            dot[2] = glmc_fma(v.z, k, dot[2]);
            dot[3] = glmc_fma(v.w, k, dot[3]);
          }
#pragma unroll
          for (u32 j = 0; j < 4; ++j) {
            f32 x = C::SCALE * dot[j];
            if (h + j < C::HEADS) score = glmc_fma(weight[h + j], x < 0.0f ? 0.0f : x, score);
          }
        }
      }
      scores[u64(t) * keys + first + s] = score;
    }
  }
}
