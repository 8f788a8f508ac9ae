//! The search for placements against every placement that the dim rules allow, on a model of two layers.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]
#![allow(clippy::type_complexity, reason = "the table of a test")]

use std::collections::{BTreeSet, HashMap};

use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::placement::infer_on;
use glmc_ir::text::{parse_module, print_module};
use glmc_ir::ty::{Elem, PendingKind, SymValues, TensorType};
use glmc_ir::verify::verify_module;
use glmc_passes::cost::TUNE_CTX;
use glmc_passes::egraph::cost::Machine;
use glmc_passes::pass::PassCx;
use glmc_passes::shard::place::{Place, World};
use glmc_passes::shard::{AXIS, Shard};
use glmc_passes::target::Target;

/// Two layers, the second wider, in one function.
const FLAT: &str = include_str!("shard/flat.glir");
/// The same as two calls of functions.
const CALLS: &str = include_str!("shard/calls.glir");
/// A decoded token's sparse attention over two pools.
const CONTEXT: &str = include_str!("shard/context.glir");

fn module(text: &str) -> Module {
    let m = parse_module(text).unwrap_or_else(|e| panic!("{e}"));
    verify_module(&m).unwrap_or_else(|e| panic!("{e}"));
    m
}

/// Four ranks; memory in bytes.
fn target(latency: f64, rate: f64, memory: u64) -> Target {
    let text = format!(
        "name = \"test\"\ndescription = \"test\"\narch = \"cpu\"\nranks = 4\nmax_batch = 1\nchunk = 8\n[device]\n\
         memory_bytes = {memory}\nread_bytes_per_s = 1e9\nf32_flops_per_s = 1e12\nbf16_flops_per_s = 1e12\n\
         int8_ops_per_s = 1e12\nlaunch_s = 1e-7\ncontext_bytes = 0\ngraph_bytes = 0\ngraph_bytes_per_phase = 0\n\
         reserve_bytes = 0\n[link]\nbytes_per_s = {rate:e}\nlatency_s = {latency:e}\np2p = true\n"
    );
    Target::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

/// Every placement of every value, one after the other.
struct Oracle<'a> {
    world: &'a World<'a>,
    f: &'a Function,
    /// Ways of each instruction: operands, results, seconds.
    ways: Vec<Vec<(Vec<Place>, Vec<Place>, f64)>>,
    domain: HashMap<Value, Vec<Place>>,
    moves: HashMap<Value, HashMap<(Place, Place), f64>>,
    held: HashMap<(Value, Place), u64>,
    count: u64,
    limit: u64,
    best: f64,
    /// Other placements of the weights at the best cost.
    best_weights: BTreeSet<Vec<Place>>,
}

/// Whether a value is a weight or a pool, which has one place.
fn stays(f: &Function, v: Value) -> bool {
    let data = &f.values[v];
    data.ty.state || matches!(data.def, ValueDef::Weight(_))
}

/// What a value of this type may be anywhere.
fn domain(world: &World<'_>, t: &TensorType, weight: bool) -> Vec<Place> {
    let mut out = vec![Place::Whole];
    for dim in 0..t.rank() {
        out.extend([1, 32].map(|unit| Place::Split { dim, unit }));
    }
    if !weight {
        let kinds = [PendingKind::Sum, PendingKind::Max, PendingKind::Softmax, PendingKind::TopK];
        out.extend(kinds.map(Place::Pending));
    }
    let mut seen = Vec::new();
    for p in out {
        let t = world.on(t, p);
        if world.legal(&t) && !seen.contains(&Place::of(&t)) {
            seen.push(Place::of(&t));
        }
    }
    seen
}

