// Rows of a table by id, and rows written into a pool.
#pragma once
#include "quant/float.cuh"

// Config: TABLE, PUT, WIDTH, rows(args), ids(args). A negative id gives zeros, one past the table NaN.
template <class C>
GLMC_DEVICE void gather(const typename C::Arguments& args) {
  glmc_launch_trigger();
  glmc_launch_wait();
  const i32* ids = reinterpret_cast<const i32*>(args.ids);
  u64 count = u64(C::ids(args)) * C::WIDTH;
  u32 rows = C::rows(args);
  for (u64 i = global_thread(); i < count; i += global_threads()) {
    i32 id = ids[i / C::WIDTH];
    f32 v = 0.0f;
    if (id >= 0) {
      v = u32(id) < rows ? element<typename C::TABLE>(args.table, u64(id) * C::WIDTH + i % C::WIDTH) : not_a_number();
    }
    C::PUT::put(args.y, i, v);
  }
}

// pool[rows[t]] = x[t], a block a token. Of several tokens with one row the last is written, by nobody else; a row
// outside the pool is not written.
// Config: X, PUT, WIDTH, rows(args), tokens(args).
template <class C>
GLMC_DEVICE void append(const typename C::Arguments& args) {
  glmc_launch_trigger();
  glmc_launch_wait();
  const i32* rows = reinterpret_cast<const i32*>(args.rows);
  u32 tokens = C::tokens(args);
  for (u32 t = glmc_block_x(); t < tokens; t += glmc_grid_x()) {
    i32 row = rows[t];
    bool later = false;
    for (u32 u = t + 1 + glmc_thread(); u < tokens; u += glmc_threads()) later |= rows[u] == row;
    later = glmc_sync_any(later);
    if (row < 0 || u32(row) >= C::rows(args) || later) continue;
    for (u32 i = glmc_thread(); i < C::WIDTH; i += glmc_threads()) {
      C::PUT::put(args.pool, u64(row) * C::WIDTH + i, element<typename C::X>(args.x, u64(t) * C::WIDTH + i));
    }
  }
}
