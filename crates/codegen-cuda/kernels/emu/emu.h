// What the names of prim.cuh stand for on a CPU: every thread of a block is a fiber, a block is run by one scheduler,
// blocks run one after the other. Finds what a GPU forgives or hides: shared memory is poisoned before each block,
// threads run as far as the next meeting point before the next one starts (in rising or falling order), asynchronous
// copies land only when they are awaited, and a thread that never comes to a meeting point is reported. Several devices
// run interleaved; one goes on until it waits for another.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;

#define GLMC_DEVICE inline
#define GLMC_TABLE static const

struct alignas(16) U4 {
  u32 x, y, z, w;
};
struct alignas(16) F4 {
  f32 x, y, z, w;
};
struct alignas(8) U2 {
  u32 x, y;
};

#include "emu/fiber.h"

namespace emu {

// A kernel of this program.
struct Kernel {
  const char* name;
  u32 threads;
  u64 args;
  void (*body)(const void*);
  Kernel(const char* n, u32 t, u64 a, void (*b)(const void*)) : name(n), threads(t), args(a), body(b) {
    all().push_back(this);
  }
  static std::vector<Kernel*>& all() {
    static std::vector<Kernel*> list;
    return list;
  }
};

struct Dim {
  u32 x, y, z;
};

enum class State { READY, AT_WARP, AT_BLOCK, POLLING, AWAITING, DONE };

struct Copy {
  void* to;
  const void* from;
  u32 bytes;
  // Of those of a thread: which of its groups.
  u32 group;
};

struct Thread {
  State state;
  u32 id;
  Fiber fiber;
  std::vector<Copy> copies;
  // Groups of copies that are complete.
  u32 groups;
};

struct Fragments {
  u32 a[4], b[2];
};

struct Warp {
  u32 live, arrived, parity;
  const char* what;
  u32 slot[2][32];
  Fragments mma[2][32];
};

// A barrier of bulk copies.
struct Barrier {
  u32 phase;
  i64 expected;
  std::vector<Copy> copies;
};

struct Block {
  const Kernel* kernel;
  const void* args;
  Dim id, grid;
  u32 threads;
  u8* shared;
  std::vector<Thread> thread;
  std::vector<Warp> warp;
  std::vector<Barrier> barrier;
  Thread* now;
  u32 live, arrived;
  bool any, result, reverse;
  Context scheduler;
};

// A device: its launches run one after the other on a fiber, so that those of several devices interleave wherever one
// waits for what another writes.
struct Device {
  Block block;
  Fiber fiber;
  bool done = false;
};
inline std::vector<Device*> devices;
inline Device* device;
inline Context all_devices;
// Rounds over all devices: the time that waits in kernels see, in microseconds.
inline u64 rounds;

inline Block& block() { return device->block; }

inline void next_device() { switch_to(device->fiber.context, all_devices); }

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "kernel %s, block (%u, %u, %u), thread %u: %s\n", block().kernel ? block().kernel->name : "?", block().id.x,
          block().id.y, block().id.z, block().now ? block().now->id : 0, what);
  fflush(stderr);
  _Exit(3);
}

inline void yield_to_scheduler() { switch_to(block().now->fiber.context, block().scheduler); }

inline void release(State from) {
  for (Thread& t : block().thread)
    if (t.state == from) t.state = State::READY;
}

inline Warp& warp() { return block().warp[block().now->id / 32]; }

inline void release_warp(Warp& w) {
  u32 first = u32(&w - block().warp.data()) * 32;
  for (u32 i = first; i < first + 32 && i < block().threads; ++i)
    if (block().thread[i].state == State::AT_WARP) block().thread[i].state = State::READY;
  w.arrived = 0;
  w.parity ^= 1;
}

// Waits until every lane of the warp has come to the same operation.
inline void meet_warp(const char* what) {
  Warp& w = warp();
  if (w.live != 32 && w.live != (block().threads % 32)) fail("a warp operation after some lanes have ended");
  if (w.arrived == 0) w.what = what;
  if (strcmp(w.what, what) != 0) fail("lanes of a warp meet in different operations");
  if (++w.arrived == w.live) return release_warp(w);
  block().now->state = State::AT_WARP;
  yield_to_scheduler();
}

inline void release_block() {
  block().arrived = 0;
  block().result = block().any;
  block().any = false;
  release(State::AT_BLOCK);
}

inline void meet_block() {
  if (++block().arrived == block().live) return release_block();
  block().now->state = State::AT_BLOCK;
  yield_to_scheduler();
}

inline void land(const std::vector<Copy>& copies) {
  for (const Copy& c : copies) memcpy(c.to, c.from, c.bytes);
}

inline u32 exchange(u32 v, u32 source, const char* what) {
  Warp& w = warp();
  u32 parity = w.parity, lane = block().now->id % 32;
  w.slot[parity][lane] = v;
  meet_warp(what);
  return w.slot[parity][source & 31];
}

inline void thread_main() {
  block().kernel->body(block().args);
  Thread& t = *block().now;
  if (!t.copies.empty()) fail("ends with copies that nobody waited for");
  t.state = State::DONE;
  Warp& w = warp();
  --w.live;
  --block().live;
  if (w.arrived) fail("a lane ends while others of its warp wait for it");
  if (block().live && block().arrived == block().live) release_block();
  yield_to_scheduler();
}

inline void run_block() {
  block().live = block().threads;
  block().arrived = 0;
  block().any = block().result = false;
  block().barrier.clear();
  for (u32 i = 0; i < block().threads; ++i) {
    Thread& t = block().thread[i];
    t.state = State::READY;
    t.id = i;
    t.copies.clear();
    t.groups = 0;
    t.fiber.start(thread_main);
  }
  for (u32 i = 0; i < block().warp.size(); ++i) {
    u32 left = block().threads - 32 * i;
    block().warp[i].live = left < 32 ? left : 32;
    block().warp[i].arrived = block().warp[i].parity = 0;
  }
  while (block().live) {
    bool progress = false, awaits = false;
    for (u32 n = 0; n < block().threads; ++n) {
      Thread& t = block().thread[block().reverse ? block().threads - 1 - n : n];
      if (t.state != State::READY && t.state != State::POLLING && t.state != State::AWAITING) continue;
      block().now = &t;
      t.state = State::READY;
      switch_to(block().scheduler, t.fiber.context);
      awaits |= t.state == State::AWAITING;
      progress |= t.state != State::POLLING && t.state != State::AWAITING;
    }
    // Kernels bound such waits themselves.
    if (!progress && awaits) next_device();
    else if (!progress) fail("deadlock: some threads wait at a meeting point that others never reach");
  }
  for (const Barrier& b : block().barrier)
    if (!b.copies.empty()) fail("ends with bulk copies that nobody waited for");
  block().now = nullptr;
}

}  // namespace emu

#define GLMC_KERNEL(name, Args, threads, blocks)                                                       \
  static void name##_body(const Args& args);                                                           \
  static const emu::Kernel name##_entry{#name, threads, sizeof(Args),                                  \
                                        [](const void* a) { name##_body(*static_cast<const Args*>(a)); }}; \
  static void name##_body(const Args& args)

#define GLMC_SHARED(type, name, offset) type* name = reinterpret_cast<type*>(emu::block().shared + (offset))

#include "emu/prim_host.h"
