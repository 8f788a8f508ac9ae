//! One rank of several, alone on a device: its launches are those of the program, and where it would meet others a
//! stand-in moves as many bytes. The stand-in takes every member's part to be this rank's own: it pushes it into as many
//! slots as there are members, then sums or joins the slots in their order. What links cost is not in it.

use std::fmt::Write as _;

use glmc_ir::collective::{Collective, CollectiveKind};
use glmc_ir::kernel::Access;
use glmc_ir::launch::{Call, Launches, PhaseLaunches, Place, SymbolPart};
use glmc_ir::plan::{Mem, Phase, Plan, Step};
use glmc_ir::shard_map::group;
use glmc_ir::ty::{Elem, Sym, SymValues, TensorType};

use super::build::ALIGN;
use super::local::Symbols;
use super::own::{Source, make, size};
use super::{Program, ProgramError};
use crate::signature::{Field, Role};

impl Program {
    /// The program of `rank` alone; the rank's number in it is 0.
    ///
    /// # Errors
    /// There is no such rank, or a collective that has no stand-in.
    pub fn alone(mut self, plan: &Plan, rank: usize) -> Result<Program, ProgramError> {
        let told = |what: String, why: String| ProgramError::Size { what, why };
        if rank >= self.launches.weights.len() {
            return Err(told(format!("rank {rank}"), format!("the plan has {}", self.launches.weights.len())));
        }
        let mut slots = 0;
        let all = std::mem::take(&mut self.launches);
        // Behind the scratch of all other kernels.
        let base = all.scratch.next_multiple_of(ALIGN);
        let mut phases = Vec::new();
        for (phase, of) in plan.phases.iter().zip(&all.phases) {
            let mut symbols = symbols_of(phase, &of.symbols[rank]);
            let mut calls = Vec::new();
            for (index, step) in phase.steps.iter().enumerate() {
                let from = of.calls.partition_point(|c| c.step < index);
                let to = of.calls.partition_point(|c| c.step <= index);
                let of_step = &of.calls[from..to];
                match step.kernel.collective() {
                    Some(c) if !matches!(c.kind, CollectiveKind::Shard { .. }) => {
                        let fail =
                            |why| ProgramError::Unsupported { step: step.name.clone(), phase: phase.name.clone(), why };
                        let (kernel, bytes) = self.stand_in(plan, step, &c, rank, &mut symbols).map_err(fail)?;
                        slots = slots.max(bytes);
                        calls.push(Call { step: index, rank: 0, kernel, args: self.args(step, kernel, base) });
                    }
                    _ => calls.extend(of_step.iter().filter(|c| c.rank == rank).map(renumbered)),
                }
            }
            let params = vec![of.params[rank].clone()];
            phases.push(PhaseLaunches { calls, symbols: vec![symbols.parts], params, ..PhaseLaunches::default() });
        }
        let (weights, states) = (vec![all.weights[rank].clone()], vec![all.states[rank].clone()]);
        let (ranks, meets) = (vec![rank], None);
        self.launches = Launches { phases, weights, states, arena: all.arena, scratch: base + slots, ranks, meets };
        self.forget_kernels();
        super::graph::set(plan, self.arch, &mut self.kernels, &mut self.launches);
        Ok(self)
    }

    /// Drops the kernels that nothing launches any more.
    fn forget_kernels(&mut self) {
        let l = &mut self.launches;
        let calls = l.phases.iter().flat_map(|p| &p.calls).map(|c| c.kernel);
        let mut used: Vec<usize> = calls.chain(l.weights.iter().flatten().filter_map(|w| w.repack)).collect();
        used.sort_unstable();
        used.dedup();
        // Every number that is looked up is in the list.
        let place = |k: usize| used.partition_point(|u| *u < k);
        l.phases.iter_mut().flat_map(|p| &mut p.calls).for_each(|c| c.kernel = place(c.kernel));
        let repacked = l.weights.iter_mut().flatten().filter_map(|w| w.repack.as_mut());
        repacked.for_each(|k| *k = place(*k));
        self.kernels = used.iter().map(|u| self.kernels[*u].clone()).collect();
    }

    fn args(&self, step: &Step, kernel: usize, base: u64) -> Vec<Place> {
        let of = |access| step.args.iter().find(|a| a.access == access).map(|a| a.mem);
        let mem = |m: Option<Mem>| m.map_or(Place::Scratch(base), |mem| Place::Mem { rank: 0, mem });
        let place = |f: &Field| match &f.role {
            Role::Param { access: Access::Read, .. } => mem(of(Access::Read)),
            Role::Param { .. } => mem(of(Access::Write)),
            Role::Symbols => Place::Symbols { rank: 0 },
            Role::Scratch { .. } => Place::Scratch(base),
            Role::Slab { device } => Place::Slab { device: *device },
            Role::Control => Place::Control,
            Role::Halt => Place::Halt,
        };
        self.kernels[kernel].signature.0.iter().map(place).collect()
    }

