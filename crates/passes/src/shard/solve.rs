//! Owns the search over one function: dynamic programming along its instructions. A state is where each live value may
//! be read; a step runs an instruction in one of its ways, after the collectives that bring its operands there. Exact
//! while the states of a step stay within [`BEAM`]; beyond, the cheapest ones go on and the solution says so.

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;
use glmc_ir::entities::Value;
use glmc_ir::graph::Function;

use super::place::{Place, World};
use super::table::{CALLEES, Config, Slot, Start};

/// States of a step that go on.
pub const BEAM: usize = 16_384;
/// The same while a first bound is looked for.
pub const NARROW: usize = 32;
/// The cheapest states of a step that others are held against.
const RIVALS: usize = 32;
/// Trade-offs of time and memory kept of one state.
pub const FRONT: usize = 64;

/// A function with everything that the search needs.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Values by id; none for those that nothing reaches.
    pub slots: SecondaryMap<Value, Option<Slot>>,
    /// The ways of each instruction of the body.
    pub configs: Vec<Vec<Config>>,
    /// Operands of each instruction.
    pub args: Vec<Vec<Value>>,
    /// Results of each instruction.
    pub made: Vec<Vec<Value>>,
    /// Plain results, which stay until the end.
    pub results: Vec<Value>,
    /// Whether plain results must be whole on each rank.
    pub entry: bool,
    /// Seconds from place to place, by value.
    pub moves: SecondaryMap<Value, Vec<Vec<f64>>>,
    /// Bytes of the largest rank at each place, of weights and pools.
    pub held: SecondaryMap<Value, Vec<u64>>,
}

/// A collective before an instruction (or, at the index after the last, before the return).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// What is moved.
    pub value: Value,
    /// Index of the place it is read at.
    pub from: u8,
    /// Index of the place it then is at, too.
    pub to: u8,
}

/// How one instruction is run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// Index of its config.
    pub config: usize,
    /// Collectives before it.
    pub moves: Vec<Move>,
}

/// A way through a whole function.
#[derive(Clone, PartialEq, Debug)]
pub struct Path {
    /// Seconds.
    pub seconds: f64,
    /// Bytes kept of free weights and pools.
    pub bytes: u64,
    /// A step for each instruction, and the return.
    pub steps: Vec<Step>,
    /// The place of each plain result.
    pub results: Vec<u8>,
}

/// What a search gave.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Ways that differ in where results are left, or in memory.
    pub paths: Vec<Path>,
    /// Most states of a step.
    pub states: usize,
    /// Whether a limit was hit, so that a cheaper way may exist.
    pub cut: bool,
}

#[derive(Clone, Copy)]
struct Point {
    seconds: f64,
    bytes: u64,
    /// State and point of the step before.
    prev: (u32, u32),
    /// Index of the step in the arena.
    step: u32,
}

type Key = Box<[u32]>;

struct Layer {
    states: Vec<(Key, Vec<Point>)>,
    index: HashMap<Key, usize>,
}

impl Layer {
    fn new() -> Self {
        Layer { states: Vec::new(), index: HashMap::new() }
    }

    fn add(&mut self, key: &[u32], p: Point, front: bool) -> bool {
        let at = match self.index.get(key) {
            Some(i) => *i,
            None => {
                let key: Key = key.into();
                self.index.insert(key.clone(), self.states.len());
                self.states.push((key, Vec::new()));
                self.states.len() - 1
            }
        };
        insert(&mut self.states[at].1, p, front)
    }
}

/// Whether for `more` seconds every point is reached from one of `rival`.
fn beats(rival: &[Point], more: f64, points: &[Point]) -> bool {
    // Sums in another order differ in their last bits.
    let within = |q: &Point, p: &Point| q.seconds + more <= p.seconds * (1.0 + 1e-12) && q.bytes <= p.bytes;
    points.iter().all(|p| rival.iter().any(|q| within(q, p)))
}

