//! Owns the named decision how each weight and pool is cut, `cut:FUNCTION.VALUE`: its candidates, which of them a type
//! allows, and what was settled before the search. Never searches.
//!
//! In this order: equal parts of whole blocks; a cut inside a block at its sub-blocks; parts that differ; a copy on
//! each rank; refusal. The search weighs the first four by cost. A settled decision leaves it the ways of one of them.

use std::collections::{BTreeMap, HashMap};

use cranelift_entity::SecondaryMap;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Value, WeightId};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::placement::{Role, local_type, strip};
use glmc_ir::shard_map::{check, granule};
use glmc_ir::ty::TensorType;

use super::place::{Place, World};
use super::table::{CALLEES, Config, Slot, Start, rules};
use crate::pass::{Choice, PassCx};

/// How a weight or pool is cut over the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Equal parts of whole blocks.
    Equal,
    /// Inside the file's blocks, at sub-blocks.
    SubBlock,
    /// Parts of whole blocks that differ.
    Uneven,
    /// Not at all: each rank has a copy.
    Replicate,
    /// As [`Cut::Equal`], and an error where that cannot be.
    Refuse,
}

impl Cut {
    /// The candidates of a decision, each with its name.
    pub const ALL: [(Cut, &'static str); 5] = [
        (Cut::Equal, "equal"),
        (Cut::SubBlock, "sub-block"),
        (Cut::Uneven, "uneven"),
        (Cut::Replicate, "replicate"),
        (Cut::Refuse, "refuse"),
    ];

    /// What the placement of `t` is.
    pub fn of(world: &World<'_>, t: &TensorType) -> Cut {
        if t.dims.iter().all(|d| d.split.is_none()) {
            return Cut::Replicate;
        }
        if t.elem != t.elem.in_file() {
            return Cut::SubBlock;
        }
        let ranks = u64::from(world.target.ranks);
        let held = |rank| local_type(t, &world.mesh, rank, &world.syms).ok().and_then(|t| t.elems(&world.syms));
        if held(0) == held(ranks.saturating_sub(1)) { Cut::Equal } else { Cut::Uneven }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(c, _)| *c == self).map_or("", |(_, n)| n)
    }
}

/// A weight or pool that a function's search places.
struct Free {
    /// The weight that first comes here; none for pools.
    weight: Option<WeightId>,
    /// Dims that some reader lets apart.
    dims: Vec<usize>,
}

/// What was settled before the search, by function and value.
#[derive(Clone, Debug, Default)]
pub struct Cuts {
    settled: HashMap<(FuncId, Value), (Cut, bool)>,
    forced: Vec<Cut>,
    /// What was asked of all and cannot be had of these, by the names of their decisions.
    unfit: Vec<String>,
}

impl Cuts {
    /// Asks for each weight and pool that can be cut.
    ///
    /// # Errors
    /// `cut-refused`: a strategy was asked for that a type does not allow. `no-candidate`: no such strategy.
    pub fn decide(m: &Module, world: &World<'_>, cx: &mut PassCx) -> Result<Cuts, Diagnostic> {
        let names = Cut::ALL.map(|(_, n)| n);
        let mut cuts = Cuts::default();
        let mut wanted: Vec<(Cut, Diagnostic)> = Vec::new();
        for ((func, v), free) in frees(m) {
            let f = &m.funcs[func];
            let (cut, exact) = match cx.decide(&format!("cut:{}.{}", f.name, name(m, f, v)), &names)? {
                Choice::Free => continue,
                Choice::Plain => (Cut::Replicate, false),
                Choice::Forced { candidate, exact } => (Cut::ALL[candidate].0, exact),
            };
            // What is said of all weights says nothing of pools.
            if free.weight.is_none() && !exact && matches!(cut, Cut::SubBlock | Cut::Refuse) {
                continue;
            }
            let t = strip(f.ty(v));
            let can = cut == Cut::Replicate || possible(world, &t, &free.dims, cut);
            if can || cut == Cut::Refuse {
                let kept = if cut == Cut::Refuse { Cut::Equal } else { cut };
                cuts.settled.insert((func, v), (kept, exact));
            }
            if !can {
                let d = refused(m, world, (f, v), &free, cut);
                if exact || cut == Cut::Refuse {
                    return Err(d);
                }
                cuts.unfit.push(decision_name(m, f, v));
                wanted.push((cut, d));
            } else if cut != Cut::Replicate && !cuts.forced.contains(&cut) {
                cuts.forced.push(cut);
            }
        }
        // Of all that was asked, nothing can be had.
        match wanted.into_iter().find(|(cut, _)| !cuts.forced.contains(cut)) {
            Some((_, d)) => Err(d),
            None => Ok(cuts),
        }
    }

