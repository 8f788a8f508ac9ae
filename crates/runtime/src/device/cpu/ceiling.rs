//! What the machine can do at best: memory reads and fused multiply-adds, on the current rayon pool.
//!
//! Owns the two loops that speed is measured against. Never measures time: the caller does.

use super::simd::{Kernel, Simd, dispatch};
use rayon::prelude::*;

/// Reads all of a buffer once; the sum keeps the reads from being optimised away.
pub fn read_all(data: &[f32]) -> f32 {
    data.par_chunks(1 << 18).map(|c| dispatch(Read(c))).sum()
}

struct Read<'a>(&'a [f32]);

impl Kernel for Read<'_> {
    type Out = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (chunks, tail) = self.0.as_chunks::<64>();
        let mut acc = [s.splat(0.0); 4];
        for c in chunks {
            for (a, v) in acc.iter_mut().zip(c.as_chunks::<16>().0) {
                *a = s.add(*a, s.load(v));
            }
        }
        s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3]))) + tail.iter().sum::<f32>()
    }
}

/// Does `rounds` rounds of independent fused multiply-adds in registers on each thread of the pool.
///
/// Returns the floating-point operations done in all (two a lane), and a value that depends on them.
pub fn fma_all(rounds: u64) -> (u64, f32) {
    let values = rayon::broadcast(|_| dispatch(Fma(rounds)));
    (values.len() as u64 * rounds * 16 * 16 * 2, values.iter().sum())
}

struct Fma(u64);

impl Kernel for Fma {
    type Out = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (a, b) = (s.splat(std::hint::black_box(0.999)), s.splat(std::hint::black_box(0.001)));
        let mut acc = [s.splat(1.0); 16];
        for _ in 0..self.0 {
            for v in &mut acc {
                *v = s.fma(*v, a, b);
            }
        }
        let mut total = 0.0;
        for v in acc {
            total += s.sum(v);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::{fma_all, read_all};

    #[test]
    fn reads_everything_and_counts_operations() {
        assert_eq!(read_all(&vec![1.0; 300_001]), 300_001.0);
        let (flops, value) = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(|| fma_all(10));
        assert_eq!(flops, 2 * 10 * 512);
        // 1 is the fixed point of v -> 0.999 v + 0.001.
        assert!((value - 512.0).abs() < 1e-2);
    }
}
