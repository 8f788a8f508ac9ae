//! Owns the placed module: functions built anew with their solutions' placements and collectives. Never decides.

use std::collections::HashMap;

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Value};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::ty::TensorType;

use super::calls::Search;
use super::place::Place;

/// Builds the module that a search found.
pub struct Insert<'s, 'a> {
    search: &'s Search<'a>,
    out: Module,
    built: HashMap<(usize, usize), FuncId>,
    names: HashMap<String, usize>,
}

/// Values of a function under construction: at each place they can be read at.
type Env = HashMap<(Value, Place), Value>;

impl<'s, 'a> Insert<'s, 'a> {
    /// The module's weights, placed, and no function yet.
    pub fn new(search: &'s Search<'a>) -> Self {
        let m = search.m;
        let mut out = Module {
            name: m.name.clone(),
            mesh: search.world.mesh.clone(),
            syms: m.syms.clone(),
            weights: m.weights.clone(),
            ..Module::default()
        };
        for (id, w) in m.weights.iter() {
            let place = search.weights.get(&id).copied().unwrap_or(Place::Whole);
            out.weights[id].ty = search.world.on(&w.ty, place);
        }
        let names = m.funcs.values().map(|f| (f.name.clone(), 0)).collect();
        Insert { search, out, built: HashMap::new(), names }
    }

    /// The module.
    pub fn finish(self) -> Module {
        self.out
    }

    /// The function of problem `at` on its path, with its callees before it.
    ///
    /// # Errors
    /// What the builder refuses: the search and the type rules would disagree.
    pub fn function(&mut self, at: usize, path: usize) -> Result<FuncId, Diagnostic> {
        if let Some(id) = self.built.get(&(at, path)) {
            return Ok(*id);
        }
        let search = self.search;
        let s = &search.solved[at];
        let f = &search.m.funcs[s.func];
        let mut callees = Vec::new();
        for (i, step) in s.found.paths[path].steps.iter().enumerate().take(s.problem.configs.len()) {
            let sub = s.problem.configs[i][step.config].sub;
            callees.push(sub.map(|(at, path)| self.function(at, path)).transpose()?);
        }
        let name = self.name(&f.name);
        let function = self.build(at, path, &name, &callees)?;
        let id = self.out.funcs.push(function);
        self.built.insert((at, path), id);
        Ok(id)
    }

    /// The name of a solution's function.
    pub fn name_of(&self, at: usize, path: usize) -> Option<String> {
        self.built.get(&(at, path)).map(|id| self.out.funcs[*id].name.clone())
    }

    /// A function that nothing calls, all of it whole.
    ///
    /// # Errors
    /// As [`Insert::function`].
    pub fn unused(&mut self, f: &Function) {
        self.out.funcs.push(f.clone());
    }

    fn name(&mut self, name: &str) -> String {
        let used = self.names.entry(name.to_owned()).or_insert(0);
        *used += 1;
        let mut n = *used;
        if n == 1 {
            return name.to_owned();
        }
        loop {
            let next = format!("{name}.placed_{n}");
            if !self.names.contains_key(&next) {
                self.names.insert(next.clone(), 1);
                return next;
            }
            n += 1;
        }
    }

    fn build(&self, at: usize, path: usize, name: &str, callees: &[Option<FuncId>]) -> Result<Function, Diagnostic> {
        let search = self.search;
        let (s, world) = (&search.solved[at], search.world);
        let f = &search.m.funcs[s.func];
        let way = &s.found.paths[path];
        let mut b = Builder::new(&self.out, name);
        if f.entry {
            b = b.entry();
        }
        let mut env: Env = HashMap::new();
        for (i, p) in f.params.iter().enumerate() {
            let place = search.param(at, path, i);
            let v = b.param(&f.value_name(*p), world.on(f.ty(*p), place));
            env.insert((*p, place), v);
        }
        let places = |v: Value, k: u8| {
            let slot = s.problem.slots[v].as_ref();
            slot.and_then(|s| s.places.get(usize::from(k)).copied()).unwrap_or(Place::Whole)
        };
        for (i, step) in way.steps.iter().enumerate() {
            for m in &step.moves {
                let (from, to) = (places(m.value, m.from), places(m.value, m.to));
                let source = read(&mut b, f, &env, m.value, from)?;
                let op = world.conversion(from, to).ok_or_else(|| lost(f, m.value))?;
                let v = b.one(op, &[source])?;
                if let (Some(n), ValueDef::Result(..)) = (&f.values[m.value].name, f.values[m.value].def) {
                    // The finished value has the name that people know.
                    if to == Place::Whole {
                        b.name_if_unnamed(v, n);
                    }
                }
                env.insert((m.value, to), v);
            }
            let Some(inst) = f.body.get(i) else { break };
            let data = &f.insts[*inst];
            let config = &s.problem.configs[i][step.config];
            let mut args = Vec::with_capacity(data.args.len());
            for (k, a) in data.args.iter().enumerate() {
                let place = match (config.args[k], config.sub) {
                    (super::table::CALLEES, Some((at, path))) => search.param(at, path, k),
                    (p, _) => places(*a, p),
                };
                args.push(read(&mut b, f, &env, *a, place)?);
            }
            let results = match (&data.kind, callees.get(i).copied().flatten()) {
                (InstKind::Op(op), _) => b.op(op.clone(), &args)?,
                (InstKind::Call { label, .. }, Some(id)) => b.call(id, label, &args)?,
                (InstKind::Call { .. }, None) => return Err(lost(f, data.args[0])),
            };
            for (k, (r, v)) in data.results.iter().zip(results).enumerate() {
                let place = places(*r, config.results[k]);
                let t: TensorType = world.on(f.ty(*r), place);
                if *b.ty(v) != t {
                    let m = format!("@{} %{} is {}, planned as {t}", f.name, f.value_name(*r), b.ty(v));
                    return Err(Diagnostic::new("no-placement", m));
                }
                let owed = way.steps.iter().flat_map(|s| &s.moves);
                let named = owed.filter(|m| m.value == *r).all(|m| places(*r, m.to) != Place::Whole);
                if let (Some(n), true) = (&f.values[*r].name, named) {
                    b.name(v, n);
                }
                env.insert((*r, place), v);
            }
        }
        let mut results = Vec::with_capacity(f.results.len());
        for (name, v) in &f.results {
            let place = search.result(at, path, *v);
            results.push((name.clone(), read(&mut b, f, &env, *v, place)?));
        }
        Ok(b.finish(results))
    }
}

/// The value `v` where it lies at `place`.
fn read(b: &mut Builder<'_>, f: &Function, env: &Env, v: Value, place: Place) -> Result<Value, Diagnostic> {
    if let ValueDef::Weight(w) = f.values[v].def {
        return Ok(b.weight(w));
    }
    env.get(&(v, place)).copied().ok_or_else(|| lost(f, v))
}

fn lost(f: &Function, v: Value) -> Diagnostic {
    Diagnostic::new("no-placement", format!("@{} %{} is not where it is read", f.name, f.value_name(v)))
}
