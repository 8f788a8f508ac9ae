// Expert choice: a warp a token, scores in its registers, the best taken one after the other (ties: smaller id).
// Config: X, EXPERTS, CHOSEN, GROUPS, GROUPS_USED, SOFTMAX, NORM, SCALE, FIXED (no launch writes the bias),
// tokens(args), bias(args, e).
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

// Floats in the order of unsigned integers; NaN is below all numbers, minus infinity next.
GLMC_DEVICE u32 in_order(f32 x) {
  u32 bits = glmc_float_to_bits(x + 0.0f);
  return x != x ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}

template <class C>
GLMC_DEVICE void route(const typename C::Arguments& args) {
  constexpr u32 HELD = (C::EXPERTS + WARP - 1) / WARP;
  GLMC_SHARED(f32, gate, 0);
  GLMC_SHARED(f32, choice, 4 * C::EXPERTS);
  GLMC_SHARED(f32, group, 8 * C::EXPERTS);
  GLMC_SHARED(f32, chosen, 8 * C::EXPERTS + 4 * C::GROUPS);
  f32 bias[HELD];
  glmc_launch_trigger();
  // One warp does it all.
  if (glmc_warp() != 0) return;
  if (!C::FIXED) glmc_launch_wait();
#pragma unroll
  for (u32 k = 0; k < HELD; ++k) {
    u32 e = glmc_lane() + k * WARP;
    bias[k] = e < C::EXPERTS ? C::bias(args, e) : 0.0f;
  }
  if (C::FIXED) glmc_launch_wait();
  i32* ids = reinterpret_cast<i32*>(args.ids);
  f32* weights = reinterpret_cast<f32*>(args.weights);
  u32 tokens = C::tokens(args);
  for (u32 t = glmc_block_x(); t < tokens; t += glmc_grid_x()) {
    f32 logit[HELD], most = minus_infinity(), total = 0.0f;
    bool bad = false;
#pragma unroll
    for (u32 k = 0; k < HELD; ++k) {
      u32 e = glmc_lane() + k * WARP;
      logit[k] = e < C::EXPERTS ? element<typename C::X>(args.logits, u64(t) * C::EXPERTS + e) : minus_infinity();
    }
#pragma unroll
    for (u32 k = 0; k < HELD; ++k) {
      bad |= logit[k] != logit[k];
      most = glmc_max(most, logit[k]);
    }
    bad = glmc_ballot(bad) != 0;
    if (C::SOFTMAX) {
      most = warp_max(most);
#pragma unroll
      for (u32 k = 0; k < HELD; ++k) {
        logit[k] = glmc_lane() + k * WARP < C::EXPERTS ? glmc_exp(logit[k] - most) : 0.0f;
        total += logit[k];
      }
      total = warp_sum(total);
    }
    u32 score[HELD];
#pragma unroll
    for (u32 k = 0; k < HELD; ++k) {
      u32 e = glmc_lane() + k * WARP;
      f32 g = C::SOFTMAX ? logit[k] / total : sigmoid(logit[k]);
      score[k] = in_order(g + bias[k]);
      if (e >= C::EXPERTS) continue;
      gate[e] = g;
      choice[e] = g + bias[k];
    }
    glmc_sync_warp();
    if (C::GROUPS > 1) {
      keep_groups<C>(choice, group);
#pragma unroll
      for (u32 k = 0; k < HELD; ++k) {
        u32 e = glmc_lane() + k * WARP;
        score[k] = e < C::EXPERTS ? in_order(choice[e]) : 0;
      }
    }
    const u32 NOTHING = in_order(minus_infinity());
    f32 sum = 0.0f;
    for (u32 n = 0; n < C::CHOSEN; ++n) {
      u32 best = 0, at = C::EXPERTS;
#pragma unroll
      for (u32 k = 0; k < HELD; ++k) {
        u32 e = glmc_lane() + k * WARP;
        if (e >= C::EXPERTS || score[k] <= best) continue;
        best = score[k];
        at = e;
      }
      u32 largest = glmc_warp_max(best);
      // Of equal ones the smallest id: its complement is the largest.
      u32 e = ~glmc_warp_max(best == largest ? ~at : 0u);
      bool none = bad || largest <= NOTHING;
      f32 g = none ? not_a_number() : gate[e];
      sum += g;
      if (glmc_lane() == 0) {
        ids[u64(t) * C::CHOSEN + n] = none ? -1 : i32(e);
        chosen[n] = g;
      }
#pragma unroll
      for (u32 k = 0; k < HELD; ++k)
        if (e == glmc_lane() + k * WARP) score[k] = 0;
    }
    glmc_sync_warp();
    f32 factor = (C::NORM ? 1.0f / (sum + 1e-20f) : 1.0f) * C::SCALE;
    for (u32 n = glmc_lane(); n < C::CHOSEN; n += WARP) weights[u64(t) * C::CHOSEN + n] = chosen[n] * factor;
    glmc_sync_warp();
  }
}
