// Parts that ranks left of what they reduce, made one value. Called for one element of the result, or one candidate.
#pragma once
#include "order.cuh"
#include "prim.cuh"

// Parts of a softmax: rows (o.., max, sum), WIDTH values wide; zero where no rank saw a key. `part` gives the row of a
// member. In the order of ranks.
template <u32 MEMBERS, u32 WIDTH, class Part>
GLMC_DEVICE f32 merge_softmax(u32 column, Part part) {
  f32 most = minus_infinity(), total = 0.0f, y = 0.0f, weight[MEMBERS];
#pragma unroll
  for (u32 m = 0; m < MEMBERS; ++m)
    if (part(m)[WIDTH + 1] != 0.0f) most = glmc_max(most, part(m)[WIDTH]);
#pragma unroll
  for (u32 m = 0; m < MEMBERS; ++m) {
    f32 sum = part(m)[WIDTH + 1];
    // An empty part has a maximum that says nothing.
    weight[m] = sum != 0.0f ? sum * glmc_exp(part(m)[WIDTH] - most) : 0.0f;
    total += weight[m];
  }
#pragma unroll
  for (u32 m = 0; m < MEMBERS; ++m)
    if (part(m)[WIDTH + 1] != 0.0f) y += weight[m] / total * part(m)[column];
  return y;
}

// Whether entry (key, at) comes before the other: larger first, of equal ones the smaller position.
GLMC_DEVICE bool comes_before(u32 key, f32 at, u32 other_key, f32 other_at) {
  return key > other_key || (key == other_key && at < other_at);
}

// Parts of a selection: rows (at.., score..) of COUNT entries each, in order, positions of -1 behind them. Gives where
// entry `own` of member `me` lies among all, COUNT or more if it is not taken or none; `found` is how many there are.
template <u32 MEMBERS, u32 COUNT, class Part>
GLMC_DEVICE u32 merge_rank(u32 me, u32 own, Part part, u32* found) {
  f32 at = part(me)[own];
  u32 key = order_key(part(me)[COUNT + own]), rank = own, all = 0;
  for (u32 m = 0; m < MEMBERS; ++m) {
    const f32* row = part(m);
    u32 low = 0, high = COUNT;
    while (low < high) {
      u32 mid = (low + high) / 2;
      if (row[mid] >= 0.0f) low = mid + 1;
      else high = mid;
    }
    all += low;
    if (m == me) continue;
    u32 first = 0;
    for (high = low; first < high;) {
      u32 mid = (first + high) / 2;
      if (comes_before(order_key(row[COUNT + mid]), row[mid], key, at)) first = mid + 1;
      else high = mid;
    }
    rank += first;
  }
  *found = all;
  return at >= 0.0f ? rank : COUNT;
}