    /// The kernel, and the bytes of its slots.
    fn stand_in(
        &mut self,
        plan: &Plan,
        step: &Step,
        what: &Collective,
        rank: usize,
        symbols: &mut Symbols,
    ) -> Result<(usize, u64), String> {
        let arg = |access| step.args.iter().find(|a| a.access == access).ok_or("a collective takes and gives a value");
        let (from, to) = (arg(Access::Read)?, arg(Access::Write)?);
        let members = group(&plan.mesh, &what.axis, rank as u64).ok_or_else(|| format!("no axis {}", what.axis))?.len();
        let own = symbols.local(&from.ty, &plan.mesh, rank as u64)?;
        let result = symbols.local(&to.ty, &plan.mesh, rank as u64)?;
        let word = |t: &TensorType| matches!(t.elem, Elem::F32 | Elem::I32);
        if !word(&own) || !word(&result) {
            return Err(format!("stored blocks do not travel: {}", from.ty));
        }
        let bounds = symbols.bounds.clone();
        let bytes = result.bytes(&bounds).ok_or_else(|| format!("no size of {result}"))?;
        let float = own.elem == Elem::F32;
        let (run, places) = match what.kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter { .. } => {
                (summed(members, &own, &result, &bounds, float)?, members as u64)
            }
            _ => (joined(&own, &result, &bounds)?, 1),
        };
        let slots = bytes * places;
        let comment = format!("stands in for {:?} over {} of {members} ranks: {}", what.kind, what.axis, from.ty);
        let fields = vec![("x".into(), Access::Read, own), ("y".into(), Access::Write, result.clone())];
        let over = &result.dims;
        let source =
            Source { stem: "alone", comment, fields, over, syms: &bounds, run, slots: Some(slots), includes: &[] };
        let made = make(source)?;
        let at = self.kernels.iter().position(|k| k.name == made.name);
        Ok((
            at.unwrap_or_else(|| {
                self.kernels.push(made);
                self.kernels.len() - 1
            }),
            slots,
        ))
    }
}

/// The rank's symbols as its kernels count them; those of stand-ins come after them.
fn symbols_of(phase: &Phase, parts: &[SymbolPart]) -> Symbols {
    let mut symbols = Symbols::of(&phase.bounds());
    for (i, part) in parts.iter().enumerate().skip(symbols.parts.len()) {
        // A name that no type has: only its place matters.
        symbols.bounds.0.insert(Sym::from(format!("part {i}").as_str()), 0);
        symbols.parts.push(part.clone());
    }
    symbols
}

fn renumbered(call: &Call) -> Call {
    let place = |p: &Place| match *p {
        Place::Mem { mem, .. } => Place::Mem { rank: 0, mem },
        Place::Symbols { .. } => Place::Symbols { rank: 0 },
        other => other,
    };
    Call { rank: 0, args: call.args.iter().map(place).collect(), ..call.clone() }
}

/// Pushes the own part once for each member and sums the slots; the result may be a part of it.
fn summed(
    members: usize,
    own: &TensorType,
    result: &TensorType,
    syms: &SymValues,
    float: bool,
) -> Result<String, String> {
    let ty = if float { "f32" } else { "u32" };
    let (n, whole) = (size(&result.dims, syms)?, size(&own.dims, syms)?);
    let mut run = format!("    u64 n = {n};\n    {ty} x = reinterpret_cast<const {ty}*>(args.x)[i % ({whole})];\n");
    for r in 0..members {
        let _ = writeln!(run, "    volatile {ty}* slot{r} = reinterpret_cast<volatile {ty}*>(args.slots) + {r}u * n;");
        let _ = writeln!(run, "    slot{r}[i] = x;");
    }
    let _ = writeln!(run, "    {ty} v = slot0[i];");
    (1..members).for_each(|r| {
        let _ = writeln!(run, "    v = v + slot{r}[i];");
    });
    let _ = writeln!(run, "    reinterpret_cast<{ty}*>(args.y)[i] = v;");
    Ok(run)
}

/// Pushes the own part to where each member's part of the result lies, and reads the result from there.
fn joined(own: &TensorType, result: &TensorType, syms: &SymValues) -> Result<String, String> {
    let held = size(&own.dims, syms)?;
    let whole = size(&result.dims, syms)?;
    Ok(format!(
        "    u64 held = {held}, whole = {whole};\n    volatile u32* slot = reinterpret_cast<volatile \
         u32*>(args.slots);\n    if (held && i < whole) slot[i] = reinterpret_cast<const u32*>(args.x)[i % held];\n    \
         reinterpret_cast<u32*>(args.y)[i] = held ? slot[i] : 0u;\n"
    ))
}
