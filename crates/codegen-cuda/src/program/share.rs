//! What a rank of several must be told besides its own sizes: which integers speak of a dim of which it holds a part,
//! and whether it holds nothing of what is summed. All of it follows from the dim rules of the contract's meaning.

use std::ops::Range;

use glmc_ir::graph::InstKind;
use glmc_ir::kernel::Access;
use glmc_ir::placement::{DimRule, Mesh, Role};
use glmc_ir::plan::{Phase, Plan, Step};
use glmc_ir::shard_map::{Shard, coordinate};
use glmc_ir::ty::{Extent, PendingKind, SymValues, TensorType};

use super::own::Seen;

/// What a rank holds of a dim.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Along {
    /// Ranges that no symbol changes.
    Fixed(Vec<Range<u64>>),
    /// A part of a symbol.
    Part {
        /// Its place among the phase's symbols.
        symbol: usize,
        unit: u64,
        at: u64,
        size: u64,
    },
}

/// What `rank` holds along dim `d` of `ty`; the whole dim if it is not split.
pub(super) fn along(ty: &TensorType, d: usize, mesh: &Mesh, rank: usize, bounds: &SymValues) -> Result<Along, String> {
    let dim = ty.dims.get(d).ok_or_else(|| format!("{ty} has no dim {d}"))?;
    if let (Extent::Sym(s), Some(split)) = (&dim.extent, &dim.split) {
        let missing = || format!("{ty}: a symbol or an axis that nothing declares");
        let symbol = bounds.0.get_index_of(s).ok_or_else(missing)?;
        let (at, size) = coordinate(mesh, &split.axis, rank as u64).ok_or_else(missing)?;
        return Ok(Along::Part { symbol, unit: split.unit.max(1), at, size });
    }
    let shard = Shard::of(ty, mesh, rank as u64, bounds).map_err(|e| e.message)?;
    shard.ranges.get(d).cloned().map(Along::Fixed).ok_or_else(|| format!("{ty} has no dim {d}"))
}

/// Statements that make `start{tag}` and `end{tag}`, the range of a part of a symbol.
pub(super) fn part_statements(symbol: usize, unit: u64, at: u64, size: u64, tag: &str) -> String {
    let edge = |at: u64| {
        format!("least(({at}u * (units{tag} / {size}u) + least({at}u, units{tag} % {size}u)) * {unit}u, whole{tag})")
    };
    format!(
        "    u64 whole{tag} = args.syms[{symbol}], units{tag} = (whole{tag} + {}u) / {unit}u;\n    u64 start{tag} = {}, \
         end{tag} = {};\n",
        unit - 1,
        edge(at),
        edge(at + 1)
    )
}

/// A rank's share of a launch.
#[derive(Default)]
pub(super) struct Share {
    /// Inputs that are seen otherwise, with what the rank holds of the dim that they speak of.
    pub(super) seen: Vec<(usize, Seen, Along)>,
    /// It holds nothing of a dim that is summed over.
    pub(super) nothing: bool,
    /// Another merge that its result awaits, and what it holds of the dim that is merged over.
    pub(super) merge: Option<(PendingKind, Along)>,
}

impl Share {
    pub(super) fn of(plan: &Plan, phase: &Phase, step: &Step, rank: usize) -> Result<Share, String> {
        let mut share = Share::default();
        if plan.mesh.is_empty() {
            return Ok(share);
        }
        let inputs: Vec<&TensorType> = step.args.iter().filter(|a| a.access != Access::Write).map(|a| &a.ty).collect();
        let f = step.kernel.meaning_on(&inputs, &plan.mesh).map_err(|d| d.message)?;
        for inst in &f.body {
            let data = &f.insts[*inst];
            let InstKind::Op(op) = &data.kind else { return Err("a contract that calls".into()) };
            let args: Vec<&TensorType> = data.args.iter().map(|a| f.ty(*a)).collect();
            let results: Vec<TensorType> = data.results.iter().map(|r| f.ty(*r).clone()).collect();
            let rule = op.dim_rule(&args, &results);
            let held = |label| held(plan, phase, rank, &rule, &args, label);
            for (list, positions) in [(&rule.positions, true), (&rule.counts, false)] {
                for (a, label) in list {
                    let Some(ranges) = held(*label)? else { continue };
                    let input = f.params.iter().position(|p| *p == data.args[*a]);
                    let input = input.ok_or("positions that are made within the launch")?;
                    let how = if positions { Seen::Positions } else { Seen::Counts };
                    match share.seen.iter().find(|(i, _, _)| *i == input) {
                        Some((_, _, other)) if *other != ranges => return Err("an input is seen in two ways".into()),
                        Some(_) => {}
                        None => share.seen.push((input, how, ranges)),
                    }
                }
            }
            for (label, role) in rule.roles.iter().enumerate() {
                let Role::Reduce(kind) = role else { continue };
                match (kind, held(label)?) {
                    (_, None) => {}
                    (PendingKind::Sum | PendingKind::Owned, Some(Along::Fixed(ranges))) => {
                        share.nothing |= ranges.iter().all(|r| r.start == r.end);
                    }
                    (PendingKind::Softmax | PendingKind::TopK, Some(along)) => share.merge = Some((*kind, along)),
                    (kind, Some(_)) => return Err(format!("a part of a {kind:?} merge that a symbol sizes")),
                }
            }
        }
        Ok(share)
    }
}

/// What the rank holds along a label; `None` if it is whole.
fn held(
    plan: &Plan,
    phase: &Phase,
    rank: usize,
    rule: &DimRule,
    args: &[&TensorType],
    label: usize,
) -> Result<Option<Along>, String> {
    let dims = rule.args.iter().enumerate().flat_map(|(a, ls)| ls.iter().enumerate().map(move |(d, l)| (a, d, *l)));
    let split = |(a, d, l): &(usize, usize, usize)| {
        *l == label && args.get(*a).and_then(|t| t.dims.get(*d)).is_some_and(|d| d.split.is_some())
    };
    let Some((a, d, _)) = dims.into_iter().find(split) else { return Ok(None) };
    along(args[a], d, &plan.mesh, rank, &phase.bounds()).map(Some)
}
