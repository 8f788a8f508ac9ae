// Few tokens against a matrix in the lane layout. A block owns a run of rows, each warp of it groups of GROUP rows (or
// a part of their columns, PARTS > 1), which come to shared memory by bulk copies, a ring of STAGES groups a warp. The
// first copies are issued before the wait for the launch that makes x, since weights depend on no launch: they hide
// that launch and their own latency. With experts the ids come first, unless they are SETTLED.
//
// x is written to shared memory as integers of DIGITS bytes with a scale for 32 elements: one byte costs near 5e-3, three
// are as exact as f32. All products are then of bytes.
//
// Rows lie in BATCHES of FREE rows; a batch has a matrix and vectors of its own, and groups never span two. A batch is
// a plain matrix (or a head of it), a choice of an expert, or a token whose FOLD experts are summed by weight. Blocks
// take equal runs of all batches' groups. With experts the ids come first, then the copies.
//
// Config: L (lane type), X, PUT, K, FREE, BATCHES (most), BLOCKS, THREADS, GROUP, PASS, PARTS, STAGES, LANES (of a row),
// UNROLL, DIGITS, TOKENS (of a batch), FOLD, WEIGHTED, WAYS (matrices read together: 2 gives silu(a) * b), SHARE
// (batches that share a vector), VECTORS (most of a block), EXPERTS (0: none), UNITS_TOTAL, BULK, XSTEP, YSTEP, YFIRST,
// MORE (more(args, i) is added to each result), LATE (the next launch starts behind the wait), SETTLED (ids were made before the launch before),
// batches(args), tokens(args), x(args), y(args), w(args, way); experts also ids(args); WEIGHTED also weight(args, choice).
#pragma once
#include "activation.cuh"

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
  static constexpr u32 WAY = start(C::L::PLANES), STAGE = C::BULK ? C::WAYS * WAY : 0;
  static constexpr u32 WEIGHTS = C::BULK ? (WARPS * C::STAGES * 8 + 127) / 128 * 128 : 0;
  static constexpr u32 VECTORS = WEIGHTS + WARPS * C::STAGES * STAGE;
  static constexpr u32 PARTIAL = VECTORS + C::VECTORS * Activation<C>::BYTES;
};

// Where a piece of work lies: rows `row` .. `row + rows` of a batch, of which slot and which part of the columns.
struct Spot {
  u32 batch, row, rows, slot, part;
};

// The groups of a block, and the pieces that its warps take in turn: PARTS of each of FOLD matrices for each group.
template <class C>
struct Work {
  static constexpr u32 GROUPS = (C::FREE + C::GROUP - 1) / C::GROUP, SUBS = C::PARTS * C::FOLD;
  u32 from, groups, pieces;

  GLMC_DEVICE Work(u32 block, u32 batches) {
    u32 total = batches * GROUPS;
    from = u32(u64(block) * total / C::BLOCKS);
    groups = u32(u64(block + 1) * total / C::BLOCKS) - from;
    pieces = groups * SUBS;
  }
  GLMC_DEVICE u32 batch_of(u32 group) const { return C::BATCHES == 1 ? 0 : (from + group) / GROUPS; }
  GLMC_DEVICE u32 first_batch() const { return batch_of(0); }
  // The first vector of a batch.
  GLMC_DEVICE static u32 vector_of(u32 batch) { return batch / C::SHARE * (C::FOLD * C::TOKENS); }
  GLMC_DEVICE u32 first_vector() const { return vector_of(first_batch()); }
  GLMC_DEVICE u32 vectors() const { return vector_of(batch_of(groups - 1)) + C::FOLD * C::TOKENS - first_vector(); }
  GLMC_DEVICE Spot spot(u32 piece) const {
    u32 group = piece / SUBS, sub = piece % SUBS, batch = batch_of(group);
    u32 row = (from + group - batch * GROUPS) * C::GROUP;
    return {batch, row, C::FREE - row < C::GROUP ? C::FREE - row : C::GROUP, sub / C::PARTS, sub % C::PARTS};
  }
};

// The experts of a block's batches, one a lane.
template <class C>
struct Chosen {
  u32 id, first;

  GLMC_DEVICE Chosen(const typename C::Arguments& args, const Work<C>& work, u32 batches) {
    id = first = 0;
    if constexpr (C::EXPERTS > 0) {
      first = work.first_batch() * C::FOLD;
      u32 choice = first + glmc_lane();
      if (choice < batches * C::FOLD) id = C::SETTLED ? glmc_load_word(C::ids(args) + choice) : u32(C::ids(args)[choice]);
    }
  }
  // All lanes of a warp ask for the same piece. Where there are no experts a batch's matrix is its own.
  GLMC_DEVICE i32 of(const Spot& s) const {
    return C::EXPERTS > 0 ? i32(glmc_shuffle(id, s.batch * C::FOLD + s.slot - first)) : i32(s.batch);
  }
  GLMC_DEVICE static bool known(i32 id) { return C::EXPERTS == 0 || (id >= 0 && id < i32(C::EXPERTS)); }
};

