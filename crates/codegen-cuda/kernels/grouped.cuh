// Each choice of each token against the expert it names: a warp a row, a choice a block in y.
// Config: X, W, PUT, EXPERTS, ROWS, K, RUN, SLOTS, PER_SLOT, choices(args).
#pragma once
#include "quant/run.cuh"

template <class C>
GLMC_DEVICE void grouped_rows(const typename C::Arguments& args) {
  glmc_launch_wait();
  glmc_launch_trigger();
  const i32* ids = reinterpret_cast<const i32*>(args.ids);
  u32 choices = C::choices(args), warps = glmc_threads() / WARP;
  for (u32 c = glmc_block_y(); c < choices; c += glmc_grid_y()) {
    i32 id = ids[c];
    u64 x = u64(C::PER_SLOT ? c : c / C::SLOTS) * C::K;
    for (u32 row = glmc_block_x() * warps + glmc_warp(); row < C::ROWS; row += glmc_grid_x() * warps) {
      // A negative id gives zeros, one past the experts NaN.
      f32 sum = id < i32(C::EXPERTS) ? 0.0f : not_a_number();
      if (id >= 0 && id < i32(C::EXPERTS)) {
        u64 w = (u64(id) * C::ROWS + row) * C::K;
        for (u32 k = glmc_lane() * C::RUN; k < C::K; k += WARP * C::RUN) {
          f32 wv[C::RUN], xv[C::RUN];
          Run<typename C::W, C::RUN>::read(args.w, w + k, wv);
          Run<typename C::X, C::RUN>::read(args.x, x + k, xv);
#pragma unroll
          for (u32 e = 0; e < C::RUN; ++e) sum = glmc_fma(xv[e], wv[e], sum);
        }
        sum = warp_sum(sum);
      }
      if (glmc_lane() == 0) C::PUT::put(args.y, u64(c) * C::ROWS + row, sum);
    }
  }
}
