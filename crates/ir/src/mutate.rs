//! Owns the seeded mutators, of plans here (those of several ranks in `ranks`) and of sharded modules in `sharded`: each
//! class is a bug that compilers of this kind have had. Tests hold the verifier to it. Never judges a plan and never
//! makes a valid one on purpose.
//!
//! A mutant of a valid plan may still mean the same (two steps that do not depend on each other change places): whether
//! it counts is for the test to find out by running it.

mod ranks;
mod sharded;

pub use ranks::{Reordered, reorder};
pub use sharded::{ShardedMutant, mutate_sharded};

use crate::entities::{BufId, WeightId};
use crate::kernel::Access;
use crate::plan::{ALIGN, Mem, Phase, Plan, Segment, Slice};
use crate::ty::{Elem, Extent};

/// A kind of bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MutantClass {
    /// Two ranks read each other's slices of a weight; with one rank, its bytes are read in halves in the wrong order.
    SwapShards,
    /// A slice of a weight starts a block too early or too late.
    ShiftPiece,
    /// A buffer lies where another one lies.
    AliasBuffers,
    /// A step is missing.
    DropWrite,
    /// A step writes another buffer than the one its readers read.
    RedirectOutput,
    /// An append comes after the read of its state, or is missing.
    StaleState,
    /// An argument is seen with another element.
    WrongDtype,
    /// An argument is seen with dims or pieces in another order.
    WrongView,
    /// Two weights of one type read each other's bytes.
    SwapSpans,
    /// A weight reads the bytes of another one of its type.
    DuplicateSpan,
    /// The last block of a weight is not read, or another one twice.
    LoseSpan,
    /// Two inputs of a step change places.
    SwapArgs,
    /// Two neighbouring steps change places.
    SwapSteps,
    /// A merge over ranks is missing: its readers read what it would have merged.
    DropReduce,
    /// A merge over ranks is done twice.
    DoubleReduce,
    /// The border between two ranks' slices lies inside a block.
    CutBlock,
    /// Steps run beside a collective whose result they read, or whose operand they overwrite.
    LateCollective,
}

impl MutantClass {
    /// Those that plans of one rank have no site for.
    pub const ON_RANKS: [MutantClass; 4] =
        [MutantClass::DropReduce, MutantClass::DoubleReduce, MutantClass::CutBlock, MutantClass::LateCollective];

    /// Every class.
    pub const ALL: [MutantClass; 17] = [
        MutantClass::SwapShards,
        MutantClass::ShiftPiece,
        MutantClass::AliasBuffers,
        MutantClass::DropWrite,
        MutantClass::RedirectOutput,
        MutantClass::StaleState,
        MutantClass::WrongDtype,
        MutantClass::WrongView,
        MutantClass::SwapSpans,
        MutantClass::DuplicateSpan,
        MutantClass::LoseSpan,
        MutantClass::SwapArgs,
        MutantClass::SwapSteps,
        MutantClass::DropReduce,
        MutantClass::DoubleReduce,
        MutantClass::CutBlock,
        MutantClass::LateCollective,
    ];
}

/// The mutant of a valid plan by class and seed; `None` if the class has no site in it. Equal inputs give equal mutants.
pub fn mutate(plan: &Plan, class: MutantClass, seed: u64) -> Option<Plan> {
    let mut m = Mutator { plan: plan.clone(), random: Mixer(seed ^ (class as u64) << 32) };
    match class {
        MutantClass::SwapShards => m.swap_shards(),
        MutantClass::ShiftPiece => m.shift_piece(),
        MutantClass::AliasBuffers => m.alias_buffers(),
        MutantClass::DropWrite => m.drop_write(),
        MutantClass::RedirectOutput => m.redirect_output(),
        MutantClass::StaleState => m.stale_state(),
        MutantClass::WrongDtype => m.wrong_dtype(),
        MutantClass::WrongView => m.wrong_view(),
        MutantClass::SwapSpans => m.swap_spans(),
        MutantClass::DuplicateSpan => m.duplicate_span(),
        MutantClass::LoseSpan => m.lose_span(),
        MutantClass::SwapArgs => m.swap_args(),
        MutantClass::SwapSteps => m.swap_steps(),
        MutantClass::DropReduce => m.drop_reduce(),
        MutantClass::DoubleReduce => m.double_reduce(),
        MutantClass::CutBlock => m.cut_block(),
        MutantClass::LateCollective => m.late_collective(),
    }?;
    Some(m.plan)
}

/// SplitMix64 (Steele et al., 2014).
struct Mixer(u64);

impl Mixer {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> Option<usize> {
        (n > 0).then(|| (self.next() % n as u64) as usize)
    }

    fn pick<T: Copy>(&mut self, sites: &[T]) -> Option<T> {
        self.below(sites.len()).map(|i| sites[i])
    }
}

struct Mutator {
    plan: Plan,
    random: Mixer,
}

