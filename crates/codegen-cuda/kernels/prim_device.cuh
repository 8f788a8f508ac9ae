// What the names of prim.cuh stand for on a GPU. All PTX of the project is here.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

#define GLMC_DEVICE __device__ __forceinline__
#define GLMC_TABLE __device__ const

// A kernel: its name, its arguments' struct, threads of a block, blocks that must fit one multiprocessor.
#ifndef GLMC_TRACE
#define GLMC_KERNEL(name, Args, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args args)
#else
// The same with two stamps behind the arguments: when its first block began, and the complement of when its last one
// ended. Both are minima, so whoever reads them fills them with ones before.
template <class A>
struct GlmcTraced {
  A args;
  u64* stamps;
};
__device__ __forceinline__ u64 glmc_now() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
  return t;
}
#define GLMC_KERNEL(name, Args, threads, blocks)                                              \
  __device__ __forceinline__ void name##_traced(const Args& args);                            \
  extern "C" __global__ void __launch_bounds__(threads, blocks)                               \
      name(const __grid_constant__ GlmcTraced<Args> traced) {                                 \
    if (threadIdx.x == 0) atomicMin(traced.stamps, glmc_now());                               \
    name##_traced(traced.args);                                                               \
    __syncthreads();                                                                          \
    if (threadIdx.x == 0) atomicMin(traced.stamps + 1, ~glmc_now());                          \
  }                                                                                           \
  __device__ __forceinline__ void name##_traced(const Args& args)
#endif

// Shared memory is one dynamic array; every kernel states offsets in bytes.
extern __shared__ __align__(128) u8 glmc_shared_bytes[];
#define GLMC_SHARED(type, name, offset) type* name = reinterpret_cast<type*>(glmc_shared_bytes + (offset))

struct alignas(16) U4 {
  u32 x, y, z, w;
};
struct alignas(16) F4 {
  f32 x, y, z, w;
};
struct alignas(8) U2 {
  u32 x, y;
};

GLMC_DEVICE u32 glmc_thread() { return threadIdx.x; }
GLMC_DEVICE u32 glmc_threads() { return blockDim.x; }
GLMC_DEVICE u32 glmc_lane() { return threadIdx.x & 31u; }
GLMC_DEVICE u32 glmc_warp() { return threadIdx.x >> 5; }
GLMC_DEVICE u32 glmc_block_x() { return blockIdx.x; }
GLMC_DEVICE u32 glmc_block_y() { return blockIdx.y; }
GLMC_DEVICE u32 glmc_block_z() { return blockIdx.z; }
GLMC_DEVICE u32 glmc_grid_x() { return gridDim.x; }
GLMC_DEVICE u32 glmc_grid_y() { return gridDim.y; }

