// Experts over many tokens: the choices are listed by expert, then each expert's rows meet its choices in tiles.
#pragma once
#include "scan.cuh"
#include "tensor.cuh"

// Lists of choices by expert, in order of choice: starts[e] .. starts[e + 1] of `list`. One block; a warp an expert
// at a time, so that the order is the same in every run. Choices of no expert get zeros, of an unknown one NaN.
// Config: EXPERTS, ROWS, PUT, choices(args), starts(args), list(args).
template <class C>
GLMC_DEVICE void list_choices(const typename C::Arguments& args) {
  GLMC_SHARED(u32, counts, 0);
  GLMC_SHARED(u32, scratch, 4 * C::EXPERTS);
  glmc_launch_wait();
  glmc_launch_trigger();
  const i32* ids = reinterpret_cast<const i32*>(args.ids);
  u32 choices = C::choices(args), warps = glmc_threads() / WARP;
  u32 *starts = C::starts(args), *list = C::list(args);
  for (u32 e = glmc_thread(); e < C::EXPERTS; e += glmc_threads()) counts[e] = 0;
  glmc_sync();
  for (u32 c = glmc_thread(); c < choices; c += glmc_threads())
    if (ids[c] >= 0 && ids[c] < i32(C::EXPERTS)) glmc_atomic_add(&counts[ids[c]], 1);
  glmc_sync();
  u32 before = 0;
  for (u32 base = 0; base < C::EXPERTS; base += glmc_threads()) {
    u32 e = base + glmc_thread(), total;
    u32 n = e < C::EXPERTS ? counts[e] : 0;
    u32 at = before + block_prefix(n, scratch, &total);
    if (e < C::EXPERTS) starts[e] = at;
    before += total;
  }
  if (glmc_thread() == 0) starts[C::EXPERTS] = before;
  glmc_fence();
  glmc_sync();
  for (u32 e = glmc_warp(); e < C::EXPERTS; e += warps) {
    u32 at = starts[e];
    for (u32 base = 0; base < choices && counts[e]; base += WARP) {
      u32 c = base + glmc_lane();
      bool here = c < choices && ids[c] == i32(e);
      u32 lanes = glmc_ballot(here);
      if (here) list[at + glmc_popcount(lanes & ((1u << glmc_lane()) - 1u))] = c;
      at += glmc_popcount(lanes);
    }
  }
}

// Results of choices that no expert makes. Config as above.
template <class C>
GLMC_DEVICE void fill_unchosen(const typename C::Arguments& args) {
  const i32* ids = reinterpret_cast<const i32*>(args.ids);
  u32 choices = C::choices(args);
  for (u32 c = glmc_block_x(); c < choices; c += glmc_grid_x()) {
    i32 id = ids[c];
    if (id >= 0 && id < i32(C::EXPERTS)) continue;
    for (u32 r = glmc_thread(); r < C::ROWS; r += glmc_threads())
      C::PUT::put(args.y, u64(c) * C::ROWS + r, id < 0 ? 0.0f : not_a_number());
  }
}

// Blocks: x over row tiles, y over experts; a block walks the tiles of its expert's choices.
// Config further: those of tensor.cuh, SLOTS, PER_SLOT.
template <class C>
GLMC_DEVICE void expert_tiles(const typename C::Arguments& args) {
  constexpr u32 COLUMNS = C::COLUMNS, ROWS = 64 * C::M;
  GLMC_SHARED(u64, y, TileMemory<C>::Y);
  GLMC_SHARED(u32, vectors, TileMemory<C>::VECTORS);
  u32 row = glmc_block_x() * ROWS, expert = glmc_block_y();
  TileRows rows = {u64(expert) * C::ROWS * C::V::K, row, C::ROWS - row < ROWS ? C::ROWS - row : ROWS};
  glmc_launch_wait();
  glmc_launch_trigger();
  if (expert == 0) fill_unchosen<C>(args);
  u32 begin = C::starts(args)[expert], end = C::starts(args)[expert + 1];
  for (u32 from = begin; from < end; from += COLUMNS) {
    u32 columns = end - from < COLUMNS ? end - from : COLUMNS;
    glmc_sync();
    for (u32 i = glmc_thread(); i < COLUMNS; i += glmc_threads()) {
      u32 c = C::list(args)[from + (i < columns ? i : columns - 1)];
      vectors[i] = C::PER_SLOT ? c : c / C::SLOTS;
      y[i] = u64(c) * C::ROWS + row;
    }
    glmc_sync();
    tensor_tile<C>(args, rows, columns, vectors, y);
  }
}
