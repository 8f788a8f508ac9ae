// Expert choice: a warp a token, scores in shared memory, the best taken one after the other (ties: smaller id).
// Config: X, EXPERTS, CHOSEN, GROUPS, GROUPS_USED, SOFTMAX, NORM, SCALE, tokens(args), bias(args, e).
#pragma once
#include "quant/float.cuh"

struct Best {
  f32 value;
  u32 index;
};

GLMC_DEVICE bool better(f32 a, u32 i, f32 b, u32 j) { return a > b || (a == b && i < j); }

// The best of the lanes' candidates, in every lane.
GLMC_DEVICE Best warp_best(Best b) {
  for (u32 m = 16; m; m >>= 1) {
    f32 v = glmc_shuffle_xor(b.value, m);
    u32 i = glmc_shuffle_xor(b.index, m);
    if (better(v, i, b.value, b.index)) b = {v, i};
  }
  return b;
}

// The best of n values in shared memory that are above minus infinity; index n if there is none.
GLMC_DEVICE Best best_of(const f32* values, u32 n) {
  Best b = {minus_infinity(), n};
  for (u32 i = glmc_lane(); i < n; i += WARP)
    if (values[i] > minus_infinity() && better(values[i], i, b.value, b.index)) b = {values[i], i};
  return warp_best(b);
}

template <class C>
GLMC_DEVICE void keep_groups(f32* choice, f32* group) {
  constexpr u32 SIZE = C::EXPERTS / C::GROUPS;
  for (u32 g = glmc_lane(); g < C::GROUPS; g += WARP) {
    f32 first = minus_infinity(), second = minus_infinity();
    for (u32 i = 0; i < SIZE; ++i) {
      f32 v = choice[g * SIZE + i];
      if (v > first) {
        second = first;
        first = v;
      } else if (v > second) {
        second = v;
      }
    }
    group[g] = SIZE > 1 ? first + second : first;
  }
  glmc_sync_warp();
  // A group that is kept loses its score, so that the next best is found; the others keep theirs.
  for (u32 n = 0; n < C::GROUPS_USED; ++n) {
    Best b = best_of(group, C::GROUPS);
    glmc_sync_warp();
    if (glmc_lane() == 0 && b.index < C::GROUPS) group[b.index] = minus_infinity();
    glmc_sync_warp();
  }
  for (u32 e = glmc_lane(); e < C::EXPERTS; e += WARP)
    if (group[e / SIZE] > minus_infinity()) choice[e] = minus_infinity();
  glmc_sync_warp();
}

template <class C>
GLMC_DEVICE void route(const typename C::Arguments& args) {
  GLMC_SHARED(f32, gate, 0);
  GLMC_SHARED(f32, choice, 4 * C::EXPERTS);
  GLMC_SHARED(f32, group, 8 * C::EXPERTS);
  glmc_launch_wait();
  glmc_launch_trigger();
  i32* ids = reinterpret_cast<i32*>(args.ids);
  f32* weights = reinterpret_cast<f32*>(args.weights);
  u32 tokens = C::tokens(args);
  for (u32 t = glmc_block_x(); t < tokens; t += glmc_grid_x()) {
    f32 most = minus_infinity(), total = 0.0f;
    bool bad = false;
    for (u32 e = glmc_lane(); e < C::EXPERTS; e += WARP) {
      f32 x = element<typename C::X>(args.logits, u64(t) * C::EXPERTS + e);
      bad |= x != x;
      gate[e] = x;
      most = glmc_max(most, x);
    }
    bad = glmc_ballot(bad) != 0;
    if (C::SOFTMAX) {
      most = warp_max(most);
      for (u32 e = glmc_lane(); e < C::EXPERTS; e += WARP) {
        gate[e] = glmc_exp(gate[e] - most);
        total += gate[e];
      }
      total = warp_sum(total);
    }
    for (u32 e = glmc_lane(); e < C::EXPERTS; e += WARP) {
      gate[e] = C::SOFTMAX ? gate[e] / total : sigmoid(gate[e]);
      choice[e] = gate[e] + C::bias(args, e);
    }
    glmc_sync_warp();
    if (C::GROUPS > 1) keep_groups<C>(choice, group);
    f32 sum = 0.0f;
    for (u32 n = 0; n < C::CHOSEN; ++n) {
      Best b = best_of(choice, C::EXPERTS);
      glmc_sync_warp();
      bool none = bad || b.index >= C::EXPERTS;
      f32 g = none ? not_a_number() : gate[b.index];
      sum += g;
      if (glmc_lane() == 0) {
        ids[u64(t) * C::CHOSEN + n] = none ? -1 : i32(b.index);
        weights[u64(t) * C::CHOSEN + n] = g;
        if (!none) choice[b.index] = minus_infinity();
      }
      glmc_sync_warp();
    }
    f32 factor = (C::NORM ? 1.0f / (sum + 1e-20f) : 1.0f) * C::SCALE;
    for (u32 n = glmc_lane(); n < C::CHOSEN; n += WARP) {
      // Lane 0 wrote these; the warp has met since.
      f32* w = weights + u64(t) * C::CHOSEN + n;
      *w = *w * factor;
    }
    glmc_sync_warp();
  }
}
