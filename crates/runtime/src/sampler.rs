//! From logits to a token.
//!
//! Owns the choice: greedy, or a draw after top-k, top-p, min-p and temperature, in llama.cpp's customary order. The
//! draw is a function of parameters, seed and the calls so far alone. It never decides when to stop.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Ordering;
use thiserror::Error;

/// How tokens are drawn. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerParams {
    /// Divides the logits of the candidates, last; 0 means greedy.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for SamplerParams {
    fn default() -> Self {
        SamplerParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// Why no token was chosen.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SampleError {
    /// A parameter is outside its range.
    #[error("{name} is {value}: {need}")]
    Param {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What is needed.
        need: &'static str,
    },
    /// A logit is NaN or +inf: the model's arithmetic went wrong.
    #[error("the logit of token {token} is {value}")]
    Logit {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// There is no token to choose: no logits, or all of them -inf.
    #[error("none of the {0} logits is finite")]
    NoCandidate(usize),
}

/// Draws tokens with one set of parameters.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplerParams,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`SampleError::Param`] for a negative or NaN temperature, or a `top_p` or `min_p` outside 0..=1.
    pub fn new(params: SamplerParams) -> Result<Sampler, SampleError> {
        let within = |name, value: f32, most: f32, need| {
            if (0.0..=most).contains(&value) { Ok(()) } else { Err(SampleError::Param { name, value, need }) }
        };
        within("temperature", params.temperature, f32::MAX, "it must be 0 or more, and finite")?;
        within("top_p", params.top_p, 1.0, "it must be from 0 to 1")?;
        within("min_p", params.min_p, 1.0, "it must be from 0 to 1")?;
        Ok(Sampler { params, rng: ChaCha8Rng::seed_from_u64(params.seed) })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// Chooses a token. A draw uses one random number; greedy choice uses none.
    ///
    /// # Errors
    /// [`SampleError::Logit`] if a logit is NaN or +inf, [`SampleError::NoCandidate`] if none is finite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        if self.params.temperature == 0.0 {
            return argmax(logits);
        }
        let drawn = candidates(logits, &self.params)?;
        // 53 random bits, in [0, 1).
        let u = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        Ok(draw(&drawn, u))
    }
}

/// The token of the largest logit; among equal ones the smallest.
///
/// # Errors
/// As [`Sampler::sample`].
pub fn argmax(logits: &[f32]) -> Result<u32, SampleError> {
    check(logits)?;
    let mut best = 0;
    for (i, &v) in logits.iter().enumerate() {
        if v > logits[best] {
            best = i;
        }
    }
    Ok(best as u32)
}

fn check(logits: &[f32]) -> Result<(), SampleError> {
    if let Some(token) = logits.iter().position(|v| v.is_nan() || *v == f32::INFINITY) {
        return Err(SampleError::Logit { token, value: logits[token] });
    }
    if logits.iter().all(|v| *v == f32::NEG_INFINITY) {
        return Err(SampleError::NoCandidate(logits.len()));
    }
    Ok(())
}

/// The tokens that may be drawn and their probabilities, which sum to 1: most likely first, ties by token.
///
/// # Errors
/// As [`Sampler::sample`].
pub fn candidates(logits: &[f32], params: &SamplerParams) -> Result<Vec<(u32, f64)>, SampleError> {
    check(logits)?;
    let mut c: Vec<(f32, u32)> = logits.iter().copied().zip(0..).filter(|c| c.0 > f32::NEG_INFINITY).collect();
    if params.top_k > 0 && params.top_k < c.len() {
        c.select_nth_unstable_by(params.top_k - 1, order);
        c.truncate(params.top_k);
    }
    c.sort_unstable_by(order);
    if params.top_p < 1.0 {
        let p = softmax(&c, 1.0);
        let mut sum = 0.0;
        let kept = p.iter().take_while(|&&p| {
            let before = sum;
            sum += p;
            before < f64::from(params.top_p)
        });
        c.truncate(kept.count().max(1));
    }
    if params.min_p > 0.0 {
        let least = f64::from(c[0].0) + f64::from(params.min_p).ln();
        c.retain(|c| f64::from(c.0) >= least);
    }
    // A temperature of 0 leaves the most likely token alone.
    if params.temperature == 0.0 {
        c.truncate(1);
    }
    let p = softmax(&c, f64::from(params.temperature).max(f64::MIN_POSITIVE));
    Ok(c.into_iter().map(|c| c.1).zip(p).collect())
}

fn order(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    // Adding 0 makes -0 equal to +0.
    (b.0 + 0.0).total_cmp(&(a.0 + 0.0)).then(a.1.cmp(&b.1))
}