    /// What was settled for `v`.
    fn get(&self, func: FuncId, v: Value) -> Option<Cut> {
        self.settled.get(&(func, v)).map(|(c, _)| *c)
    }

    /// Leaves of the ways of each instruction of `f` those that cut weights and pools as it is settled. Whole is always
    /// possible; of another cut an instruction keeps the ways that have most of what is asked.
    pub fn settle(
        &self,
        func: FuncId,
        f: &Function,
        world: &World<'_>,
        slots: &SecondaryMap<Value, Option<Slot>>,
        all: &mut [Vec<Config>],
    ) {
        for (inst, ways) in f.body.iter().zip(all) {
            let args = &f.insts[*inst].args;
            let asked = |c: &Config| -> Vec<(Cut, Cut)> {
                let of = |(a, k): (&Value, &u8)| {
                    let cut = self.get(func, *a)?;
                    let slot = slots[*a].as_ref().filter(|s| s.start == Start::Free && *k != CALLEES)?;
                    let place = slot.places.get(usize::from(*k)).copied().unwrap_or(Place::Whole);
                    Some((cut, Cut::of(world, &world.on(&slot.ty, place))))
                };
                args.iter().zip(&c.args).filter_map(of).collect()
            };
            ways.retain(|c| asked(c).iter().all(|(want, has)| *want != Cut::Replicate || has == want));
            let score = |c: &Config| asked(c).iter().filter(|(want, has)| want == has).count();
            let most = ways.iter().map(score).max().unwrap_or(0);
            ways.retain(|c| score(c) == most);
        }
    }

    /// Holds what was placed to what was asked: `placed` has each value of each function with its type.
    ///
    /// # Errors
    /// `cut-refused`: no way through a function cuts it so.
    pub fn kept(
        &self,
        m: &Module,
        world: &World<'_>,
        placed: &[(FuncId, Value, TensorType)],
    ) -> Result<Vec<String>, Diagnostic> {
        let mut others = self.unfit.clone();
        let mut open: Vec<Cut> = self.forced.iter().copied().filter(|c| *c != Cut::Refuse).collect();
        for (func, v, t) in placed {
            let Some((cut, exact)) = self.settled.get(&(*func, *v)) else { continue };
            let has = Cut::of(world, t);
            open.retain(|c| *c != has);
            if *exact && has != *cut && (*cut, has) != (Cut::Equal, Cut::Replicate) {
                let f = &m.funcs[*func];
                let what = format!("`cut:{}.{}={}`: the readers leave it {t}", f.name, name(m, f, *v), cut.name());
                return Err(Diagnostic::new("cut-refused", what));
            }
            if has != *cut && *cut != Cut::Replicate {
                others.push(decision_name(m, &m.funcs[*func], *v));
            }
        }
        match open.first() {
            Some(c) => Err(Diagnostic::new("cut-refused", format!("`cut={}`: no reader lets it be cut so", c.name()))),
            None => Ok(others),
        }
    }
}

/// The name of a weight or pool of `f` in a decision.
fn decision_name(m: &Module, f: &Function, v: Value) -> String {
    format!("{}.{}", f.name, name(m, f, v))
}

fn name(m: &Module, f: &Function, v: Value) -> String {
    match f.values[v].def {
        ValueDef::Weight(w) => m.weights[w].name.clone(),
        _ => f.value_name(v),
    }
}

