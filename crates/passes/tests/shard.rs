//! The search for placements against every placement that the dim rules allow, on a model of two layers.

use std::collections::{BTreeSet, HashMap};

use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::placement::{infer_on, strip};
use glmc_ir::text::{parse_module, print_module};
use glmc_ir::ty::{Elem, PendingKind, SymValues, TensorType};
use glmc_ir::verify::verify_module;
use glmc_passes::pass::PassCx;
use glmc_passes::shard::place::{Place, World};
use glmc_passes::shard::{AXIS, Shard};
use glmc_passes::target::Target;

/// Two layers, the second wider, in one function.
const FLAT: &str = include_str!("shard/flat.glir");
/// The same as two calls of functions.
const CALLS: &str = include_str!("shard/calls.glir");

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
    count: u64,
    limit: u64,
    best: f64,
    /// Other placements of the weights at the best cost.
    best_weights: BTreeSet<Vec<Place>>,
}

/// What a value of this type may be anywhere.
fn domain(world: &World<'_>, t: &TensorType, weight: bool) -> Vec<Place> {
    let mut out = vec![Place::Whole];
    for dim in 0..t.rank() {
        out.extend([1, 32].map(|unit| Place::Split { dim, unit }));
    }
    if !weight {
        out.extend([PendingKind::Sum, PendingKind::Max].map(Place::Pending));
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
            let weight = matches!(data.def, ValueDef::Weight(_));
            domains.insert(v, domain(world, &data.ty, weight));
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
                    let seconds = world.seconds(op, &args, &results, &[]);
                    all.push((places, results.iter().map(Place::of).collect(), seconds));
                }
            }
            ways.push(all);
        }
        let mut moves = HashMap::new();
        for (v, data) in f.values.iter() {
            let all = &domains[&v];
            let stays = matches!(data.def, ValueDef::Weight(_));
            let cost = |a, b| if stays { f64::INFINITY } else { world.conversion_seconds(&strip(&data.ty), a, b) };
            moves.insert(v, all.iter().flat_map(|a| all.iter().map(move |b| ((*a, *b), cost(*a, *b)))).collect());
        }
        Oracle {
            world,
            f,
            ways,
            domain: domains,
            moves,
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

    fn run(&mut self) {
        let mut needs: HashMap<Value, BTreeSet<Place>> = HashMap::new();
        for (_, v) in &self.f.results {
            needs.entry(*v).or_default().insert(Place::Whole);
        }
        let made = self.f.params.iter().map(|p| (*p, Place::Whole)).collect();
        let mut trees = HashMap::new();
        self.descend(0, 0.0, &mut needs, made, &mut trees);
    }

    fn descend(
        &mut self,
        i: usize,
        seconds: f64,
        needs: &mut HashMap<Value, BTreeSet<Place>>,
        made: HashMap<Value, Place>,
        trees: &mut HashMap<(Value, Place, BTreeSet<Place>), f64>,
    ) {
        if i == self.ways.len() {
            self.count += 1;
            let (mut seconds, mut bytes, mut weights) = (seconds, 0, Vec::new());
            for (v, need) in needs.iter() {
                if let ValueDef::Weight(_) = self.f.values[*v].def {
                    continue;
                }
                let key = (*v, made[v], need.clone());
                let tree = match trees.get(&key) {
                    Some(s) => *s,
                    None => {
                        let s = self.tree(*v, made[v], need);
                        trees.insert(key, s);
                        s
                    }
                };
                seconds += tree;
            }
            for (v, data) in self.f.values.iter().filter(|(_, d)| matches!(d.def, ValueDef::Weight(_))) {
                let need = &needs[&v];
                if need.len() > 1 {
                    return;
                }
                let place = need.first().copied().unwrap_or(Place::Whole);
                bytes += self.world.held(&self.world.on(&data.ty, place));
                weights.push(place);
            }
            if bytes <= self.limit && seconds < self.best * (1.0 + 1e-9) {
                if seconds < self.best * (1.0 - 1e-9) {
                    self.best_weights.clear();
                }
                self.best = self.best.min(seconds);
                self.best_weights.insert(weights);
            }
            return;
        }
        let data = &self.f.insts[self.f.body[i]];
        for (places, results, cost) in self.ways[i].clone() {
            let mut added = Vec::new();
            for (a, p) in data.args.iter().zip(&places) {
                if needs.entry(*a).or_default().insert(*p) {
                    added.push((*a, *p));
                }
            }
            let mut made = made.clone();
            made.extend(data.results.iter().copied().zip(results));
            self.descend(i + 1, seconds + cost, needs, made, trees);
            for (a, p) in added {
                if let Some(s) = needs.get_mut(&a) {
                    s.remove(&p);
                }
            }
        }
    }
}

/// Seconds of the search's placement, and where the weights then lie.
fn searched(m: &Module, t: &Target) -> (f64, Vec<Place>) {
    let (out, report) = Shard::new(t.clone()).place(m, &mut PassCx::new(None)).unwrap_or_else(|e| panic!("{e}"));
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

/// Latency in seconds, link in bytes a second, memory in bytes.
const BASE: (f64, f64, u64) = (5e-7, 2e7, 26_000);

#[test]
fn a_stored_type_never_becomes_another() {
    let m = module(FLAT);
    let (out, _) = Shard::new(target(1e-9, 1e12, 1 << 30)).place(&m, &mut PassCx::new(None)).unwrap();
    let elems = |m: &Module| m.weights.values().map(|w| w.ty.elem).collect::<Vec<Elem>>();
    assert_eq!(elems(&out), elems(&m));
}
