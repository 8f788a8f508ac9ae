//! Random valid blocks: weights for benchmarks and tests that need no file.
//!
//! Owns the random numbers and the meaning of `rms`; which bytes of a block are codes and which are scales is in each
//! type's file. Never keeps state: a block is a pure function of (type, seed, tensor, block, rms), so any part of any
//! tensor can be made alone, in any order, and on a device by the same integer steps.
//!
//! The numbers, all arithmetic modulo 2^64, `G = 0x9e3779b97f4a7c15`:
//!
//! ```text
//! mix(z):  z ^= z >> 30;  z *= 0xbf58476d1ce4e5b9;  z ^= z >> 27;  z *= 0x94d049bb133111eb;  z ^= z >> 31
//! key    = mix(mix(mix(seed + G) ^ tensor) ^ block)
//! word i = mix(key + (i + 1) * G)
//! ```
//!
//! Words 0, 1, .. fill the block, each as 8 little-endian bytes (the last one cut). Then the type overwrites its scales
//! with the help of word [`SCALE`], so that codes which are uniform give values with mean near 0 and the wished RMS.
//! `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).

use half::f16;

use super::QuantType;

/// The golden ratio in 64 bits.
const G: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of the word that scales are made from; far behind the words that fill a block.
pub const SCALE: u64 = 1 << 32;

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The random words of one block.
pub(super) struct Draw {
    key: u64,
}

impl Draw {
    pub(super) fn word(&self, i: u64) -> u64 {
        mix(self.key.wrapping_add((i + 1).wrapping_mul(G)))
    }

    /// A factor in 0.75 .. 1.25, so that the scales of neighbouring blocks differ.
    fn jitter(&self) -> f32 {
        0.75 + (self.word(SCALE) & 127) as f32 / 256.0
    }

    /// A positive block scale near `rms / sqrt(mean_square)`, as stored.
    ///
    /// `mean_square` is that of the decoded values when the scale is 1. A scale beyond f16 becomes its largest value.
    pub(super) fn scale(&self, rms: f32, mean_square: f32) -> f16 {
        f16::from_f32((rms / mean_square.sqrt() * self.jitter()).min(f16::MAX.to_f32()))
    }

    /// As [`Self::scale`], of either sign: for types whose codes have a mean beside 0, which so cancels over blocks.
    pub(super) fn signed_scale(&self, rms: f32, mean_square: f32) -> f16 {
        let d = self.scale(rms, mean_square);
        if self.word(SCALE) >> 7 & 1 == 1 { -d } else { d }
    }

    /// True with probability `p`, from 24 bits; `which` (0 or more) tells several choices of a block apart.
    pub(super) fn chance(&self, p: f32, which: u64) -> bool {
        ((self.word(SCALE + 1 + which) >> 40) as f32) < p * 16_777_216.0
    }

    /// A value of mean 0 and RMS 1, uniform.
    pub(super) fn unit(&self) -> f32 {
        let centred = (self.word(0) >> 40) as f32 - 8_388_607.5;
        centred / 8_388_608.0 * 3f32.sqrt()
    }
}

/// `d * factor` as stored, kept finite.
pub(super) fn times(d: f16, factor: f32) -> f16 {
    let largest = f16::MAX.to_f32();
    f16::from_f32((d.to_f32() * factor).clamp(-largest, largest))
}

/// Stores a f16 at byte `at`.
pub(super) fn put(block: &mut [u8], at: usize, value: f16) {
    block[at..at + 2].copy_from_slice(&value.to_bits().to_le_bytes());
}

/// Makes block `block` of tensor number `tensor`: valid, with finite scales, decoding to values with mean near 0 and
/// RMS near `rms` over many blocks. Of a float type a block is one element.
///
/// # Panics
/// If `out` is not one block long or `rms` is negative or not finite.
pub fn synth_block(ty: QuantType, seed: u64, tensor: u64, block: u64, rms: f32, out: &mut [u8]) {
    assert_eq!(out.len(), ty.block_bytes(), "a block of {ty}");
    synth_blocks(ty, seed, tensor, block, rms, out);
}