/// Keeps what nothing else beats; whether a limit was hit.
fn insert(points: &mut Vec<Point>, p: Point, front: bool) -> bool {
    if !front {
        match points.first_mut() {
            Some(q) if p.seconds < q.seconds => *q = p,
            Some(_) => {}
            None => points.push(p),
        }
        return false;
    }
    if points.iter().any(|q| q.seconds <= p.seconds && q.bytes <= p.bytes) {
        return false;
    }
    points.retain(|q| q.seconds < p.seconds || q.bytes < p.bytes);
    let at = points.partition_point(|q| q.seconds < p.seconds);
    points.insert(at, p);
    if points.len() <= FRONT {
        return false;
    }
    // Drop the inner point whose neighbours are nearest in bytes.
    let gap = |i: usize| points[i - 1].bytes - points[i + 1].bytes;
    let worst = (1..points.len() - 1).min_by_key(|i| gap(*i));
    if let Some(i) = worst {
        points.remove(i);
    }
    true
}

impl Problem {
    /// The problem of `f`; `configs` stands for its body.
    pub fn new(
        f: &Function,
        slots: SecondaryMap<Value, Option<Slot>>,
        configs: Vec<Vec<Config>>,
        world: &World<'_>,
    ) -> Self {
        let results = f.results.iter().map(|(_, v)| *v).filter(|v| !f.ty(*v).state);
        let mut plain: Vec<Value> = Vec::new();
        results.for_each(|v| {
            if !plain.contains(&v) {
                plain.push(v);
            }
        });
        let (mut moves, mut held) = (SecondaryMap::new(), SecondaryMap::new());
        for v in f.values.keys() {
            let Some(s) = &slots[v] else { continue };
            if s.fixed {
                held[v] = s.places.iter().map(|p| world.held(&world.on(&s.ty, *p))).collect::<Vec<u64>>();
            }
            let seconds = |a, b| if s.fixed { f64::INFINITY } else { world.conversion_seconds(&s.ty, a, b) };
            let row = |a| s.places.iter().map(|b| seconds(a, *b)).collect::<Vec<f64>>();
            moves[v] = s.places.iter().map(|a| row(*a)).collect::<Vec<_>>();
        }
        let args = f.body.iter().map(|i| f.insts[*i].args.clone()).collect();
        let made = f.body.iter().map(|i| f.insts[*i].results.clone()).collect();
        Problem { slots, configs, args, made, results: plain, entry: f.entry, moves, held }
    }

    /// The cheapest ways. With `front`, also those that take longer and need less memory.
    pub fn solve(&self, front: bool) -> Found {
        let narrow = self.run(NARROW, f64::INFINITY, false);
        let best = narrow.paths.iter().map(|p| p.seconds).fold(f64::INFINITY, f64::min);
        if !best.is_finite() || front {
            return self.run(BEAM, f64::INFINITY, front);
        }
        // Where results are left is worth no more than taking them there from where the bound leaves them.
        let bound = if self.entry { best } else { self.worth(&narrow.paths) };
        self.run(BEAM, bound * (1.0 + 1e-12), false)
    }

    /// The most that a way is worth, whatever places it leaves the results at.
    fn worth(&self, known: &[Path]) -> f64 {
        let mut ends: Vec<Vec<u8>> = vec![Vec::new()];
        for v in &self.results {
            let n = self.slots[*v].as_ref().map_or(0, |s| s.places.len()) as u8;
            let with = |e: &Vec<u8>| (0..n).map(|k| [e.as_slice(), &[k]].concat()).collect::<Vec<_>>();
            ends = ends.iter().flat_map(with).collect();
        }
        let there = |p: &Path, end: &[u8]| {
            let one = |((v, a), b): ((&Value, &u8), &u8)| {
                if a == b { 0.0 } else { self.moves[*v][usize::from(*a)][usize::from(*b)] }
            };
            p.seconds + self.results.iter().zip(&p.results).zip(end).map(one).sum::<f64>()
        };
        let best = |end: &Vec<u8>| known.iter().map(|p| there(p, end)).fold(f64::INFINITY, f64::min);
        ends.iter().map(best).filter(|s| s.is_finite()).fold(0.0, f64::max)
    }

