// Rotary embedding on interleaved pairs. Angles reach far beyond what an f32 holds exactly, so they are made and
// reduced to one turn in f64; frequencies are a table. Config: X, PUT, WIDTH (of a head), per_token(args),
// tokens(args), frequency(j).
#pragma once
#include "quant/float.cuh"

template <class C>
GLMC_DEVICE void rope(const typename C::Arguments& args) {
  constexpr f64 TURN = 6.283185307179586476925286766559;
  glmc_launch_wait();
  glmc_launch_trigger();
  const i32* pos = reinterpret_cast<const i32*>(args.pos);
  u64 per_token = C::per_token(args) / 2, pairs = C::tokens(args) * per_token;
  for (u64 i = global_thread(); i < pairs; i += global_threads()) {
    f64 angle = f64(pos[i / per_token]) * C::frequency(u32(i % (C::WIDTH / 2)));
    angle -= glmc_rint(angle / TURN) * TURN;
    f32 s, c;
    glmc_sincos(f32(angle), &s, &c);
    f32 a = element<typename C::X>(args.x, 2 * i), b = element<typename C::X>(args.x, 2 * i + 1);
    C::PUT::put(args.y, 2 * i, a * c - b * s);
    C::PUT::put(args.y, 2 * i + 1, a * s + b * c);
  }
}