// The first unit of a piece in its tensor.
template <class C>
GLMC_DEVICE u64 unit_of(const Spot& s, i32 matrix) {
  return (u64(matrix) * C::FREE + s.row) * Room<C>::UNITS + s.part * Room<C>::PART;
}

// Starts the copies of a piece into a warp's stage. One lane.
template <class C>
GLMC_DEVICE void issue_piece(const Planes (&p)[C::WAYS], const Spot& s, i32 matrix, u32 stage_at) {
  typedef Room<C> R;
  u32 slot = glmc_warp() * C::STAGES + stage_at;
  GLMC_SHARED(u64, barriers, 0);
  u64* barrier = barriers + slot;
  if (!Chosen<C>::known(matrix)) {
    // Nothing to copy, but the stage's turn passes.
    glmc_barrier_expect(barrier, 0);
    return;
  }
  u64 unit = unit_of<C>(s, matrix);
  u32 total = 0;
#pragma unroll
  for (u32 i = 0; i < C::L::PLANES; ++i)
    total += C::PARTS == 1 ? R::copied(i, s.rows) : s.rows * u32(C::L::bytes(i, R::PART));
  glmc_barrier_expect(barrier, C::WAYS * total);
#pragma unroll
  for (u32 way = 0; way < C::WAYS; ++way) {
    GLMC_SHARED(u8, stage, R::WEIGHTS + slot * R::STAGE + way * R::WAY);
    if (C::PARTS == 1) {
#pragma unroll
      for (u32 i = 0; i < C::L::PLANES; ++i)
        glmc_bulk_copy(stage + R::start(i), p[way][i] + C::L::bytes(i, unit), R::copied(i, s.rows), barrier);
      continue;
    }
    for (u32 r = 0; r < s.rows; ++r)
#pragma unroll
      for (u32 i = 0; i < C::L::PLANES; ++i)
        glmc_bulk_copy(stage + R::start(i) + r * u32(C::L::bytes(i, R::PART)),
                       p[way][i] + C::L::bytes(i, unit + u64(r) * R::UNITS), u32(C::L::bytes(i, R::PART)), barrier);
  }
}

// Each warp prepares its barriers and starts as many of its pieces as it has room for.
template <class C>
GLMC_DEVICE void begin_pieces(const Planes (&p)[C::WAYS], const Work<C>& work, const Chosen<C>& chosen) {
  typedef Room<C> R;
  if (!C::BULK) return;
  if (glmc_lane() == 0) {
    GLMC_SHARED(u64, barriers, glmc_warp() * C::STAGES * 8);
#pragma unroll
    for (u32 n = 0; n < C::STAGES; ++n) glmc_barrier_init(barriers + n);
  }
#pragma unroll
  for (u32 n = 0; n < C::STAGES; ++n) {
    u32 piece = glmc_warp() + n * R::WARPS;
    if (piece >= work.pieces) break;
    Spot s = work.spot(piece);
    i32 matrix = chosen.of(s);
    if (glmc_lane() == 0) issue_piece<C>(p, s, matrix, n);
  }
  glmc_sync_warp();
}

// What the sums of a row's matrices give.
template <class C>
GLMC_DEVICE f32 finish(const f32 (&sum)[C::WAYS]) {
  return C::WAYS == 2 ? silu(sum[0]) * sum[C::WAYS - 1] : sum[0];
}

// Where the result of a row lies.
template <class C>
GLMC_DEVICE u64 place(u32 batch, u32 row, u32 j) {
  return u64(C::YFIRST) + u64(j) * C::YSTEP + u64(batch) * C::FREE + row;
}

template <class C>
GLMC_DEVICE void put_result(const typename C::Arguments& args, u64 at, f32 v) {
  C::PUT::put(C::y(args), at, C::MORE ? v + C::more(args, at) : v);
}

// Results that several pieces add to.
template <class C>
constexpr bool PARTIAL_SUMS = C::PARTS * C::FOLD > 1 || C::WEIGHTED;

