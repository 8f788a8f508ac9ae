// Columns of one matrix as columns of another: joins and splits of the last dim.
#pragma once
#include "quant/float.cuh"

// to[r, to_at + j] = from[r, from_at + j] for j below `columns`.
template <class Q, class PUT>
GLMC_DEVICE void copy_columns(const u8* from, u32 from_width, u32 from_at, u8* to, u32 to_width, u32 to_at, u32 columns,
                              u64 rows) {
  for (u64 i = global_thread(); i < rows * columns; i += global_threads()) {
    u64 r = i / columns, j = i % columns;
    PUT::put(to, r * to_width + to_at + j, element<Q>(from, r * from_width + from_at + j));
  }
}
