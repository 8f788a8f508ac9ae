//! Owns the way from a function to its e-graph and back. What touches state, and calls, form an ordered skeleton whose
//! plain operands are e-classes and whose plain results are leaves; everything else is in the e-graph.
//!
//! Back in a function, instructions of the skeleton stand in their old order, each after what it needs; a value keeps
//! its name where its class is still computed.

use std::collections::{HashMap, HashSet};

use egg::Id;
use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{Value, WeightId};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::ops::Dequant;
use glmc_ir::ty::Elem;

use super::analysis::{Graph, Leaf, Source, Types};
use super::lang::{ENode, Head, Key};
use super::pattern::{add, get};

/// An operand of the skeleton.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// State: a value of the old function.
    State(Value),
    /// A plain value.
    Pure(Id),
}

/// An instruction of the skeleton.
#[derive(Clone, Debug)]
pub struct Effect {
    kind: InstKind,
    args: Vec<Operand>,
    /// Values of the old function.
    results: Vec<Value>,
    /// The leaves that its plain results are.
    leaves: Vec<(Value, Id)>,
}

/// A function as skeleton and e-graph.
pub struct Skeleton<'f> {
    old: &'f Function,
    /// In order.
    pub effects: Vec<Effect>,
    /// The named results.
    pub results: Vec<(String, Operand)>,
    params: Vec<Option<Id>>,
}

impl Effect {
    /// The plain operands.
    pub fn needs(&self) -> impl Iterator<Item = Id> {
        self.args.iter().filter_map(|a| match a {
            Operand::Pure(id) => Some(*id),
            Operand::State(_) => None,
        })
    }
}

impl<'f> Skeleton<'f> {
    /// Takes `f` of `m` apart.
    ///
    /// # Errors
    /// A broken type rule or a use before the definition, which the verifier would have found.
    pub fn of(m: &Module, f: &'f Function) -> Result<(Self, Graph), Diagnostic> {
        let types = Types { bounds: m.bounds(), ..Types::default() };
        let mut b = Apart { m, f, g: Graph::new(types), ids: HashMap::new(), weights: HashMap::new() };
        let mut s = Skeleton { old: f, effects: Vec::new(), results: Vec::new(), params: Vec::new() };
        for (i, p) in f.params.iter().enumerate() {
            let leaf = (!f.ty(*p).state).then(|| b.leaf(*p, Source::Param(i)));
            s.params.push(leaf);
        }
        for inst in &f.body {
            let data = &f.insts[*inst];
            let state = data.args.iter().chain(&data.results).any(|v| f.ty(*v).state);
            match &data.kind {
                InstKind::Op(op) if !state => b.op(op, &data.args, &data.results)?,
                kind => {
                    let args = data.args.iter().map(|a| b.operand(*a)).collect::<Result<_, _>>()?;
                    let plain = data.results.iter().enumerate().filter(|(_, r)| !f.ty(**r).state);
                    let leaves = plain.map(|(k, r)| (*r, b.leaf(*r, Source::Effect(s.effects.len(), k)))).collect();
                    s.effects.push(Effect { kind: kind.clone(), args, results: data.results.clone(), leaves });
                }
            }
        }
        for (name, v) in &f.results {
            s.results.push((name.clone(), b.operand(*v)?));
        }
        b.g.rebuild();
        Ok((s, b.g))
    }

