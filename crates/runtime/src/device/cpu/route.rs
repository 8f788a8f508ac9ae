//! The expert router: from logits to chosen experts and their weights.
//!
//! Owns gating, the choice with bias and group limit, and the weights without bias. Gates are computed in f64 and
//! rounded once to f32, so equal logits choose equally on every rank. It never runs an expert.

use super::error::{KernelError, want_len};
use super::topk::before;

/// How logits become gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over the experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// The router's constants.
#[derive(Clone, Copy, Debug)]
pub struct RouteArgs<'a> {
    /// The gate function.
    pub gating: Gating,
    /// `[E]`, added to the gates for choosing only.
    pub bias: Option<&'a [f32]>,
    /// Experts are in this many equal groups; 0 and 1 mean no groups.
    pub groups: usize,
    /// Groups whose experts may be chosen, when there are groups.
    pub groups_used: usize,
    /// Experts chosen for each token.
    pub used: usize,
    /// Whether a token's weights are divided by their sum (plus 1e-20).
    pub normalise: bool,
    /// Factor of the weights, last.
    pub scale: f32,
}

/// Chooses `used` of E experts for each row of `logits` `[T, E]`.
///
/// `g` = gates, `c = g + bias`; with groups, only those with the largest sum of their two largest `c` stay; the chosen
/// are the largest `c` (equal ones by smaller id), written to `ids` `[T, used]` in decreasing `c`; `weights`
/// `[T, used]` are their `g`, normalised and scaled as asked.
///
/// # Errors
/// [`KernelError::Nan`] if a logit or bias is NaN; or if the slices or counts do not fit.
pub fn route(
    logits: &[f32],
    t: usize,
    args: &RouteArgs<'_>,
    ids: &mut [i32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    let e = logits.len().checked_div(t).unwrap_or(0);
    want_len("logits", logits.len(), &[t, e])?;
    want_len("ids", ids.len(), &[t, args.used])?;
    want_len("weights", weights.len(), &[t, args.used])?;
    if t == 0 {
        return Ok(());
    }
    check(args, e)?;
    let rows = logits.chunks_exact(e).zip(ids.chunks_exact_mut(args.used)).zip(weights.chunks_exact_mut(args.used));
    for (row, ((logits, ids), weights)) in rows.enumerate() {
        if let Some(at) = logits.iter().position(|v| v.is_nan()) {
            return Err(KernelError::Nan { what: "router logits", row, at });
        }
        choose(logits, args, ids, weights);
    }
    Ok(())
}

fn check(a: &RouteArgs<'_>, e: usize) -> Result<(), KernelError> {
    let groups = a.groups.max(1);
    if !e.is_multiple_of(groups) {
        return Err(KernelError::Dim { what: "groups", have: groups, need: "a divisor of the experts" });
    }
    if groups > 1 && !(1..=groups).contains(&a.groups_used) {
        return Err(KernelError::Dim { what: "groups_used", have: a.groups_used, need: "1 to the number of groups" });
    }
    let open = if groups > 1 { e / groups * a.groups_used } else { e };
    if !(1..=open).contains(&a.used) {
        return Err(KernelError::Dim {
            what: "used experts",
            have: a.used,
            need: "1 to the experts that may be chosen",
        });
    }
    if let Some(bias) = a.bias {
        want_len("bias", bias.len(), &[e])?;
        if let Some(at) = bias.iter().position(|v| v.is_nan()) {
            return Err(KernelError::Nan { what: "router bias", row: 0, at });
        }
    }
    Ok(())
}

fn choose(logits: &[f32], a: &RouteArgs<'_>, ids: &mut [i32], weights: &mut [f32]) {
    let gates = gates(logits, a.gating);
    let mut choice: Vec<(f32, u32)> = (0..).zip(&gates).map(|(e, &g)| (g, e)).collect();
    if let Some(bias) = a.bias {
        choice.iter_mut().zip(bias).for_each(|(c, b)| c.0 += b);
    }
    if a.groups > 1 {
        keep_groups(&mut choice, a.groups, a.groups_used);
    }
    choice.sort_unstable_by(before);
    for ((id, w), &(_, e)) in ids.iter_mut().zip(weights.iter_mut()).zip(&choice) {
        *id = e.cast_signed();
        *w = gates[e as usize];
    }
    let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum::<f64>() + 1e-20;
    for w in weights {
        let share = if a.normalise { f64::from(*w) / sum } else { f64::from(*w) };
        *w = (share * f64::from(a.scale)) as f32;
    }
}

fn gates(logits: &[f32], gating: Gating) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    match gating {
        Gating::Sigmoid => logits.iter().map(|&v| (1.0 / (1.0 + (-f64::from(v)).exp())) as f32).collect(),
        Gating::Softmax => {
            // An infinite maximum takes all, shared among equals.
            let exps: Vec<f64> =
                logits.iter().map(|&v| if v == most { 1.0 } else { (f64::from(v) - f64::from(most)).exp() }).collect();
            let sum: f64 = exps.iter().sum();
            exps.into_iter().map(|v| (v / sum) as f32).collect()
        }
    }
}

/// Leaves the experts of the best groups.
fn keep_groups(choice: &mut Vec<(f32, u32)>, groups: usize, used: usize) {
    let size = choice.len() / groups;
    let score = |group: &[(f32, u32)]| {
        let mut c: Vec<f32> = group.iter().map(|c| c.0).collect();
        c.sort_unstable_by(|a, b| b.total_cmp(a));
        c.iter().take(2).sum::<f32>()
    };
    let mut best: Vec<(f32, u32)> = choice.chunks_exact(size).map(score).zip(0..).collect();
    best.sort_unstable_by(before);
    best.truncate(used);
    choice.retain(|c| best.iter().any(|g| g.1 as usize == c.1 as usize / size));
}