impl Mutator {
    fn weight(&mut self) -> Option<WeightId> {
        let all: Vec<WeightId> = self.plan.weights.keys().collect();
        self.random.pick(&all)
    }

    /// Two different weights of one type.
    fn twins(&mut self) -> Option<(WeightId, WeightId)> {
        let w = &self.plan.weights;
        let pairs: Vec<(WeightId, WeightId)> = w
            .keys()
            .flat_map(|a| w.keys().map(move |b| (a, b)))
            .filter(|(a, b)| a != b && w[*a].ty == w[*b].ty)
            .collect();
        self.random.pick(&pairs)
    }

    /// A phase and one of its `sites`.
    fn site<T: Copy>(&mut self, sites: impl Fn(&Phase) -> Vec<T>) -> Option<(usize, T)> {
        let of = |(i, p): (usize, &Phase)| sites(p).into_iter().map(|s| (i, s)).collect::<Vec<_>>();
        let all: Vec<(usize, T)> = self.plan.phases.iter().enumerate().flat_map(of).collect();
        self.random.pick(&all)
    }

    fn swap_shards(&mut self) -> Option<()> {
        let w = self.weight()?;
        let block = self.plan.weights[w].ty.elem.in_file().block().1;
        let slices = &mut self.plan.weights[w].slices;
        if slices.len() > 1 {
            // Ranks that hold the same would not show it.
            let others: Vec<usize> = (1..slices.len()).filter(|i| slices[*i] != slices[i - 1]).collect();
            let a = self.random.pick(&others)?;
            slices.swap(a - 1, a);
            return Some(());
        }
        let whole = slices.first()?.first().copied().filter(|s| s.count == 1 && s.bytes >= 2 * block)?;
        let half = whole.bytes / block / 2 * block;
        let run = |offset, bytes| Slice { offset, bytes, stride: bytes, ..whole };
        slices[0] = vec![run(whole.offset + half, whole.bytes - half), run(whole.offset, half)];
        Some(())
    }

    fn shift_piece(&mut self) -> Option<()> {
        let w = self.weight()?;
        let recipe = &mut self.plan.weights[w];
        let block = recipe.ty.elem.in_file().block().1;
        let rank = self.random.below(recipe.slices.len())?;
        let slice = self.random.below(recipe.slices[rank].len())?;
        let s = &mut recipe.slices[rank][slice];
        let end = s.offset + (s.count - 1) * s.stride + s.bytes + block;
        let room = self.plan.files.get(s.part as usize).is_some_and(|f| end <= f.bytes);
        s.offset = if room && self.random.next().is_multiple_of(2) {
            s.offset + block
        } else {
            s.offset.checked_sub(block)?
        };
        Some(())
    }

    fn alias_buffers(&mut self) -> Option<()> {
        let (p, (a, b)) = self.site(|p| {
            let ids: Vec<BufId> = p.buffers.keys().collect();
            let pairs = ids.iter().flat_map(|a| ids.iter().map(move |b| (*a, *b)));
            pairs.filter(|(a, b)| p.buffers[*a].offset != p.buffers[*b].offset).collect()
        })?;
        let phase = &mut self.plan.phases[p];
        phase.buffers[a].offset = phase.buffers[b].offset;
        phase.arena_bytes = phase.buffers.values().map(|b| b.offset + b.bytes).max()?;
        Some(())
    }

    fn drop_write(&mut self) -> Option<()> {
        let (p, at) = self.site(|p| (0..p.steps.len()).collect())?;
        remove(&mut self.plan.phases[p], at);
        Some(())
    }

    fn redirect_output(&mut self) -> Option<()> {
        let (p, (step, arg)) = self.site(|p| {
            let args = |(i, s): (usize, &crate::plan::Step)| {
                (0..s.args.len()).filter(|a| s.args[*a].access == Access::Write).map(|a| (i, a)).collect::<Vec<_>>()
            };
            p.steps.iter().enumerate().flat_map(args).collect()
        })?;
        let fresh = self.random.next().is_multiple_of(2);
        let phase = &mut self.plan.phases[p];
        let Mem::Buf(b) = phase.steps[step].args[arg].mem else { return None };
        let to = if fresh {
            let offset = phase.arena_bytes.next_multiple_of(ALIGN);
            let copy = crate::plan::Buffer { offset, name: "scratch".into(), ..phase.buffers[b].clone() };
            phase.arena_bytes = offset + copy.bytes;
            phase.buffers.push(copy)
        } else {
            let like: Vec<BufId> =
                phase.buffers.keys().filter(|o| *o != b && phase.buffers[*o].ty == phase.buffers[b].ty).collect();
            self.random.pick(&like)?
        };
        self.plan.phases[p].steps[step].args[arg].mem = Mem::Buf(to);
        Some(())
    }

