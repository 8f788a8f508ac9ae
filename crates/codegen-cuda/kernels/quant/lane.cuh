// The lane layout: a unit is 32 weights of one row, units are in row order, each kind of field has a plane of its own,
// so that the 16-byte loads of a warp are one run of bytes (src/repack.rs writes the planes and describes them).
#pragma once
#include "quant/run.cuh"
#include "quant/q4_k.cuh"

// A unit as integers: weight e is s * (byte e - BIAS) - min, s = scale[e / 16]. Bytes are signed where SIGNED says so,
// else they are unsigned. With HALVES the two scales differ; else both are scale[0]. Without MIN it is zero.
struct Unit {
  u32 codes[8];
  f32 scale[2];
  f32 min;
};

// What is loaded for a unit before anything is computed from it; loads of several units may so be under way at once.
struct Raw {
  U4 a, b;
  u32 c, d;
};

constexpr u32 MOST_PLANES = 4;
typedef const u8* Planes[MOST_PLANES];

GLMC_DEVICE U4 load16(const u8* p) { return *reinterpret_cast<const U4*>(p); }
GLMC_DEVICE U2 load8(const u8* p) { return *reinterpret_cast<const U2*>(p); }
GLMC_DEVICE u32 load4(const u8* p) { return *reinterpret_cast<const u32*>(p); }
GLMC_DEVICE u32 load2(const u8* p) { return *reinterpret_cast<const u16*>(p); }

// Low nibbles are weights 0 to 15, high ones 16 to 31.
GLMC_DEVICE void nibbles(U4 v, u32 (&codes)[8]) {
  u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    codes[i] = w[i] & 0x0f0f0f0fu;
    codes[4 + i] = w[i] >> 4 & 0x0f0f0f0fu;
  }
}

// Scale and minimum of run r (0..8) out of a header of q4_K or q5_K, without branches: 12 bytes hold six bits of each;
// of the last four runs the upper two bits lie in the first eight bytes.
GLMC_DEVICE void k_scales(U4 header, u32 run, Unit* u) {
  u32 shift = run % 4 * 8, a = header.y >> shift, b = header.z >> shift, c = header.w >> shift;
  u32 scale = run < 4 ? a & 63u : (c & 15u) | (a >> 2 & 48u);
  u32 min = run < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 2 & 48u);
  u->scale[0] = u->scale[1] = glmc_half_to_float(u16(header.x)) * f32(scale);
  u->min = glmc_half_to_float(u16(header.x >> 16)) * f32(min);
}

// Planes: codes 16 B a unit; header 16 B for 8 units.
struct Q4_K_LANE {
  static constexpr u32 PLANES = 2, BIAS = 0;
  static constexpr bool SIGNED = false, HALVES = false, MIN = true;
  GLMC_DEVICE static constexpr u64 bytes(u32 plane, u64 units) { return plane == 0 ? 16 * units : 2 * units; }
  GLMC_DEVICE static Raw load(const Planes& p, u64 unit) {
    return {load16(p[0] + 16 * unit), load16(p[1] + unit / 8 * 16), 0, 0};
  }
  GLMC_DEVICE static Unit unpack(const Raw& r, u32 run) {
    Unit u;
    nibbles(r.a, u.codes);
    k_scales(r.b, run, &u);
    return u;
  }
};

// Planes: low nibbles 16 B; fifth bits 4 B; header 16 B for 8 units.
struct Q5_K_LANE {
  static constexpr u32 PLANES = 3, BIAS = 0;
  static constexpr bool SIGNED = false, HALVES = false, MIN = true;
  GLMC_DEVICE static constexpr u64 bytes(u32 plane, u64 units) {
    return plane == 0 ? 16 * units : plane == 1 ? 4 * units : 2 * units;
  }
  GLMC_DEVICE static Raw load(const Planes& p, u64 unit) {
    return {load16(p[0] + 16 * unit), load16(p[2] + unit / 8 * 16), load4(p[1] + 4 * unit), 0};
  }
  GLMC_DEVICE static Unit unpack(const Raw& r, u32 run) {
    Unit u;
    nibbles(r.a, u.codes);
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {
      u.codes[w] |= r.c << (4 - w) & 0x10101010u;
      u.codes[4 + w] |= r.c >> w & 0x10101010u;
    }
    k_scales(r.b, run, &u);
    return u;
  }
};

