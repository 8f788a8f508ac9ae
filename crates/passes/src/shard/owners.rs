//! Owns which values may be pending `own`, and by what positions: those that split experts make, and what keeps their
//! zeros. Never places one.

use cranelift_entity::SecondaryMap;
use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, InstKind};
use glmc_ir::placement::{DimRule, Role};
use glmc_ir::ty::{Extent, PendingKind};

/// What would name the owner of an entry: the positions, and the dim that they are positions of.
#[derive(Clone, PartialEq, Debug)]
struct Named {
    positions: Value,
    dim: Extent,
}

/// Of each value of a function what would name its owners, if anything does.
#[derive(Clone, Debug)]
pub struct Owners(SecondaryMap<Value, Option<Named>>);

impl Owners {
    /// Those of `f`, whose ops have these rules.
    pub fn of(f: &Function, rules: &[Option<DimRule>]) -> Self {
        let mut all = Owners(SecondaryMap::new());
        for (inst, rule) in f.body.iter().zip(rules) {
            let data = &f.insts[*inst];
            let (InstKind::Op(op), Some(rule)) = (&data.kind, rule) else { continue };
            let mut named = positions(f, &data.args, rule, |k| k == PendingKind::Owned);
            if named.is_empty() && !op.keeps_zero() {
                continue;
            }
            named.extend(data.args.iter().filter_map(|a| all.0[*a].clone()));
            let first = named.first().filter(|first| named.iter().all(|n| n == *first));
            if let Some(first) = first {
                data.results.iter().for_each(|r| all.0[*r] = Some(first.clone()));
            }
        }
        all
    }

    /// Whether each entry of `v` may lie on one rank.
    pub fn has(&self, v: Value) -> bool {
        self.0[v].is_some()
    }

    /// Whether all operands that have owners have the same, and the op's own positions name them too.
    pub fn agree(&self, f: &Function, args: &[Value], rule: &DimRule) -> bool {
        let mut named = positions(f, args, rule, PendingKind::is_sum);
        named.extend(args.iter().filter_map(|a| self.0[*a].clone()));
        named.windows(2).all(|w| w[0] == w[1])
    }
}

/// What an op's rule takes for positions of a dim whose split leaves a merge of a kind that `fits`.
fn positions(f: &Function, args: &[Value], rule: &DimRule, fits: impl Fn(PendingKind) -> bool) -> Vec<Named> {
    let of = |(a, label): &(usize, usize)| {
        let fits = matches!(rule.roles[*label], Role::Reduce(k) if fits(k));
        let mut dims = rule.args.iter().zip(args).flat_map(|(ls, v)| ls.iter().zip(&f.ty(*v).dims));
        let dim = dims.find(|(l, _)| *l == label).map(|(_, d)| d.extent.clone());
        Some(Named { positions: *args.get(*a)?, dim: dim.filter(|_| fits)? })
    };
    rule.positions.iter().filter_map(of).collect()
}
