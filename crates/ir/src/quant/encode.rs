//! Plain encoders for tests that make models: the float types, `q8_0`, `q4_0` and `q4_K`.
//!
//! Owns nothing that a plan depends on: no pass and no loader may requantise a weight. The choice of scales is the
//! simplest one with a stated error, not the best one; a real quantiser searches for better.

use half::{bf16, f16};

use super::QuantType;
use super::q4_k::pack_scale_mins;

/// The types that [`encode`] can make.
pub const ENCODABLE: [QuantType; 6] =
    [QuantType::F32, QuantType::F16, QuantType::BF16, QuantType::Q8_0, QuantType::Q4_0, QuantType::Q4_K];

/// Why values were not encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// There is no encoder for the type.
    #[error("no encoder makes {0}")]
    NoEncoder(QuantType),
    /// The values do not fill whole blocks.
    #[error("{count} values are not whole blocks of {ty}")]
    PartialBlock {
        /// The type asked for.
        ty: QuantType,
        /// How many values were given.
        count: usize,
    },
    /// A value of this block is not finite or needs a scale beyond f16.
    #[error("block {block} does not fit {ty}: a value is not finite or too large")]
    Range {
        /// The type asked for.
        ty: QuantType,
        /// The block at fault.
        block: usize,
    },
}

/// Encodes whole blocks of `ty`, in element order.
///
/// Floats round to nearest even. `q8_0` and `q4_0` take the scale from the value of largest magnitude, `q4_K` from the
/// range of each run of 32 (zero included); codes round to nearest.
///
/// # Errors
/// [`EncodeError`]; quantised types refuse values that are not finite, float types keep them.
pub fn encode(ty: QuantType, values: &[f32]) -> Result<Vec<u8>, EncodeError> {
    let encode_block: fn(&[f32], &mut [u8]) -> Option<()> = match ty {
        QuantType::F32 => encode_f32,
        QuantType::F16 => encode_f16,
        QuantType::BF16 => encode_bf16,
        QuantType::Q8_0 => encode_q8_0,
        QuantType::Q4_0 => encode_q4_0,
        QuantType::Q4_K => encode_q4_k,
        _ => return Err(EncodeError::NoEncoder(ty)),
    };
    if !values.len().is_multiple_of(ty.block_elems()) {
        return Err(EncodeError::PartialBlock { ty, count: values.len() });
    }
    let mut out = vec![0; values.len() / ty.block_elems() * ty.block_bytes()];
    let blocks = values.chunks_exact(ty.block_elems()).zip(out.chunks_exact_mut(ty.block_bytes()));
    for (block, (values, out)) in blocks.enumerate() {
        if !ty.is_float() && !values.iter().all(|x| x.is_finite()) {
            return Err(EncodeError::Range { ty, block });
        }
        encode_block(values, out).ok_or(EncodeError::Range { ty, block })?;
    }
    Ok(out)
}

fn encode_f32(x: &[f32], out: &mut [u8]) -> Option<()> {
    out.copy_from_slice(&x[0].to_le_bytes());
    Some(())
}

fn encode_f16(x: &[f32], out: &mut [u8]) -> Option<()> {
    out.copy_from_slice(&f16::from_f32(x[0]).to_bits().to_le_bytes());
    Some(())
}

fn encode_bf16(x: &[f32], out: &mut [u8]) -> Option<()> {
    out.copy_from_slice(&bf16::from_f32(x[0]).to_bits().to_le_bytes());
    Some(())
}

/// Stores `scale` as f16 at byte `at`; the stored value, or `None` if it is beyond f16.
fn put_scale(out: &mut [u8], at: usize, scale: f32) -> Option<f32> {
    let stored = f16::from_f32(scale);
    out[at..at + 2].copy_from_slice(&stored.to_bits().to_le_bytes());
    stored.is_finite().then_some(stored.to_f32())
}

/// `1 / d`, or 0 for a scale of 0.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The nearest code in `0..=top` for `x / d`.
fn code(x: f32, inverse: f32, top: f32) -> u8 {
    (x * inverse).round().clamp(0.0, top) as u8
}

fn encode_q8_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    let d = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    put_scale(out, 0, d)?;
    let inverse = inverse(d);
    for (out, x) in out[2..].iter_mut().zip(x) {
        *out = ((x * inverse).round().clamp(-127.0, 127.0) as i8) as u8;
    }
    Some(())
}

fn encode_q4_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    // The extreme value gets the code 0, the only one of magnitude 8, so the scale may be negative.
    let extreme = x.iter().copied().fold(0f32, |far, x| if x.abs() > far.abs() { x } else { far });
    let d = extreme / -8.0;
    put_scale(out, 0, d)?;
    let inverse = inverse(d);
    let shifted = |x: f32| ((x * inverse).round() + 8.0).clamp(0.0, 15.0) as u8;
    for (j, out) in out[2..].iter_mut().enumerate() {
        *out = shifted(x[j]) | shifted(x[j + 16]) << 4;
    }
    Some(())
}

