// Activations of the lane kernels as integers in shared memory, and their products with units of weights.
// Config: L, X, K, THREADS, DIGITS, TOKENS, BATCHES, VECTORS, XSTEP, tokens(args), x(args); see gemv.cuh.
#pragma once
#include "quant/lane.cuh"

// Activations in shared memory, by unit: two planes of 16 bytes for each digit, highest first; then the scale; then the
// sums of both halves as they are rounded.
template <class C>
struct Activation {
  static constexpr u32 UNITS = C::K / 32, STEP = UNITS + 1, PLANES = 2 * C::DIGITS;
  static constexpr u32 SCALES = PLANES * STEP * 16, SUMS = SCALES + (UNITS * 4 + 15) / 16 * 16;
  static constexpr u32 BYTES = SUMS + (UNITS * 8 + 15) / 16 * 16;
  // The largest integer.
  static constexpr f32 MOST = C::DIGITS == 1 ? 127.0f : C::DIGITS == 2 ? 32512.0f : 8323072.0f;
};

// Four elements from `i` on, `i` a multiple of four.
template <class X>
GLMC_DEVICE F4 four(const u8* x, u64 i) {
  return {element<X>(x, i), element<X>(x, i + 1), element<X>(x, i + 2), element<X>(x, i + 3)};
}
template <>
GLMC_DEVICE F4 four<F32>(const u8* x, u64 i) {
  return *reinterpret_cast<const F4*>(x + 4 * i);
}

// Byte e of the four is digit `digit` (0 is the lowest) of q[e]; the digits above follow in q.
GLMC_DEVICE u32 take_digit(i32 (&q)[4]) {
  u32 word = 0;
#pragma unroll
  for (u32 e = 0; e < 4; ++e) {
    i32 low = i32(i8(q[e]));
    word |= (u32(low) & 255u) << (8 * e);
    q[e] = (q[e] - low) >> 8;
  }
  return word;
}

// Writes four elements of a unit; eight neighbouring threads share it, all of a warp come here.
template <class C>
GLMC_DEVICE void write_four(u8* to, u32 i, F4 f, bool here) {
  typedef Activation<C> A;
  u32 unit = i / 8, group = i % 8;
  f32 v[4] = {f.x, f.y, f.z, f.w};
  // As bits, so that NaN is more than all numbers.
  u32 bits = 0;
#pragma unroll
  for (u32 e = 0; e < 4; ++e) bits = glmc_max(bits, glmc_float_to_bits(v[e]) & 0x7fffffffu);
#pragma unroll
  for (u32 m = 4; m; m >>= 1) bits = glmc_max(bits, glmc_shuffle_xor(bits, m));
  // Numbers near the smallest have no reciprocal; they count as zero.
  f32 most = glmc_bits_to_float(bits), inverse = most > 1e-30f ? A::MOST * glmc_reciprocal(most) : 0.0f;
  // What is not finite would vanish in the rounding: the scale carries it on.
  f32 scale = bits < 0x7f800000u ? most * (1.0f / A::MOST) : not_a_number();
  i32 q[4], sum = 0;
#pragma unroll
  for (u32 e = 0; e < 4; ++e) {
    q[e] = glmc_round(v[e] * inverse);
    sum += q[e];
  }
  if (C::L::MIN || C::L::HALVES) {
    sum += glmc_shuffle_xor(sum, 1);
    sum += glmc_shuffle_xor(sum, 2);
  }
  if (!here) return;
#pragma unroll
  for (u32 d = 0; d < C::DIGITS; ++d) {
    u32 plane = 2 * (C::DIGITS - 1 - d) + group / 4;
    reinterpret_cast<u32*>(to + (plane * A::STEP + unit) * 16)[group % 4] = take_digit(q);
  }
  if (group == 0) reinterpret_cast<f32*>(to + A::SCALES)[unit] = scale;
  if ((C::L::MIN || C::L::HALVES) && group % 4 == 0)
    reinterpret_cast<f32*>(to + A::SUMS)[2 * unit + group / 4] = scale * f32(sum);
}

