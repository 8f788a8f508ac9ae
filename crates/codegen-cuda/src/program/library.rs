//! Collectives over several devices that a library moves: ranks of a device merge what they hold, the library reduces
//! over devices, or brings parts into slabs, and kernels make the ranks' results. No kernel waits for another device.

use std::fmt::Write as _;

use glmc_ir::collective::CollectiveKind;
use glmc_ir::kernel::Access;
use glmc_ir::launch::{Call, MOST_FLAGS, Moves, Part, Place, Transfer};
use glmc_ir::plan::Mem;
use glmc_ir::ty::{Elem, TensorType};

use super::build::Build;
use super::exchange::ALIGN;
use super::local::Symbols;
use super::meet::Meet;
use super::own::{Source, make, most};
use super::ranks::Meetings;

/// A group whose ranks are on several devices.
pub(super) struct Moved<'a> {
    pub(super) meet: &'a Meet<'a>,
    pub(super) from: Mem,
    pub(super) to: Mem,
}

impl Build<'_> {
    pub(super) fn moved(&mut self, of: &Moved<'_>, symbols: &mut [Symbols], made: &mut Meetings) -> Result<(), String> {
        let devices = self.map.iter().max().map_or(0, |d| d + 1);
        for me in 0..devices {
            let ours: Vec<usize> = of.meet.members.iter().copied().filter(|r| self.map[*r] == me).collect();
            if ours.is_empty() {
                return Err("a library does not move between some of the devices only".into());
            }
            match (of.meet.what.kind, of.meet.reduction()) {
                (CollectiveKind::AllReduce, Some(what)) => {
                    let (words, calls) = self.merged_here(of, &ours, symbols)?;
                    made.calls.extend(calls.into_iter().map(|c| (me, c)));
                    let from = if ours.len() == 1 { of.from } else { of.to };
                    let place = |mem| Place::Mem { rank: ours[0], mem };
                    let moves = Moves::Reduce { from: place(from), to: place(of.to), words, what };
                    made.transfers.push((me, made.count(me), moves));
                    // What devices are joined with once, before anything else moves.
                    self.slot = self.slot.max(ALIGN);
                    let copy = self.copied(of, &ours, &mut symbols[ours[0]])?;
                    made.calls.extend(copy.map(|c| (me, c)));
                }
                _ => self.parts(of, me, &ours, symbols, made)?,
            }
        }
        Ok(())
    }

    /// Sums of a device's ranks, where it has several: in each one's result.
    fn merged_here(
        &mut self,
        of: &Moved<'_>,
        ours: &[usize],
        symbols: &mut [Symbols],
    ) -> Result<(u64, Vec<Call>), String> {
        let (rank, here) = (ours[0], vec![true; ours.len()]);
        let symbols = &mut symbols[rank];
        let meet = Meet { members: ours, here: &here, ..*of.meet };
        let words = most(&meet.value(symbols)?.dims, &symbols.bounds)?;
        if ours.len() == 1 {
            return Ok((words, Vec::new()));
        }
        let kernel = self.kernels.add(meet.kernel(symbols)?);
        let all = |mem| ours.iter().map(move |r| Place::Mem { rank: *r, mem });
        let mut args: Vec<Place> = all(of.from).chain(all(of.to)).collect();
        if self.kernels.list[kernel].signature.0.len() > args.len() {
            args.push(Place::Symbols { rank });
        }
        Ok((words, vec![Call { step: 0, rank, kernel, args }]))
    }

    /// The first rank's result to the others of its device.
    fn copied(&mut self, of: &Moved<'_>, ours: &[usize], symbols: &mut Symbols) -> Result<Option<Call>, String> {
        let rank = ours[0];
        if ours.len() == 1 {
            return Ok(None);
        }
        let ty = symbols.local(of.meet.result, of.meet.mesh, rank as u64)?;
        let mut run = String::from("    u32 word = reinterpret_cast<const u32*>(args.x)[i];\n");
        let mut fields = vec![("x".into(), Access::Read, ty.clone())];
        for i in 1..ours.len() {
            let _ = writeln!(run, "    reinterpret_cast<u32*>(args.y{i})[i] = word;");
            fields.push((format!("y{i}"), Access::Write, ty.clone()));
        }
        let comment = format!("{ty} of one rank to {} more", ours.len() - 1);
        let source = Source {
            stem: "copies",
            comment,
            fields,
            over: &ty.dims,
            syms: &symbols.bounds,
            run,
            slots: None,
            includes: &[],
        };
        let kernel = self.kernels.add(make(source)?);
        let mut args: Vec<Place> = ours.iter().map(|r| Place::Mem { rank: *r, mem: of.to }).collect();
        if self.kernels.list[kernel].signature.0.len() > args.len() {
            args.push(Place::Symbols { rank });
        }
        Ok(Some(Call { step: 0, rank, kernel, args }))
    }

    /// Parts of other devices into the slab, then the merge of all.
    fn parts(
        &mut self,
        of: &Moved<'_>,
        me: usize,
        ours: &[usize],
        symbols: &mut [Symbols],
        made: &mut Meetings,
    ) -> Result<(), String> {
        let rank = ours[0];
        let symbols = &mut symbols[rank];
        let devices = self.map.iter().max().map_or(0, |d| d + 1);
        for ty in [of.meet.arg, of.meet.result] {
            symbols.local(ty, of.meet.mesh, rank as u64)?;
        }
        let here: Vec<bool> = of.meet.members.iter().map(|r| self.map[*r] == me).collect();
        let meet = Meet { here: &here, ..*of.meet };
        let body = meet.body(symbols)?;
        let first = 8 * MOST_FLAGS * devices as u64;
        let (mut at, mut parts, mut run) = (0, Vec::new(), String::new());
        for (i, member) in meet.members.iter().enumerate() {
            let local = symbols.local(meet.arg, meet.mesh, *member as u64)?;
            let words = most(&local.dims, &symbols.bounds)?;
            if here[i] {
                let from = Some(Place::Mem { rank: *member, mem: of.from });
                let to = (0..devices).filter(|d| *d != me);
                parts.extend(to.map(|peer| Part { from, at, words, peer }));
                let _ = writeln!(run, "    const u8* in{i} = args.in{i};");
            } else {
                parts.push(Part { from: None, at, words, peer: self.map[*member] });
                let _ = writeln!(run, "    const u8* in{i} = args.slab + {}u;", first + at);
            }
            at += (4 * words).next_multiple_of(ALIGN);
        }
        self.slot = self.slot.max(at);
        run.push_str(&body.run);
        let mut fields = meet.fields(symbols)?;
        fields.push(("slab".into(), Access::Read, TensorType::new(Elem::I32, [(first + at) / 4])));
        let (comment, includes) = (format!("{}, brought to a device", meet.comment()), body.includes);
        let source = Source {
            stem: "meet",
            comment,
            fields,
            over: &body.over,
            syms: &symbols.bounds,
            run,
            slots: None,
            includes,
        };
        let kernel = self.kernels.add(make(source)?);
        let all = |mem| ours.iter().map(move |r| Place::Mem { rank: *r, mem });
        let mut args: Vec<Place> = all(of.from).chain(all(of.to)).collect();
        args.push(Place::Slab { device: me });
        if self.kernels.list[kernel].signature.0.len() > args.len() {
            args.push(Place::Symbols { rank });
        }
        made.transfers.push((me, made.count(me), Moves::Parts(parts)));
        made.calls.push((me, Call { step: 0, rank, kernel, args }));
        Ok(())
    }

    /// A transfer as its device counts calls and ranks.
    pub(super) fn transfer(&self, before: usize, step: usize, mut moves: Moves) -> Transfer {
        match &mut moves {
            Moves::Reduce { from, to, .. } => [from, to].into_iter().for_each(|p| self.number(p)),
            Moves::Parts(parts) => parts.iter_mut().filter_map(|p| p.from.as_mut()).for_each(|p| self.number(p)),
        }
        Transfer { before, step, moves }
    }
}
