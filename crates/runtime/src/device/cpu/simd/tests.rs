//! Every instruction set of this machine against the plain one.

use super::*;
use crate::device::cpu::testing::Rng;

struct All<'a> {
    a: &'a [f32; 16],
    b: &'a [f32; 16],
    bytes: &'a [u8; 32],
    bits: u32,
}

impl Kernel for All<'_> {
    type Out = Vec<f32>;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let mut out = Vec::new();
        let mut push = |v: S::F| {
            let mut lanes = [0.0; 16];
            s.store(v, &mut lanes);
            out.extend(lanes);
        };
        let (a, b) = (s.load(self.a), s.load(self.b));
        push(s.add(a, b));
        push(s.mul(a, b));
        let v = s.bytes(self.bytes);
        let low: &[u8; 16] = self.bytes[..16].as_array().unwrap();
        let groups = [
            s.widen_u8(v),
            s.widen_i8(v),
            s.widen_u8(s.nibbles(low)),
            s.widen_u8(s.or(s.and(s.shr::<3>(v), 7), s.and(s.shl::<4>(v), 0x30))),
            s.widen_i8(s.sub(s.and(v, 63), 32)),
            s.widen_u8(s.bit_to_16(self.bits)),
            s.look(s.tab(0.5, -3.0), v),
            s.look_both(s.tab(0.5, -3.0), s.tab(2.0, 1.0), v)[0],
            s.look_both(s.tab(0.5, -3.0), s.tab(2.0, 1.0), v)[1],
            s.look_nibbles(s.tab(0.5, -3.0), low),
            [s.bf16(self.bytes), s.splat(1.5)],
            [s.u8x16(low), s.i8x16(low)],
            [s.f16(self.bytes), s.splat(s.half(0x3555))],
        ];
        groups.into_iter().flatten().for_each(push);
        out.push(s.sum(a));
        out.extend(s.sum4([a, b, s.add(a, a), s.mul(a, b)]));
        out
    }
}

#[test]
fn all_instruction_sets_agree() {
    let mut rng = Rng::new(11);
    for _ in 0..200 {
        // Small integers, so that sums are exact in any order.
        let mut lanes = || std::array::from_fn(|_| rng.below(64) as f32 - 32.0);
        let (a, b) = (lanes(), lanes());
        let bytes = std::array::from_fn(|_| rng.next() as u8);
        let bits = rng.next() as u32;
        let run = |isa| dispatch_as(isa, All { a: &a, b: &b, bytes: &bytes, bits });
        let same = |x: &[f32], y: &[f32]| x.iter().zip(y).all(|(x, y)| x == y || (x.is_nan() && y.is_nan()));
        let want = run(Isa::Portable);
        assert!(same(&run(Isa::Avx2), &want));
        assert!(same(&run(Isa::Avx512), &want));
    }
}
