//! The calls of a step: of one rank a kernel, with its integers put into its part where it holds a part; of a collective
//! one kernel for each group of ranks.

use glmc_ir::collective::{Collective, CollectiveKind};
use glmc_ir::kernel::Access;
use glmc_ir::launch::{Call, Place};
use glmc_ir::plan::{Mem, Phase, Step};
use glmc_ir::shard_map::group;
use glmc_ir::ty::TensorType;

use super::build::{ALIGN, Build, inputs};
use super::local::Symbols;
use super::meet::Meet;
use super::own;
use super::share::Share;
use crate::request::GenerateError;
use crate::signature::Role;

/// Why a step has no calls.
pub(super) enum Fault {
    Why(String),
    Kernel(GenerateError),
}

impl Build<'_> {
    /// The meetings of a collective, one of each group of ranks.
    pub(super) fn meetings(
        &mut self,
        step: &Step,
        what: &Collective,
        symbols: &mut [Symbols],
    ) -> Result<Vec<Call>, String> {
        let mesh = &self.plan.mesh;
        let arg = |access| step.args.iter().find(|a| a.access == access).ok_or("a collective takes and gives a value");
        let (from, to) = (arg(Access::Read)?, arg(Access::Write)?);
        let mut calls = Vec::new();
        for (rank, symbols) in symbols.iter_mut().enumerate() {
            let group = group(mesh, &what.axis, rank as u64).ok_or_else(|| format!("no axis {}", what.axis))?;
            let all: Vec<usize> = group.into_iter().map(|r| r as usize).collect();
            // Nothing travels in a shard: each rank takes its part of its own copy.
            let alone = matches!(what.kind, CollectiveKind::Shard { .. });
            if !alone && all.first() != Some(&rank) {
                continue;
            }
            let members = if alone { vec![rank] } else { all };
            let meet = Meet { what, arg: &from.ty, result: &to.ty, mesh, members: &members };
            let kernel = self.kernels.add(meet.kernel(symbols)?);
            let of = |mem| members.iter().map(move |r| Place::Mem { rank: *r, mem });
            let mut args: Vec<Place> = of(from.mem).chain(of(to.mem)).collect();
            if self.kernels.list[kernel].signature.0.len() > args.len() {
                args.push(Place::Symbols { rank });
            }
            calls.push(Call { step: 0, rank, kernel, args });
        }
        Ok(calls)
    }

    /// A rank's calls of a launch: integers put into its part, then the kernel, or zeros, or nothing.
    pub(super) fn launch(
        &mut self,
        phase: &Phase,
        step: &Step,
        rank: usize,
        symbols: &mut Symbols,
    ) -> Result<Vec<Call>, Fault> {
        let inputs = inputs(self.plan, step, rank, symbols).map_err(Fault::Why)?;
        let share = Share::of(self.plan, phase, step, rank).map_err(Fault::Why)?;
        let outputs: Vec<(Mem, TensorType)> = step
            .args
            .iter()
            .filter(|a| a.access == Access::Write)
            .map(|a| Ok((a.mem, symbols.local(&a.ty, &self.plan.mesh, rank as u64)?)))
            .collect::<Result<_, String>>()
            .map_err(Fault::Why)?;
        let updates = step.args.iter().zip(&inputs.types).any(|(a, _)| a.access == Access::Update);
        let empty = |t: &TensorType| t.dims.iter().any(|d| d.extent.as_const() == Some(0));
        if !self.plan.mesh.is_empty() {
            let nothing_in = updates && inputs.types.iter().any(empty);
            if nothing_in || !outputs.is_empty() && outputs.iter().all(|(_, t)| empty(t)) {
                return Ok(Vec::new());
            }
            if share.nothing {
                return outputs.iter().map(|(mem, t)| self.zeros(*mem, t, rank, symbols).map_err(Fault::Why)).collect();
            }
        }
        let kernel = self.kernel(step, &inputs, symbols, rank).map_err(Fault::Kernel)?;
        let mut args = self.args(step, kernel, rank).map_err(Fault::Why)?;
        let (mut calls, mut at) = (Vec::new(), 0);
        for (input, how, ranges) in &share.seen {
            let ty = inputs.types.get(*input).ok_or_else(|| Fault::Why("an input is missing".into()))?;
            let k = own::seen(how, ty, ranges, &symbols.bounds).map_err(Fault::Why)?;
            let k = self.kernels.add(k);
            let bytes = ty.bytes(&symbols.bounds).unwrap_or(0).next_multiple_of(ALIGN);
            let (from, to) = (Place::Mem { rank, mem: inputs.mems[*input] }, Place::Scratch(at));
            let mut of = vec![from, to];
            if self.kernels.list[k].signature.0.len() > 2 {
                of.push(Place::Symbols { rank });
            }
            calls.push(Call { step: 0, rank, kernel: k, args: of });
            // Inputs come first among the parameters, in order.
            let field = |f: &Role| matches!(f, Role::Param { index, .. } if index == input);
            let fields = self.kernels.list[kernel].signature.0.iter();
            fields.zip(&mut args).filter(|(f, _)| field(&f.role)).for_each(|(_, a)| *a = to);
            at += bytes;
        }
        self.temporary = self.temporary.max(at);
        calls.push(Call { step: 0, rank, kernel, args });
        Ok(calls)
    }

    fn zeros(&mut self, mem: Mem, ty: &TensorType, rank: usize, symbols: &Symbols) -> Result<Call, String> {
        let kernel = self.kernels.add(own::zeros(ty, &symbols.bounds)?);
        let mut args = vec![Place::Mem { rank, mem }];
        if self.kernels.list[kernel].signature.0.len() > 1 {
            args.push(Place::Symbols { rank });
        }
        Ok(Call { step: 0, rank, kernel, args })
    }
}