    /// The function in which each class is computed by the node that `chosen` gives.
    ///
    /// # Errors
    /// A class without a choice, or a type rule: a broken extraction.
    pub fn rebuild(&self, m: &Module, g: &Graph, chosen: &dyn Fn(Id) -> Option<ENode>) -> Result<Function, Diagnostic> {
        let mut b = Builder::new(m, &self.old.name);
        if self.old.entry {
            b = b.entry();
        }
        let mut t = Together { b, g, chosen, made: HashMap::new(), state: HashMap::new() };
        for (p, leaf) in self.old.params.iter().zip(&self.params) {
            let v = t.b.param(&self.old.value_name(*p), self.old.ty(*p).clone());
            match leaf {
                Some(id) => drop(t.made.insert(g.find(*id), vec![v])),
                None => drop(t.state.insert(*p, v)),
            }
        }
        for e in &self.effects {
            let args = e.args.iter().map(|a| t.operand(*a)).collect::<Result<Vec<_>, _>>()?;
            let results = match &e.kind {
                InstKind::Op(op) => t.b.op(op.clone(), &args)?,
                InstKind::Call { func, label } => t.b.call(*func, label, &args)?,
            };
            for (old, new) in e.results.iter().zip(results) {
                if let Some(name) = &self.old.values[*old].name {
                    t.b.name(new, name);
                }
                match e.leaves.iter().find(|(v, _)| v == old) {
                    // A class that holds a leaf may have been computed otherwise already.
                    Some((_, id)) => drop(t.made.entry(g.find(*id)).or_insert_with(|| vec![new])),
                    None => drop(t.state.insert(*old, new)),
                }
            }
        }
        let results = self.results.iter().map(|(n, o)| Ok((n.clone(), t.operand(*o)?)));
        let results = results.collect::<Result<Vec<_>, Diagnostic>>()?;
        Ok(discarded(t.b.finish(results)))
    }
}

/// Calls each result that nothing uses by a name that says so.
fn discarded(mut f: Function) -> Function {
    let mut used: HashSet<Value> = f.results.iter().map(|(_, v)| *v).collect();
    f.insts.values().for_each(|i| used.extend(&i.args));
    let unused: Vec<Value> =
        f.insts.values().flat_map(|i| &i.results).copied().filter(|v| !used.contains(v) && !f.ty(*v).state).collect();
    let mut names: HashSet<String> = f.values.values().filter_map(|v| v.name.clone()).collect();
    for v in unused {
        if f.values[v].name.as_deref().is_none_or(|n| !n.starts_with('_')) {
            let name = (0..).map(|n| format!("_unused{n}")).find(|n| names.insert(n.clone()));
            f.values[v].name = name;
        }
    }
    f
}

/// A function on its way into an e-graph.
struct Apart<'a> {
    m: &'a Module,
    f: &'a Function,
    g: Graph,
    ids: HashMap<Value, Id>,
    weights: HashMap<WeightId, Id>,
}

impl Apart<'_> {
    fn leaf(&mut self, v: Value, source: Source) -> Id {
        let name = match source {
            Source::Weight(w) => self.m.weights[w].name.clone(),
            _ => self.f.value_name(v),
        };
        let i = self.g.analysis.leaves.len() as u32;
        self.g.analysis.leaves.push(Leaf { ty: self.f.ty(v).clone(), source, name });
        let id = self.g.add(ENode::new(Head::Leaf(i), Vec::new()));
        self.ids.insert(v, id);
        id
    }

    fn id(&mut self, v: Value) -> Result<Id, Diagnostic> {
        if let Some(id) = self.ids.get(&v) {
            return Ok(*id);
        }
        let ValueDef::Weight(w) = self.f.values[v].def else {
            let m = format!("@{} reads %{} before it is defined", self.f.name, self.f.value_name(v));
            return Err(Diagnostic::new("use-before-def", m));
        };
        if let Some(id) = self.weights.get(&w) {
            return Ok(*id);
        }
        let id = self.leaf(v, Source::Weight(w));
        self.weights.insert(w, id);
        Ok(id)
    }

    fn operand(&mut self, v: Value) -> Result<Operand, Diagnostic> {
        if self.f.ty(v).state { Ok(Operand::State(v)) } else { self.id(v).map(Operand::Pure) }
    }

    fn op(&mut self, op: &Op, args: &[Value], results: &[Value]) -> Result<(), Diagnostic> {
        let ids = args.iter().map(|a| self.id(*a)).collect::<Result<Vec<_>, _>>()?;
        let id = add(&mut self.g, op.clone(), ids.clone())?;
        let stored = |i: usize, v: &Value| op.stored(i) && matches!(self.f.ty(*v).elem, Elem::Quant(_));
        if args.iter().enumerate().any(|(i, v)| stored(i, v)) {
            // The same with its decodes spelled out, which is the form that rules and contracts speak of.
            let mut spelled = ids;
            for (i, v) in args.iter().enumerate().filter(|(i, v)| stored(*i, v)) {
                spelled[i] = add(&mut self.g, Dequant {}, vec![self.ids.get(v).copied().unwrap_or(spelled[i])])?;
            }
            let spelled = add(&mut self.g, op.clone(), spelled)?;
            self.g.union(id, spelled);
        }
        let each = match results {
            [_] => vec![id],
            _ => (0..results.len()).map(|k| get(&mut self.g, id, k)).collect(),
        };
        for (r, id) in results.iter().zip(each) {
            if let Some(name) = &self.f.values[*r].name
                && self.g[id].data.name.is_none()
            {
                let mut data = self.g[id].data.clone();
                data.name = Some((r.as_u32() as usize, name.as_str().into()));
                self.g.set_analysis_data(id, data);
            }
            self.ids.insert(*r, id);
        }
        Ok(())
    }
}

