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
//! `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014). What a type needs of the wished RMS is [`Aim`], made
//! once a tensor; device code takes it and never divides.

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

/// What the values of a tensor are made of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fill {
    /// Of the whole model.
    pub seed: u64,
    /// The tensor's number, see [`tensor_number`].
    pub tensor: u64,
    /// Mean of the values; of quantised types always near 0.
    pub mean: f32,
    /// RMS of their distance from the mean.
    pub rms: f32,
}

/// What blocks of a type are finished with.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Aim {
    /// The block scale in the mean; of float types the RMS.
    pub target: f32,
    /// Of float types what is added.
    pub mean: f32,
    /// Of types whose scales have few values, the lower code, and how often the next one is taken.
    pub low: u32,
    /// See [`Aim::low`].
    pub share: f32,
}

/// The number of a tensor by its name: FNV-1a in 64 bits.
pub fn tensor_number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

impl Fill {
    /// The key of the tensor, which blocks' keys are made from.
    pub fn key(&self) -> u64 {
        mix(mix(self.seed.wrapping_add(G)) ^ self.tensor)
    }

    /// What blocks of type `ty` are finished with.
    pub fn aim(&self, ty: QuantType) -> Aim {
        let target = self.rms / ty.row().square.sqrt();
        let (low, share) = match ty {
            QuantType::MXFP4 => super::fp4::step_mxfp4(target),
            QuantType::NVFP4 => super::fp4::step_nvfp4(target),
            _ => (0, 0.0),
        };
        Aim { target, mean: self.mean, low, share }
    }

    /// Makes a run of whole blocks, of which `first` is the number of the first.
    ///
    /// # Panics
    /// If `out` is not a whole number of blocks or `rms` is negative or not finite.
    pub fn blocks(&self, ty: QuantType, first: u64, out: &mut [u8]) {
        assert_eq!(out.len() % ty.block_bytes(), 0, "whole blocks of {ty}");
        assert!(self.rms >= 0.0 && self.rms.is_finite(), "an RMS, not {}", self.rms);
        let (key, aim, finish) = (self.key(), self.aim(ty), ty.row().synth);
        for (i, block) in out.chunks_exact_mut(ty.block_bytes()).enumerate() {
            let draw = Draw { key: mix(key ^ (first + i as u64)) };
            for (w, bytes) in block.chunks_mut(8).enumerate() {
                bytes.copy_from_slice(&draw.word(w as u64).to_le_bytes()[..bytes.len()]);
            }
            finish(&draw, &aim, block);
        }
    }
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

    /// A positive block scale near the target, as stored. A scale beyond f16 becomes its largest value.
    pub(super) fn scale(&self, aim: &Aim) -> f16 {
        f16::from_f32((aim.target * self.jitter()).min(f16::MAX.to_f32()))
    }

    /// As [`Self::scale`], of either sign: for types whose codes have a mean beside 0, which so cancels over blocks.
    pub(super) fn signed_scale(&self, aim: &Aim) -> f16 {
        let d = self.scale(aim);
        if self.word(SCALE) >> 7 & 1 == 1 { -d } else { d }
    }

    /// The lower code or the next, decided by 24 bits; `which` (0 or more) tells several scales of a block apart.
    pub(super) fn code(&self, aim: &Aim, which: u64) -> u8 {
        let next = ((self.word(SCALE + 1 + which) >> 40) as f32) < aim.share * 16_777_216.0;
        aim.low as u8 + u8::from(next)
    }

    /// A uniform value with the wished RMS about the mean.
    pub(super) fn value(&self, aim: &Aim) -> f32 {
        let centred = (self.word(0) >> 40) as f32 - 8_388_607.5;
        centred / 8_388_608.0 * 3f32.sqrt() * aim.target + aim.mean
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
    Fill { seed, tensor, mean: 0.0, rms }.blocks(ty, first, out);
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
    fn floats_have_the_wished_mean() {
        let fill = Fill { seed: 3, tensor: tensor_number("blk.0.attn_norm.weight"), mean: 1.0, rms: 0.1 };
        for ty in [QuantType::F32, QuantType::F16, QuantType::BF16] {
            let (mut bytes, mut out) = (vec![0; 4096 * ty.block_bytes()], vec![0.0; 4096]);
            fill.blocks(ty, 0, &mut bytes);
            ty.decode(&bytes, &mut out);
            let mean = out.iter().sum::<f32>() / 4096.0;
            let rms = (out.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 4096.0).sqrt();
            assert!((mean - 1.0).abs() < 0.01 && (rms - 0.1).abs() < 0.01, "{ty}: {mean} and {rms}");
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