/// Of logits in decreasing order.
fn softmax(c: &[(f32, u32)], temperature: f64) -> Vec<f64> {
    let most = f64::from(c[0].0);
    let e: Vec<f64> = c.iter().map(|c| ((f64::from(c.0) - most) / temperature).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

/// The first candidate at which the running sum exceeds `u`; the last one if rounding keeps it below.
fn draw(candidates: &[(u32, f64)], u: f64) -> u32 {
    let mut sum = 0.0;
    let hit = candidates.iter().find(|c| {
        sum += c.1;
        u < sum
    });
    hit.or(candidates.last()).map_or(0, |c| c.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f32 = f32::INFINITY;

    fn logs(p: &[f32]) -> Vec<f32> {
        p.iter().map(|p| p.ln() + 3.0).collect()
    }

    fn ids(params: SamplerParams, logits: &[f32]) -> Vec<u32> {
        candidates(logits, &params).unwrap().iter().map(|c| c.0).collect()
    }

    #[test]
    fn greedy_takes_the_smaller_of_equals() {
        let mut s = Sampler::new(SamplerParams::default()).unwrap();
        assert_eq!(s.sample(&[1.0, 3.0, -INF, 3.0]), Ok(1));
        assert_eq!(s.sample(&[-0.0, 0.0]), Ok(0));
    }

    #[test]
    fn broken_logits_are_errors() {
        let hot = SamplerParams { temperature: 1.0, ..Default::default() };
        for params in [SamplerParams::default(), hot] {
            let mut s = Sampler::new(params).unwrap();
            assert!(matches!(s.sample(&[0.0, f32::NAN]), Err(SampleError::Logit { token: 1, .. })));
            assert!(matches!(s.sample(&[INF, 0.0]), Err(SampleError::Logit { token: 0, .. })));
            assert_eq!(s.sample(&[-INF, -INF]), Err(SampleError::NoCandidate(2)));
            assert_eq!(s.sample(&[]), Err(SampleError::NoCandidate(0)));
        }
    }

    #[test]
    fn filters_keep_what_they_say() {
        let all = SamplerParams { temperature: 1.0, ..Default::default() };
        let l = logs(&[0.1, 0.4, 0.2, 0.3]);
        assert_eq!(ids(all, &l), [1, 3, 2, 0]);
        assert_eq!(ids(SamplerParams { top_k: 2, ..all }, &l), [1, 3]);
        assert_eq!(ids(SamplerParams { top_k: 9, ..all }, &l), [1, 3, 2, 0]);
        assert_eq!(ids(SamplerParams { top_p: 0.69, ..all }, &l), [1, 3]);
        assert_eq!(ids(SamplerParams { top_p: 0.71, ..all }, &l), [1, 3, 2]);
        assert_eq!(ids(SamplerParams { top_p: 0.0, ..all }, &l), [1]);
        assert_eq!(ids(SamplerParams { min_p: 0.45, ..all }, &l), [1, 3, 2]);
        assert_eq!(ids(SamplerParams { min_p: 1.0, ..all }, &l), [1]);
        // Ties at the border go to the smaller token.
        assert_eq!(ids(SamplerParams { top_k: 2, ..all }, &[1.0, 2.0, 1.0, 1.0]), [1, 0]);
        // top_p sees probabilities among the top_k: 0.4/0.7 reaches 0.55 alone.
        assert_eq!(ids(SamplerParams { top_k: 2, top_p: 0.55, ..all }, &l), [1]);
        // Filters come before temperature: heat does not widen them.
        assert_eq!(ids(SamplerParams { min_p: 0.45, temperature: 50.0, ..all }, &l), [1, 3, 2]);
    }

    #[test]
    fn draws_follow_the_distribution() {
        let params = SamplerParams { temperature: 2.0, seed: 5, ..Default::default() };
        let mut s = Sampler::new(params).unwrap();
        // At temperature 2 probabilities go as square roots: 3 : 2 : 1 of 6, and one token impossible.
        let logits = [9.0_f32.ln(), 4.0_f32.ln(), -INF, 1.0_f32.ln()];
        let mut counts = [0.0_f64; 4];
        let n = 60_000;
        for _ in 0..n {
            counts[s.sample(&logits).unwrap() as usize] += 1.0;
        }
        for (count, p) in counts.iter().zip([0.5, 1.0 / 3.0, 0.0, 1.0 / 6.0]) {
            let sigma = (f64::from(n) * p * (1.0 - p)).sqrt();
            assert!((count - p * f64::from(n)).abs() <= 4.0 * sigma, "{counts:?}");
        }
    }

    #[test]
    fn the_seed_decides() {
        let run = |seed| {
            let mut s = Sampler::new(SamplerParams { temperature: 1.0, seed, ..Default::default() }).unwrap();
            (0..50).map(|_| s.sample(&[0.0; 1000]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert_eq!(run(7)[..3], FIRST_OF_SEED_7, "the sequence of a seed is part of the contract");
    }

    const FIRST_OF_SEED_7: [u32; 3] = [157, 167, 704];

    #[test]
    fn tiny_temperatures_are_greedy_and_do_not_overflow() {
        let mut s = Sampler::new(SamplerParams { temperature: 1e-30, ..Default::default() }).unwrap();
        assert_eq!(s.sample(&[-1e30, 5.0, 4.999]), Ok(1));
        assert_eq!(draw(&[(3, 0.5), (4, 0.499)], 0.9999), 4);
    }

    #[test]
    fn parameters_are_checked() {
        let d = SamplerParams::default();
        for bad in [
            SamplerParams { temperature: -1.0, ..d },
            SamplerParams { temperature: f32::NAN, ..d },
            SamplerParams { temperature: INF, ..d },
            SamplerParams { top_p: 1.5, ..d },
            SamplerParams { min_p: -0.1, ..d },
        ] {
            assert!(matches!(Sampler::new(bad), Err(SampleError::Param { .. })));
        }
    }
}
