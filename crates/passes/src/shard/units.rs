//! Owns the units that each dim of a function may be cut in: what stored blocks keep together, carried along dims that
//! ops take for one. Never chooses.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, InstKind, Module};
use glmc_ir::op::Op;
use glmc_ir::placement::{DimRule, strip};
use glmc_ir::shard_map::granule;
use glmc_ir::ty::TensorType;

use super::place::World;

/// Most units tried for one dim; further ones are left out.
pub const MOST_UNITS: usize = 4;
/// Most rounds of carrying units over a function.
const ROUNDS: usize = 16;

/// Units for each dim of each value; 1 is always among them.
#[derive(Clone, Debug)]
pub struct Units(SecondaryMap<Value, Vec<BTreeSet<u64>>>);

impl Units {
    /// Those of `f`, with what callees ask of their operands.
    pub fn of(m: &Module, f: &Function, rules: &[Option<DimRule>], world: &World<'_>) -> Self {
        let mut units: SecondaryMap<Value, Vec<BTreeSet<u64>>> = SecondaryMap::new();
        for (v, data) in f.values.iter() {
            units[v] = (0..data.ty.rank()).map(|d| stored(world, &data.ty, d)).collect();
        }
        let mut all = Units(units);
        for (inst, rule) in f.body.iter().zip(rules) {
            if let InstKind::Call { func, .. } = &f.insts[*inst].kind {
                for (a, p) in f.insts[*inst].args.iter().zip(&m.funcs[*func].params) {
                    // What a weight asks for is known here already; activations take it from the callee's weights.
                    let t = m.funcs[*func].ty(*p);
                    for d in 0..t.rank() {
                        all.add(*a, d, &stored(world, t, d));
                    }
                }
            }
            debug_assert!(rule.is_some() || matches!(f.insts[*inst].kind, InstKind::Call { .. }));
        }
        for _ in 0..ROUNDS {
            if !all.carry(f, rules) {
                break;
            }
        }
        all
    }

    /// The units of a dim.
    pub fn get(&self, v: Value, dim: usize) -> impl Iterator<Item = u64> + '_ {
        self.0[v].get(dim).into_iter().flatten().copied()
    }

    fn add(&mut self, v: Value, dim: usize, more: &BTreeSet<u64>) -> bool {
        let Some(set) = self.0[v].get_mut(dim) else { return false };
        let mut grown = false;
        for u in more {
            if set.len() < MOST_UNITS {
                grown |= set.insert(*u);
            }
        }
        grown
    }

    /// One round over the body; whether anything was new.
    fn carry(&mut self, f: &Function, rules: &[Option<DimRule>]) -> bool {
        let mut grown = false;
        for (inst, rule) in f.body.iter().zip(rules) {
            let (data, Some(rule)) = (&f.insts[*inst], rule) else { continue };
            let dims = || {
                let labelled = data.args.iter().zip(&rule.args).chain(data.results.iter().zip(&rule.results));
                labelled.flat_map(|(v, labels)| labels.iter().enumerate().map(move |(d, l)| (*v, d, *l)))
            };
            let scale = match &data.kind {
                InstKind::Op(Op::Reshape(_)) => Scale::of(&strip(f.ty(data.args[0])), &strip(f.ty(data.results[0]))),
                _ => None,
            };
            for label in 0..rule.roles.len() {
                let here: Vec<(Value, usize)> = dims().filter(|(.., l)| *l == label).map(|(v, d, _)| (v, d)).collect();
                // The pair that a reshape merges or cuts counts other entries on both sides.
                if let (Some(s), [(a, da), (r, dr)]) = (&scale, here.as_slice())
                    && *da == s.at
                {
                    let forward = self.get(*a, *da).map(|u| s.forward(u)).collect();
                    grown |= self.add(*r, *dr, &forward);
                    let back = self.get(*r, *dr).map(|u| s.back(u)).collect();
                    grown |= self.add(*a, *da, &back);
                    continue;
                }
                let all: BTreeSet<u64> = here.iter().flat_map(|(v, d)| self.get(*v, *d)).collect();
                here.iter().for_each(|(v, d)| grown |= self.add(*v, *d, &all));
            }
        }
        grown
    }
}

/// The units in which dim `d` of `t` may be cut as it is stored.
fn stored(world: &World<'_>, t: &TensorType, d: usize) -> BTreeSet<u64> {
    [1, granule(t, d)].into_iter().chain(world.sub_unit(t, d)).collect()
}

/// How a reshape counts the dim at which it begins to differ: entries of the rest on both sides.
struct Scale {
    at: usize,
    arg: u64,
    result: u64,
}

impl Scale {
    fn of(a: &TensorType, r: &TensorType) -> Option<Scale> {
        let at = a.dims.iter().zip(&r.dims).take_while(|(a, r)| a.extent.same_size(&r.extent)).count();
        let rest = |t: &TensorType| t.dims.get(at + 1..).map(|d| t.with_dims(d.to_vec()))?.size_monomial();
        let ((arg, sa), (result, sr)) = (rest(a)?, rest(r)?);
        (sa == sr && arg > 0 && result > 0).then_some(Scale { at, arg, result })
    }

    /// The result's unit for the operand's; the next larger where none is the same.
    fn forward(&self, unit: u64) -> u64 {
        unit.saturating_mul(self.arg).div_ceil(self.result).max(1)
    }

    fn back(&self, unit: u64) -> u64 {
        unit.saturating_mul(self.result).div_ceil(self.arg).max(1)
    }
}
