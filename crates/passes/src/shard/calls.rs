//! Owns the joint decision over functions: a function is solved once for each way its operands come, and a call is an
//! instruction with those solutions as its ways. Where one entry leaves a weight or pool, the next ones find it.

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst, Value, WeightId};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::placement::{DimRule, strip};
use glmc_ir::ty::{Elem, PendingKind};

use super::cut::Cuts;
use super::owners::Owners;
use super::place::{Place, World};
use super::solve::{Found, Problem};
use super::table::{CALLEES, Config, Slot, Start, configs, rules};
use super::units::Units;

/// Most combinations of operand places tried for one call.
pub const MOST_CALLS: usize = 256;

/// A function for operands that come at these places.
#[derive(Clone, Debug)]
pub struct Solved {
    /// The function.
    pub func: FuncId,
    /// The place of each parameter; none where the function decides.
    pub given: Vec<Option<Place>>,
    /// Its problem.
    pub problem: Problem,
    /// What was found.
    pub found: Found,
}

/// All functions of a module on a world.
pub struct Search<'a> {
    /// The module, nothing placed.
    pub m: &'a Module,
    /// The ranks.
    pub world: &'a World<'a>,
    /// Whether slower ways that need less memory are kept.
    pub front: bool,
    /// How weights and pools are cut, where that is settled.
    pub cuts: &'a Cuts,
    /// Where weights lie that an earlier entry decided on.
    pub weights: HashMap<WeightId, Place>,
    /// The same for pools, by name.
    pub pools: HashMap<String, Place>,
    /// Every problem so far; calls refer to it.
    pub solved: Vec<Solved>,
    memo: HashMap<(FuncId, Vec<Option<Place>>), usize>,
    rules: HashMap<FuncId, (Vec<Option<DimRule>>, Units, Owners)>,
}

impl<'a> Search<'a> {
    /// Nothing decided but the weights that called functions name themselves: those are whole.
    pub fn new(m: &'a Module, world: &'a World<'a>, cuts: &'a Cuts, front: bool) -> Self {
        let inner = m.funcs.values().filter(|f| !f.entry).flat_map(|f| f.values.values());
        let weights = inner.filter_map(|v| match v.def {
            ValueDef::Weight(w) => Some((w, Place::Whole)),
            _ => None,
        });
        Search {
            m,
            world,
            front,
            cuts,
            weights: weights.collect(),
            pools: HashMap::new(),
            solved: Vec::new(),
            memo: HashMap::new(),
            rules: HashMap::new(),
        }
    }

    /// Solves an entry and settles where its weights and pools lie; the index of the problem and of the path taken:
    /// the fastest that keeps at most `budget` more bytes, else the smallest.
    ///
    /// # Errors
    /// `no-placement`: not even one that holds everything whole.
    pub fn entry(&mut self, func: FuncId, budget: Option<u64>) -> Result<(usize, usize), Diagnostic> {
        let f = &self.m.funcs[func];
        let given = f
            .params
            .iter()
            .map(|p| if f.ty(*p).state { self.pools.get(&f.value_name(*p)).copied() } else { Some(Place::Whole) });
        let at = self.solve(func, given.collect());
        let paths = &self.solved[at].found.paths;
        let fits = paths.iter().position(|p| budget.is_none_or(|b| p.bytes <= b));
        let smallest = || (0..paths.len()).min_by_key(|i| paths[*i].bytes);
        let lost = || Diagnostic::new("no-placement", format!("@{} cannot be placed on the ranks", f.name));
        let path = fits.or_else(smallest).ok_or_else(lost)?;
        for (v, data) in f.values.iter() {
            match data.def {
                ValueDef::Weight(w) => {
                    let place = self.place(at, path, v);
                    self.weights.entry(w).or_insert(place);
                }
                ValueDef::Param(_) if data.ty.state => {
                    let place = self.place(at, path, v);
                    self.pools.entry(f.value_name(v)).or_insert(place);
                }
                _ => {}
            }
        }
        Ok((at, path))
    }

    /// Where value `v` of problem `at` lies on its path: as it is made, given, or first read.
    pub fn place(&self, at: usize, path: usize, v: Value) -> Place {
        let s = &self.solved[at];
        let slot = s.problem.slots[v].as_ref();
        let place = |k: u8| slot.and_then(|s| s.places.get(usize::from(k)).copied()).unwrap_or(Place::Whole);
        if let Some(Start::Given(k)) = slot.map(|s| s.start) {
            return place(k);
        }
        for (i, step) in s.found.paths[path].steps.iter().enumerate().take(s.problem.configs.len()) {
            let c = &s.problem.configs[i][step.config];
            if let Some(r) = s.problem.made[i].iter().position(|m| *m == v) {
                return place(c.results[r]);
            }
            let Some(a) = s.problem.args[i].iter().position(|a| *a == v) else { continue };
            return match (c.args[a], c.sub) {
                (CALLEES, Some((sub, p))) => self.param(sub, p, a),
                (k, _) => place(k),
            };
        }
        Place::Whole
    }

