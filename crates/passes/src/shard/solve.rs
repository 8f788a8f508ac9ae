//! Owns the search over one function: dynamic programming along its instructions. A state is where each live value may
//! be read; a step runs an instruction in one of its ways, after the collectives that bring its operands there. Exact
//! while the states of a step stay within [`BEAM`]; beyond, the cheapest ones go on and the solution says so.

mod prune;
mod ways;

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;
use glmc_ir::entities::Value;
use glmc_ir::graph::Function;

use super::place::{Place, World};
use super::table::{CALLEES, Config, Slot, Start};
use ways::Ways;

/// States of a step that go on.
pub const BEAM: usize = 16_384;
/// The same while a first bound is looked for.
pub const NARROW: usize = 32;
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
            let seconds = |a, b| if s.fixed { f64::INFINITY } else { world.move_seconds(f, v, a, b) };
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
        let wide = self.run(BEAM, bound * (1.0 + 1e-12), false);
        if wide.paths.is_empty() {
            // Where placements hardly differ (arithmetic that dwarfs the links), the wide beam can fill with beginnings
            // that all end above the bound. The way that gave the bound stands.
            return Found { states: wide.states, cut: true, ..narrow };
        }
        wide
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
