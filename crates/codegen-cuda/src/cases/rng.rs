//! Random numbers and random stored weights.

use glmc_ir::quant::QuantType;
use glmc_ir::quant::synth::synth_blocks;

/// SplitMix64 (Steele et al., 2014).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// One of two.
    pub fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    /// In [-1, 1), exact in f32.
    pub fn float(&mut self) -> f64 {
        (self.next() >> 40) as f64 / 8_388_608.0 - 1.0
    }

    /// `0..n` in random order.
    pub fn shuffled(&mut self, n: usize) -> Vec<i64> {
        let mut all: Vec<i64> = (0..n as i64).collect();
        (1..n).rev().for_each(|i| all.swap(i, self.below(i + 1)));
        all
    }
}

/// Random stored entries of `q`, near `rms`.
pub fn blocks(q: QuantType, elems: usize, seed: u64, rms: f32) -> Vec<u8> {
    let mut out = vec![0; elems / q.block_elems() * q.block_bytes()];
    synth_blocks(q, seed, seed, 0, rms, &mut out);
    out
}