    /// The place of parameter `i` of problem `at` on its path.
    pub fn param(&self, at: usize, path: usize, i: usize) -> Place {
        let s = &self.solved[at];
        match s.given.get(i).copied().flatten() {
            Some(p) => p,
            None => self.place(at, path, self.m.funcs[s.func].params[i]),
        }
    }

    /// The problem of `func` for such operands, solved.
    fn solve(&mut self, func: FuncId, given: Vec<Option<Place>>) -> usize {
        if let Some(at) = self.memo.get(&(func, given.clone())) {
            return *at;
        }
        let m = self.m;
        let f = &m.funcs[func];
        self.rules.entry(func).or_insert_with(|| {
            let rules = rules(f);
            let (units, owners) = (Units::of(m, f, &rules, self.world), Owners::of(f, &rules));
            (rules, units, owners)
        });
        let mut slots = self.slots(f, &given);
        let (mut all, mut cut) = (Vec::new(), false);
        for (i, inst) in f.body.iter().enumerate() {
            let ways = match &f.insts[*inst].kind {
                InstKind::Op(_) => {
                    let (rules, units, owners) = &self.rules[&func];
                    let rule = rules[i].as_ref();
                    rule.map_or_else(Vec::new, |r| configs(f, *inst, r, units, owners, self.world, &mut slots))
                }
                InstKind::Call { func: callee, .. } => self.call(func, *inst, *callee, &all, &mut slots, &mut cut),
            };
            all.push(ways);
        }
        self.cuts.settle(func, f, self.world, &slots, &mut all);
        let problem = Problem::new(f, slots, all, self.world);
        let mut found = problem.solve(self.front);
        found.cut |= cut;
        self.solved.push(Solved { func, given: given.clone(), problem, found });
        self.memo.insert((func, given), self.solved.len() - 1);
        self.solved.len() - 1
    }

    fn slots(&self, f: &Function, given: &[Option<Place>]) -> SecondaryMap<Value, Option<Slot>> {
        let mut slots = SecondaryMap::new();
        for (v, data) in f.values.iter() {
            let stays = data.ty.state || matches!(data.ty.elem, Elem::Quant(_));
            let (place, made, fixed) = match data.def {
                ValueDef::Param(i) => {
                    let p = given.get(i as usize).copied().flatten();
                    (p, false, stays || p.is_none())
                }
                ValueDef::Weight(w) => (self.weights.get(&w).copied(), false, true),
                ValueDef::Result(..) => (None, true, data.ty.state),
            };
            let mut slot = Slot { ty: strip(&data.ty), places: vec![Place::Whole], start: Start::Free, fixed };
            slot.start = match place {
                Some(p) => slot.index(p).map_or(Start::Free, Start::Given),
                None if made => Start::Made,
                None => Start::Free,
            };
            slots[v] = Some(slot);
        }
        slots
    }

    /// The ways of a call: each solution of the callee, for each way that its operands may come. `before` has the ways of
    /// the instructions before it.
    fn call(
        &mut self,
        func: FuncId,
        inst: Inst,
        callee: FuncId,
        before: &[Vec<Config>],
        slots: &mut SecondaryMap<Value, Option<Slot>>,
        cut: &mut bool,
    ) -> Vec<Config> {
        let f = &self.m.funcs[func];
        let data = &f.insts[inst];
        let all: Vec<Vec<Option<Place>>> = data.args.iter().map(|a| self.comes(func, *a, before, slots)).collect();
        let count = all.iter().map(Vec::len).product::<usize>();
        // Too many: operands that need not be anywhere else come whole.
        let short = count > MOST_CALLS;
        *cut |= short;
        let mut combos: Vec<Vec<Option<Place>>> = vec![Vec::new()];
        for options in &all {
            let options = if short { &options[..1] } else { options };
            let with = |c: &Vec<Option<Place>>| {
                let add = |o: &Option<Place>| c.iter().copied().chain([*o]).collect();
                options.iter().map(add).collect::<Vec<Vec<_>>>()
            };
            combos = combos.iter().flat_map(with).collect();
        }
        let mut out = Vec::new();
        for given in combos {
            let sub = self.solve(callee, given.clone());
            *cut |= self.solved[sub].found.cut;
            let results = &self.m.funcs[callee].results;
            for p in 0..self.solved[sub].found.paths.len() {
                let mut index = |v: &Value, place| slots[*v].as_mut()?.index(place);
                let args: Option<Vec<u8>> = data
                    .args
                    .iter()
                    .zip(&given)
                    .map(|(a, g)| g.map_or(Some(CALLEES), |place| index(a, place)))
                    .collect();
                let made: Option<Vec<u8>> =
                    data.results.iter().zip(results).map(|(r, (_, v))| index(r, self.result(sub, p, *v))).collect();
                let path = &self.solved[sub].found.paths[p];
                if let (Some(args), Some(results)) = (args, made) {
                    let (seconds, bytes) = (path.seconds, path.bytes);
                    out.push(Config { args, results, seconds, bytes, sub: Some((sub, p)) });
                }
            }
        }
        out
    }