impl<'a> Oracle<'a> {
    fn new(world: &'a World<'a>, f: &'a Function, limit: u64) -> Self {
        let mut domains: HashMap<Value, Vec<Place>> = HashMap::new();
        for (v, data) in f.values.iter() {
            domains.insert(v, domain(world, &data.ty, stays(f, v)));
        }
        let mut ways = Vec::new();
        for inst in &f.body {
            let data = &f.insts[*inst];
            let InstKind::Op(op) = &data.kind else { panic!("the oracle takes no calls") };
            let mut combos: Vec<Vec<Place>> = vec![Vec::new()];
            for a in &data.args {
                combos = combos
                    .iter()
                    .flat_map(|c| domains[a].iter().map(move |p| [c.as_slice(), &[*p]].concat()))
                    .collect();
            }
            let mut all = Vec::new();
            for places in combos {
                let args: Vec<TensorType> =
                    data.args.iter().zip(&places).map(|(a, p)| world.on(f.ty(*a), *p)).collect();
                let Ok(results) = infer_on(op, &args.iter().collect::<Vec<_>>(), &world.mesh) else { continue };
                if results.iter().all(|t| world.legal(t)) {
                    let again: Vec<bool> = (0..args.len()).map(|i| data.args[..i].contains(&data.args[i])).collect();
                    let seconds = world.seconds(op, &args, &results, &again);
                    all.push((places, results.iter().map(Place::of).collect(), seconds));
                }
            }
            ways.push(all);
        }
        let mut moves = HashMap::new();
        for v in f.values.keys() {
            let all = &domains[&v];
            let stays = stays(f, v);
            let cost = |a, b| if stays { f64::INFINITY } else { world.move_seconds(f, v, a, b) };
            moves.insert(v, all.iter().flat_map(|a| all.iter().map(move |b| ((*a, *b), cost(*a, *b)))).collect());
        }
        Oracle {
            world,
            f,
            ways,
            domain: domains,
            moves,
            held: HashMap::new(),
            count: 0,
            limit,
            best: f64::INFINITY,
            best_weights: BTreeSet::new(),
        }
    }

    /// Cheapest way to have a value at every place of `need`, made at `from`: a tree over those and at most one more.
    fn tree(&self, v: Value, from: Place, need: &BTreeSet<Place>) -> f64 {
        let mut best = f64::INFINITY;
        let extra = self.domain[&v].iter().copied().map(Some).chain([None]);
        for more in extra {
            let mut all: Vec<Place> = need.iter().copied().chain(more).filter(|p| *p != from).collect();
            all.sort();
            all.dedup();
            best = best.min(self.grow(v, &[from], &all));
        }
        best
    }

