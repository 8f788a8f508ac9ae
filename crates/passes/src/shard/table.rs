//! Owns what each instruction of a function may do: for every placement of its operands that the op's dim rule allows,
//! the placement of its results and the seconds. Never searches.

use glmc_ir::entities::{Inst, Value};
use glmc_ir::graph::{Function, InstKind, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::placement::{DimRule, Role, infer_on, strip};
use glmc_ir::ty::{PendingKind, TensorType};

use super::place::{Place, World};
use super::units::Units;

/// Most places of one value; a mask holds them.
pub const MOST_PLACES: usize = 32;
/// The place of an operand that the callee decides.
pub const CALLEES: u8 = u8::MAX;

/// One way to run an instruction.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// A place for each operand (an index of its value's places), or [`CALLEES`].
    pub args: Vec<u8>,
    /// The place of each result.
    pub results: Vec<u8>,
    /// Seconds on the slowest rank.
    pub seconds: f64,
    /// Bytes that a callee keeps of weights and pools whose places it decides.
    pub bytes: u64,
    /// Of a call: which solution of the callee.
    pub sub: Option<(usize, usize)>,
}

/// How a value gets its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// An instruction makes it.
    Made,
    /// It comes placed.
    Given(u8),
    /// A weight or pool: where its first reader wants it, within this mask.
    Free,
}

/// A value with the places that it may take.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Its type, not placed.
    pub ty: TensorType,
    /// Places; a mask has a bit for each.
    pub places: Vec<Place>,
    /// How it gets one.
    pub start: Start,
    /// Weights and pools stay where they are.
    pub fixed: bool,
}

impl Slot {
    /// The index of `place`, which becomes one of the value's; `None` if it has too many.
    pub fn index(&mut self, place: Place) -> Option<u8> {
        let at = self.places.iter().position(|p| *p == place).or_else(|| {
            (self.places.len() < MOST_PLACES).then(|| {
                self.places.push(place);
                self.places.len() - 1
            })
        })?;
        Some(at as u8)
    }
}

/// The dim rule of each op of `f` on operands that are whole; none for calls.
pub fn rules(f: &Function) -> Vec<Option<DimRule>> {
    let rule = |i: &Inst| {
        let data = &f.insts[*i];
        let InstKind::Op(op) = &data.kind else { return None };
        let args: Vec<TensorType> = data.args.iter().map(|a| strip(f.ty(*a))).collect();
        let results: Vec<TensorType> = data.results.iter().map(|r| strip(f.ty(*r))).collect();
        Some(op.dim_rule(&args.iter().collect::<Vec<_>>(), &results))
    };
    f.body.iter().map(rule).collect()
}

/// Placements of operands that an op's rule may allow: all whole, one label split in each unit, sums pending where the op
/// is linear. With one axis nothing else is legal: two labels, or a label and a sum, would use it twice.
fn candidates(f: &Function, inst: Inst, op: &Op, rule: &DimRule, units: &Units) -> Vec<Vec<Place>> {
    let data = &f.insts[inst];
    let n = data.args.len();
    let mut out = vec![vec![Place::Whole; n]];
    let mut add = |c: Vec<Place>| {
        if !out.contains(&c) {
            out.push(c);
        }
    };
    for label in (0..rule.roles.len()).filter(|l| rule.roles[*l] != Role::Whole) {
        let dim = |labels: &[usize]| labels.iter().position(|l| *l == label);
        let at: Vec<Option<usize>> = rule.args.iter().map(|l| dim(l)).collect();
        let mut all: Vec<u64> =
            data.args.iter().zip(&at).filter_map(|(v, d)| Some(units.get(*v, (*d)?))).flatten().collect();
        all.sort_unstable();
        all.dedup();
        for unit in all {
            add(at.iter().map(|d| d.map_or(Place::Whole, |dim| Place::Split { dim, unit })).collect());
        }
    }
    let args: Vec<TensorType> = data.args.iter().map(|a| strip(f.ty(*a))).collect();
    let refs: Vec<&TensorType> = args.iter().collect();
    let sum = |on: &dyn Fn(usize) -> bool| -> Vec<Place> {
        (0..n).map(|i| if on(i) { Place::Pending(PendingKind::Sum) } else { Place::Whole }).collect()
    };
    let linear: Vec<usize> = (0..n).filter(|i| op.linear_at(*i, &refs)).collect();
    linear.iter().for_each(|i| add(sum(&|k| k == *i)));
    if linear.len() > 1 {
        add(sum(&|k| linear.contains(&k)));
        add(sum(&|k| k > 0 && linear.contains(&k)));
    }
    out
}

/// The ways to run the op `inst`, each legal by the verifier's rules; places that are new become places of the values.
pub fn configs(
    f: &Function,
    inst: Inst,
    rule: &DimRule,
    units: &Units,
    world: &World<'_>,
    slots: &mut cranelift_entity::SecondaryMap<Value, Option<Slot>>,
) -> Vec<Config> {
    let data = &f.insts[inst];
    let InstKind::Op(op) = &data.kind else { return Vec::new() };
    let stored = |v: Value| match f.values[v].def {
        ValueDef::Result(i, _) if matches!(f.insts[i].kind, InstKind::Op(Op::Dequant(_))) => f.insts[i].args[0],
        _ => v,
    };
    let mut out: Vec<Config> = Vec::new();
    for places in candidates(f, inst, op, rule, units) {
        let args: Vec<TensorType> = data.args.iter().zip(&places).map(|(a, p)| world.on(f.ty(*a), *p)).collect();
        let stays = |v: &Value| slots[*v].as_ref().is_none_or(|s| s.fixed);
        let owed = data.args.iter().zip(&places).any(|(v, p)| matches!(p, Place::Pending(_)) && stays(v));
        if owed || !args.iter().all(|t| world.legal(t) && world.divides(t)) {
            continue;
        }
        let Ok(results) = infer_on(op, &args.iter().collect::<Vec<_>>(), &world.mesh) else { continue };
        if !results.iter().all(|t| world.legal(t) && world.divides(t)) {
            continue;
        }
        // A decode is part of its reader's launch.
        let read: Vec<TensorType> =
            data.args.iter().zip(&args).map(|(a, t)| world.on(f.ty(stored(*a)), Place::of(t))).collect();
        let again: Vec<bool> = (0..data.args.len()).map(|i| data.args[..i].contains(&data.args[i])).collect();
        let seconds = world.seconds(op, &read, &results, &again);
        let mut index = |v: &Value, t: &TensorType| slots[*v].as_mut()?.index(Place::of(t));
        let a: Option<Vec<u8>> = data.args.iter().zip(&args).map(|(v, t)| index(v, t)).collect();
        let r: Option<Vec<u8>> = data.results.iter().zip(&results).map(|(v, t)| index(v, t)).collect();
        let (Some(args), Some(results)) = (a, r) else { continue };
        if seconds.is_finite() && !out.iter().any(|c| c.args == args) {
            out.push(Config { args, results, seconds, bytes: 0, sub: None });
        }
    }
    out
}