    /// Where result `v` of a solution is left.
    pub fn result(&self, at: usize, path: usize, v: Value) -> Place {
        let s = &self.solved[at];
        match s.problem.results.iter().position(|r| *r == v) {
            Some(i) => {
                let k = usize::from(s.found.paths[path].results[i]);
                s.problem.slots[v].as_ref().and_then(|s| s.places.get(k).copied()).unwrap_or(Place::Whole)
            }
            None => self.place(at, path, v),
        }
    }

    /// The ways in which operand `a` of a call may come, the plainest first; none where the callee decides.
    fn comes(
        &self,
        func: FuncId,
        a: Value,
        before: &[Vec<Config>],
        slots: &SecondaryMap<Value, Option<Slot>>,
    ) -> Vec<Option<Place>> {
        let f = &self.m.funcs[func];
        let Some(slot) = &slots[a] else { return Vec::new() };
        if let (Start::Given(k), true) = (slot.start, slot.fixed) {
            return vec![slot.places.get(usize::from(k)).copied()];
        }
        let uses = f.body.iter().flat_map(|i| &f.insts[*i].args).chain(f.results.iter().map(|(_, v)| v));
        let once = uses.filter(|v| **v == a).count() == 1;
        if slot.start == Start::Free && once {
            return vec![None];
        }
        // What nobody else reads comes as it is made: the callee can move it as cheaply as the caller.
        if once {
            let made = self.made_at(f, a, before, slot);
            return made.into_iter().map(Some).collect();
        }
        // Step parameters and selections pass between functions whole.
        if slot.ty.elem == Elem::I32 {
            return vec![Some(Place::Whole)];
        }
        let units = &self.rules[&func].1;
        let splits = (0..slot.ty.rank()).flat_map(|dim| units.get(a, dim).map(move |unit| Place::Split { dim, unit }));
        let sum = (!slot.fixed).then_some(Place::Pending(PendingKind::Sum));
        let mut out = Vec::new();
        for p in std::iter::once(Place::Whole).chain(splits).chain(sum) {
            let t = self.world.on(&slot.ty, p);
            let p = Some(Place::of(&t));
            if self.world.legal(&t) && !out.contains(&p) {
                out.push(p);
            }
        }
        out
    }

    /// The places that the ways `before` leave `a` at.
    fn made_at(&self, f: &Function, a: Value, before: &[Vec<Config>], slot: &Slot) -> Vec<Place> {
        let mut at: Vec<u8> = match (slot.start, f.values[a].def) {
            (Start::Given(k), _) => vec![k],
            (_, ValueDef::Result(inst, r)) => {
                let ways = f.body.iter().position(|i| *i == inst).and_then(|i| before.get(i));
                ways.into_iter().flatten().filter_map(|c| c.results.get(r as usize).copied()).collect()
            }
            _ => Vec::new(),
        };
        at.sort_unstable();
        at.dedup();
        at.into_iter().filter_map(|k| slot.places.get(usize::from(k)).copied()).collect()
    }
}

/// Entries in the order in which they decide: those that read most weights first, of equal ones that which computes
/// least, so that the smallest decode step leads.
pub fn order(m: &Module, world: &World<'_>) -> Vec<FuncId> {
    let mut flops: HashMap<FuncId, u64> = HashMap::new();
    for (id, f) in &m.funcs {
        let of = |i: &Inst| {
            let data = &f.insts[*i];
            match &data.kind {
                InstKind::Call { func, .. } => flops.get(func).copied().unwrap_or(0),
                InstKind::Op(op) => {
                    let args: Vec<_> = data.args.iter().map(|a| f.ty(*a)).collect();
                    let results: Vec<_> = data.results.iter().map(|r| f.ty(*r).clone()).collect();
                    op.work(&args, &results, &world.syms).flops
                }
            }
        };
        let sum = f.body.iter().map(of).fold(0, u64::saturating_add);
        flops.insert(id, sum);
    }
    let bytes = |f: &Function| {
        let of = |d: ValueDef| if let ValueDef::Weight(w) = d { m.weights[w].span.bytes } else { 0 };
        f.values.values().map(|v| of(v.def)).fold(0, u64::saturating_add)
    };
    let mut all: Vec<FuncId> = m.entries().map(|(id, _)| id).collect();
    all.sort_by_key(|id| (std::cmp::Reverse(bytes(&m.funcs[*id])), flops[id], *id));
    all
}