GLMC_DEVICE void glmc_sync() { __syncthreads(); }
GLMC_DEVICE void glmc_sync_warp() { __syncwarp(); }
GLMC_DEVICE bool glmc_sync_any(bool p) { return __syncthreads_or(p) != 0; }
GLMC_DEVICE f32 glmc_shuffle_xor(f32 v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
GLMC_DEVICE u32 glmc_shuffle_xor(u32 v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
GLMC_DEVICE i32 glmc_shuffle_xor(i32 v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
GLMC_DEVICE u32 glmc_shuffle_up(u32 v, u32 by) { return __shfl_up_sync(0xffffffffu, v, by); }
GLMC_DEVICE f32 glmc_shuffle(f32 v, u32 lane) { return __shfl_sync(0xffffffffu, v, lane); }
GLMC_DEVICE u32 glmc_shuffle(u32 v, u32 lane) { return __shfl_sync(0xffffffffu, v, lane); }
GLMC_DEVICE u32 glmc_ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
// The largest of the lanes' integers, in every lane.
GLMC_DEVICE u32 glmc_warp_max(u32 v) { return __reduce_max_sync(0xffffffffu, v); }
GLMC_DEVICE u32 glmc_popcount(u32 v) { return __popc(v); }
GLMC_DEVICE u32 glmc_first_bit(u32 v) { return u32(__ffs(v) - 1); }

GLMC_DEVICE u32 glmc_atomic_add(u32* p, u32 v) { return atomicAdd(p, v); }
GLMC_DEVICE u32 glmc_atomic_or(u32* p, u32 v) { return atomicOr(p, v); }
GLMC_DEVICE void glmc_fence() { __threadfence(); }
// Adds one and says how many came before, with release and acquire: what other blocks wrote before their arrival is
// visible to the block that sees the last number.
GLMC_DEVICE u32 glmc_arrive(u32* p) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
  return before;
}

GLMC_DEVICE u32 glmc_float_to_bits(f32 x) { return __float_as_uint(x); }
GLMC_DEVICE f32 glmc_bits_to_float(u32 x) { return __uint_as_float(x); }
GLMC_DEVICE f32 glmc_half_to_float(u16 h) {
  f32 f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
GLMC_DEVICE u16 glmc_float_to_half(f32 f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
// 2^23 plus byte i of a word: the byte is planted in a mantissa.
GLMC_DEVICE f32 glmc_planted_byte(u32 word, u32 i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | i));
}
// Two floats as packed halves or bf16, the first in the low bits.
GLMC_DEVICE u32 glmc_pack_half(f32 lo, f32 hi) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
GLMC_DEVICE u32 glmc_pack_bf16(f32 lo, f32 hi) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}

GLMC_DEVICE f32 glmc_fma(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
GLMC_DEVICE f32 glmc_max(f32 a, f32 b) { return fmaxf(a, b); }
GLMC_DEVICE u32 glmc_max(u32 a, u32 b) { return a < b ? b : a; }
// To one unit in the last place.
GLMC_DEVICE f32 glmc_reciprocal(f32 x) {
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
GLMC_DEVICE f32 glmc_exp(f32 x) { return expf(x); }
GLMC_DEVICE f32 glmc_sqrt(f32 x) { return sqrtf(x); }
GLMC_DEVICE f32 glmc_abs(f32 x) { return fabsf(x); }
GLMC_DEVICE f64 glmc_rint(f64 x) { return rint(x); }
GLMC_DEVICE i32 glmc_round(f32 x) { return __float2int_rn(x); }
GLMC_DEVICE void glmc_sincos(f32 x, f32* s, f32* c) { sincosf(x, s, c); }

GLMC_DEVICE i32 glmc_dp4a(u32 a, u32 b, i32 c) {
  i32 d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Unsigned bytes of `a` with signed bytes of `b`.
GLMC_DEVICE i32 glmc_dp4a_us(u32 a, u32 b, i32 c) {
  i32 d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

GLMC_DEVICE u32 glmc_shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// d += a * b, fragments as in the PTX manual (m16n8k16, row by column).
GLMC_DEVICE void glmc_mma_bf16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
GLMC_DEVICE void glmc_mma_f16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 by 8 halves out of shared memory: lane 8 m + i names row i of matrix m (16 bytes), and gets of each
// the entries (lane / 4, 2 (lane % 4)) and the next one; `transposed` of each matrix' transpose.
GLMC_DEVICE void glmc_load_matrices(u32 (&d)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(glmc_shared_address(row)));
}
GLMC_DEVICE void glmc_load_transposed(u32 (&d)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(glmc_shared_address(row)));
}
// Bytes 2 i and 2 i + 1 of a word as two halves, each less the half in `less`; exact where the differences are.
GLMC_DEVICE u32 glmc_byte_halves(u32 word, u32 i, u32 less) {
  // 1024 plus a byte is the half with that byte in its mantissa.
  u32 d, h = __byte_perm(word, 0x64646464u, i ? 0x4342u : 0x4140u);
  asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(h), "r"(less));
  return d;
}

// Sixteen bytes that are read once: no L1 line, a wide L2 sector.
GLMC_DEVICE U4 glmc_load_stream(const void* p) {
  U4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// A word as it is in the cache that all multiprocessors share.
GLMC_DEVICE u32 glmc_load_word(const void* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Asynchronous copies of 16 bytes to shared memory, in groups.
GLMC_DEVICE void glmc_copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(glmc_shared_address(to)), "l"(from) : "memory");
}
GLMC_DEVICE void glmc_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most GROUPS of the latest groups are under way.
template <u32 GROUPS>
GLMC_DEVICE void glmc_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}
GLMC_DEVICE void glmc_copy_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Bulk copies to shared memory that complete on a barrier in shared memory; sm_90 and later. Addresses and sizes are
// multiples of 16, and the bytes that the barrier expects are the sum of its copies.
// Before sm_90 they trap: no configuration that uses them is made for such a machine.
#if __CUDA_ARCH__ < 900
GLMC_DEVICE void glmc_barrier_init(u64*) { __trap(); }
GLMC_DEVICE void glmc_barrier_expect(u64*, u32) { __trap(); }
GLMC_DEVICE void glmc_bulk_copy(void*, const void*, u32, u64*) { __trap(); }
GLMC_DEVICE void glmc_barrier_wait(u64*, u32) { __trap(); }
#else
GLMC_DEVICE void glmc_barrier_init(u64* bar) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(glmc_shared_address(bar)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
GLMC_DEVICE void glmc_barrier_expect(u64* bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(glmc_shared_address(bar)), "r"(bytes)
               : "memory");
}
GLMC_DEVICE void glmc_bulk_copy(void* to, const void* from, u32 bytes, u64* bar) {
  // What is read once makes room first: code and activations of a step stay in the cache.
  u64 once;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          glmc_shared_address(to)),
      "l"(from), "r"(bytes), "r"(glmc_shared_address(bar)), "l"(once)
      : "memory");
}
GLMC_DEVICE void glmc_barrier_wait(u64* bar, u32 parity) {
  u32 done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(glmc_shared_address(bar)), "r"(parity)
        : "memory");
  }
}
#endif

// Programmatic dependent launch: `wait` returns when the launch before has finished and its writes are visible;
// `trigger` lets the next launch start its part before its own wait. No-ops before sm_90.
#if __CUDA_ARCH__ >= 900
GLMC_DEVICE void glmc_launch_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
GLMC_DEVICE void glmc_launch_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
GLMC_DEVICE void glmc_launch_wait() {}
GLMC_DEVICE void glmc_launch_trigger() {}
#endif

// Words that devices write for each other, in memory that all of them see. What was stored before a release is visible
// to whoever loads its word and then acquires; a barrier of the block between hands both on to its threads.
GLMC_DEVICE u64 glmc_load_system(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
GLMC_DEVICE void glmc_store_system(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
GLMC_DEVICE void glmc_release_system(u64* p, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
#if __CUDA_ARCH__ >= 900
GLMC_DEVICE void glmc_acquire_system() { asm volatile("fence.acquire.sys;" ::: "memory"); }
#else
GLMC_DEVICE void glmc_acquire_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
#endif
GLMC_DEVICE u32 glmc_load_word_system(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
GLMC_DEVICE void glmc_fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// Nanoseconds since some moment.
GLMC_DEVICE u64 glmc_time() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
// Between two looks at such a word.
GLMC_DEVICE void glmc_await() {}

// Keeps the compiler from moving memory accesses across.
GLMC_DEVICE void glmc_compiler_fence() { asm volatile("" ::: "memory"); }
