// Few tokens against a matrix in the lane layout. A block owns a run of rows, each warp of it groups of GROUP rows (or
// a part of their columns, PARTS > 1), which come to shared memory by bulk copies, a ring of STAGES groups a warp. The
// first copies are issued before the wait for the launch that makes x, since weights depend on no launch: they hide
// that launch and their own latency. With experts the ids come first.
//
// x is written to shared memory as integers of DIGITS bytes with a scale for 32 elements: one byte costs near 5e-3, three
// are as exact as f32. All products are then of bytes.
//
// Config: L (lane type), X, PUT, K, ROWS, FREE, BLOCKS (of FREE rows), THREADS, GROUP, PASS, PARTS, STAGES, LANES (of a
// row), UNROLL, DIGITS, TOKENS, UNITS_TOTAL, BULK, XSTEP, YSTEP, YFIRST, tokens(args), w(args); experts also SLOTS,
// PER_SLOT, EXPERTS.
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

// Where things lie in shared memory.
template <class C>
struct Room {
  static constexpr u32 WARPS = C::THREADS / WARP, UNITS = C::K / 32, PART = UNITS / C::PARTS;
  // Bytes that a copy of `rows` rows of a part takes. Planes are padded to 16 bytes, so the last rows may bring up to
  // 15 more.
  GLMC_DEVICE static constexpr u32 copied(u32 plane, u32 rows) {
    return (u32(C::L::bytes(plane, rows * PART)) + 15) / 16 * 16;
  }
  GLMC_DEVICE static constexpr u32 start(u32 plane) {
    u32 at = 0;
    for (u32 i = 0; i < plane; ++i) at += copied(i, C::GROUP);
    return at;
  }
  static constexpr u32 STAGE = C::BULK ? start(C::L::PLANES) : 0;
  static constexpr u32 WEIGHTS = C::BULK ? (WARPS * C::STAGES * 8 + 127) / 128 * 128 : 0;
  static constexpr u32 VECTORS = WEIGHTS + WARPS * C::STAGES * STAGE;
  static constexpr u32 PARTIAL = VECTORS + C::TOKENS * Activation<C>::BYTES;
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

// One token's vector of K elements from `from` on: up to four loads of a thread, then the rest. Lanes of a warp exchange
// maxima, so a warp comes whole or not at all.
template <class C>
GLMC_DEVICE void load_activation(u8* to, const u8* x, u64 from) {
  constexpr u32 FOURS = C::K / 4, FULL = FOURS / C::THREADS, AT_ONCE = 4;
#pragma unroll
  for (u32 base = 0; base < FULL; base += AT_ONCE) {
    F4 v[AT_ONCE];
#pragma unroll
    for (u32 n = 0; n < AT_ONCE; ++n)
      if (base + n < FULL) v[n] = four<typename C::X>(x, from + 4 * ((base + n) * C::THREADS + glmc_thread()));
#pragma unroll
    for (u32 n = 0; n < AT_ONCE; ++n)
      if (base + n < FULL) write_four<C>(to, (base + n) * C::THREADS + glmc_thread(), v[n], true);
  }
  u32 i = FULL * C::THREADS + glmc_thread();
  if (FULL * C::THREADS < FOURS && FULL * C::THREADS + glmc_warp() * WARP < FOURS) {
    F4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i < FOURS) v = four<typename C::X>(x, from + 4 * i);
    write_four<C>(to, i, v, i < FOURS);
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

// The planes of a tensor from unit `unit` on.
template <class C>
GLMC_DEVICE void planes_from(const typename C::Arguments& args, u64 unit, Planes& p) {
  find_planes<typename C::L>(C::w(args), C::UNITS_TOTAL, p);
#pragma unroll
  for (u32 i = 0; i < C::L::PLANES; ++i) p[i] += C::L::bytes(i, unit);
}

// The rows of a block, and the pieces of work that its warps take in turn: part p of group g is piece g * PARTS + p.
template <class C>
struct Work {
  u32 first, rows, pieces;

  // Block `at` of the BLOCKS that share FREE rows.
  GLMC_DEVICE explicit Work(u32 at) {
    constexpr u32 GROUPS = (C::FREE + C::GROUP - 1) / C::GROUP;
    u32 from = u32(u64(at) * GROUPS / C::BLOCKS), to = u32(u64(at + 1) * GROUPS / C::BLOCKS);
    u32 end = to * C::GROUP < C::FREE ? to * C::GROUP : C::FREE;
    first = from * C::GROUP;
    rows = end - first;
    pieces = (to - from) * C::PARTS;
  }
  GLMC_DEVICE u32 rows_of(u32 piece) const {
    u32 at = piece / C::PARTS * C::GROUP;
    return rows - at < C::GROUP ? rows - at : C::GROUP;
  }
};

// Starts the copies of a warp's n-th piece. One lane. `p` are the planes from the block's first row on.
template <class C>
GLMC_DEVICE void issue_piece(const Planes& p, const Work<C>& work, u32 n) {
  typedef Room<C> R;
  u32 slot = glmc_warp() * C::STAGES + n % C::STAGES, piece = glmc_warp() + n * R::WARPS, rows = work.rows_of(piece);
  GLMC_SHARED(u64, barriers, 0);
  GLMC_SHARED(u8, stage, R::WEIGHTS + slot * R::STAGE);
  u64* barrier = barriers + slot;
  u64 unit = u64(piece / C::PARTS) * C::GROUP * R::UNITS + piece % C::PARTS * R::PART;
  u32 total = 0;
#pragma unroll
  for (u32 i = 0; i < C::L::PLANES; ++i)
    total += C::PARTS == 1 ? R::copied(i, rows) : rows * u32(C::L::bytes(i, R::PART));
  glmc_barrier_expect(barrier, total);
  if (C::PARTS == 1) {
#pragma unroll
    for (u32 i = 0; i < C::L::PLANES; ++i)
      glmc_bulk_copy(stage + R::start(i), p[i] + C::L::bytes(i, unit), R::copied(i, rows), barrier);
    return;
  }
  for (u32 r = 0; r < rows; ++r)
#pragma unroll
    for (u32 i = 0; i < C::L::PLANES; ++i)
      glmc_bulk_copy(stage + R::start(i) + r * u32(C::L::bytes(i, R::PART)),
                     p[i] + C::L::bytes(i, unit + u64(r) * R::UNITS), u32(C::L::bytes(i, R::PART)), barrier);
}

// Each warp prepares its barriers and starts as many of its pieces as it has room for.
template <class C>
GLMC_DEVICE void begin_pieces(const Planes& p, const Work<C>& work) {
  typedef Room<C> R;
  if (!C::BULK) return;
  if (glmc_lane() == 0) {
    GLMC_SHARED(u64, barriers, glmc_warp() * C::STAGES * 8);
#pragma unroll
    for (u32 n = 0; n < C::STAGES; ++n) glmc_barrier_init(barriers + n);
#pragma unroll
    for (u32 n = 0; n < C::STAGES; ++n)
      if (glmc_warp() + n * R::WARPS < work.pieces) issue_piece<C>(p, work, n);
  }
  glmc_sync_warp();
}

// One piece: `p` its planes from its first unit on, STRIDE units from row to row.
template <class C, u32 STRIDE>
GLMC_DEVICE void multiply(const typename C::Arguments& args, const Planes& p, const u8* x, u32 piece,
                          const Work<C>& work, u32 tokens, u64 y) {
  typedef Activation<C> A;
  typedef Room<C> R;
  constexpr u32 SIDE = WARP / C::LANES, STEPS = (R::PART + C::LANES - 1) / C::LANES;
  u32 lane = glmc_lane() % C::LANES, part = piece % C::PARTS, at = piece / C::PARTS * C::GROUP;
  u32 rows = work.rows_of(piece);
#pragma unroll
  for (u32 base = 0; base < C::GROUP; base += SIDE * C::PASS) {
    if (base >= rows) break;
    u32 row[C::PASS];
    f32 sum[C::PASS][C::TOKENS];
#pragma unroll
    for (u32 r = 0; r < C::PASS; ++r) {
      row[r] = base + r * SIDE + glmc_lane() / C::LANES;
#pragma unroll
      for (u32 j = 0; j < C::TOKENS; ++j) sum[r][j] = 0.0f;
    }
#pragma unroll C::UNROLL
    for (u32 step = 0; step < STEPS; ++step) {
      u32 u = step * C::LANES + lane;
      if (R::PART % C::LANES != 0 && u >= R::PART) break;
      Raw raw[C::PASS];
      // Rows past the end repeat the last one; they are not written.
#pragma unroll
      for (u32 r = 0; r < C::PASS; ++r) raw[r] = C::L::load(p, u64(row[r] < rows ? row[r] : rows - 1) * STRIDE + u);
      Values<C> v = read_values<C>(x, part * R::PART + u);
#pragma unroll
      for (u32 r = 0; r < C::PASS; ++r) {
        Unit w = C::L::unpack(raw[r], u % 8);
        sum[r][0] = add_unit<C>(w, v, sum[r][0]);
#pragma unroll
        for (u32 j = 1; j < C::TOKENS; ++j) {
          Values<C> other = read_values<C>(x + j * A::BYTES, part * R::PART + u);
          sum[r][j] = add_unit<C>(w, other, sum[r][j]);
        }
      }
    }
#pragma unroll
    for (u32 r = 0; r < C::PASS; ++r)
#pragma unroll
      for (u32 j = 0; j < C::TOKENS; ++j) {
#pragma unroll
        for (u32 m = C::LANES / 2; m; m >>= 1) sum[r][j] += glmc_shuffle_xor(sum[r][j], m);
        if (lane != 0 || row[r] >= rows) continue;
        if (C::PARTS > 1) {
          GLMC_SHARED(f32, partial, R::PARTIAL);
          partial[((at + row[r]) * C::PARTS + part) * C::TOKENS + j] = sum[r][j];
        } else if (j < tokens) {
          C::PUT::put(args.y, y + u64(j) * C::YSTEP + work.first + at + row[r], sum[r][j]);
        }
      }
  }
}

// All pieces of a block; x is in shared memory. `p` are the planes from the block's first row on.
template <class C>
GLMC_DEVICE void multiply_pieces(const typename C::Arguments& args, const Planes& p, const u8* x, const Work<C>& work,
                                 u32 tokens, u64 y) {
  typedef Room<C> R;
  GLMC_SHARED(u64, barriers, glmc_warp() * C::STAGES * 8);
  glmc_sync();
  u32 n = 0;
  for (u32 piece = glmc_warp(); piece < work.pieces; piece += R::WARPS, ++n) {
    Planes q;
    if (C::BULK) {
      GLMC_SHARED(u8, stage, R::WEIGHTS + (glmc_warp() * C::STAGES + n % C::STAGES) * R::STAGE);
#pragma unroll
      for (u32 i = 0; i < C::L::PLANES; ++i) q[i] = stage + R::start(i);
      glmc_barrier_wait(barriers + n % C::STAGES, n / C::STAGES & 1u);
      multiply<C, R::PART>(args, q, x, piece, work, tokens, y);
      if (piece + C::STAGES * R::WARPS < work.pieces) {
        // Every lane has read the stage before it is filled again.
        glmc_sync_warp();
        if (glmc_lane() == 0) issue_piece<C>(p, work, n + C::STAGES);
      }
    } else {
      u64 unit = u64(piece / C::PARTS) * C::GROUP * R::UNITS + piece % C::PARTS * R::PART;
#pragma unroll
      for (u32 i = 0; i < C::L::PLANES; ++i) q[i] = p[i] + C::L::bytes(i, unit);
      multiply<C, R::UNITS>(args, q, x, piece, work, tokens, y);
    }
  }
  if (C::PARTS == 1) return;
  GLMC_SHARED(f32, partial, R::PARTIAL);
  glmc_sync();
  for (u32 i = glmc_thread(); i < work.rows * C::TOKENS; i += C::THREADS) {
    u32 row = i / C::TOKENS, j = i % C::TOKENS;
    f32 sum = 0.0f;
#pragma unroll
    for (u32 part = 0; part < C::PARTS; ++part) sum += partial[(row * C::PARTS + part) * C::TOKENS + j];
    if (j < tokens) C::PUT::put(args.y, y + u64(j) * C::YSTEP + work.first + row, sum);
  }
}

// Block `block` of FREE / ROWS * BLOCKS.
template <class C>
GLMC_DEVICE void gemv_lane(const typename C::Arguments& args, u32 block) {
  typedef Activation<C> A;
  GLMC_SHARED(u8, x, Room<C>::VECTORS);
  u32 batch = block / C::BLOCKS;
  Work<C> work(block % C::BLOCKS);
  glmc_launch_trigger();
  Planes p;
  planes_from<C>(args, u64(batch * C::FREE + work.first) * A::UNITS, p);
  begin_pieces<C>(p, work);
  glmc_launch_wait();
  u32 tokens = C::tokens(args);
#pragma unroll
  for (u32 j = 0; j < C::TOKENS; ++j) {
    // Tokens past the end repeat the last one; they are not written.
    u64 from = u64(j < tokens ? j : tokens - 1) * C::XSTEP + u64(batch) * C::K;
    load_activation<C>(x + j * A::BYTES, args.x, from);
  }
  multiply_pieces<C>(args, p, x, work, tokens, u64(C::YFIRST) + u64(batch) * C::FREE);
}

// BLOCKS blocks a choice.
template <class C>
GLMC_DEVICE void grouped_lane(const typename C::Arguments& args) {
  GLMC_SHARED(u8, x, Room<C>::VECTORS);
  u32 choice = glmc_block_x() / C::BLOCKS;
  Work<C> work(glmc_block_x() % C::BLOCKS);
  glmc_launch_trigger();
  glmc_launch_wait();
  if (choice >= C::tokens(args)) return;
  i32 id = reinterpret_cast<const i32*>(args.ids)[choice];
  u64 y = u64(choice) * C::ROWS;
  if (id < 0 || id >= i32(C::EXPERTS)) {
    for (u32 r = glmc_thread(); r < work.rows; r += C::THREADS)
      C::PUT::put(args.y, y + work.first + r, id < 0 ? 0.0f : not_a_number());
    return;
  }
  Planes p;
  planes_from<C>(args, (u64(id) * C::ROWS + work.first) * (C::K / 32), p);
  begin_pieces<C>(p, work);
  load_activation<C>(x, args.x, u64(C::PER_SLOT ? choice : choice / C::SLOTS) * C::K);
  multiply_pieces<C>(args, p, x, work, 1, y);
}
