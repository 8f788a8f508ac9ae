// The k largest of a row with their order: a block a row. Radix selection finds the k-th largest, a pass in position
// order takes what is larger and the first of the equal ones, and each taken entry counts how many come before it.
// Entries at minus infinity and NaN are never taken.
// With PART a row is the positions in f32 and then their scores, none as -1 and minus infinity.
// Config: X, COUNT, PART, rows(args), width(args).
#pragma once
#include "order.cuh"
#include "quant/float.cuh"
#include "scan.cuh"


template <class C>
GLMC_DEVICE void topk(const typename C::Arguments& args) {
  GLMC_SHARED(u32, histogram, 0);
  GLMC_SHARED(u32, scratch, 1024);
  GLMC_SHARED(u32, state, 1024 + 160);
  GLMC_SHARED(u32, keys, 1024 + 192);
  GLMC_SHARED(u32, places, 1024 + 192 + 4 * C::COUNT);
  glmc_launch_trigger();
  glmc_launch_wait();
  i32* ids = reinterpret_cast<i32*>(args.ids);
  f32* part = reinterpret_cast<f32*>(args.ids);
  u32 rows = C::rows(args), width = C::width(args);
  for (u32 row = glmc_block_x(); row < rows; row += glmc_grid_x()) {
    u64 first = u64(row) * width;
    // The key of the COUNT-th largest, eight bits a pass; `left` entries with the prefix so far are still wanted.
    u32 prefix = 0, mask = 0, left = C::COUNT;
    for (u32 shift = 32; shift > 0;) {
      shift -= 8;
      glmc_sync();
      for (u32 i = glmc_thread(); i < 256; i += glmc_threads()) histogram[i] = 0;
      glmc_sync();
      for (u32 i = glmc_thread(); i < width; i += glmc_threads()) {
        u32 key = order_key(element<typename C::X>(args.x, first + i));
        if ((key & mask) == prefix && key > KEY_NONE) glmc_atomic_add(&histogram[key >> shift & 255u], 1);
      }
      glmc_sync();
      if (glmc_thread() == 0) {
        u32 digit = 255, above = 0;
        while (digit > 0 && above + histogram[digit] < left) above += histogram[digit--];
        state[0] = digit;
        state[1] = left - above;
      }
      glmc_sync();
      prefix |= state[0] << shift;
      mask |= 255u << shift;
      left = state[1];
    }
    // Fewer than COUNT entries lead to a prefix of zeros: everything above it is taken.
    u32 limit = prefix > KEY_NONE ? prefix : KEY_NONE, equal_wanted = prefix > KEY_NONE ? left : 0;
    u32 taken = 0, equals = 0;
    for (u32 base = 0; base < width; base += glmc_threads()) {
      u32 i = base + glmc_thread();
      u32 key = i < width ? order_key(element<typename C::X>(args.x, first + i)) : 0, total;
      bool larger = key > limit, equal = key == limit && limit > KEY_NONE;
      // Both counts in one sum: at most 1024 threads.
      u32 before = block_prefix((larger ? 1u : 0u) | (equal ? 1u << 16 : 0u), scratch, &total);
      u32 equal_before = equals + (before >> 16);
      u32 slot = taken + (before & 0xffffu) + (equal_before < equal_wanted ? equal_before : equal_wanted);
      if (larger || (equal && equal_before < equal_wanted)) {
        keys[slot] = key;
        places[slot] = i;
      }
      taken += total & 0xffffu;
      equals += total >> 16;
    }
    taken += equals < equal_wanted ? equals : equal_wanted;
    glmc_sync();
    for (u32 a = glmc_thread(); a < C::COUNT; a += glmc_threads()) {
      if (a >= taken) {
        if (C::PART) {
          part[2 * u64(row) * C::COUNT + a] = -1.0f;
          part[(2 * u64(row) + 1) * C::COUNT + a] = minus_infinity();
        } else {
          ids[u64(row) * C::COUNT + a] = -1;
        }
        continue;
      }
      u32 rank = 0, key = keys[a];
      for (u32 b = 0; b < taken; ++b) rank += keys[b] > key || (keys[b] == key && b < a);
      if (C::PART) {
        part[2 * u64(row) * C::COUNT + rank] = f32(places[a]);
        part[(2 * u64(row) + 1) * C::COUNT + rank] = element<typename C::X>(args.x, first + places[a]);
      } else {
        ids[u64(row) * C::COUNT + rank] = i32(places[a]);
      }
    }
    glmc_sync();
  }
}
