// Makes random valid blocks: the same integer steps and the same rounding as ir::quant::synth, bit for bit. A thread a
// block, whose words are written first and whose scales are then overwritten in place.
// Config: Type (one of the structs below). Arguments: `what`, 8-byte words, and `y`. The words: the tensor's key; the bits
// of the target with those of the share above; the bits of the mean with the lower code above; the number of runs; then
// for each run the number of its first block, blocks of a piece, pieces, blocks from piece to piece.
#pragma once
#include "prim.cuh"

constexpr u64 SYNTH_G = 0x9e3779b97f4a7c15ull;
constexpr u64 SYNTH_SCALE = 1ull << 32;

GLMC_DEVICE u64 synth_mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

struct SynthAim {
  f32 target, share, mean;
  u32 low;
};

struct SynthDraw {
  u64 key;
  GLMC_DEVICE u64 word(u64 i) const { return synth_mix(key + (i + 1) * SYNTH_G); }
  GLMC_DEVICE u16 scale(const SynthAim& a) const {
    f32 d = a.target * (0.75f + f32(u32(word(SYNTH_SCALE) & 127u)) / 256.0f);
    return glmc_float_to_half(d < 65504.0f ? d : 65504.0f);
  }
  GLMC_DEVICE u16 signed_scale(const SynthAim& a) const {
    return u16(scale(a) ^ (u32(word(SYNTH_SCALE) >> 7 & 1u) << 15));
  }
  GLMC_DEVICE u8 code(const SynthAim& a, u64 which) const {
    return u8(a.low + (f32(u32(word(SYNTH_SCALE + 1 + which) >> 40)) < a.share * 16777216.0f ? 1u : 0u));
  }
  GLMC_DEVICE f32 value(const SynthAim& a) const {
    f32 centred = f32(u32(word(0) >> 40)) - 8388607.5f;
    return centred / 8388608.0f * glmc_bits_to_float(0x3fddb3d7u) * a.target + a.mean;
  }
};

GLMC_DEVICE f32 synth_bound(f32 x) { return x < -65504.0f ? -65504.0f : x > 65504.0f ? 65504.0f : x; }
GLMC_DEVICE void synth_put(u8* p, u16 v) {
  p[0] = u8(v);
  p[1] = u8(v >> 8);
}
GLMC_DEVICE u16 synth_times(u16 d, f32 factor) { return glmc_float_to_half(synth_bound(glmc_half_to_float(d) * factor)); }

struct F32_SYNTH {
  static constexpr u32 BYTES = 4;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    u32 v = glmc_float_to_bits(d.value(a));
    synth_put(b, u16(v));
    synth_put(b + 2, u16(v >> 16));
  }
};
struct F16_SYNTH {
  static constexpr u32 BYTES = 2;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    synth_put(b, glmc_float_to_half(synth_bound(d.value(a))));
  }
};
struct BF16_SYNTH {
  static constexpr u32 BYTES = 2;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) { synth_put(b, float_to_bf16(d.value(a))); }
};

// One scale of either sign or only positive, at a byte; also with what is taken off at the byte after it.
template <u32 N, u32 AT, bool SIGNED>
struct SCALE_SYNTH {
  static constexpr u32 BYTES = N;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    synth_put(b + AT, SIGNED ? d.signed_scale(a) : d.scale(a));
  }
};
template <u32 N, u32 MEAN2>
struct MIN_SYNTH {
  static constexpr u32 BYTES = N;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    u16 s = d.signed_scale(a);
    synth_put(b, s);
    synth_put(b + 2, synth_times(s, -f32(MEAN2) / 2.0f));
  }
};
struct Q2_K_SYNTH {
  static constexpr u32 BYTES = 84;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    for (u32 i = 0; i < 16; ++i) {
      u32 run = b[i], scale = run & 15u;
      b[i] = u8(scale | (scale ^ (run >> 4 & 1u)) << 4);
    }
    u16 s = d.scale(a);
    synth_put(b + 80, s);
    synth_put(b + 82, synth_times(s, 1.5f));
  }
};
// Minima follow the scales but for two bits.
GLMC_DEVICE void synth_scale_mins(u8* p) {
  u32 scales[8], mins[8];
  for (u32 j = 0; j < 4; ++j) {
    scales[j] = p[j] & 63u;
    mins[j] = p[j + 4] & 63u;
    scales[j + 4] = (p[j + 8] & 15u) | u32(p[j]) >> 6 << 4;
    mins[j + 4] = u32(p[j + 8]) >> 4 | u32(p[j + 4]) >> 6 << 4;
  }
  for (u32 j = 0; j < 8; ++j) mins[j] = scales[j] ^ (mins[j] & 3u);
  for (u32 j = 0; j < 4; ++j) {
    p[j] = u8(scales[j] | scales[j + 4] >> 4 << 6);
    p[j + 4] = u8(mins[j] | mins[j + 4] >> 4 << 6);
    p[j + 8] = u8((scales[j + 4] & 15u) | (mins[j + 4] & 15u) << 4);
  }
}
template <u32 N, u32 MEAN2>
struct K_SYNTH {
  static constexpr u32 BYTES = N;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    synth_scale_mins(b + 4);
    u16 s = d.scale(a);
    synth_put(b, s);
    synth_put(b + 2, synth_times(s, f32(MEAN2) / 2.0f));
  }
};
// The scale's bits lie in four high half-bytes.
struct IQ1_M_SYNTH {
  static constexpr u32 BYTES = 56;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    u32 s = d.signed_scale(a);
    for (u32 i = 0; i < 4; ++i) b[49 + 2 * i] = u8((b[49 + 2 * i] & 15u) | (s >> (4 * i) & 15u) << 4);
  }
};
// The code 3 is not used: it becomes 1.
struct TQ2_0_SYNTH {
  static constexpr u32 BYTES = 66;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    for (u32 i = 0; i < 64; ++i) b[i] = u8(b[i] ^ (b[i] & u32(b[i]) >> 1 & 0x55u) << 1);
    synth_put(b + 64, d.signed_scale(a));
  }
};
template <u32 N, u32 CODES>
struct CODE_SYNTH {
  static constexpr u32 BYTES = N;
  GLMC_DEVICE static void finish(const SynthDraw& d, const SynthAim& a, u8* b) {
    for (u32 i = 0; i < CODES; ++i) b[i] = d.code(a, i);
  }
};

template <class C>
GLMC_DEVICE void synth(const typename C::Arguments& args) {
  typedef typename C::Type Type;
  glmc_launch_wait();
  const u64* what = reinterpret_cast<const u64*>(args.what);
  SynthAim aim = {glmc_bits_to_float(u32(what[1])), glmc_bits_to_float(u32(what[1] >> 32)), glmc_bits_to_float(u32(what[2])),
                  u32(what[2] >> 32)};
  u64 start = 0;
  for (u64 r = 0; r < what[3]; ++r) {
    const u64* run = what + 4 + 4 * r;
    u64 piece = run[1], count = piece * run[2];
    for (u64 i = global_thread(); i < count; i += global_threads()) {
      SynthDraw draw = {synth_mix(what[0] ^ (run[0] + i / piece * run[3] + i % piece))};
      u8* block = args.y + (start + i) * Type::BYTES;
      for (u32 w = 0; 8 * w < Type::BYTES; ++w) {
        u64 word = draw.word(w);
        for (u32 j = 8 * w; j < 8 * w + 8 && j < Type::BYTES; ++j) block[j] = u8(word >> (8 * (j - 8 * w)));
      }
      Type::finish(draw, aim, block);
    }
    start += count;
  }
}
