// Experts over many tokens: the choices are listed by expert, then each expert's rows meet its choices in tiles.
#pragma once
#include "scan.cuh"
#include "tensor.cuh"

// Lists of choices by expert, in order of choice: starts[e] .. starts[e + 1] of `list`; and of tiles: each an expert and
// the first of at most COLUMNS of its choices, so that an expert of many is shared by many blocks. One block; a warp an expert
// at a time, so that the order is the same in every run. Choices of no expert get zeros, of an unknown one NaN.
// Config: EXPERTS, ROWS, COLUMNS, PUT, choices(args), starts(args), list(args), tiles(args) with their number first.
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
  u32 before = 0, tiles_before = 0, *tiles = C::tiles(args);
  for (u32 base = 0; base < C::EXPERTS; base += glmc_threads()) {
    u32 e = base + glmc_thread(), total, all_tiles;
    u32 n = e < C::EXPERTS ? counts[e] : 0, of = ceil_div(n, C::COLUMNS);
    u32 at = before + block_prefix(n, scratch, &total);
    glmc_sync();
    u32 tile = tiles_before + block_prefix(of, scratch, &all_tiles);
    glmc_sync();
    if (e < C::EXPERTS) starts[e] = at;
    for (u32 i = 0; i < of; ++i) {
      tiles[1 + 2 * (tile + i)] = e;
      tiles[2 + 2 * (tile + i)] = at + i * C::COLUMNS;
    }
    before += total;
    tiles_before += all_tiles;
  }
  if (glmc_thread() == 0) {
    starts[C::EXPERTS] = before;
    tiles[0] = tiles_before;
  }
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

// Blocks: x over row tiles, y over the listed tiles.
// Config further: those of tensor.cuh, SLOTS, PER_SLOT.
template <class C>
GLMC_DEVICE void expert_tiles(const typename C::Arguments& args) {
  constexpr u32 COLUMNS = C::COLUMNS, ROWS = 64 * C::M;
  GLMC_SHARED(u64, y, TileMemory<C>::Y);
  GLMC_SHARED(u32, vectors, TileMemory<C>::VECTORS);
  glmc_launch_wait();
  glmc_launch_trigger();
  if (glmc_block_y() == 0) fill_unchosen<C>(args);
  const u32* tiles = C::tiles(args);
  u32 row = glmc_block_x() * ROWS;
  for (u32 i = glmc_block_y(); i < tiles[0]; i += glmc_grid_y()) {
    u32 expert = tiles[1 + 2 * i], from = tiles[2 + 2 * i], left = C::starts(args)[expert + 1] - from;
    u32 columns = left < COLUMNS ? left : COLUMNS;
    TileRows rows = {u64(expert) * C::ROWS * C::V::K, row, C::ROWS - row < ROWS ? C::ROWS - row : ROWS};
    glmc_sync();
    for (u32 n = glmc_thread(); n < COLUMNS; n += glmc_threads()) {
      u32 c = C::list(args)[from + (n < columns ? n : columns - 1)];
      vectors[n] = C::PER_SLOT ? c : c / C::SLOTS;
      y[n] = u64(c) * C::ROWS + row;
    }
    glmc_sync();
    tensor_tile<C>(args, rows, columns, vectors, y);
  }
}