fn encode_q4_k(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (mut steps, mut lows) = ([0f32; 8], [0f32; 8]);
    for (j, run) in x.chunks_exact(32).enumerate() {
        let (low, high) = run.iter().fold((0f32, 0f32), |(low, high), &x| (low.min(x), high.max(x)));
        (steps[j], lows[j]) = (high / 15.0 - low / 15.0, -low);
    }
    let largest = |values: &[f32; 8]| values.iter().copied().fold(0f32, f32::max);
    let d = put_scale(out, 0, largest(&steps) / 63.0)?;
    let dmin = put_scale(out, 2, largest(&lows) / 63.0)?;
    let scales = steps.map(|step| code(step, inverse(d), 63.0));
    let mins = lows.map(|low| code(low, inverse(dmin), 63.0));
    out[4..16].copy_from_slice(&pack_scale_mins(scales, mins));
    let quantise = |i: usize| {
        let (scale, min) = (d * f32::from(scales[i / 32]), dmin * f32::from(mins[i / 32]));
        code(x[i] + min, inverse(scale), 15.0)
    };
    for (at, out) in out[16..].iter_mut().enumerate() {
        let first = 64 * (at / 32) + at % 32;
        *out = quantise(first) | quantise(first + 32) << 4;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::synth::synth_blocks;
    use super::*;

    /// Values of RMS near 1 with a few large ones.
    fn values(count: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * count];
        synth_blocks(QuantType::F32, 11, 0, 0, 1.0, &mut bytes);
        let mut x = vec![0.0; count];
        QuantType::F32.decode(&bytes, &mut x);
        x.iter_mut().step_by(97).for_each(|x| *x *= 5.0);
        x
    }

    fn round_trip(ty: QuantType, x: &[f32]) -> Vec<f32> {
        let bytes = encode(ty, x).expect("encodes");
        let mut y = vec![0.0; x.len()];
        ty.decode(&bytes, &mut y);
        y
    }

    /// Checks |x - y| against a bound that depends on the run of `run` elements around it.
    fn check(ty: QuantType, run: usize, bound: impl Fn(&[f32], f32) -> f32) {
        let x = values(8192);
        let y = round_trip(ty, &x);
        for (x, y) in x.chunks(run).zip(y.chunks(run)) {
            for (a, b) in x.iter().zip(y) {
                assert!((a - b).abs() <= bound(x, *a), "{ty}: {a} became {b}");
            }
        }
    }

    fn largest(x: &[f32]) -> f32 {
        x.iter().fold(0f32, |max, x| max.max(x.abs()))
    }

    #[test]
    fn round_trips_stay_within_half_a_step() {
        // 2^-11 is the rounding of the f16 scale.
        check(QuantType::F32, 1, |_, _| 0.0);
        check(QuantType::F16, 1, |_, x| x.abs() / 2048.0);
        check(QuantType::BF16, 1, |_, x| x.abs() / 256.0);
        check(QuantType::Q8_0, 32, |run, x| largest(run) / 127.0 * 0.5001 + x.abs() / 2047.0);
        // At the far end from the extreme value the code -8 has no opposite: a whole step.
        check(QuantType::Q4_0, 32, |run, x| largest(run) / 8.0 * 1.0001 + x.abs() / 2047.0);
        // Half a step of the codes, half a step of the six-bit minimum, 15 half steps of the six-bit scale.
        check(QuantType::Q4_K, 256, |block, _| {
            let range = 2.0 * largest(block);
            range / 15.0 * 0.51 + largest(block) / 63.0 * 0.51 + range / 63.0 * 0.51
        });
    }

    #[test]
    fn the_mean_error_is_that_of_the_step() {
        let x = values(8192);
        let rms = |y: &[f32]| {
            let sum: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
            (sum / x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>()).sqrt()
        };
        let error = |ty| rms(&round_trip(ty, &x));
        assert!(error(QuantType::Q8_0) < 0.01);
        assert!(error(QuantType::Q4_0) < 0.12);
        assert!(error(QuantType::Q4_K) < 0.10);
        assert!(error(QuantType::Q4_K) < error(QuantType::Q4_0));
    }

    #[test]
    fn values_on_the_grid_return_unchanged() {
        for ty in [QuantType::Q8_0, QuantType::Q4_0] {
            let mut bytes = vec![0; 16 * ty.block_bytes()];
            synth_blocks(ty, 3, 0, 0, 1.0, &mut bytes);
            // A power of two as scale and both extremes present, so that the encoder finds the same scale again.
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                block[..2].copy_from_slice(&f16::from_f32(0.25).to_bits().to_le_bytes());
                block[2..].iter_mut().filter(|code| **code == 0x80).for_each(|code| *code = 0x81);
                block[2] = if ty == QuantType::Q8_0 { 0x7f } else { 0 };
            }
            let mut x = vec![0.0; 16 * ty.block_elems()];
            ty.decode(&bytes, &mut x);
            assert_eq!(round_trip(ty, &x), x, "{ty}");
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for ty in ENCODABLE {
            assert_eq!(round_trip(ty, &[0.0; 512]), [0.0; 512], "{ty}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for ty in [QuantType::Q8_0, QuantType::Q4_0, QuantType::Q4_K] {
            for bad in [f32::NAN, f32::INFINITY, f32::MIN] {
                let mut x = vec![0.0; 3 * ty.block_elems()];
                x[2 * ty.block_elems() + 5] = bad;
                assert_eq!(encode(ty, &x), Err(EncodeError::Range { ty, block: 2 }), "{bad}");
            }
            assert_eq!(encode(ty, &[0.0; 31]), Err(EncodeError::PartialBlock { ty, count: 31 }));
        }
        for &ty in QuantType::ALL {
            let refused = encode(ty, &[0.0; 256]) == Err(EncodeError::NoEncoder(ty));
            assert_eq!(refused, !ENCODABLE.contains(&ty), "{ty}");
        }
    }
}