    /// One pass with at most `beam` states a step, none of which can end above `bound`.
    pub fn run(&self, beam: usize, bound: f64, front: bool) -> Found {
        let n = self.configs.len();
        let least = |c: &Vec<Config>| c.iter().map(|c| c.seconds).fold(f64::INFINITY, f64::min);
        let mut rest = vec![0.0; n + 1];
        (0..n).rev().for_each(|i| rest[i] = rest[i + 1] + least(&self.configs[i]));
        let live = self.live();
        let later = self.later();
        let mut found = Found::default();
        let mut steps: Vec<Step> = Vec::new();
        let mut layers: Vec<Layer> = vec![Layer::new()];
        let start: Vec<u32> = live[0].iter().map(|v| self.first(*v)).collect();
        let origin = Point { seconds: 0.0, bytes: 0, prev: (0, 0), step: 0 };
        layers[0].add(&start, origin, front);
        for i in 0..=n {
            let mut next = Layer::new();
            let mut masks: SecondaryMap<Value, u32> = SecondaryMap::new();
            let layer = &layers[i];
            let asked = self.asked(i);
            // What is first read here.
            self.reads(i).iter().for_each(|v| masks[*v] = self.first(*v));
            for (s, (key, points)) in layer.states.iter().enumerate() {
                let mut ways = Ways { p: self, later: &later[i], out: Vec::new() };
                live[i].iter().zip(key.iter()).for_each(|(v, m)| masks[*v] = *m);
                for (c, args) in &asked {
                    ways.bring(*c, args, 0, &mut masks, 0.0, 0, &mut Vec::new());
                }
                for w in ways.out {
                    let (seconds, bytes, results) = match self.configs.get(i) {
                        Some(all) => (all[w.config].seconds, all[w.config].bytes, all[w.config].results.as_slice()),
                        None => (0.0, 0, [].as_slice()),
                    };
                    let seconds = seconds + w.seconds;
                    let bytes = bytes.saturating_add(w.bytes);
                    let cheapest = points.iter().map(|p| p.seconds).fold(f64::INFINITY, f64::min);
                    if !(cheapest + seconds + rest[(i + 1).min(n)]).is_finite()
                        || cheapest + seconds + rest[(i + 1).min(n)] > bound
                    {
                        continue;
                    }
                    let mut key: Vec<u32> = Vec::new();
                    if i < n {
                        for v in &live[i + 1] {
                            let made = self.made[i].iter().position(|r| r == v);
                            key.push(match made {
                                Some(r) => 1 << results[r],
                                None => {
                                    let set = w.masks.iter().find(|(x, _)| x == v).map(|(_, m)| *m);
                                    let was = live[i].iter().position(|x| x == v);
                                    let mask = set.or(was.map(|at| layer.states[s].0[at]));
                                    self.tidy(*v, mask.unwrap_or_else(|| self.first(*v)), later[i][*v])
                                }
                            });
                        }
                    } else {
                        key = w.ends.iter().map(|p| u32::from(*p)).collect();
                    }
                    let step = steps.len() as u32;
                    let mut used = false;
                    for (k, p) in points.iter().enumerate() {
                        let p = Point {
                            seconds: p.seconds + seconds,
                            bytes: p.bytes.saturating_add(bytes),
                            prev: (s as u32, k as u32),
                            step,
                        };
                        found.cut |= next.add(&key, p, front);
                        used = true;
                    }
                    if used {
                        steps.push(Step { config: w.config, moves: w.moves });
                    }
                }
            }
            next.states.sort_by(|a, b| a.1[0].seconds.total_cmp(&b.1[0].seconds).then_with(|| a.0.cmp(&b.0)));
            if i < n {
                self.prune(&live[i + 1], &mut next.states);
            }
            found.states = found.states.max(next.states.len());
            if next.states.len() > beam {
                found.cut = true;
                next.states.truncate(beam);
            }
            next.index = HashMap::new();
            layers.push(next);
        }
        found.paths = self.trace(&layers, &steps);
        found
    }

