//! Owns what a rank's share of a launch is: its own sizes, which positions and counts must be put into its part, and
//! which merge its results await. All of it follows from the dim rules of the contract's meaning. Attributes of
//! contracts name things and state no size that a placement cuts, so they hold on every rank as they are.

use std::ops::Range;

use glmc_ir::graph::InstKind;
use glmc_ir::kernel::Access;
use glmc_ir::placement::{DimRule, Mesh, Role, local_type};
use glmc_ir::plan::{Phase, Step};
use glmc_ir::shard_map::{Shard, coordinate, part};
use glmc_ir::ty::{Dim, Extent, PendingKind, SymValues, TensorType};

use super::error::KernelError;

/// The place of a rank on its mesh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) rank: u64,
}

/// What of a dim a rank holds.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Along {
    /// Ranges that no symbol changes.
    Fixed(Vec<Range<u64>>),
    /// A part of the symbol of this index.
    Sym { index: usize, unit: u64, at: u64, size: u64 },
}

/// What a launch on a rank's parts needs besides their shapes.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Inputs that hold positions along a dim of which the rank holds a part.
    positions: Vec<(usize, Along)>,
    /// Inputs that count first entries of such a dim.
    counts: Vec<(usize, Along)>,
    /// Dims that are summed over: a rank that holds nothing of one adds zeros.
    sums: Vec<Along>,
    /// Another merge that the results await, and the dim it is over.
    pub(super) merge: Option<(PendingKind, Along)>,
}

const UNSUPPORTED: KernelError =
    KernelError::Dim { what: "a placement", have: 0, need: "one that the mesh and the contract have" };

impl Place<'_> {
    /// The type of the rank's part.
    pub(super) fn local(&self, ty: &TensorType, syms: &SymValues) -> Result<TensorType, KernelError> {
        if self.mesh.is_empty() {
            return Ok(ty.clone());
        }
        local_type(ty, self.mesh, self.rank, syms).map_err(|_| UNSUPPORTED)
    }

    /// The rank's part of a symbol that is split.
    pub(super) fn along(&self, phase: &Phase, dim: &Dim) -> Option<Along> {
        let (Extent::Sym(s), Some(split)) = (&dim.extent, &dim.split) else { return None };
        let (at, size) = coordinate(self.mesh, &split.axis, self.rank)?;
        let unit = Some(split.unit).filter(|u| *u > 0)?;
        Some(Along::Sym { index: phase.syms.get_index_of(s)?, unit, at, size })
    }

    fn along_dim(&self, phase: &Phase, ty: &TensorType, d: usize) -> Result<Along, KernelError> {
        if let Some(along) = self.along(phase, &ty.dims[d]) {
            return Ok(along);
        }
        let shard = Shard::of(ty, self.mesh, self.rank, &phase.bounds()).map_err(|_| UNSUPPORTED)?;
        Ok(Along::Fixed(shard.ranges[d].clone()))
    }
}

impl Along {
    fn ranges(&self, syms: &[usize]) -> Vec<Range<u64>> {
        match self {
            Along::Fixed(r) => r.clone(),
            Along::Sym { index, unit, at, size } => vec![part(syms[*index] as u64, *unit, *at, *size)],
        }
    }

    /// How many entries the rank holds.
    pub(super) fn held(&self, syms: &[usize]) -> usize {
        match self {
            Along::Fixed(r) => r.iter().map(|r| (r.end - r.start) as usize).sum(),
            Along::Sym { index, unit, at, size } => {
                let r = part(syms[*index] as u64, *unit, *at, *size);
                (r.end - r.start) as usize
            }
        }
    }

    /// Where global positions lie in the part; -1 outside it.
    pub(super) fn inward(&self, syms: &[usize], positions: &[i32]) -> Vec<i32> {
        let ranges = self.ranges(syms);
        let local = |x: i32| {
            let x = u64::try_from(x).ok()?;
            let mut before = 0;
            for r in &ranges {
                if r.contains(&x) {
                    return i32::try_from(before + x - r.start).ok();
                }
                before += r.end - r.start;
            }
            None
        };
        positions.iter().map(|x| local(*x).unwrap_or(-1)).collect()
    }

    /// How many of the first `n` entries lie in the part, for each count `n`; negative counts are none.
    pub(super) fn counted(&self, syms: &[usize], counts: &[i32]) -> Vec<i32> {
        let ranges = self.ranges(syms);
        let held = |n: u64| ranges.iter().map(|r| n.clamp(r.start, r.end) - r.start).sum::<u64>();
        counts.iter().map(|n| u64::try_from(*n).map_or(*n, |n| held(n) as i32)).collect()
    }

    /// The global position of entry `i` of the part.
    pub(super) fn outward(&self, syms: &[usize]) -> impl Fn(usize) -> u64 + use<> {
        let ranges = self.ranges(syms);
        move |i| {
            let mut rest = i as u64;
            for r in &ranges {
                if rest < r.end - r.start {
                    return r.start + rest;
                }
                rest -= r.end - r.start;
            }
            rest
        }
    }
}

