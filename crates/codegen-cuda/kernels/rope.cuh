// Rotary embedding on interleaved pairs. Angles reach far beyond what an f32 holds exactly, so they are made and
// reduced to one turn in f64; frequencies are a table. Config: X, PUT, WIDTH (of a head), per_token(args),
// tokens(args), frequency(j).
#pragma once
#include "quant/float.cuh"

// The pair (a, b) turned by `angle`, at `to`.
template <class PUT>
GLMC_DEVICE void put_rotated(f32 a, f32 b, u8* y, u64 to, f64 angle) {
  constexpr f64 TURN = 6.283185307179586476925286766559;
  angle -= glmc_rint(angle / TURN) * TURN;
  f32 s, c;
  glmc_sincos(f32(angle), &s, &c);
  PUT::put(y, to, a * c - b * s);
  PUT::put(y, to + 1, a * s + b * c);
}

// The pair at `from` turned by `angle`, at `to`.
template <class X, class PUT>
GLMC_DEVICE void rotate_pair(const u8* x, u64 from, u8* y, u64 to, f64 angle) {
  put_rotated<PUT>(element<X>(x, from), element<X>(x, from + 1), y, to, angle);
}

template <class C>
GLMC_DEVICE void rope(const typename C::Arguments& args) {
  glmc_launch_trigger();
  glmc_launch_wait();
  const i32* pos = reinterpret_cast<const i32*>(args.pos);
  u64 per_token = C::per_token(args) / 2, pairs = C::tokens(args) * per_token;
  for (u64 i = global_thread(); i < pairs; i += global_threads()) {
    f64 angle = f64(pos[i / per_token]) * C::frequency(u32(i % (C::WIDTH / 2)));
    rotate_pair<typename C::X, typename C::PUT>(args.x, 2 * i, args.y, 2 * i, angle);
  }
}