/// Makes a run of whole blocks, of which `first` is the number of the first.
///
/// # Panics
/// If `out` is not a whole number of blocks or `rms` is negative or not finite.
pub fn synth_blocks(ty: QuantType, seed: u64, tensor: u64, first: u64, rms: f32, out: &mut [u8]) {
    assert_eq!(out.len() % ty.block_bytes(), 0, "whole blocks of {ty}");
    assert!(rms >= 0.0 && rms.is_finite(), "an RMS, not {rms}");
    let tensor_key = mix(mix(seed.wrapping_add(G)) ^ tensor);
    let finish = ty.row().synth;
    for (i, block) in out.chunks_exact_mut(ty.block_bytes()).enumerate() {
        let draw = Draw { key: mix(tensor_key ^ (first + i as u64)) };
        for (w, bytes) in block.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&draw.word(w as u64).to_le_bytes()[..bytes.len()]);
        }
        finish(&draw, rms, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(ty: QuantType, tensor: u64, rms: f32, blocks: usize) -> Vec<f32> {
        let mut bytes = vec![0; blocks * ty.block_bytes()];
        synth_blocks(ty, 7, tensor, 0, rms, &mut bytes);
        let mut out = vec![0.0; blocks * ty.block_elems()];
        ty.decode(&bytes, &mut out);
        out
    }

    #[test]
    fn values_have_the_wished_rms_and_no_mean() {
        for &ty in QuantType::ALL {
            for rms in [0.02f32, 1.0] {
                let out = values(ty, 3, rms, 262_144 / ty.block_elems());
                assert!(out.iter().all(|y| y.is_finite()), "{ty}");
                let n = out.len() as f64;
                let mean = out.iter().map(|&y| f64::from(y)).sum::<f64>() / n;
                let got = (out.iter().map(|&y| f64::from(y).powi(2)).sum::<f64>() / n).sqrt();
                assert!((got / f64::from(rms) - 1.0).abs() < 0.05, "{ty}: RMS {got} for {rms}");
                assert!(mean.abs() < 0.02 * f64::from(rms), "{ty}: mean {mean} for RMS {rms}");
            }
        }
    }

    #[test]
    fn extreme_sizes_stay_finite() {
        for &ty in QuantType::ALL {
            for rms in [0.0, 1e-30, 1e30] {
                let wide = rms > 1.0 && matches!(ty, QuantType::F16);
                let out = values(ty, 1, rms, 64);
                assert!(out.iter().all(|y| y.is_finite()), "{ty} {rms}");
                assert!(!wide || out.iter().any(|y| y.abs() == 65504.0), "{ty} saturates");
            }
        }
    }

    #[test]
    fn a_block_does_not_depend_on_its_neighbours() {
        for &ty in QuantType::ALL {
            let size = ty.block_bytes();
            let mut run = vec![0; 8 * size];
            synth_blocks(ty, 1, 2, 40, 0.1, &mut run);
            let mut alone = vec![0; size];
            for (i, block) in run.chunks_exact(size).enumerate() {
                synth_block(ty, 1, 2, 40 + i as u64, 0.1, &mut alone);
                assert_eq!(alone, block, "{ty}");
            }
        }
    }

    #[test]
    fn seed_tensor_and_block_all_matter() {
        let ty = QuantType::Q8_0;
        let make = |seed, tensor, block| {
            let mut out = vec![0; ty.block_bytes()];
            synth_block(ty, seed, tensor, block, 0.1, &mut out);
            out
        };
        let all = [make(0, 0, 0), make(1, 0, 0), make(0, 1, 0), make(0, 0, 1), make(1, 1, 0), make(1, 0, 1)];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "block {i} repeats");
        }
    }

    /// The numbers are a contract with device code: they may not change.
    #[test]
    fn the_words_are_pinned() {
        // SplitMix64 from state 0 starts with this word.
        assert_eq!(mix(G), 0xe220_a839_7b1d_cdaf);
        let mut out = vec![0; QuantType::Q8_0.block_bytes()];
        synth_block(QuantType::Q8_0, 1, 2, 3, 1.0, &mut out);
        let key = mix(mix(mix(1u64.wrapping_add(G)) ^ 2) ^ 3);
        assert_eq!(out[2..8], mix(key.wrapping_add(G)).to_le_bytes()[2..]);
        assert_eq!(out[32..], mix(key.wrapping_add(5u64.wrapping_mul(G))).to_le_bytes()[..2]);
    }
}
