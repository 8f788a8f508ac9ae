// The names of prim_device.cuh on the emulation.
#pragma once

GLMC_DEVICE u32 glmc_thread() { return emu::block().now->id; }
GLMC_DEVICE u32 glmc_threads() { return emu::block().threads; }
GLMC_DEVICE u32 glmc_lane() { return emu::block().now->id & 31u; }
GLMC_DEVICE u32 glmc_warp() { return emu::block().now->id >> 5; }
GLMC_DEVICE u32 glmc_block_x() { return emu::block().id.x; }
GLMC_DEVICE u32 glmc_block_y() { return emu::block().id.y; }
GLMC_DEVICE u32 glmc_block_z() { return emu::block().id.z; }
GLMC_DEVICE u32 glmc_grid_x() { return emu::block().grid.x; }
GLMC_DEVICE u32 glmc_grid_y() { return emu::block().grid.y; }

GLMC_DEVICE void glmc_sync() { emu::meet_block(); }
GLMC_DEVICE void glmc_sync_warp() { emu::meet_warp("sync_warp"); }
GLMC_DEVICE bool glmc_sync_any(bool p) {
  emu::block().any |= p;
  emu::meet_block();
  return emu::block().result;
}

GLMC_DEVICE u32 glmc_float_to_bits(f32 x) {
  u32 b;
  memcpy(&b, &x, 4);
  return b;
}
GLMC_DEVICE f32 glmc_bits_to_float(u32 b) {
  f32 x;
  memcpy(&x, &b, 4);
  return x;
}

GLMC_DEVICE u32 glmc_shuffle_xor(u32 v, u32 mask) { return emu::exchange(v, glmc_lane() ^ mask, "shuffle_xor"); }
GLMC_DEVICE i32 glmc_shuffle_xor(i32 v, u32 mask) { return i32(glmc_shuffle_xor(u32(v), mask)); }
GLMC_DEVICE f32 glmc_shuffle_xor(f32 v, u32 mask) {
  return glmc_bits_to_float(glmc_shuffle_xor(glmc_float_to_bits(v), mask));
}
GLMC_DEVICE u32 glmc_shuffle_up(u32 v, u32 by) {
  u32 lane = glmc_lane();
  return emu::exchange(v, lane < by ? lane : lane - by, "shuffle_up");
}
GLMC_DEVICE u32 glmc_shuffle(u32 v, u32 lane) { return emu::exchange(v, lane, "shuffle"); }
GLMC_DEVICE f32 glmc_shuffle(f32 v, u32 lane) { return glmc_bits_to_float(glmc_shuffle(glmc_float_to_bits(v), lane)); }
GLMC_DEVICE u32 glmc_ballot(bool p) {
  emu::Warp& w = emu::warp();
  u32 parity = w.parity, live = w.live, bits = 0;
  w.slot[parity][glmc_lane()] = p;
  emu::meet_warp("ballot");
  for (u32 i = 0; i < live; ++i) bits |= (w.slot[parity][i] & 1u) << i;
  return bits;
}
GLMC_DEVICE u32 glmc_warp_max(u32 v) {
  for (u32 m = 16; m; m >>= 1) {
    u32 other = glmc_shuffle_xor(v, m);
    v = other > v ? other : v;
  }
  return v;
}
GLMC_DEVICE u32 glmc_popcount(u32 v) { return u32(__builtin_popcount(v)); }
GLMC_DEVICE u32 glmc_first_bit(u32 v) { return u32(__builtin_ffs(int(v)) - 1); }

GLMC_DEVICE u32 glmc_load_word(const void* p) { return *static_cast<const u32*>(p); }
GLMC_DEVICE u32 glmc_atomic_add(u32* p, u32 v) {
  u32 before = *p;
  *p += v;
  return before;
}
GLMC_DEVICE u32 glmc_atomic_or(u32* p, u32 v) {
  u32 before = *p;
  *p |= v;
  return before;
}
GLMC_DEVICE void glmc_fence() {}
GLMC_DEVICE u32 glmc_arrive(u32* p) { return glmc_atomic_add(p, 1); }