/// The splits of `t` that are tried.
fn splits<'w>(world: &'w World<'_>, t: &'w TensorType, dims: &'w [usize]) -> impl Iterator<Item = TensorType> + 'w {
    let units = |dim: usize| [Some(1), Some(granule(t, dim)), world.sub_unit(t, dim)].into_iter().flatten();
    let all = dims.iter().flat_map(move |dim| units(*dim).map(|unit| Place::Split { dim: *dim, unit }));
    all.map(|p| world.on(t, p)).filter(|t| world.legal(t) && world.divides(t))
}

fn possible(world: &World<'_>, t: &TensorType, dims: &[usize], cut: Cut) -> bool {
    let cut = if cut == Cut::Refuse { Cut::Equal } else { cut };
    splits(world, t, dims).any(|t| Cut::of(world, &t) == cut)
}

/// Why `cut` cannot be had: tensor, type, reason.
fn refused(m: &Module, world: &World<'_>, (f, v): (&Function, Value), free: &Free, cut: Cut) -> Diagnostic {
    let (t, ranks) = (strip(f.ty(v)), world.target.ranks);
    let tensor = free.weight.map_or_else(|| name(m, f, v), |w| m.weights[w].tensor.clone());
    let blocks = |dim: usize| {
        let mut split = t.clone();
        split.dims[dim] = world.split(&t.dims[dim], 1);
        check(&split, &world.mesh).err().map(|d| d.message)
    };
    let reason = match cut {
        Cut::SubBlock if t.elem.storage().and_then(|q| q.apart()).is_none() => {
            format!("no form of {} keeps sub-blocks apart", t.elem)
        }
        Cut::SubBlock => format!("whole blocks fall into equal parts on {ranks} ranks, or its readers need rows whole"),
        Cut::Uneven => format!("each dim that its readers let apart falls into equal parts on {ranks} ranks"),
        _ => match free.dims.iter().find_map(|d| blocks(*d)) {
            Some(why) => why,
            None => format!("no dim that its readers let apart falls into {ranks} equal parts of whole blocks"),
        },
    };
    Diagnostic::new(
        "cut-refused",
        format!("{tensor}, {t}, cannot be cut over {ranks} ranks as `{}`: {reason}", cut.name()),
    )
    .at(format!("@{} %{}", f.name, name(m, f, v)))
}

/// Weights and pools that the search places, in the order of functions and values.
fn frees(m: &Module) -> BTreeMap<(FuncId, Value), Free> {
    let mut all: BTreeMap<(FuncId, Value), Option<WeightId>> = BTreeMap::new();
    // Callers stand behind what they call.
    for (id, f) in m.funcs.iter().rev() {
        for (v, data) in f.values.iter() {
            match data.def {
                ValueDef::Weight(w) if f.entry => drop(all.insert((id, v), Some(w))),
                ValueDef::Param(_) if f.entry && data.ty.state => drop(all.insert((id, v), None)),
                _ => {}
            }
        }
        for i in &f.body {
            let data = &f.insts[*i];
            let InstKind::Call { func, .. } = data.kind else { continue };
            for (a, p) in data.args.iter().zip(&m.funcs[func].params) {
                if let Some(w) = all.get(&(id, *a)).copied() {
                    all.entry((func, *p)).or_insert(w);
                }
            }
        }
    }
    let mut labels: HashMap<FuncId, HashMap<Value, Vec<usize>>> = HashMap::new();
    for (id, f) in &m.funcs {
        let of = labels.entry(id).or_default();
        for (i, rule) in f.body.iter().zip(rules(f)) {
            let Some(rule) = rule else { continue };
            for (a, ls) in f.insts[*i].args.iter().zip(&rule.args) {
                let dims = of.entry(*a).or_default();
                let apart = ls.iter().enumerate().filter(|(_, l)| rule.roles[**l] != Role::Whole).map(|(d, _)| d);
                dims.extend(apart);
                dims.sort_unstable();
                dims.dedup();
            }
        }
    }
    let with = |((id, v), weight): ((FuncId, Value), Option<WeightId>)| {
        let dims = labels.get(&id)?.get(&v)?.clone();
        (!dims.is_empty()).then_some(((id, v), Free { weight, dims }))
    };
    all.into_iter().filter_map(with).collect()
}
