// What the decoders share. A decoder is a struct with ELEMS and BYTES of a block and `at(block, j)`, element j of the
// block at that address. Blocks have the layout of the file (crates/ir/src/quant says which), any alignment, and give
// the bits of the reference decoder.
#pragma once
#include "prim.cuh"

// Element i of a packed tensor.
template <class Q>
GLMC_DEVICE f32 element(const u8* base, u64 i) {
  return Q::at(base + i / Q::ELEMS * Q::BYTES, u32(i % Q::ELEMS));
}

// Code i of 32 four-bit codes in 16 bytes: low nibbles first, then high ones.
GLMC_DEVICE u32 nibble32(const u8* codes, u32 i) { return i < 16 ? codes[i] & 15u : codes[i - 16] >> 4; }

// Two-bit code j of 256 in bit planes: each 32 bytes hold 128 elements in four planes of 32.
GLMC_DEVICE u32 plane2(const u8* codes, u32 j) { return codes[32 * (j / 128) + j % 32] >> (2 * (j % 128 / 32)) & 3u; }

// The eight sign bits that seven stand for: the eighth makes the number of minus signs even.
GLMC_DEVICE u32 even_signs(u32 code) { return (code & 127u) | (glmc_popcount(code & 127u) & 1u) << 7; }

GLMC_DEVICE f32 with_sign(f32 x, u32 signs, u32 j) { return signs >> j & 1u ? -x : x; }
