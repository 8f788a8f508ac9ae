// Fibers: a stack and a place to go on. Own switch on x86-64, ucontext elsewhere.
#pragma once

#include <sys/mman.h>

namespace emu {

constexpr u64 STACK = 64 * 1024;

inline u8* new_stack() {
  // The page below the stack stays closed: an overflow is a fault, not a surprise.
  u8* p = static_cast<u8*>(mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (p == MAP_FAILED) {
    fprintf(stderr, "no memory for stacks\n");
    _Exit(4);
  }
  mprotect(p, 4096, PROT_NONE);
  return p + 4096;
}

#if defined(__x86_64__)

struct Context {
  void* sp;
};

extern "C" void glmc_emu_switch(void** save, void* to);
asm(R"(
.text
.p2align 4
.globl glmc_emu_switch
.hidden glmc_emu_switch
.type glmc_emu_switch, @function
glmc_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size glmc_emu_switch, .-glmc_emu_switch
)");

inline void switch_to(Context& from, Context& to) { glmc_emu_switch(&from.sp, to.sp); }

struct Fiber {
  Context context;
  u8* stack = nullptr;
  void start(void (*main)()) {
    if (!stack) stack = new_stack();
    // As after a call: the stack pointer is 8 above a multiple of 16 when `main` starts.
    u64* top = reinterpret_cast<u64*>(stack + STACK - 16);
    top[-1] = 0;
    top[-2] = reinterpret_cast<u64>(main);
    for (int i = 3; i <= 8; ++i) top[-i] = 0;
    context.sp = top - 8;
  }
};

#else

}  // namespace emu
#include <ucontext.h>
namespace emu {

struct Context {
  ucontext_t u;
};

inline void switch_to(Context& from, Context& to) { swapcontext(&from.u, &to.u); }

struct Fiber {
  Context context;
  u8* stack = nullptr;
  void start(void (*main)()) {
    if (!stack) stack = new_stack();
    getcontext(&context.u);
    context.u.uc_stack.ss_sp = stack;
    context.u.uc_stack.ss_size = STACK;
    context.u.uc_link = nullptr;
    makecontext(&context.u, main, 0);
  }
};

#endif

}  // namespace emu