    /// Drops states from which nothing can be done that a cheaper one could not do as cheaply: a place that only the
    /// dearer one has is worth no more than a collective to it, at any later time.
    fn prune(&self, live: &[Value], states: &mut Vec<(Key, Vec<Point>)>) {
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
                    // Of two that beat each other the one that stands first stays.
                    if more.is_finite() && (*k < i || more > 0.0) && beats(&states[*k].1, more, points) {
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

    /// The ways through the layers, the fastest first.
    fn trace(&self, layers: &[Layer], steps: &[Step]) -> Vec<Path> {
        let mut paths = Vec::new();
        let Some(last) = layers.last() else { return paths };
        for (key, points) in &last.states {
            for p in points {
                let mut path = vec![steps[p.step as usize].clone()];
                let mut at = p.prev;
                for layer in layers[1..layers.len() - 1].iter().rev() {
                    let q = layer.states[at.0 as usize].1[at.1 as usize];
                    path.push(steps[q.step as usize].clone());
                    at = q.prev;
                }
                path.reverse();
                let results = key.iter().map(|k| *k as u8).collect();
                paths.push(Path { seconds: p.seconds, bytes: p.bytes, steps: path, results });
            }
        }
        paths.sort_by(|a, b| {
            a.seconds.total_cmp(&b.seconds).then(a.bytes.cmp(&b.bytes)).then_with(|| a.results.cmp(&b.results))
        });
        paths
    }

    /// What instruction `i` (or the return) may ask of its operands.
    fn asked(&self, i: usize) -> Vec<(usize, Vec<(Value, u8)>)> {
        if let Some(all) = self.configs.get(i) {
            let of = |c: &Config| self.args[i].iter().copied().zip(c.args.iter().copied()).collect();
            return all.iter().enumerate().map(|(k, c)| (k, of(c))).collect();
        }
        // The return leaves values where they are; an entry's must be whole.
        let mut all: Vec<Vec<(Value, u8)>> = vec![Vec::new()];
        for v in &self.results {
            let places = self.slots[*v].iter().flat_map(|s| s.places.iter().enumerate());
            let fit = places.filter(|(_, p)| !self.entry || **p == Place::Whole);
            let fit: Vec<u8> = fit.map(|(k, _)| k as u8).collect();
            all = all
                .iter()
                .flat_map(|a| {
                    fit.iter().map(move |k| {
                        let mut a = a.clone();
                        a.push((*v, *k));
                        a
                    })
                })
                .collect();
        }
        all.into_iter().map(|a| (0, a)).collect()
    }

    fn reads(&self, i: usize) -> Vec<Value> {
        self.args.get(i).cloned().unwrap_or_else(|| self.results.clone())
    }

    /// Where a value may be read before anything is done: nowhere yet if it is free.
    fn first(&self, v: Value) -> u32 {
        match self.slots[v].as_ref().map(|s| s.start) {
            Some(Start::Given(p)) => 1 << p,
            _ => 0,
        }
    }

    /// Without places that nothing reads any more, if the value is whole: from there every other is nearest.
    fn tidy(&self, v: Value, mask: u32, later: u32) -> u32 {
        let places = self.slots[v].as_ref().map_or([].as_slice(), |s| &s.places);
        match places.iter().position(|p| *p == Place::Whole) {
            Some(w) if mask & (1 << w) != 0 => mask & (later | 1 << w),
            _ => mask,
        }
    }

    /// Values that are live before each instruction, the return and the end.
    fn live(&self) -> Vec<Vec<Value>> {
        let n = self.configs.len();
        let mut range: indexmap::IndexMap<Value, (usize, usize)> = indexmap::IndexMap::new();
        for i in 0..=n {
            for v in self.reads(i) {
                range.entry(v).or_insert((i, i)).1 = i;
            }
            for v in self.made.get(i).into_iter().flatten() {
                range.entry(*v).or_insert((i, i));
            }
        }
        let at = |i: usize| {
            let here = range.iter().filter(|(_, (a, b))| *a < i && i <= *b);
            here.map(|(v, _)| *v).collect()
        };
        (0..=n + 1).map(at).collect()
    }

    /// Places that each value is read at from each instruction on.
    fn later(&self) -> Vec<SecondaryMap<Value, u32>> {
        let n = self.configs.len();
        let mut all = vec![SecondaryMap::new(); n + 1];
        let mut seen: SecondaryMap<Value, u32> = SecondaryMap::new();
        for i in (0..=n).rev() {
            all[i] = seen.clone();
            for (_, args) in self.asked(i) {
                args.iter().filter(|(_, p)| *p != CALLEES).for_each(|(v, p)| seen[*v] |= 1 << p);
            }
        }
        all
    }
}

/// One way to run an instruction from a state.
struct Way {
    config: usize,
    seconds: f64,
    bytes: u64,
    moves: Vec<Move>,
    /// Masks of the operands after the moves.
    masks: Vec<(Value, u32)>,
    /// Of the return: the places.
    ends: Vec<u8>,
}

struct Ways<'p> {
    p: &'p Problem,
    later: &'p SecondaryMap<Value, u32>,
    out: Vec<Way>,
}

impl Ways<'_> {
    /// Brings operand `k` and the following to their places, in every way worth trying.
    #[allow(clippy::too_many_arguments, reason = "one recursion over operands")]
    fn bring(
        &mut self,
        config: usize,
        args: &[(Value, u8)],
        k: usize,
        masks: &mut SecondaryMap<Value, u32>,
        seconds: f64,
        bytes: u64,
        moves: &mut Vec<Move>,
    ) {
        let Some((v, to)) = args.get(k).copied() else {
            let own = args.iter().map(|(v, _)| (*v, masks[*v])).collect();
            let ends = args.iter().map(|(_, p)| *p).collect();
            self.out.push(Way { config, seconds, bytes, moves: moves.clone(), masks: own, ends });
            return;
        };
        let mask = masks[v];
        if to == CALLEES || mask & (1 << to) != 0 {
            self.bring(config, args, k + 1, masks, seconds, bytes, moves);
            return;
        }
        let slot = self.p.slots[v].as_ref();
        if slot.is_some_and(|s| s.start == Start::Free) {
            if mask == 0 {
                masks[v] = 1 << to;
                let held = self.p.held[v].get(usize::from(to)).copied().unwrap_or(0);
                self.bring(config, args, k + 1, masks, seconds, bytes.saturating_add(held), moves);
                masks[v] = 0;
            }
            return;
        }
        let cost = &self.p.moves[v];
        let nearest = |mask: u32, to: u8| {
            let from = (0..cost.len()).filter(|p| mask & (1 << p) != 0);
            let by = from.map(|p| (cost[p][usize::from(to)], p as u8));
            by.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(s, _)| s.is_finite())
        };
        if let Some((s, from)) = nearest(mask, to) {
            masks[v] = mask | 1 << to;
            moves.push(Move { value: v, from, to });
            self.bring(config, args, k + 1, masks, seconds + s, bytes, moves);
            moves.pop();
        }
        // By way of a place that is read later anyway.
        for via in (0..cost.len() as u8).filter(|m| *m != to && mask & (1 << m) == 0 && self.later[v] & (1 << m) != 0) {
            let Some((a, from)) = nearest(mask, via) else { continue };
            let b = cost[usize::from(via)][usize::from(to)];
            if b.is_finite() {
                masks[v] = mask | 1 << to | 1 << via;
                moves.extend([Move { value: v, from, to: via }, Move { value: v, from: via, to }]);
                self.bring(config, args, k + 1, masks, seconds + a + b, bytes, moves);
                moves.truncate(moves.len() - 2);
            }
        }
        masks[v] = mask;
    }
}
