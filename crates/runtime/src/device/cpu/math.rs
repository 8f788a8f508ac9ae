//! Scalar functions in a form that the compiler turns into vector code, and lane sums.
//!
//! Owns the CPU device's `exp`; its error is below 2 units in the last place. It gives the same bits with any
//! instruction set: plain additions and multiplications, never fused.

use super::simd::Simd;

/// `e^x`. NaN stays NaN; results below the subnormals are 0, above the range infinite.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, held in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let t = x * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    // ln 2 in two parts, the first exact in products with n.
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = 1.987_569_2e-4_f32;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    // 2^n in two factors, so that neither leaves the exponent's range.
    let n = t.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    let pow2 = |n: i32| f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23);
    let y = y * pow2(half) * pow2(n.wrapping_sub(half));
    let y = if x < -104.0 { 0.0 } else { y };
    if x > 89.0 { f32::INFINITY } else { y }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Sum of a slice: sixteen running sums, then the lanes, then the tail.
#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, v: &[f32]) -> f32 {
    let (chunks, tail) = v.as_chunks::<16>();
    let acc = chunks.iter().fold(s.splat(0.0), |acc, c| s.add(acc, s.load(c)));
    s.sum(acc) + tail.iter().sum::<f32>()
}

/// Largest element, NaN ignored; -inf if there is none.
#[inline(always)]
pub(super) fn max(v: &[f32]) -> f32 {
    let (chunks, tail) = v.as_chunks::<16>();
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let acc = chunks.iter().fold([f32::NEG_INFINITY; 16], |acc, c| std::array::from_fn(|i| larger(acc[i], c[i])));
    acc.iter().chain(tail).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

#[cfg(test)]
mod tests {
    use super::{exp, sigmoid};

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let want = f64::from(x).exp();
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            worst = worst.max((f64::from(exp(x)) - want).abs() / ulp);
        }
        assert!(worst < 2.0, "{worst} ulp");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-95.0) > 0.0, "subnormal results stay");
        assert!((exp(88.6) / 88.6_f32.exp() - 1.0).abs() < 1e-6);
        assert_eq!(sigmoid(-1000.0), 0.0);
        assert_eq!(sigmoid(1000.0), 1.0);
    }
}
