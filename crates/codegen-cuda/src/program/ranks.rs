//! The calls of a step: of one rank a kernel, with its integers put into its part where it holds a part; of a collective
//! one kernel for each group of ranks.

use std::collections::BTreeSet;

use glmc_ir::collective::{Collective, CollectiveKind};
use glmc_ir::kernel::Access;
use glmc_ir::launch::{Call, Moves, Place};
use glmc_ir::plan::{Mem, Phase, Step};
use glmc_ir::shard_map::group;
use glmc_ir::ty::{PendingKind, TensorType};

use super::build::{ALIGN, Build, inputs};
use super::exchange::{Exchange, Made};
use super::library::Moved;
use super::local::Symbols;
use super::meet::Meet;
use super::own;
use super::share::{Along, Share};
use crate::request::GenerateError;
use crate::signature::Role;

/// Why a step has no calls.
pub(super) enum Fault {
    Why(String),
    Kernel(GenerateError),
}

/// What a collective becomes.
#[derive(Default)]
pub(super) struct Meetings {
    /// Calls with their devices.
    pub(super) calls: Vec<(usize, Call)>,
    /// How many of them, on each device, are meetings of all devices.
    pub(super) exchanges: usize,
    /// What a library moves: the device, how many of its calls above come before, what.
    pub(super) transfers: Vec<(usize, usize, Moves)>,
}

impl Meetings {
    /// The calls of a device so far.
    pub(super) fn count(&self, device: usize) -> usize {
        self.calls.iter().filter(|(d, _)| *d == device).count()
    }
}

impl Build<'_> {
    /// The calls of a collective, each with its device, for one group of ranks after the other.
    pub(super) fn meetings(
        &mut self,
        step: &Step,
        what: &Collective,
        symbols: &mut [Symbols],
    ) -> Result<Meetings, String> {
        let mesh = &self.plan.mesh;
        let arg = |access| step.args.iter().find(|a| a.access == access).ok_or("a collective takes and gives a value");
        let (from, to) = (arg(Access::Read)?, arg(Access::Write)?);
        let mut made = Meetings::default();
        for rank in 0..symbols.len() {
            let group = group(mesh, &what.axis, rank as u64).ok_or_else(|| format!("no axis {}", what.axis))?;
            let all: Vec<usize> = group.into_iter().map(|r| r as usize).collect();
            // Nothing travels in a shard: each rank takes its part of its own copy.
            let alone = matches!(what.kind, CollectiveKind::Shard { .. });
            if !alone && all.first() != Some(&rank) {
                continue;
            }
            let members = if alone { vec![rank] } else { all };
            let devices: BTreeSet<usize> = members.iter().map(|r| self.map[*r]).collect();
            let meet = |here| Meet { what, arg: &from.ty, result: &to.ty, mesh, members: &members, here };
            if devices.len() > 1 && self.choices.library {
                self.moved(&Moved { meet: &meet(&[]), from: from.mem, to: to.mem }, symbols, &mut made)?;
                continue;
            }
            if devices.len() > 1 {
                self.exchange(&meet, from.mem, to.mem, symbols, &mut made)?;
                continue;
            }
            let here = vec![true; members.len()];
            let kernel = meet(&here).kernel(&mut symbols[rank])?;
            let kernel = self.kernels.add(kernel);
            let of = |mem| members.iter().map(move |r| Place::Mem { rank: *r, mem });
            let mut args: Vec<Place> = of(from.mem).chain(of(to.mem)).collect();
            if self.kernels.list[kernel].signature.0.len() > args.len() {
                args.push(Place::Symbols { rank });
            }
            made.calls.push((self.map[rank], Call { step: 0, rank, kernel, args }));
        }
        Ok(made)
    }

    /// One meeting of all devices, for a group whose ranks are on several.
    fn exchange<'m>(
        &mut self,
        meet: &dyn Fn(&'m [bool]) -> Meet<'m>,
        from: Mem,
        to: Mem,
        symbols: &mut [Symbols],
        made: &mut Meetings,
    ) -> Result<(), String> {
        let devices = self.map.iter().max().map_or(0, |d| d + 1);
        for me in 0..devices {
            let members = meet(&[]).members;
            let here: Vec<bool> = members.iter().map(|r| self.map[*r] == me).collect();
            let holder = self.map.iter().position(|d| *d == me).ok_or("a device without ranks")?;
            let small = self.choices.small_bytes();
            let meet = Meet { here: &here, ..meet(&[]) };
            let Made { kernel, slot } = Exchange { meet, devices, me, holder, small }.kernel(&mut symbols[holder])?;
            self.slot = self.slot.max(slot);
            let kernel = self.kernels.add(kernel);
            let ours = || members.iter().zip(&here).filter(|(_, h)| **h).map(|(r, _)| *r);
            let (mut ins, mut outs) = (ours(), ours());
            let place = |role: &Role| match role {
                Role::Param { access: Access::Read, .. } => ins.next().map(|rank| Place::Mem { rank, mem: from }),
                Role::Param { .. } => outs.next().map(|rank| Place::Mem { rank, mem: to }),
                Role::Slab { device } => Some(Place::Slab { device: *device }),
                Role::Control => Some(Place::Control),
                Role::Halt => Some(Place::Halt),
                Role::Symbols => Some(Place::Symbols { rank: holder }),
                Role::Scratch { .. } => None,
            };
            let fields = &self.kernels.list[kernel].signature.0;
            let args: Option<Vec<Place>> = fields.iter().map(|f| &f.role).map(place).collect();
            let args = args.ok_or("a meeting with other arguments")?;
            made.calls.push((me, Call { step: 0, rank: holder, kernel, args }));
        }
        made.exchanges += 1;
        Ok(())
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
        let merge = share.merge.as_ref().map(|(kind, _)| *kind);
        let kernel = self.kernel(step, &inputs, symbols, rank, merge).map_err(Fault::Kernel)?;
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
        if let (Some((PendingKind::TopK, along)), [(mem, ty)]) = (&share.merge, outputs.as_slice()) {
            calls.push(self.outward(*mem, ty, along, rank, symbols).map_err(Fault::Why)?);
        }
        Ok(calls)
    }

    /// Puts positions in a rank's part of a selection into the whole dim.
    fn outward(
        &mut self,
        mem: Mem,
        ty: &TensorType,
        along: &Along,
        rank: usize,
        symbols: &Symbols,
    ) -> Result<Call, String> {
        let kernel = self.kernels.add(own::outward(ty, along, &symbols.bounds)?);
        let mut args = vec![Place::Mem { rank, mem }];
        if self.kernels.list[kernel].signature.0.len() > 1 {
            args.push(Place::Symbols { rank });
        }
        Ok(Call { step: 0, rank, kernel, args })
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