impl Share {
    /// The rank's share of `step`; `None` if nothing of it is split.
    ///
    /// # Errors
    /// Placements that the contract does not take.
    pub(super) fn of(phase: &Phase, step: &Step, place: Place<'_>) -> Result<Option<Self>, KernelError> {
        if place.mesh.is_empty() {
            return Ok(None);
        }
        let inputs: Vec<&TensorType> = step.args.iter().filter(|a| a.access != Access::Write).map(|a| &a.ty).collect();
        let f = step.kernel.meaning_on(&inputs, place.mesh).map_err(|_| UNSUPPORTED)?;
        let mut share = Share::default();
        let (mut positions, mut counts) = (Vec::new(), Vec::new());
        for inst in &f.body {
            let data = &f.insts[*inst];
            let InstKind::Op(op) = &data.kind else { return Err(UNSUPPORTED) };
            if op.collective().is_some() {
                continue;
            }
            let args: Vec<&TensorType> = data.args.iter().map(|a| f.ty(*a)).collect();
            let results: Vec<TensorType> = data.results.iter().map(|r| f.ty(*r).clone()).collect();
            let rule = op.dim_rule(&args, &results);
            let along = |label| match split_dim(&rule, &args, label) {
                Some((a, d)) => place.along_dim(phase, args[a], d).map(Some),
                None => Ok(None),
            };
            // What is asked of an operand must be asked of an input: a launch cannot put positions into its part midway.
            let input = |a: usize| f.params.iter().position(|p| *p == data.args[a]).ok_or(UNSUPPORTED);
            for (list, of) in [(&mut positions, &rule.positions), (&mut counts, &rule.counts)] {
                for (a, label) in of {
                    match (input(*a), along(*label)?) {
                        (Ok(i), along) => add(list, i, along)?,
                        (Err(e), Some(_)) => return Err(e),
                        (Err(_), None) => {}
                    }
                }
            }
            for (label, role) in rule.roles.iter().enumerate() {
                let Role::Reduce(kind) = role else { continue };
                match (kind, along(label)?) {
                    (PendingKind::Sum | PendingKind::Owned, Some(along)) => share.sums.push(along),
                    (PendingKind::Softmax | PendingKind::TopK, Some(along)) => share.merge = Some((*kind, along)),
                    (PendingKind::Max, Some(_)) => return Err(UNSUPPORTED),
                    (_, None) => {}
                }
            }
        }
        let split = |list: Vec<(usize, Option<Along>)>| list.into_iter().filter_map(|(i, a)| Some((i, a?))).collect();
        (share.positions, share.counts) = (split(positions), split(counts));
        Ok(Some(share))
    }

    /// Whether the rank holds nothing of a dim that is summed over.
    pub(super) fn adds_nothing(&self, syms: &[usize]) -> bool {
        self.sums.iter().any(|a| a.held(syms) == 0)
    }

    /// The rank's numbers of input `i`, which are `whole` in all; `None` if they are the same.
    pub(super) fn own(&self, i: usize, syms: &[usize], whole: &[i32]) -> Option<Vec<i32>> {
        let of = |list: &'_ [(usize, Along)]| list.iter().find(|(a, _)| *a == i).map(|(_, along)| along.clone());
        match (of(&self.positions), of(&self.counts)) {
            (Some(along), _) => Some(along.inward(syms, whole)),
            (None, Some(along)) => Some(along.counted(syms, whole)),
            (None, None) => None,
        }
    }
}

/// An input is seen in one way only.
fn add(list: &mut Vec<(usize, Option<Along>)>, input: usize, along: Option<Along>) -> Result<(), KernelError> {
    match list.iter().find(|(i, _)| *i == input) {
        Some((_, other)) if *other != along => Err(UNSUPPORTED),
        Some(_) => Ok(()),
        None => {
            list.push((input, along));
            Ok(())
        }
    }
}

/// The argument and dim that has a label and is split.
fn split_dim(rule: &DimRule, args: &[&TensorType], label: usize) -> Option<(usize, usize)> {
    let dims = rule.args.iter().enumerate().flat_map(|(a, ls)| ls.iter().enumerate().map(move |(d, l)| (a, d, *l)));
    let of = |(a, d, l): (usize, usize, usize)| {
        let split = args.get(a).and_then(|t| t.dims.get(d)).is_some_and(|d| d.split.is_some());
        (l == label && split).then_some((a, d))
    };
    dims.filter_map(of).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_counts_go_into_the_part_and_back() {
        let along = Along::Fixed(vec![2..4, 7..9]);
        assert_eq!(along.inward(&[], &[-1, 1, 2, 3, 4, 7, 8, 9]), [-1, -1, 0, 1, -1, 2, 3, -1]);
        assert_eq!(along.counted(&[], &[-1, 0, 3, 5, 8, 20]), [-1, 0, 1, 2, 3, 4]);
        let back = along.outward(&[]);
        assert_eq!([0, 1, 2, 3].map(back), [2, 3, 7, 8]);
        // 7 entries in units of 2 over 3 places: 4, 2 and 1.
        let last = Along::Sym { index: 0, unit: 2, at: 2, size: 3 };
        assert_eq!((last.held(&[7]), last.inward(&[7], &[5, 6, 7])), (1, vec![-1, 0, -1]));
    }
}
