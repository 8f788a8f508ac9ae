// Devices hand each other parts of what their ranks hold, in memory that each of them has for the others (its slab).
//
// A meeting has a generation, counted by each device in its own control block and advanced by the kernels alone, so that
// a captured graph may be replayed. All devices take part in every meeting, in one order. Device s writes its parts to
// the slabs of the others, into slot (generation & 1), then raises its flags there to the generation (release); a device
// reads its slab when the flags of all others are that high (acquire). Two slots are enough: whoever writes slot g & 1
// again, in meeting g + 2, has passed meeting g + 1, so all others had raised their flags of g + 1, and each does so
// after it has read what it got in g.
//
// Every wait looks at a word that ends all waits, in host memory, and has a limit of its own; it then says which meeting
// and which device it waited for, and the kernels run on to their end. Results are then worthless, and the host knows.
//
// Config: DEVICES, ME, slab(args, device), and of each algorithm what stands at it. Arguments: control, halt.
#pragma once
#include "prim.cuh"

// The flags of a device in a slab, one for each block that raises one.
constexpr u32 MOST_FLAGS = 64;

struct Control {
  u64 generation;
  u32 arrived, pad;
  // Nanoseconds that a wait may take; 0: no limit.
  u64 limit;
  // Bytes of a slot.
  u64 slot;
  // Meetings that have ended, for reports: a large all-reduce is one of two generations.
  u64 meetings;
};

template <class C>
GLMC_DEVICE Control* control_of(const typename C::Arguments& args) {
  return reinterpret_cast<Control*>(args.control);
}

// Where the parts of a meeting lie in the slab of a device.
template <class C>
GLMC_DEVICE u8* slot_of(const typename C::Arguments& args, u32 device, u64 generation) {
  return C::slab(args, device) + 8 * MOST_FLAGS * C::DEVICES + (generation & 1) * control_of<C>(args)->slot;
}

template <class C>
GLMC_DEVICE u64* flags_of(const typename C::Arguments& args, u32 device, u32 source) {
  return reinterpret_cast<u64*>(C::slab(args, device)) + u64(source) * MOST_FLAGS;
}

// Words [first, last) from one place to the same in another, by threads `begin`, `begin + step`, ..; `first` is a
// multiple of 4.
GLMC_DEVICE void copy_words(u8* to, const u8* from, u64 first, u64 last, u64 begin, u64 step) {
  U4* to4 = reinterpret_cast<U4*>(to);
  const U4* from4 = reinterpret_cast<const U4*>(from);
  for (u64 i = first / 4 + begin; i < last / 4; i += step) to4[i] = from4[i];
  u64 tail = last / 4 * 4;
  if (tail < first) tail = first;
  for (u64 i = tail + begin; i < last; i += step) reinterpret_cast<u32*>(to)[i] = reinterpret_cast<const u32*>(from)[i];
}

// The block's stores are visible to the other devices before its flags are.
template <class C>
GLMC_DEVICE void raise_flags(const typename C::Arguments& args, u64 generation) {
  glmc_sync();
  for (u32 d = glmc_thread(); d < C::DEVICES; d += glmc_threads())
    if (d != C::ME) glmc_release_system(flags_of<C>(args, d, C::ME) + glmc_block_x(), generation);
}

// Waits for flags [first, first + count) of every other device.
template <class C>
GLMC_DEVICE void await_flags(const typename C::Arguments& args, u64 generation, u32 first, u32 count) {
  u64* halt = reinterpret_cast<u64*>(args.halt);
  for (u32 n = glmc_thread(); n < C::DEVICES * count; n += glmc_threads()) {
    u32 source = n / count;
    if (source == C::ME) continue;
    const u64* flag = flags_of<C>(args, C::ME, source) + first + n % count;
    u64 since = 0;
    for (u32 polls = 1; glmc_load_system(flag) < generation; ++polls) {
      glmc_await();
      if (polls % 256) continue;
      u64 now = glmc_time(), limit = control_of<C>(args)->limit;
      if (since == 0) since = now;
      bool late = limit && now - since > limit;
      if (!late && glmc_load_system(halt) == 0) continue;
      // What is waited for first is said: kernels behind this one wait in vain too.
      u64* said = halt + 2 + 2 * C::ME;
      if (glmc_load_system(said) == 0) {
        glmc_store_system(said + 1, control_of<C>(args)->meetings);
        glmc_store_system(said, source + 1);
      }
      if (late) glmc_release_system(halt, 1);
      break;
    }
  }
  glmc_acquire_system();
  glmc_sync();
}

// The last block to end leaves the generation for the next meeting; all have read it before.
template <class C>
GLMC_DEVICE void end_meeting(const typename C::Arguments& args, u64 generation) {
  glmc_sync();
  if (glmc_thread() != 0) return;
  Control* c = control_of<C>(args);
  if (glmc_arrive(&c->arrived) != glmc_grid_x() - 1) return;
  c->arrived = 0;
  c->generation = generation;
  ++c->meetings;
}

// What all-reduces do to four words.
struct SumF32 {
  GLMC_DEVICE static u32 of(u32 a, u32 b) {
    return glmc_float_to_bits(glmc_bits_to_float(a) + glmc_bits_to_float(b));
  }
};
struct SumI32 {
  GLMC_DEVICE static u32 of(u32 a, u32 b) { return a + b; }
};
struct MaxF32 {
  GLMC_DEVICE static u32 of(u32 a, u32 b) {
    return glmc_float_to_bits(glmc_max(glmc_bits_to_float(a), glmc_bits_to_float(b)));
  }
};
struct MaxI32 {
  GLMC_DEVICE static u32 of(u32 a, u32 b) { return i32(a) > i32(b) ? a : b; }
};

