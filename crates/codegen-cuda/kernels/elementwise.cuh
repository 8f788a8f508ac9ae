// One element of the output a thread, over and over until all are done.
// Config: count(args), run(args, i).
#pragma once
#include "quant/float.cuh"

template <class C>
GLMC_DEVICE void elementwise(const typename C::Arguments& args) {
  glmc_launch_trigger();
  glmc_launch_wait();
  u64 count = C::count(args);
  for (u64 i = global_thread(); i < count; i += global_threads()) C::run(args, i);
}
