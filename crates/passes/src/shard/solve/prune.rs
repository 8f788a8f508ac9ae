//! Owns which states of a step need not go on, since a cheaper one can do all that they can. Never makes a state.

use std::collections::HashMap;

use glmc_ir::entities::Value;

use super::{Key, Point, Problem};

/// The cheapest states of a step that others are held against.
const RIVALS: usize = 32;

/// Whether for `more` seconds every point is reached from one of `rival`.
fn beats(rival: &[Point], more: f64, points: &[Point]) -> bool {
    // Sums in another order differ in their last bits.
    let within = |q: &Point, p: &Point| q.seconds + more <= p.seconds * (1.0 + 1e-12) && q.bytes <= p.bytes;
    points.iter().all(|p| rival.iter().any(|q| within(q, p)))
}

impl Problem {
    /// Drops states from which nothing can be done that a cheaper one could not do as cheaply: a place that only the
    /// dearer one has is worth no more than a collective to it, at any later time.
    pub(super) fn prune(&self, live: &[Value], states: &mut Vec<(Key, Vec<Point>)>) {
        let all: HashMap<&[u32], usize> = states.iter().enumerate().map(|(i, (k, _))| (&**k, i)).collect();
        let near: Vec<bool> = (0..states.len()).map(|i| self.nearby(live, states, &all, i)).collect();
        let mut kept: Vec<(Key, Vec<Point>)> = Vec::with_capacity(states.len());
        for ((key, points), _) in states.drain(..).zip(near).filter(|(_, beaten)| !beaten) {
            let beaten = kept
                .iter()
                .take(RIVALS)
                .any(|(k, rival)| self.catch_up(live, k, &key).is_some_and(|more| beats(rival, more, &points)));
            if !beaten {
                kept.push((key, points));
            }
        }
        *states = kept;
    }

    /// Whether a state that differs from state `i` in one place of one value beats it.
    fn nearby(&self, live: &[Value], states: &[(Key, Vec<Point>)], all: &HashMap<&[u32], usize>, i: usize) -> bool {
        let (key, points) = &states[i];
        let mut other = key.clone();
        for (at, v) in live.iter().enumerate() {
            let (mask, moves) = (key[at], &self.moves[*v]);
            for p in (0..moves.len()).filter(|p| mask & (1 << p) != 0) {
                let without = mask & !(1 << p);
                for q in 0..=moves.len() {
                    // At last: the place alone is missing.
                    let m = if q < moves.len() { without | 1 << q } else { without };
                    if m == mask || m == 0 || (q < moves.len() && mask & (1 << q) != 0) {
                        continue;
                    }
                    other[at] = m;
                    let Some(k) = all.get(&*other) else { continue };
                    let from = (0..moves.len()).filter(|f| m & (1 << f) != 0);
                    let more = from.map(|f| moves[f][p]).fold(f64::INFINITY, f64::min);
                    // One that beats stands first: it is faster, or as fast where the collectives are lost in rounding, and
                    // then of two that beat each other the first stays.
                    if more.is_finite() && *k < i && beats(&states[*k].1, more, points) {
                        return true;
                    }
                }
            }
            other[at] = mask;
        }
        false
    }

    /// Seconds of the collectives that give a state with masks `from` every place of `to`; `None` if some cannot be had.
    fn catch_up(&self, live: &[Value], from: &[u32], to: &[u32]) -> Option<f64> {
        let mut sum = 0.0;
        for ((v, a), b) in live.iter().zip(from).zip(to) {
            let mut missing = b & !a;
            if missing != 0 && *a == 0 {
                return None;
            }
            while missing != 0 {
                let to = missing.trailing_zeros() as usize;
                missing &= missing - 1;
                let by = (0..self.moves[*v].len()).filter(|p| a & (1 << p) != 0).map(|p| self.moves[*v][p][to]);
                sum += by.fold(f64::INFINITY, f64::min);
            }
        }
        sum.is_finite().then_some(sum)
    }
}