#[cfg(test)]
mod tests {
    use super::{Gating, RouteArgs, route};
    use crate::device::cpu::testing::Rng;

    const PLAIN: RouteArgs<'_> = RouteArgs {
        gating: Gating::Sigmoid,
        bias: None,
        groups: 1,
        groups_used: 1,
        used: 2,
        normalise: true,
        scale: 2.5,
    };

    fn run(logits: &[f32], args: &RouteArgs<'_>) -> (Vec<i32>, Vec<f32>) {
        let (mut ids, mut w) = (vec![-9; args.used], vec![f32::NAN; args.used]);
        route(logits, 1, args, &mut ids, &mut w).unwrap();
        (ids, w)
    }

    #[test]
    fn the_bias_chooses_but_does_not_weigh() {
        let bias = [0.0, 0.0, 100.0, 50.0];
        let (ids, w) = run(&[3.0, 2.0, -1.0, 0.0], &RouteArgs { bias: Some(&bias), ..PLAIN });
        assert_eq!(ids, [2, 3]);
        let g = [-1.0_f64, 0.0].map(|v| 1.0 / (1.0 + (-v).exp()));
        for i in 0..2 {
            assert!((f64::from(w[i]) - 2.5 * g[i] / (g[0] + g[1])).abs() < 1e-6);
        }
        assert!((w.iter().sum::<f32>() - 2.5).abs() < 1e-6);
    }

    #[test]
    fn equal_choices_take_the_smaller_id() {
        assert_eq!(run(&[1.0, 5.0, 1.0, 1.0], &RouteArgs { used: 3, ..PLAIN }).0, [1, 0, 2]);
        // Saturated gates are equal too.
        assert_eq!(run(&[0.0, 200.0, 300.0, f32::INFINITY], &PLAIN).0, [1, 2]);
    }

    #[test]
    fn softmax_gates_without_normalisation() {
        let args = RouteArgs { gating: Gating::Softmax, normalise: false, scale: 1.0, ..PLAIN };
        let (ids, w) = run(&[1.0, 3.0, 2.0], &args);
        let sum: f64 = [1.0_f64, 3.0, 2.0].map(f64::exp).iter().sum();
        assert_eq!(ids, [1, 2]);
        assert!((f64::from(w[0]) - 3_f64.exp() / sum).abs() < 1e-7);
        assert!((f64::from(w[1]) - 2_f64.exp() / sum).abs() < 1e-7);
        assert_eq!(run(&[0.0, f32::INFINITY, 0.0], &args).1, [1.0, 0.0]);
    }

    #[test]
    fn groups_are_ranked_by_their_two_best() {
        // Group sums of two: 0.9ish + small, 0.7 + 0.7, 0.6 + 0.65.
        let logits = [2.0, -9.0, -9.0, 0.8, 0.8, -9.0, 0.4, 0.6, -9.0];
        let args = RouteArgs { groups: 3, groups_used: 1, ..PLAIN };
        assert_eq!(run(&logits, &args).0, [3, 4]);
        assert_eq!(run(&logits, &RouteArgs { groups_used: 2, used: 4, ..args }).0, [3, 4, 7, 6]);
        assert_eq!(run(&logits, &RouteArgs { groups_used: 3, ..args }).0, [0, 3]);
    }

    #[test]
    fn equals_a_plain_reference_on_random_rows() {
        let mut rng = Rng::new(8);
        let (t, e, used) = (50, 256, 8);
        let logits = rng.floats(t * e);
        let bias = rng.floats(e);
        let (mut ids, mut w) = (vec![0; t * used], vec![0.0; t * used]);
        let args = RouteArgs { bias: Some(&bias), used, ..PLAIN };
        route(&logits, t, &args, &mut ids, &mut w).unwrap();
        for t in 0..t {
            let g: Vec<f64> = logits[t * e..(t + 1) * e].iter().map(|&v| 1.0 / (1.0 + f64::from(-v).exp())).collect();
            let mut order: Vec<usize> = (0..e).collect();
            let c = |i: usize| g[i] as f32 + bias[i];
            order.sort_by(|&a, &b| c(b).partial_cmp(&c(a)).unwrap());
            let sum: f64 = order[..used].iter().map(|&i| g[i]).sum();
            for j in 0..used {
                assert_eq!(ids[t * used + j] as usize, order[j]);
                assert!((f64::from(w[t * used + j]) - 2.5 * g[order[j]] / sum).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn refuses_nan_and_impossible_counts() {
        let (mut ids, mut w) = ([0; 2], [0.0; 2]);
        assert!(route(&[0.0, f32::NAN, 1.0, 0.0], 1, &PLAIN, &mut ids, &mut w).is_err());
        let bias = [0.0, f32::NAN, 0.0, 0.0];
        assert!(route(&[0.0; 4], 1, &RouteArgs { bias: Some(&bias), ..PLAIN }, &mut ids, &mut w).is_err());
        assert!(route(&[0.0; 1], 1, &PLAIN, &mut ids, &mut w).is_err());
        assert!(route(&[0.0; 4], 1, &RouteArgs { groups: 3, ..PLAIN }, &mut ids, &mut w).is_err());
        assert!(route(&[0.0; 4], 1, &RouteArgs { groups: 4, groups_used: 1, ..PLAIN }, &mut ids, &mut w).is_err());
        assert!(route(&[0.0; 4], 1, &RouteArgs { groups: 2, groups_used: 0, ..PLAIN }, &mut ids, &mut w).is_err());
    }
}