// Takes the sums of row `r` of a piece for token `j`.
template <class C>
GLMC_DEVICE void take_sums(const typename C::Arguments& args, const Spot& s, u32 piece, u32 r, u32 j, u32 tokens,
                           const f32 (&sum)[C::WAYS]) {
  if (PARTIAL_SUMS<C>) {
    constexpr u32 SUBS = Work<C>::SUBS;
    GLMC_SHARED(f32, partial, Room<C>::PARTIAL);
    u32 at = ((piece / SUBS * C::GROUP + r) * SUBS + piece % SUBS) * C::TOKENS + j;
#pragma unroll
    for (u32 way = 0; way < C::WAYS; ++way) partial[at * C::WAYS + way] = sum[way];
  } else if (j < tokens) {
    put_result<C>(args, place<C>(s.batch, s.row + r, j), finish<C>(sum));
  }
}

// One piece: `p` its planes from its first unit on, STRIDE units from row to row; `x` its vectors.
template <class C, u32 STRIDE>
GLMC_DEVICE void multiply(const typename C::Arguments& args, const Planes (&p)[C::WAYS], const u8* x, u32 piece,
                          const Spot& s, u32 tokens) {
  typedef Activation<C> A;
  typedef Room<C> R;
  constexpr u32 SIDE = WARP / C::LANES, STEPS = (R::PART + C::LANES - 1) / C::LANES, ROWS = C::WAYS * C::PASS;
  u32 lane = glmc_lane() % C::LANES;
#pragma unroll
  for (u32 base = 0; base < C::GROUP; base += SIDE * C::PASS) {
    if (base >= s.rows) break;
    // Row r % PASS of matrix r / PASS.
    u32 row[C::PASS];
    f32 sum[ROWS][C::TOKENS];
#pragma unroll
    for (u32 r = 0; r < C::PASS; ++r) row[r] = base + r * SIDE + glmc_lane() / C::LANES;
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
      for (u32 j = 0; j < C::TOKENS; ++j) sum[r][j] = 0.0f;
#pragma unroll C::UNROLL
    for (u32 step = 0; step < STEPS; ++step) {
      u32 u = step * C::LANES + lane;
      if (R::PART % C::LANES != 0 && u >= R::PART) break;
      Raw raw[ROWS];
      // Rows past the end repeat the last one; they are not written.
#pragma unroll
      for (u32 r = 0; r < ROWS; ++r) {
        u32 at = row[r % C::PASS] < s.rows ? row[r % C::PASS] : s.rows - 1;
        raw[r] = C::L::load(p[r / C::PASS], u64(at) * STRIDE + u);
      }
      Values<C> v = read_values<C>(x, s.part * R::PART + u);
#pragma unroll
      for (u32 r = 0; r < ROWS; ++r) {
        Unit w = C::L::unpack(raw[r], u % 8);
        sum[r][0] = add_unit<C>(w, v, sum[r][0]);
#pragma unroll
        for (u32 j = 1; j < C::TOKENS; ++j) {
          Values<C> other = read_values<C>(x + j * A::BYTES, s.part * R::PART + u);
          sum[r][j] = add_unit<C>(w, other, sum[r][j]);
        }
      }
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
      for (u32 j = 0; j < C::TOKENS; ++j)
#pragma unroll
        for (u32 m = C::LANES / 2; m; m >>= 1) sum[r][j] += glmc_shuffle_xor(sum[r][j], m);
#pragma unroll
    for (u32 r = 0; r < C::PASS; ++r) {
      if (lane != 0 || row[r] >= s.rows) continue;
#pragma unroll
      for (u32 j = 0; j < C::TOKENS; ++j) {
        f32 ways[C::WAYS];
#pragma unroll
        for (u32 way = 0; way < C::WAYS; ++way) ways[way] = sum[way * C::PASS + r][j];
        take_sums<C>(args, s, piece, row[r], j, tokens, ways);
      }
    }
  }
}

// The results of pieces without an expert: zero where there is none, NaN where it is unknown.
template <class C>
GLMC_DEVICE void no_product(const typename C::Arguments& args, u32 piece, const Spot& s, i32 id, u32 tokens) {
  f32 sums[C::WAYS];
#pragma unroll
  for (u32 way = 0; way < C::WAYS; ++way) sums[way] = id < 0 ? 0.0f : not_a_number();
  for (u32 r = glmc_lane(); r < s.rows; r += WARP)
    for (u32 j = 0; j < C::TOKENS; ++j) take_sums<C>(args, s, piece, r, j, tokens, sums);
}

// Adds what pieces left, in their order.
template <class C>
GLMC_DEVICE void join_pieces(const typename C::Arguments& args, const Work<C>& work, u32 tokens) {
  GLMC_SHARED(f32, partial, Room<C>::PARTIAL);
  for (u32 i = glmc_thread(); i < work.groups * C::GROUP * C::TOKENS; i += C::THREADS) {
    u32 local = i / C::TOKENS, j = i % C::TOKENS;
    Spot s = work.spot(local / C::GROUP * Work<C>::SUBS);
    u32 r = local % C::GROUP;
    if (r >= s.rows || j >= tokens) continue;
    f32 total[C::WAYS];
#pragma unroll
    for (u32 way = 0; way < C::WAYS; ++way) {
      total[way] = 0.0f;
#pragma unroll
      for (u32 slot = 0; slot < C::FOLD; ++slot) {
        f32 sum = 0.0f;
#pragma unroll
        for (u32 part = 0; part < C::PARTS; ++part)
          sum += partial[(((local * C::FOLD + slot) * C::PARTS + part) * C::TOKENS + j) * C::WAYS + way];
        if constexpr (C::WEIGHTED) {
          total[way] = glmc_fma(C::weight(args, s.batch * C::FOLD + slot), sum, total[way]);
        } else {
          total[way] += sum;
        }
      }
    }
    put_result<C>(args, place<C>(s.batch, s.row + r, j), finish<C>(total));
  }
}

// All pieces of a block; x is in shared memory.
template <class C>
GLMC_DEVICE void multiply_pieces(const typename C::Arguments& args, const Planes (&p)[C::WAYS], const u8* x,
                                 const Work<C>& work, const Chosen<C>& chosen, u32 tokens) {
  typedef Room<C> R;
  GLMC_SHARED(u64, barriers, glmc_warp() * C::STAGES * 8);
  u32 first = work.first_vector();
  glmc_sync();
  u32 n = 0;
  for (u32 piece = glmc_warp(); piece < work.pieces; piece += R::WARPS, ++n) {
    Spot s = work.spot(piece);
    i32 matrix = chosen.of(s);
    const u8* vectors = C::VECTORS == C::TOKENS ? x : x + (work.vector_of(s.batch) + s.slot - first) * Activation<C>::BYTES;
    Planes q[C::WAYS];
    if (C::BULK) glmc_barrier_wait(barriers + n % C::STAGES, n / C::STAGES & 1u);
    if (!Chosen<C>::known(matrix)) {
      no_product<C>(args, piece, s, matrix, tokens);
    } else if (C::BULK) {
      GLMC_SHARED(u8, stage, R::WEIGHTS + (glmc_warp() * C::STAGES + n % C::STAGES) * R::STAGE);
#pragma unroll
      for (u32 way = 0; way < C::WAYS; ++way)
#pragma unroll
        for (u32 i = 0; i < C::L::PLANES; ++i) q[way][i] = stage + way * R::WAY + R::start(i);
      multiply<C, R::PART>(args, q, vectors, piece, s, tokens);
    } else {
#pragma unroll
      for (u32 way = 0; way < C::WAYS; ++way)
#pragma unroll
        for (u32 i = 0; i < C::L::PLANES; ++i) q[way][i] = p[way][i] + C::L::bytes(i, unit_of<C>(s, matrix));
      multiply<C, R::UNITS>(args, q, vectors, piece, s, tokens);
    }
    if (C::BULK && piece + C::STAGES * R::WARPS < work.pieces) {
      Spot next = work.spot(piece + C::STAGES * R::WARPS);
      i32 matrix_next = chosen.of(next);
      // Every lane has read the stage before it is filled again.
      glmc_sync_warp();
      if (glmc_lane() == 0) issue_piece<C>(p, next, matrix_next, n % C::STAGES);
    }
  }
  if (!PARTIAL_SUMS<C>) return;
  glmc_sync();
  join_pieces<C>(args, work, tokens);
}

// Block `block` of BLOCKS.
template <class C>
GLMC_DEVICE void gemv_lane(const typename C::Arguments& args, u32 block) {
  GLMC_SHARED(u8, x, Room<C>::VECTORS);
  // Ids come from a launch before, weights from none.
  constexpr bool AHEAD = C::EXPERTS == 0 || C::SETTLED;
  if (!C::LATE) glmc_launch_trigger();
  if (!AHEAD) glmc_launch_wait();
  if (!AHEAD && C::LATE) glmc_launch_trigger();
  u32 batches = C::batches(args);
  Work<C> work(block, batches);
  if (C::EXPERTS > 0 && work.groups == 0) {
    // A launch does not end before the one before it.
    if (AHEAD) glmc_launch_wait();
    return;
  }
  Planes p[C::WAYS];
#pragma unroll
  for (u32 way = 0; way < C::WAYS; ++way) find_planes<typename C::L>(C::w(args, way), C::UNITS_TOTAL, p[way]);
  Chosen<C> chosen(args, work, batches);
  begin_pieces<C>(p, work, chosen);
  if (AHEAD) glmc_launch_wait();
  if (AHEAD && C::LATE) glmc_launch_trigger();
  load_activations<C>(args, x, work.first_vector(), work.vectors());
  multiply_pieces<C>(args, p, x, work, chosen, C::tokens(args));
}
