//! Owns the mutators of what only plans of several ranks have: merges, borders between ranks' slices, the order in which
//! a rank meets the others.

use cranelift_entity::PrimaryMap;

use super::{Mixer, Mutator, remove};
use crate::entities::BufId;
use crate::kernel::Kernel;
use crate::plan::{ALIGN, Buffer, Mem, Overlap, Phase, Plan, Segment};

/// Two collectives that one rank takes in the other order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reordered {
    /// The rank.
    pub rank: usize,
    /// The phase.
    pub phase: String,
    /// The steps.
    pub steps: [usize; 2],
}

/// Two collectives of a phase and a rank, by seed; `None` where no phase has two. A plan cannot say it: it has one list
/// of steps for all ranks.
pub fn reorder(plan: &Plan, seed: u64) -> Option<Reordered> {
    let mut random = Mixer(seed);
    let meets = |k: &Kernel| {
        matches!(k, Kernel::AllReduce(_) | Kernel::AllGather(_) | Kernel::ReduceScatter(_) | Kernel::AllToAll(_))
    };
    let at = |p: &Phase| (0..p.steps.len()).filter(|i| meets(&p.steps[*i].kernel)).collect::<Vec<_>>();
    let phases: Vec<(&Phase, Vec<usize>)> =
        plan.phases.iter().map(|p| (p, at(p))).filter(|(_, s)| s.len() > 1).collect();
    let (phase, steps) = &phases[random.below(phases.len())?];
    let first = random.below(steps.len() - 1)?;
    let rank = random.below(plan.target.ranks as usize)?;
    Some(Reordered { rank, phase: phase.name.clone(), steps: [steps[first], steps[first + 1]] })
}

impl Mutator {
    /// A phase and a merge in it.
    fn merge(&mut self) -> Option<(usize, usize)> {
        self.site(|p| (0..p.steps.len()).filter(|i| matches!(p.steps[*i].kernel, Kernel::AllReduce(_))).collect())
    }

    pub(super) fn drop_reduce(&mut self) -> Option<()> {
        let (p, at) = self.merge()?;
        let retype = self.random.next().is_multiple_of(2);
        let phase = &mut self.plan.phases[p];
        let (from, to) = (phase.steps[at].args[0].clone(), phase.steps[at].args[1].mem);
        remove(phase, at);
        let args = phase.steps.iter_mut().flat_map(|s| &mut s.args).filter(|a| a.mem == to);
        for a in args {
            a.mem = from.mem;
            if retype && a.ty.dims == from.ty.dims {
                a.ty = from.ty.clone();
            }
        }
        phase.results.iter_mut().filter(|r| r.mem == to).for_each(|r| r.mem = from.mem);
        match to {
            Mem::Buf(b) => forget(phase, b),
            _ => return None,
        }
        Some(())
    }

    pub(super) fn double_reduce(&mut self) -> Option<()> {
        let (p, at) = self.merge()?;
        let pending = self.random.next().is_multiple_of(2);
        let phase = &mut self.plan.phases[p];
        let mut again = phase.steps[at].clone();
        let Mem::Buf(once) = again.args[1].mem else { return None };
        let offset = phase.arena_bytes.next_multiple_of(ALIGN);
        let twice = Buffer { offset, name: "twice".into(), ..phase.buffers[once].clone() };
        phase.arena_bytes = offset + twice.bytes;
        let twice = Mem::Buf(phase.buffers.push(twice));
        for s in &mut phase.steps[at + 1..] {
            s.args.iter_mut().filter(|a| a.mem == Mem::Buf(once)).for_each(|a| a.mem = twice);
        }
        phase.results.iter_mut().filter(|r| r.mem == Mem::Buf(once)).for_each(|r| r.mem = twice);
        // The merged value is passed off as one that is still to be merged, or not even that.
        if !pending {
            again.args[0].ty = again.args[1].ty.clone();
        }
        again.args[0].mem = Mem::Buf(once);
        again.args[1].mem = twice;
        phase.steps.insert(at + 1, again);
        for s in &mut phase.segments {
            if s.first > at {
                s.first += 1;
            } else if at - s.first < s.count {
                s.count += 1;
            }
        }
        Some(())
    }

    pub(super) fn late_collective(&mut self) -> Option<()> {
        let (p, (step, end)) = self.site(|p| {
            let of = |s: &Segment| {
                let end = s.first.saturating_add(s.count).min(p.steps.len());
                (s.first..end).map(move |i| (i, end))
            };
            let meets = |i: usize| p.steps[i].kernel.collective().is_some();
            p.segments.iter().flat_map(of).filter(|(i, end)| i + 2 < *end && meets(*i)).collect()
        })?;
        // One step or a few run beside it.
        let done = step + 2 + self.random.below((end - step - 2).min(8))?;
        let phase = &mut self.plan.phases[p];
        phase.overlaps.retain(|o| o.step != step);
        phase.overlaps.push(Overlap { step, done });
        phase.overlaps.sort_unstable_by_key(|o| o.step);
        Some(())
    }

    pub(super) fn cut_block(&mut self) -> Option<()> {
        let keep = self.random.next().is_multiple_of(2);
        let w = &self.plan.weights;
        let borders: Vec<_> = w
            .iter()
            .filter(|(_, w)| w.ty.elem.block().0 > 1)
            .flat_map(|(id, w)| (1..w.slices.len()).map(move |r| (id, r)))
            .filter(|(id, r)| {
                let slices = &w[*id].slices;
                slices[r - 1] != slices[*r] && !slices[r - 1].is_empty() && !slices[*r].is_empty()
            })
            .collect();
        let (id, rank) = self.random.pick(&borders)?;
        let recipe = &mut self.plan.weights[id];
        let inside = recipe.ty.elem.in_file().block().1 / 2;
        if keep {
            // As many bytes as before, from the middle of a block.
            let s = recipe.slices[rank].first_mut()?;
            s.offset = s.offset.checked_sub(inside)?;
            return Some(());
        }
        let before = recipe.slices[rank - 1].last_mut()?;
        before.bytes += inside;
        before.stride = before.stride.max(before.bytes);
        let s = recipe.slices[rank].first_mut()?;
        (s.offset, s.bytes) = (s.offset + inside, s.bytes - inside);
        if s.count == 1 {
            s.stride = s.bytes;
        }
        Some(())
    }
}

/// Takes a buffer that nothing names any more out of the phase.
fn forget(phase: &mut Phase, gone: BufId) {
    let new = |b: BufId| if b > gone { BufId::from_u32(b.as_u32() - 1) } else { b };
    let renamed = |m: &mut Mem| {
        if let Mem::Buf(b) = m {
            *b = new(*b);
        }
    };
    let kept: PrimaryMap<BufId, Buffer> =
        phase.buffers.iter().filter(|(b, _)| *b != gone).map(|(_, b)| b.clone()).collect();
    phase.buffers = kept;
    phase.steps.iter_mut().flat_map(|s| &mut s.args).for_each(|a| renamed(&mut a.mem));
    phase.results.iter_mut().for_each(|r| renamed(&mut r.mem));
}
