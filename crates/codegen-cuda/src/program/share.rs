//! What a rank of several must be told besides its own sizes: which integers speak of a dim of which it holds a part,
//! and whether it holds nothing of what is summed. All of it follows from the dim rules of the contract's meaning.

use std::ops::Range;

use glmc_ir::graph::InstKind;
use glmc_ir::kernel::Access;
use glmc_ir::placement::{DimRule, Role};
use glmc_ir::plan::{Phase, Plan, Step};
use glmc_ir::shard_map::Shard;
use glmc_ir::ty::{PendingKind, TensorType};

use super::own::Seen;

/// A rank's share of a launch.
#[derive(Default)]
pub(super) struct Share {
    /// Inputs that are seen otherwise, with what the rank holds of the dim that they speak of.
    pub(super) seen: Vec<(usize, Seen, Vec<Range<u64>>)>,
    /// It holds nothing of a dim that is summed over.
    pub(super) nothing: bool,
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
                    (PendingKind::Sum, Some(ranges)) => share.nothing |= ranges.iter().all(|r| r.start == r.end),
                    (kind, Some(_)) => {
                        return Err(format!("a part of a {kind:?} merge does not run on this device yet"));
                    }
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
) -> Result<Option<Vec<Range<u64>>>, String> {
    let dims = rule.args.iter().enumerate().flat_map(|(a, ls)| ls.iter().enumerate().map(move |(d, l)| (a, d, *l)));
    let split = |(a, d, l): &(usize, usize, usize)| {
        *l == label && args.get(*a).and_then(|t| t.dims.get(*d)).is_some_and(|d| d.split.is_some())
    };
    let Some((a, d, _)) = dims.into_iter().find(split) else { return Ok(None) };
    if args[a].dims[d].extent.as_const().is_none() {
        return Err(format!("{}: a part of a symbol", args[a]));
    }
    let shard = Shard::of(args[a], &plan.mesh, rank as u64, &phase.bounds()).map_err(|d| d.message)?;
    Ok(shard.ranges.get(d).cloned())
}