GLMC_DEVICE f32 glmc_half_to_float(u16 h) {
  u32 sign = u32(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
  if (e == 31) return glmc_bits_to_float(sign | 0x7f800000u | m << 13);
  if (e) return glmc_bits_to_float(sign | (e + 112) << 23 | m << 13);
  f32 tiny = f32(m) * 0x1p-24f;
  return sign ? -tiny : tiny;
}
// Round to nearest even. Below 2^-14 an add to a number whose last bit is worth 2^-24 rounds.
GLMC_DEVICE u16 glmc_float_to_half(f32 f) {
  u32 bits = glmc_float_to_bits(f), sign = bits >> 16 & 0x8000u, x = bits & 0x7fffffffu;
  if (x > 0x7f800000u) return u16(sign | 0x7e00u);
  if (x >= 0x477ff000u) return u16(sign | 0x7c00u);
  if (x < 0x38800000u) return u16(sign | (glmc_float_to_bits(glmc_bits_to_float(x) + 0.5f) - 0x3f000000u));
  return u16(sign | ((x + 0xfffu + (x >> 13 & 1u)) >> 13) - (112u << 10));
}
GLMC_DEVICE f32 glmc_planted_byte(u32 word, u32 i) { return 8388608.0f + f32(u8(word >> (8 * i))); }
GLMC_DEVICE u32 glmc_pack_half(f32 lo, f32 hi) { return glmc_float_to_half(lo) | u32(glmc_float_to_half(hi)) << 16; }
GLMC_DEVICE u32 glmc_pack_bf16(f32 lo, f32 hi) {
  auto round = [](f32 x) {
    u32 b = glmc_float_to_bits(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
  };
  return round(lo) | round(hi) << 16;
}

// A product of two floats is exact in a double, so this rounds almost as a fused operation does (twice in rare ties).
GLMC_DEVICE f32 glmc_fma(f32 a, f32 b, f32 c) { return f32(f64(a) * f64(b) + f64(c)); }
GLMC_DEVICE f32 glmc_max(f32 a, f32 b) { return fmaxf(a, b); }
GLMC_DEVICE u32 glmc_max(u32 a, u32 b) { return a < b ? b : a; }
GLMC_DEVICE f32 glmc_reciprocal(f32 x) { return 1.0f / x; }
GLMC_DEVICE f32 glmc_exp(f32 x) { return expf(x); }
GLMC_DEVICE f32 glmc_sqrt(f32 x) { return sqrtf(x); }
GLMC_DEVICE f32 glmc_abs(f32 x) { return fabsf(x); }
GLMC_DEVICE f64 glmc_rint(f64 x) { return rint(x); }
GLMC_DEVICE i32 glmc_round(f32 x) { return i32(rintf(x)); }
GLMC_DEVICE void glmc_sincos(f32 x, f32* s, f32* c) {
  *s = sinf(x);
  *c = cosf(x);
}

GLMC_DEVICE i32 glmc_dp4a(u32 a, u32 b, i32 c) {
  for (u32 i = 0; i < 32; i += 8) c += i32(i8(a >> i)) * i32(i8(b >> i));
  return c;
}
GLMC_DEVICE i32 glmc_dp4a_us(u32 a, u32 b, i32 c) {
  for (u32 i = 0; i < 32; i += 8) c += i32(u8(a >> i)) * i32(i8(b >> i));
  return c;
}

namespace emu {
template <class ToFloat>
void mma(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], ToFloat value) {
  Warp& w = warp();
  u32 parity = w.parity, lane = block().now->id % 32;
  memcpy(w.mma[parity][lane].a, a, 16);
  memcpy(w.mma[parity][lane].b, b, 8);
  meet_warp("mma");
  const Fragments* f = w.mma[parity];
  auto half_of = [&](u32 word, u32 i) { return value(u16(word >> (16 * i))); };
  for (u32 i = 0; i < 4; ++i) {
    u32 row = lane / 4 + 8 * (i / 2), col = 2 * (lane % 4) + i % 2;
    f64 sum = d[i];
    for (u32 k = 0; k < 16; ++k) {
      const Fragments& fa = f[row % 8 * 4 + k % 8 / 2];
      const Fragments& fb = f[col * 4 + k % 8 / 2];
      sum += f64(half_of(fa.a[row / 8 + k / 8 * 2], k % 2)) * f64(half_of(fb.b[k / 8], k % 2));
    }
    d[i] = f32(sum);
  }
}
}  // namespace emu
GLMC_DEVICE void glmc_mma_bf16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  emu::mma(d, a, b, [](u16 h) { return glmc_bits_to_float(u32(h) << 16); });
}
GLMC_DEVICE void glmc_mma_f16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  emu::mma(d, a, b, [](u16 h) { return glmc_half_to_float(h); });
}