/// A function on its way out of an e-graph.
struct Together<'a> {
    b: Builder<'a>,
    g: &'a Graph,
    chosen: &'a dyn Fn(Id) -> Option<ENode>,
    made: HashMap<Id, Vec<Value>>,
    state: HashMap<Value, Value>,
}

impl Together<'_> {
    fn operand(&mut self, o: Operand) -> Result<Value, Diagnostic> {
        let lost = || Diagnostic::new("broken-extraction", "an operand of the skeleton is not made before it");
        match o {
            Operand::State(v) => self.state.get(&v).copied().ok_or_else(lost),
            Operand::Pure(id) => self.class(id)?.first().copied().ok_or_else(lost),
        }
    }

    /// The values of a class; instructions are appended for what is not there. The stack is explicit, so that a long
    /// chain of instructions is no deep recursion.
    fn class(&mut self, id: Id) -> Result<Vec<Value>, Diagnostic> {
        let mut open = vec![self.g.find(id)];
        while let Some(id) = open.last().copied() {
            if self.made.contains_key(&id) {
                open.pop();
                continue;
            }
            let lost = |what: &str| Diagnostic::new("broken-extraction", what.to_owned());
            let node = (self.chosen)(id).ok_or_else(|| lost("a class without a choice"))?;
            let missing: Vec<Id> =
                node.args.iter().map(|a| self.g.find(*a)).filter(|a| !self.made.contains_key(a)).collect();
            if !missing.is_empty() {
                if open.len() > self.g.number_of_classes() {
                    return Err(lost("a choice that needs itself"));
                }
                open.extend(missing.into_iter().rev());
                continue;
            }
            let args: Vec<Vec<Value>> = node.args.iter().map(|a| self.made[&self.g.find(*a)].clone()).collect();
            let values = match &node.head {
                Head::Leaf(i) => match self.g.analysis.leaves[*i as usize].source {
                    Source::Weight(w) => vec![self.b.weight(w)],
                    _ => return Err(lost("a leaf that is not made yet")),
                },
                Head::Get(i) => vec![args[0][*i as usize]],
                Head::Op(Key { op, .. }) => {
                    let args: Vec<Value> = args.iter().map(|a| a[0]).collect();
                    self.b.op((**op).clone(), &args)?
                }
            };
            if let ([v], Some((_, name)), false) =
                (values.as_slice(), &self.g[id].data.name, matches!(node.head, Head::Leaf(_)))
            {
                self.b.name_if_unnamed(*v, name);
            }
            self.made.insert(id, values);
            open.pop();
        }
        Ok(self.made[&self.g.find(id)].clone())
    }
}
