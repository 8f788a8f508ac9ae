//! Choices between scores that hardly differ: a reference follows the device where either choice is right, so that what
//! comes after stays comparable. Owns when a choice is thin; a choice that is not is never followed.

use std::collections::{BTreeSet, HashMap};

use glmc_ir::op::Op;
use glmc_ir::ops::MoeRoute;
use glmc_ir::tensor::{EvalError, Tensor};

/// What the device chose, by name, and how far its scores may be off as a share of their RMS.
#[derive(Debug, Default)]
pub(super) struct Choices {
    pub(super) made: HashMap<String, Tensor>,
    pub(super) thin: f64,
}

impl Choices {
    /// Amends what an op of the reference chose.
    pub(super) fn amend(&self, path: &str, op: &Op, args: &[&Tensor], outs: &mut [Tensor]) -> Result<(), EvalError> {
        let Some(device) = self.made.get(path) else { return Ok(()) };
        match (op, args) {
            (Op::TopK(_), [scores]) => follow_top(scores, device, outs, self.thin),
            (Op::MoeRoute(route), [logits, ..]) => {
                follow_route(route, logits, args.get(1).copied(), device, outs, self.thin)
            }
            _ => Ok(()),
        }
    }
}

/// The largest scores of each row.
pub(super) fn follow_top(scores: &Tensor, device: &Tensor, outs: &mut [Tensor], thin: f64) -> Result<(), EvalError> {
    let [ids] = outs else { return Ok(()) };
    let (s, k) = (scores.floats()?, ids.shape.last().copied().unwrap_or(0));
    let width = scores.shape.last().copied().unwrap_or(0);
    if ids.shape != device.shape || k == 0 || width == 0 {
        return Ok(());
    }
    let mut new = ids.ints()?.to_vec();
    for ((own, theirs), row) in new.chunks_exact_mut(k).zip(device.ints()?.chunks_exact(k)).zip(s.chunks_exact(width)) {
        if may_follow(own, theirs, row, thin * spread(row)) {
            own.copy_from_slice(theirs);
        }
    }
    *ids = Tensor::i(ids.shape.clone(), new);
    Ok(())
}

/// Experts and their weights, in the device's order.
pub(super) fn follow_route(
    route: &MoeRoute,
    logits: &Tensor,
    bias: Option<&Tensor>,
    device: &Tensor,
    outs: &mut [Tensor],
    thin: f64,
) -> Result<(), EvalError> {
    let [ids, weights] = outs else { return Ok(()) };
    let (x, k) = (logits.floats()?, route.k as usize);
    let experts = logits.shape.last().copied().unwrap_or(0);
    if ids.shape != device.shape || k == 0 || experts == 0 {
        return Ok(());
    }
    let bias = bias.map(Tensor::floats).transpose()?;
    let (mut new, mut weighed) = (ids.ints()?.to_vec(), weights.floats()?.to_vec());
    let rows = new.chunks_exact_mut(k).zip(weighed.chunks_exact_mut(k));
    for (((own, w), theirs), row) in rows.zip(device.ints()?.chunks_exact(k)).zip(x.chunks_exact(experts)) {
        let (gates, choice) = route.scores(row, bias);
        // A gate moves by at most a quarter of what its logit does.
        if may_follow(own, theirs, &choice, thin * spread(row) / 4.0) {
            own.copy_from_slice(theirs);
            let chosen: Vec<usize> = theirs.iter().filter_map(|e| usize::try_from(*e).ok()).collect();
            w.copy_from_slice(&route.weigh(&gates, &chosen));
        }
    }
    (*ids, *weights) = (Tensor::i(ids.shape.clone(), new), Tensor::f(weights.shape.clone(), weighed));
    Ok(())
}

/// The size of the finite scores of a row.
fn spread(row: &[f64]) -> f64 {
    let (sum, n) = row.iter().filter(|x| x.is_finite()).fold((0.0, 0usize), |(s, n), x| (s + x * x, n + 1));
    (sum / n.max(1) as f64).sqrt()
}

/// Whether the other choice is as right: the same entries, or others whose scores differ by no more than `margin`.
fn may_follow(own: &[i64], theirs: &[i64], scores: &[f64], margin: f64) -> bool {
    let set = |ids: &[i64]| ids.iter().copied().filter(|i| *i >= 0).collect::<BTreeSet<i64>>();
    let (a, b) = (set(own), set(theirs));
    let none = |ids: &[i64]| ids.iter().filter(|i| **i < 0).count();
    if a.len() != b.len() || none(own) != none(theirs) {
        return false;
    }
    let score = |i: &i64| usize::try_from(*i).ok().and_then(|i| scores.get(i)).copied().unwrap_or(f64::NEG_INFINITY);
    let lost = a.difference(&b).map(score).fold(f64::NEG_INFINITY, f64::max);
    let won = b.difference(&a).map(score).fold(f64::INFINITY, f64::min);
    a == b || lost - won <= margin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_thin_choices_are_followed() {
        let scores = [1.0, 0.5, 0.499, -1.0];
        assert!(may_follow(&[0, 1], &[1, 0], &scores, 0.0), "the order says nothing");
        assert!(may_follow(&[0, 1], &[0, 2], &scores, 0.01) && !may_follow(&[0, 1], &[0, 2], &scores, 1e-4));
        assert!(!may_follow(&[0, 1], &[0, 3], &scores, 0.01) && !may_follow(&[0, 1], &[0, 0], &scores, 1.0));
        assert!(!may_follow(&[0, 1], &[0, 9], &scores, 1.0) && !may_follow(&[0, -1], &[0, 1], &scores, 1.0));
    }

    #[test]
    fn weights_follow_the_experts() {
        let gating = glmc_ir::ops::Gating::Sigmoid;
        let route = MoeRoute { gating, k: 1, bias: false, groups: 1, groups_used: 1, norm: false, scale: 2.0 };
        let logits = Tensor::f(vec![1, 2], vec![1e-9, 0.0]);
        let (ids, w) = (Tensor::i(vec![1, 1], vec![0]), Tensor::f(vec![1, 1], vec![1.0]));
        let mut outs = vec![ids, w];
        follow_route(&route, &logits, None, &Tensor::i(vec![1, 1], vec![1]), &mut outs, 1e3).unwrap();
        assert_eq!((outs[0].ints().unwrap(), outs[1].floats().unwrap()), (&[1][..], &[1.0][..]));
    }
}