    fn grow(&self, v: Value, have: &[Place], rest: &[Place]) -> f64 {
        if rest.is_empty() {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for (i, p) in rest.iter().enumerate() {
            let near = have.iter().map(|h| self.moves[&v][&(*h, *p)]).fold(f64::INFINITY, f64::min);
            if near.is_finite() {
                let mut left = rest.to_vec();
                left.remove(i);
                best = best.min(near + self.grow(v, &[have, &[*p]].concat(), &left));
            }
        }
        best
    }

    /// The index of a place of `v`.
    fn at(&self, v: Value, p: Place) -> usize {
        self.domain[&v].iter().position(|q| *q == p).unwrap_or_else(|| panic!("{v} has no {p:?}"))
    }

    fn run(&mut self) {
        let n = self.f.values.len();
        let mut s = Chosen { needs: vec![Vec::new(); n], made: vec![0; n], trees: vec![HashMap::new(); n] };
        for (v, list) in s.needs.iter_mut().enumerate() {
            list.resize(self.domain[&Value::from_u32(v as u32)].len(), 0u32);
        }
        for (_, v) in self.f.results.iter().filter(|(_, v)| !stays(self.f, *v)) {
            s.needs[v.as_u32() as usize][self.at(*v, Place::Whole)] += 1;
        }
        let index = |(args, results, seconds): &(Vec<Place>, Vec<Place>, f64), i: usize| {
            let data = &self.f.insts[self.f.body[i]];
            let of = |values: &[Value], places: &[Place]| {
                let each = values.iter().zip(places);
                each.map(|(v, p)| (v.as_u32() as usize, self.at(*v, *p))).collect::<Vec<_>>()
            };
            (of(&data.args, args), of(&data.results, results), *seconds)
        };
        let ways: Vec<Vec<Way>> =
            self.ways.iter().enumerate().map(|(i, all)| all.iter().map(|w| index(w, i)).collect()).collect();
        self.descend(&ways, 0.0, &mut s);
    }

    fn descend(&mut self, ways: &[Vec<Way>], seconds: f64, s: &mut Chosen) {
        let Some((here, rest)) = ways.split_first() else {
            self.leaf(seconds, s);
            return;
        };
        for (args, results, cost) in here {
            args.iter().for_each(|(v, p)| s.needs[*v][*p] += 1);
            results.iter().for_each(|(v, p)| s.made[*v] = *p);
            self.descend(rest, seconds + cost, s);
            args.iter().for_each(|(v, p)| s.needs[*v][*p] -= 1);
        }
    }

    /// All values have their places: what it costs, and whether it is the best so far.
    fn leaf(&mut self, mut seconds: f64, s: &mut Chosen) {
        self.count += 1;
        let (mut bytes, mut weights) = (0, Vec::new());
        for (v, data) in self.f.values.iter() {
            let i = v.as_u32() as usize;
            let mask = s.needs[i].iter().enumerate().fold(0u64, |m, (p, n)| m | u64::from(*n > 0) << p);
            let places = &self.domain[&v];
            if stays(self.f, v) && !matches!(data.def, ValueDef::Result(..)) {
                if mask.count_ones() > 1 {
                    return;
                }
                let place = places[mask.trailing_zeros() as usize];
                let held = || self.world.held(&self.world.on(&data.ty, place));
                bytes += *self.held.entry((v, place)).or_insert_with(held);
                weights.push(place);
            } else {
                let key = (s.made[i], mask);
                seconds += match s.trees[i].get(&key) {
                    Some(t) => *t,
                    None => {
                        let need = (0..places.len()).filter(|p| mask & (1 << p) != 0).map(|p| places[p]).collect();
                        let t = self.tree(v, places[s.made[i]], &need);
                        s.trees[i].insert(key, t);
                        t
                    }
                };
            }
        }
        if bytes <= self.limit && seconds < self.best * (1.0 + 1e-9) {
            if seconds < self.best * (1.0 - 1e-9) {
                self.best_weights.clear();
            }
            self.best = self.best.min(seconds);
            self.best_weights.insert(weights);
        }
    }
}

/// A way by indices: `(value, place)` of operands and of results, seconds.
type Way = (Vec<(usize, usize)>, Vec<(usize, usize)>, f64);

/// The placement under trial.
struct Chosen {
    /// How many readers want each value at each place.
    needs: Vec<Vec<u32>>,
    made: Vec<usize>,
    trees: Vec<HashMap<(usize, u64), f64>>,
}

/// Seconds of the search's placement, and where the weights then lie.
fn searched(m: &Module, t: &Target) -> (f64, Vec<Place>) {
    let (out, report) =
        Shard::new(Machine::new(t, TUNE_CTX)).place(m, &mut PassCx::new(None)).unwrap_or_else(|e| panic!("{e}"));
    verify_module(&out).unwrap_or_else(|e| panic!("{e}\n{}", print_module(&out)));
    assert!(report.fits && !report.cut, "{report:?}");
    (report.functions[0].seconds, out.weights.values().map(|w| Place::of(&w.ty)).collect())
}

#[test]
fn the_search_is_as_good_as_trying_everything() {
    let (flat, calls) = (module(FLAT), module(CALLS));
    let base = (BASE.0, BASE.1, BASE.2);
    let mut seen: Vec<(&str, BTreeSet<Vec<Place>>)> = Vec::new();
    let targets = [
        ("as it is", target(base.0, base.1, base.2)),
        ("latency x 100", target(100.0 * base.0, base.1, base.2)),
        ("rate x 10", target(base.0, 10.0 * base.1, base.2)),
        ("memory / 2", target(base.0, base.1, base.2 / 2)),
    ];
    for (name, t) in &targets {
        let world = World::new(t, AXIS, SymValues::default());
        let f = flat.entries().next().map(|(_, f)| f).unwrap_or_else(|| panic!("an entry"));
        let mut oracle = Oracle::new(&world, f, t.device.memory_bytes.unwrap_or(u64::MAX));
        oracle.run();
        println!("{name}: {} placements, the best takes {:e} s: {:?}", oracle.count, oracle.best, oracle.best_weights);
        assert!(oracle.count >= 10_000, "{}", oracle.count);
        for m in [&flat, &calls] {
            let (seconds, weights) = searched(m, t);
            assert!((seconds / oracle.best - 1.0).abs() < 1e-9, "{name}: {seconds:e}, best {:e}", oracle.best);
            assert!(oracle.best_weights.contains(&weights), "{name}: {weights:?}");
        }
        seen.push((name, oracle.best_weights));
    }
    for (i, (a, x)) in seen.iter().enumerate().skip(1) {
        for (b, y) in &seen[1..i] {
            assert!(x.is_disjoint(y), "{a} and {b} share a placement of the weights");
        }
    }
}

/// The context of a decoded token: copies of the pools where they fit and nothing else is cheaper; split pools, parts merged
/// by softmax and by choosing again, where copies do not fit. Either is the cheapest of all.
#[test]
fn a_context_is_split_where_copies_of_it_do_not_fit() {
    let m = module(CONTEXT);
    let f = m.entries().next().map(|(_, f)| f).unwrap_or_else(|| panic!("an entry"));
    let pools = 64 * (16 + 8) * 4;
    let mut texts = Vec::new();
    for (name, memory) in [("roomy", 1 << 20), ("tight", pools / 4)] {
        let t = target(1e-7, 2e8, memory);
        let world = World::new(&t, AXIS, SymValues::default());
        let mut oracle = Oracle::new(&world, f, memory);
        oracle.run();
        println!("{name}: {} placements, the best takes {:e} s: {:?}", oracle.count, oracle.best, oracle.best_weights);
        assert!(oracle.count >= 10_000, "{}", oracle.count);
        let (out, report) = Shard::new(Machine::new(&t, TUNE_CTX)).place(&m, &mut PassCx::new(None)).unwrap();
        verify_module(&out).unwrap_or_else(|e| panic!("{e}\n{}", print_module(&out)));
        assert!(report.fits && !report.cut, "{report:?}");
        let seconds = report.functions[0].seconds;
        assert!((seconds / oracle.best - 1.0).abs() < 1e-9, "{name}: {seconds:e}, best {:e}", oracle.best);
        let entry = out.entries().next().map(|(_, f)| f).unwrap_or_else(|| panic!("an entry"));
        let held: Vec<Place> = entry.params.iter().map(|p| entry.ty(*p)).filter(|t| t.state).map(Place::of).collect();
        assert!(oracle.best_weights.contains(&held), "{name}: {held:?}");
        texts.push((held, print_module(&out)));
    }
    let [(copied, _), (split, text)] = texts.as_slice() else { panic!("two targets") };
    assert!(copied.iter().all(|p| *p == Place::Whole), "{copied:?}");
    assert!(split.iter().all(|p| matches!(p, Place::Split { .. })), "{split:?}");
    assert!(text.contains("softmax+tp") && text.contains("topk+tp"), "{text}");
}

/// Latency in seconds, link in bytes a second, memory in bytes.
const BASE: (f64, f64, u64) = (5e-7, 2e7, 26_000);

#[test]
fn a_stored_type_never_becomes_another() {
    let m = module(FLAT);
    let (out, _) =
        Shard::new(Machine::new(&target(1e-9, 1e12, 1 << 30), TUNE_CTX)).place(&m, &mut PassCx::new(None)).unwrap();
    let elems = |m: &Module| m.weights.values().map(|w| w.ty.elem).collect::<Vec<Elem>>();
    assert_eq!(elems(&out), elems(&m));
}