    fn stale_state(&mut self) -> Option<()> {
        let (p, at) = self.site(|p| {
            let updates = |i: &usize| p.steps[*i].args.iter().any(|a| a.access == Access::Update);
            (0..p.steps.len()).filter(updates).collect()
        })?;
        let phase = &mut self.plan.phases[p];
        let state = phase.steps[at].args.iter().find(|a| a.access == Access::Update)?.mem;
        let reads = |s: &crate::plan::Step| s.args.iter().any(|a| a.mem == state && a.access == Access::Read);
        let read = (at + 1..phase.steps.len()).find(|i| reads(&phase.steps[*i]))?;
        if self.random.next().is_multiple_of(2) {
            remove(phase, at);
        } else {
            let step = phase.steps.remove(at);
            phase.steps.insert(read, step);
        }
        Some(())
    }

    /// A phase, a step and an argument.
    fn arg(&mut self) -> Option<(usize, usize, usize)> {
        let (p, (step, arg)) =
            self.site(|p| (0..p.steps.len()).flat_map(|i| (0..p.steps[i].args.len()).map(move |a| (i, a))).collect())?;
        Some((p, step, arg))
    }

    fn wrong_dtype(&mut self) -> Option<()> {
        let (p, step, arg) = self.arg()?;
        let elem = self.random.pick(&[Elem::F32, Elem::F16, Elem::BF16, Elem::I32])?;
        let ty = &mut self.plan.phases[p].steps[step].args[arg].ty;
        if ty.elem == elem {
            return None;
        }
        ty.elem = elem;
        Some(())
    }

    fn wrong_view(&mut self) -> Option<()> {
        let (p, step, arg) = self.arg()?;
        let kind = self.random.below(3)?;
        let ty = &mut self.plan.phases[p].steps[step].args[arg].ty;
        let before = ty.clone();
        let split = ty.dims.iter().position(|d| d.split.is_some());
        match (split, kind, ty.dims.last_mut().map(|d| &mut d.extent)) {
            // What a rank holds taken for the whole, or for its part of another dim.
            (Some(d), 0, _) => ty.dims[d].split = None,
            (Some(d), 1, _) => {
                let to = (d + 1) % ty.dims.len();
                let at = ty.dims[d].split.take();
                ty.dims[to].split = at;
            }
            (_, _, Some(Extent::Joined(pieces))) => pieces.reverse(),
            _ => ty.dims.reverse(),
        }
        (*ty != before).then_some(())
    }

    fn swap_spans(&mut self) -> Option<()> {
        let (a, b) = self.twins()?;
        let mine = std::mem::take(&mut self.plan.weights[a].slices);
        let theirs = std::mem::replace(&mut self.plan.weights[b].slices, mine);
        self.plan.weights[a].slices = theirs;
        Some(())
    }

    fn duplicate_span(&mut self) -> Option<()> {
        let (a, b) = self.twins()?;
        let (span, slices) = (self.plan.weights[b].span, self.plan.weights[b].slices.clone());
        self.plan.weights[a].span = span;
        self.plan.weights[a].slices = slices;
        Some(())
    }

    fn lose_span(&mut self) -> Option<()> {
        let w = self.weight()?;
        let recipe = &mut self.plan.weights[w];
        let block = recipe.ty.elem.in_file().block().1;
        let rank = self.random.below(recipe.slices.len())?;
        let last = recipe.slices[rank].last_mut().filter(|s| s.count == 1 && s.bytes >= 2 * block)?;
        last.bytes -= block;
        last.stride = last.bytes;
        // The rank still gets as many bytes: the block before comes twice.
        let again = Slice { offset: last.offset + last.bytes - block, bytes: block, stride: block, ..*last };
        recipe.slices[rank].push(again);
        Some(())
    }

    fn swap_args(&mut self) -> Option<()> {
        let (p, (step, a, b)) = self.site(|p| {
            let pairs = |i: usize| {
                let inputs: Vec<usize> =
                    (0..p.steps[i].args.len()).filter(|a| p.steps[i].args[*a].access == Access::Read).collect();
                let pair = |a: usize| inputs.iter().copied().filter(move |b| a < *b).map(move |b| (i, a, b));
                inputs.iter().copied().flat_map(pair).collect::<Vec<_>>()
            };
            (0..p.steps.len()).flat_map(pairs).collect()
        })?;
        self.plan.phases[p].steps[step].args.swap(a, b);
        Some(())
    }

    fn swap_steps(&mut self) -> Option<()> {
        let (p, at) = self.site(|p| (1..p.steps.len()).collect())?;
        self.plan.phases[p].steps.swap(at - 1, at);
        Some(())
    }
}

/// Removes a step so that the segments still fit.
fn remove(phase: &mut Phase, at: usize) {
    phase.steps.remove(at);
    for s in &mut phase.segments {
        if s.first > at {
            s.first -= 1;
        } else if at - s.first < s.count {
            s.count -= 1;
        }
    }
    phase.segments.retain(|s: &Segment| s.count > 0);
}