// Vectors `first` .. `first + count` of x, K elements each: up to four loads of a thread, then the rest. Lanes of a warp
// exchange maxima, so a warp comes whole or not at all.
template <class C>
GLMC_DEVICE void load_activations(const typename C::Arguments& args, u8* to, u32 first, u32 count) {
  typedef Activation<C> A;
  // Blocks of one batch all have the same number of vectors; others may have fewer.
  constexpr bool EXACT = C::BATCHES == 1 || C::VECTORS == 1;
  constexpr u32 FOURS = C::K / 4, MOST = C::VECTORS * FOURS, AT_ONCE = 4;
  constexpr u32 FULL = EXACT ? MOST / C::THREADS : 0, ROUNDS = (MOST + C::THREADS - 1) / C::THREADS;
  u32 all = EXACT ? MOST : count * FOURS, tokens = C::tokens(args);
  const u8* x = C::x(args);
#pragma unroll
  for (u32 base = 0; base < ROUNDS; base += AT_ONCE) {
    F4 v[AT_ONCE];
#pragma unroll
    for (u32 n = 0; n < AT_ONCE; ++n) {
      u32 i = (base + n) * C::THREADS + glmc_thread();
      v[n] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (base + n >= ROUNDS || (base + n >= FULL && i >= all)) continue;
      u32 vector = first + i / FOURS, j = vector % C::TOKENS;
      // Tokens past the end repeat the last one; they are not written.
      v[n] = four<typename C::X>(x, u64(j < tokens ? j : tokens ? tokens - 1 : 0) * C::XSTEP + u64(vector / C::TOKENS) * C::K +
                                        i % FOURS * 4);
    }
#pragma unroll
    for (u32 n = 0; n < AT_ONCE; ++n) {
      u32 i = (base + n) * C::THREADS + glmc_thread();
      if (base + n >= ROUNDS || (base + n >= FULL && i - glmc_lane() >= all)) continue;
      write_four<C>(to + (i < all ? i / FOURS : 0) * A::BYTES, i % FOURS, v[n], i < all);
    }
  }
}

// A unit of activations.
template <class C>
struct Values {
  U4 digit[C::DIGITS][2];
  f32 scale, sum[2];
};

template <class C>
GLMC_DEVICE Values<C> read_values(const u8* x, u32 unit) {
  typedef Activation<C> A;
  Values<C> v;
#pragma unroll
  for (u32 d = 0; d < C::DIGITS; ++d)
#pragma unroll
    for (u32 half = 0; half < 2; ++half) v.digit[d][half] = load16(x + ((2 * d + half) * A::STEP + unit) * 16);
  v.scale = reinterpret_cast<const f32*>(x + A::SCALES)[unit];
  v.sum[0] = v.sum[1] = 0.0f;
  if (C::L::MIN || C::L::HALVES) {
    U2 sums = load8(x + A::SUMS + 8 * unit);
    v.sum[0] = glmc_bits_to_float(sums.x);
    v.sum[1] = glmc_bits_to_float(sums.y);
  }
  return v;
}

template <class L>
GLMC_DEVICE i32 four_bytes(u32 w, u32 x, i32 sum) {
  return L::SIGNED ? glmc_dp4a(w, x, sum) : glmc_dp4a_us(w, x, sum);
}

// The products of one half, as the integers that x is made of.
template <class C>
GLMC_DEVICE f32 half_dot(const u32* codes, const Values<C>& v, u32 half) {
  f32 all = 0.0f;
#pragma unroll
  for (u32 d = 0; d < C::DIGITS; ++d) {
    const U4& x = v.digit[d][half];
    i32 dot = four_bytes<typename C::L>(codes[0], x.x, 0);
    dot = four_bytes<typename C::L>(codes[1], x.y, dot);
    dot = four_bytes<typename C::L>(codes[2], x.z, dot);
    dot = four_bytes<typename C::L>(codes[3], x.w, dot);
    all = d == 0 ? f32(dot) : glmc_fma(all, 256.0f, f32(dot));
  }
  return all;
}

template <class C>
GLMC_DEVICE f32 whole_dot(const u32* codes, const Values<C>& v) {
  f32 all = 0.0f;
#pragma unroll
  for (u32 d = 0; d < C::DIGITS; ++d) {
    const U4 &x = v.digit[d][0], &y = v.digit[d][1];
    // Two chains: a product waits for the one before it.
    i32 a = four_bytes<typename C::L>(codes[0], x.x, 0), b = four_bytes<typename C::L>(codes[4], y.x, 0);
    a = four_bytes<typename C::L>(codes[1], x.y, a), b = four_bytes<typename C::L>(codes[5], y.y, b);
    a = four_bytes<typename C::L>(codes[2], x.z, a), b = four_bytes<typename C::L>(codes[6], y.z, b);
    a = four_bytes<typename C::L>(codes[3], x.w, a), b = four_bytes<typename C::L>(codes[7], y.w, b);
    all = d == 0 ? f32(a + b) : glmc_fma(all, 256.0f, f32(a + b));
  }
  return all;
}

// `sum` and the product of a unit of weights with the same unit of a token.
template <class C>
GLMC_DEVICE f32 add_unit(const Unit& w, const Values<C>& v, f32 sum) {
  typedef typename C::L L;
  if (L::HALVES) {
    f32 a = half_dot<C>(w.codes, v, 0), b = half_dot<C>(w.codes + 4, v, 1);
    f32 all = glmc_fma(w.scale[0], glmc_fma(v.scale, a, -f32(L::BIAS) * v.sum[0]), sum);
    return glmc_fma(w.scale[1], glmc_fma(v.scale, b, -f32(L::BIAS) * v.sum[1]), all);
  }
  f32 all = glmc_fma(w.scale[0] * v.scale, whole_dot<C>(w.codes, v), sum);
  return L::MIN ? glmc_fma(-w.min, v.sum[0] + v.sum[1], all) : all;
}