namespace emu {
inline void load_matrices(u32 (&d)[4], const void* row, bool transposed) {
  if (reinterpret_cast<u64>(row) % 16) fail("a row of a matrix at an address that is no multiple of 16");
  Warp& w = warp();
  u32 parity = w.parity, lane = block().now->id % 32;
  memcpy(&w.mma[parity][lane].a, &row, sizeof row);
  meet_warp("load_matrices");
  for (u32 m = 0; m < 4; ++m) {
    u16 v[2];
    for (u32 e = 0; e < 2; ++e) {
      u32 r = transposed ? 2 * (lane % 4) + e : lane / 4, c = transposed ? lane / 4 : 2 * (lane % 4) + e;
      const u16* from;
      memcpy(&from, &w.mma[parity][8 * m + r].a, sizeof from);
      v[e] = from[c];
    }
    d[m] = v[0] | u32(v[1]) << 16;
  }
  // Nobody writes to the rows before all have read them.
  meet_warp("load_matrices");
}
}  // namespace emu
GLMC_DEVICE void glmc_load_matrices(u32 (&d)[4], const void* row) { emu::load_matrices(d, row, false); }
GLMC_DEVICE void glmc_load_transposed(u32 (&d)[4], const void* row) { emu::load_matrices(d, row, true); }
GLMC_DEVICE u32 glmc_byte_halves(u32 word, u32 i, u32 less) {
  auto one = [&](u32 e) {
    u16 h = u16(0x6400u | (word >> (16 * i + 8 * e) & 255u));
    return glmc_float_to_half(glmc_half_to_float(h) - glmc_half_to_float(u16(less >> (16 * e))));
  };
  return one(0) | u32(one(1)) << 16;
}

GLMC_DEVICE bool emu_aligned(const void* p) { return reinterpret_cast<u64>(p) % 16 == 0; }
GLMC_DEVICE U4 glmc_load_stream(const void* p) {
  if (!emu_aligned(p)) emu::fail("a 16-byte load at an address that is no multiple of 16");
  return *static_cast<const U4*>(p);
}

GLMC_DEVICE void glmc_copy16(void* to, const void* from) {
  if (!emu_aligned(to) || !emu_aligned(from)) emu::fail("a 16-byte copy at an address that is no multiple of 16");
  emu::block().now->copies.push_back({to, from, 16, emu::block().now->groups});
}
GLMC_DEVICE void glmc_copy_commit() { ++emu::block().now->groups; }
// Copies of groups that nobody awaits stay under way.
template <u32 GROUPS>
GLMC_DEVICE void glmc_copy_wait() {
  std::vector<emu::Copy>& all = emu::block().now->copies;
  u32 done = 0;
  while (done < all.size() && all[done].group + GROUPS < emu::block().now->groups) ++done;
  emu::land({all.begin(), all.begin() + done});
  all.erase(all.begin(), all.begin() + done);
}
GLMC_DEVICE void glmc_copy_wait_all() { glmc_copy_wait<0>(); }

GLMC_DEVICE void glmc_barrier_init(u64* bar) {
  *bar = emu::block().barrier.size();
  emu::block().barrier.push_back({0, -1, {}});
}
GLMC_DEVICE emu::Barrier& emu_barrier(u64* bar) {
  if (*bar >= emu::block().barrier.size()) emu::fail("a barrier that was never initialised");
  return emu::block().barrier[*bar];
}
GLMC_DEVICE void glmc_barrier_expect(u64* bar, u32 bytes) {
  emu::Barrier& b = emu_barrier(bar);
  if (b.expected >= 0) emu::fail("a second arrival in one phase of a barrier");
  b.expected = bytes;
}
GLMC_DEVICE void glmc_bulk_copy(void* to, const void* from, u32 bytes, u64* bar) {
  if (!emu_aligned(to) || !emu_aligned(from) || bytes % 16) emu::fail("a bulk copy that is not in units of 16 bytes");
  emu_barrier(bar).copies.push_back({to, from, bytes, 0});
}
GLMC_DEVICE void glmc_barrier_wait(u64* bar, u32 parity) {
  while ((emu_barrier(bar).phase & 1u) == parity) {
    emu::Barrier& b = emu_barrier(bar);
    i64 sum = 0;
    for (const emu::Copy& c : b.copies) sum += c.bytes;
    if (b.expected >= 0 && sum > b.expected) emu::fail("more bytes arrive at a barrier than it expects");
    if (sum == b.expected) {
      emu::land(b.copies);
      b.copies.clear();
      b.expected = -1;
      ++b.phase;
      return;
    }
    emu::block().now->state = emu::State::POLLING;
    emu::yield_to_scheduler();
  }
}

// Words that devices write for each other. A load that finds nothing new is a place where other devices may run.
GLMC_DEVICE u64 glmc_load_system(const u64* p) { return *p; }
GLMC_DEVICE void glmc_store_system(u64* p, u64 v) { *p = v; }
GLMC_DEVICE void glmc_release_system(u64* p, u64 v) { *p = v; }
GLMC_DEVICE void glmc_acquire_system() {}
GLMC_DEVICE u32 glmc_load_word_system(const u32* p) { return *p; }
GLMC_DEVICE void glmc_fence_system() {}
GLMC_DEVICE u64 glmc_time() { return emu::rounds * 1000; }
GLMC_DEVICE void glmc_await() {
  emu::block().now->state = emu::State::AWAITING;
  emu::yield_to_scheduler();
}

GLMC_DEVICE void glmc_launch_wait() {}
GLMC_DEVICE void glmc_launch_trigger() {}
GLMC_DEVICE void glmc_compiler_fence() {}