// Four words of every member's part in the order of ranks; parts of other devices lie `stride` bytes apart at `got`.
template <class C>
GLMC_DEVICE U4 merge4(const typename C::Arguments& args, const u8* got, u64 stride, u64 at, u64 own_at) {
  U4 v;
#pragma unroll
  for (u32 m = 0; m < C::MEMBERS; ++m) {
    const u8* from = C::here(m) ? C::part(args, m) + 16 * own_at : got + m * stride + 16 * at;
    U4 x = *reinterpret_cast<const U4*>(from);
    if (m == 0) v = x;
    else v = U4{C::OP::of(v.x, x.x), C::OP::of(v.y, x.y), C::OP::of(v.z, x.z), C::OP::of(v.w, x.w)};
  }
  return v;
}

// Four words, or those of them below `words`, to every member's result that is here.
template <class C>
GLMC_DEVICE void put4(const typename C::Arguments& args, u64 at, u64 words, U4 v) {
#pragma unroll
  for (u32 m = 0; m < C::MEMBERS; ++m) {
    if (!C::here(m)) continue;
    u32* to = reinterpret_cast<u32*>(C::result(args, m));
    if (4 * at + 4 <= words) {
      reinterpret_cast<U4*>(to)[at] = v;
      continue;
    }
    u32 tail[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
      if (4 * at + i < words) to[4 * at + i] = tail[i];
  }
}

// Sums or maxima of all members, to all members. A small value goes whole to every device, which merges it alone. Of a
// large one each device merges a part and hands it to the others. Both in the order of ranks, so with the same bits. A
// block needs only what the same block of the others sends.
// Config: OP, MEMBERS, SMALL (most bytes of a small value), words(args), here(m), part(args, m), result(args, m).
template <class C>
GLMC_DEVICE void all_reduce(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  u64 generation = control_of<C>(args)->generation + 1, words = C::words(args), fours = (words + 3) / 4;
  bool small = 4 * words <= C::SMALL;
  // Of a large value each device merges one chunk; the block has one stripe of every chunk.
  u64 chunk = small ? fours : (fours + C::DEVICES - 1) / C::DEVICES;
  u64 stripe = (chunk + glmc_grid_x() - 1) / glmc_grid_x(), first = stripe * glmc_block_x(), last = first + stripe;
  if (last > chunk) last = chunk;
  u64 stride = 16 * chunk;
  for (u32 n = 1; n < C::DEVICES; ++n) {
    u32 to = (C::ME + n) % C::DEVICES;
    u64 base = small ? 0 : chunk * to, begin = base + first, end = base + last < fours ? base + last : fours;
    u8* slot = slot_of<C>(args, to, generation);
#pragma unroll
    for (u32 m = 0; m < C::MEMBERS; ++m) {
      if (!C::here(m)) continue;
      for (u64 i = begin + glmc_thread(); i < end; i += glmc_threads())
        *reinterpret_cast<U4*>(slot + m * stride + 16 * (i - base)) =
            *reinterpret_cast<const U4*>(C::part(args, m) + 16 * i);
    }
  }
  raise_flags<C>(args, generation);
  await_flags<C>(args, generation, glmc_block_x(), 1);
  const u8* got = slot_of<C>(args, C::ME, generation);
  if (small) {
    for (u64 i = first + glmc_thread(); i < last; i += glmc_threads())
      put4<C>(args, i, words, merge4<C>(args, got, stride, i, i));
    end_meeting<C>(args, generation);
    return;
  }
  u64 base = chunk * C::ME, most = base < fours ? fours - base : 0;
  u64 here = last < most ? last : most;
  for (u64 i = first + glmc_thread(); i < here; i += glmc_threads()) {
    U4 v = merge4<C>(args, got, stride, i, base + i);
    put4<C>(args, base + i, words, v);
    for (u32 n = 1; n < C::DEVICES; ++n) {
      u8* slot = slot_of<C>(args, (C::ME + n) % C::DEVICES, generation + 1);
      *reinterpret_cast<U4*>(slot + C::ME * stride + 16 * i) = v;
    }
  }
  raise_flags<C>(args, generation + 1);
  await_flags<C>(args, generation + 1, glmc_block_x(), 1);
  got = slot_of<C>(args, C::ME, generation + 1);
  for (u32 d = 0; d < C::DEVICES; ++d) {
    if (d == C::ME) continue;
    base = chunk * d;
    most = base < fours ? fours - base : 0;
    here = last < most ? last : most;
    for (u64 i = first + glmc_thread(); i < here; i += glmc_threads())
      put4<C>(args, base + i, words, *reinterpret_cast<const U4*>(got + d * stride + 16 * i));
  }
  end_meeting<C>(args, generation + 1);
}

// Hands parts to the other devices, for a meeting that the next launch ends.
// Config: push(args, to, begin, step): the parts that are here, to a slot.
template <class C>
GLMC_DEVICE void hand_over(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  u64 generation = control_of<C>(args)->generation + 1;
  for (u32 n = 1; n < C::DEVICES; ++n)
    C::push(args, slot_of<C>(args, (C::ME + n) % C::DEVICES, generation), global_thread(), global_threads());
  raise_flags<C>(args, generation);
}

// Ends a meeting: each element of the results, or candidate, of parts that are here and parts that came.
// Config: FLAGS (blocks of the launch that handed over), count(args), run(args, got, i).
template <class C>
GLMC_DEVICE void take_over(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  u64 generation = control_of<C>(args)->generation + 1;
  await_flags<C>(args, generation, 0, C::FLAGS);
  const u8* got = slot_of<C>(args, C::ME, generation);
  u64 count = C::count(args);
  for (u64 i = global_thread(); i < count; i += global_threads()) C::run(args, got, i);
  end_meeting<C>(args, generation);
}