// Planes: low nibbles 16 B; high pairs 8 B; two signed scales 2 B; d 2 B for 8 units.
struct Q6_K_LANE {
  static constexpr u32 PLANES = 4, BIAS = 32;
  static constexpr bool SIGNED = false, HALVES = true, MIN = false;
  GLMC_DEVICE static constexpr u64 bytes(u32 plane, u64 units) {
    return plane == 0 ? 16 * units : plane == 1 ? 8 * units : plane == 2 ? 2 * units : units / 4;
  }
  GLMC_DEVICE static Raw load(const Planes& p, u64 unit) {
    U2 high = load8(p[1] + 8 * unit);
    return {load16(p[0] + 16 * unit), {high.x, high.y, 0, 0}, load2(p[2] + 2 * unit), load2(p[3] + unit / 8 * 2)};
  }
  GLMC_DEVICE static Unit unpack(const Raw& r, u32) {
    Unit u;
    nibbles(r.a, u.codes);
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {
      u.codes[w] |= (r.b.x >> (2 * w) & 0x03030303u) << 4;
      u.codes[4 + w] |= (r.b.y >> (2 * w) & 0x03030303u) << 4;
    }
    f32 d = glmc_half_to_float(u16(r.d));
    u.scale[0] = d * f32(i8(r.c));
    u.scale[1] = d * f32(i8(r.c >> 8));
    u.min = 0.0f;
    return u;
  }
};

// Planes: bytes 0 to 15, 16 B; bytes 16 to 31, 16 B; d 2 B.
struct Q8_0_LANE {
  static constexpr u32 PLANES = 3, BIAS = 0;
  static constexpr bool SIGNED = true, HALVES = false, MIN = false;
  GLMC_DEVICE static constexpr u64 bytes(u32 plane, u64 units) { return plane < 2 ? 16 * units : 2 * units; }
  GLMC_DEVICE static Raw load(const Planes& p, u64 unit) {
    return {load16(p[0] + 16 * unit), load16(p[1] + 16 * unit), load2(p[2] + 2 * unit), 0};
  }
  GLMC_DEVICE static Unit unpack(const Raw& r, u32) {
    Unit u = {{r.a.x, r.a.y, r.a.z, r.a.w, r.b.x, r.b.y, r.b.z, r.b.w}, {0.0f, 0.0f}, 0.0f};
    u.scale[0] = u.scale[1] = glmc_half_to_float(u16(r.c));
    return u;
  }
};

// Byte i of a word as a float, less the bias; exact.
template <class L>
GLMC_DEVICE f32 code_value(u32 word, u32 i) {
  // Signed bytes are made unsigned first.
  if (L::SIGNED) word ^= 0x80808080u;
  return glmc_planted_byte(word, i) - (8388608.0f + (L::SIGNED ? 128.0f : f32(L::BIAS)));
}

// Where each plane of a tensor of `units` units starts; planes are padded to 16 bytes.
template <class L>
GLMC_DEVICE void find_planes(const u8* base, u64 units, Planes& p) {
#pragma unroll
  for (u32 i = 0; i < L::PLANES; ++i) {
    p[i] = base;
    base += (L::bytes(i, units) + 15) / 16 * 16;
  }
}

// A tensor of UNITS units in the lane layout, read as matmuls read packed ones; the bits of the reference decoder.
template <class L, u64 UNITS>
struct Lane {
  static constexpr u32 ELEMS = 32;
};

template <class L, u64 UNITS>
struct Run<Lane<L, UNITS>, 8> {
  GLMC_DEVICE static void read(const u8* base, u64 i, f32 (&out)[8]) {
    Planes p;
    find_planes<L>(base, UNITS, p);
    Unit u = L::unpack(L::load(p, i / 32), u32(i / 32 % 8));
    u32 g = u32(i % 32) / 8;
    // Indices that the compiler knows keep the unit in registers.
#pragma unroll
    for (u32 at = 0; at < 4; ++at) {
      if (at != g) continue;
#pragma unroll
      for (u32 e = 0; e < 8; ++e)
        out[e] = u.scale[at / 2] * code_value<L>(u.codes[2 * at + e / 4], e % 4) - u.min;
    }
  }
};
