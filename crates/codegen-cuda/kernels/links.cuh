// What shows that devices reach each other, and that collectives are right under replay.
#pragma once
#include "prim.cuh"

GLMC_DEVICE u32 link_pattern(u32 seed, u32 i) {
  u32 x = (i ^ seed) * 0x9e3779b1u;
  return x ^ x >> 15;
}

// Writes WORDS words to another device and reads them back. Config: WORDS. Arguments: to, bad, seed.
template <class C>
GLMC_DEVICE void probe_link(const typename C::Arguments& args) {
  u32* to = reinterpret_cast<u32*>(args.to);
  u32 seed = *reinterpret_cast<const u32*>(args.seed), bad = 0;
  for (u32 i = u32(global_thread()); i < C::WORDS; i += u32(global_threads())) to[i] = link_pattern(seed, i);
  glmc_fence_system();
  for (u32 i = u32(global_thread()); i < C::WORDS; i += u32(global_threads()))
    bad += glmc_load_word_system(to + i) != link_pattern(seed, i);
  if (bad) glmc_atomic_add(reinterpret_cast<u32*>(args.bad), bad);
}

// A number of rank `rank` in meeting `n`: a small multiple of 1/8, so that sums are exact.
GLMC_DEVICE f32 stress_value(u64 n, u32 rank, u32 i) {
  u32 x = link_pattern(u32(n) * 0x85ebca6bu + rank * 0xc2b2ae35u, i);
  return f32(i32(x >> 7 & 15u) - 8) * 0.125f;
}

struct StressState {
  u64 meetings;
  u32 bad, pad;
};

// Fresh operands of a meeting; one rank's device is late now and then. One block.
// Config: WORDS, LATE, LOCAL (ranks here), rank(local), x(args, local). Argument: state.
template <class C>
GLMC_DEVICE void stress_make(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  u64 n = reinterpret_cast<const StressState*>(args.state)->meetings;
  if (C::LATE && glmc_thread() == 0) {
    u32 h = link_pattern(0x2545f491u, u32(n));
    u64 start = glmc_time(), nanos = h % 8 == 0 ? h >> 18 : 0;
    while (glmc_time() - start < nanos) glmc_await();
  }
  glmc_sync();
  for (u32 r = 0; r < C::LOCAL; ++r)
    for (u32 i = glmc_thread(); i < C::WORDS; i += glmc_threads()) C::x(args, r)[i] = stress_value(n, C::rank(r), i);
}

// Counts results that are not the exact sum. Config: also RANKS, y(args, local).
template <class C>
GLMC_DEVICE void stress_check(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  StressState* state = reinterpret_cast<StressState*>(args.state);
  u64 n = state->meetings;
  u32 bad = 0;
  for (u32 i = glmc_thread(); i < C::WORDS; i += glmc_threads()) {
    f32 want = 0.0f;
    for (u32 r = 0; r < C::RANKS; ++r) want += stress_value(n, r, i);
    for (u32 r = 0; r < C::LOCAL; ++r) bad += C::y(args, r)[i] != want;
  }
  if (bad) glmc_atomic_add(&state->bad, bad);
  glmc_sync();
  if (glmc_thread() == 0) state->meetings = n + 1;
}
