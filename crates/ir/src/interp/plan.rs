//! Owns the interpreter of the plan level: bytes in buffers, launch by launch, each by its contract's meaning.
//!
//! Memory is modelled element by element and starts as poison. Reading an element that no launch wrote, or that a later
//! write has partly covered, is an error, so a disconnected output or a stale buffer cannot pass. Each rank has memory of
//! its own; all run the one step list, and only a collective reads more than one rank's memory.

use crate::diag::Diagnostic;
use crate::entities::{BufId, StateId};
use crate::graph::Function;
use crate::kernel::{Access, collective_of};
use crate::op::Op;
use crate::placement::strip;
use crate::plan::{Arg, Mem, Phase, Plan, Step};
use crate::tensor::{Data, EvalError, Tensor, concrete};
use crate::ty::{Elem, SymValues, TensorType};

use super::Arith;
use super::launch::on_rank;
use super::ranks::{Rules, World, exchange, seen_as};

/// Reads the bytes of a slice of the weight files.
pub trait SliceSource {
    /// Appends the bytes of `slice` to `out`.
    ///
    /// # Errors
    /// When they cannot be had.
    fn read(&self, slice: &crate::plan::Slice, out: &mut Vec<u8>) -> Result<(), EvalError>;
}

/// Bytes are modelled in slots of this many: the smallest element.
const SLOT: u64 = 2;

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Poison,
    /// The first slot of an element of this type.
    Head(Elem),
    /// A later slot of an element.
    Tail,
}

/// Element-wise memory.
struct Memory {
    slots: Vec<(f64, Tag)>,
}

impl Memory {
    fn new(bytes: u64) -> Self {
        Memory { slots: vec![(f64::NAN, Tag::Poison); (bytes / SLOT) as usize] }
    }

    fn write(&mut self, offset: u64, elem: Elem, values: impl Iterator<Item = f64>) -> Result<(), EvalError> {
        let width = (elem.block().1 / SLOT) as usize;
        let mut at = (offset / SLOT) as usize;
        for v in values {
            let cell =
                self.slots.get_mut(at..at + width).ok_or_else(|| EvalError::new("a write ends outside its memory"))?;
            cell.fill((0.0, Tag::Tail));
            cell[0] = (v, Tag::Head(elem));
            // What followed is torn if this write ended inside an element.
            at += width;
            if let Some(next) = self.slots.get_mut(at)
                && next.1 == Tag::Tail
            {
                next.1 = Tag::Poison;
            }
        }
        Ok(())
    }

    fn poison(&mut self, offset: u64, bytes: u64) {
        let at = (offset / SLOT) as usize..(offset.saturating_add(bytes) / SLOT) as usize;
        if let Some(cells) = self.slots.get_mut(at) {
            cells.fill((f64::NAN, Tag::Poison));
        }
    }

    fn read(&self, offset: u64, elem: Elem, n: usize) -> Result<Vec<f64>, EvalError> {
        let width = (elem.block().1 / SLOT) as usize;
        let start = (offset / SLOT) as usize;
        let slots =
            self.slots.get(start..start + n * width).ok_or_else(|| EvalError::new("a read ends outside its memory"))?;
        let read = |(i, cell): (usize, &[(f64, Tag)])| {
            let whole = cell[0].1 == Tag::Head(elem) && cell[1..].iter().all(|c| c.1 == Tag::Tail);
            if whole { Ok(cell[0].0) } else { Err(EvalError::new(format!("reads poison at element {i}"))) }
        };
        slots.chunks_exact(width).enumerate().map(read).collect()
    }
}

/// Called after each step with its index and each output or updated argument.
pub type StepObserver<'a> = &'a mut dyn FnMut(usize, &Arg, &Tensor);

/// The interpreter of one plan; cache pools live as long as it does.
pub struct PlanInterp<'a> {
    plan: &'a Plan,
    arith: Arith,
    files: &'a dyn SliceSource,
    /// For each pool each rank's part.
    states: Vec<Vec<Tensor>>,
    observer: Option<StepObserver<'a>>,
    rules: Rules,
    late: Option<Late>,
}

/// Two steps that one rank takes in the other order: see [`PlanInterp::reordered`].
struct Late {
    rank: usize,
    phase: String,
    steps: [usize; 2],
}

/// One run of a phase.
struct Run<'r> {
    phase: &'r Phase,
    world: World<'r>,
    /// For each parameter each rank's part.
    params: Vec<Vec<Tensor>>,
    arenas: Vec<Memory>,
}

impl Run<'_> {
    /// A collective that steps run beside: until it is done, its result is poison.
    fn begin(&mut self, step: &Step) -> Result<(), EvalError> {
        for a in step.args.iter().filter(|a| a.access == Access::Write) {
            let Mem::Buf(b) = a.mem else { continue };
            let b = buffer(self.phase, b)?;
            self.arenas.iter_mut().for_each(|m| m.poison(b.offset, b.bytes));
        }
        Ok(())
    }
}

impl<'a> PlanInterp<'a> {
    /// An interpreter with poisoned cache pools.
    ///
    /// # Errors
    /// A mesh of another number of ranks than the target's, or a pool whose size is not constant.
    pub fn new(plan: &'a Plan, arith: Arith, files: &'a dyn SliceSource) -> Result<Self, EvalError> {
        let none = SymValues::default();
        let world = World { mesh: &plan.mesh, syms: &none, rules: Rules::Kept };
        let ranks = world.ranks()?;
        if ranks != u64::from(plan.target.ranks) {
            return Err(EvalError::new(format!("a mesh of {ranks} ranks for {}", plan.target.ranks)));
        }
        let poison = |s: &crate::plan::State| {
            (0..ranks).map(|r| Tensor::poison(&world.local(&s.ty, r)?, &none)).collect::<Result<Vec<_>, EvalError>>()
        };
        let states = plan.states.values().map(poison).collect::<Result<_, _>>()?;
        Ok(PlanInterp { plan, arith, files, states, observer: None, rules: Rules::Kept, late: None })
    }

    /// The same with pools that begin as the whole tensors that `of` has for their names; others stay poison.
    ///
    /// # Errors
    /// A tensor of another shape than its pool.
    pub fn with_states(mut self, of: impl Fn(&str) -> Option<Tensor>) -> Result<Self, EvalError> {
        let none = SymValues::default();
        let world = World { mesh: &self.plan.mesh, syms: &none, rules: Rules::Kept };
        for (s, parts) in self.plan.states.values().zip(&mut self.states) {
            let Some(t) = of(&s.name) else { continue };
            if concrete(&s.ty, &none)? != t.shape {
                return Err(EvalError::new(format!("pool `{}` is {}, found {:?}", s.name, s.ty, t.shape)));
            }
            *parts = world.cut(&t, &s.ty)?;
        }
        Ok(self)
    }

    /// The pools as they are now, whole, by name.
    ///
    /// # Errors
    /// Copies that differ.
    pub fn states(&self) -> Result<Vec<(String, Tensor)>, EvalError> {
        let none = SymValues::default();
        let world = World { mesh: &self.plan.mesh, syms: &none, rules: Rules::Kept };
        let all = self.plan.states.values().zip(&self.states);
        all.map(|(s, parts)| Ok((s.name.clone(), world.whole(parts.clone(), &s.ty)?))).collect()
    }

    /// The same for a plan that the verifier has not seen: it does what is written, as a device would. Each argument is
    /// memory seen by the argument's type, a merge adds whatever ranks bring, and of copies that differ the first is the
    /// result. Poison that is read stays an error.
    pub fn unverified(mut self) -> Self {
        self.rules = Rules::Ignored;
        self
    }

    /// The same with two collectives of `phase` in the other order on `rank` alone, which no plan can say: ranks meet
    /// as they come.
    pub fn reordered(mut self, rank: usize, phase: &str, steps: [usize; 2]) -> Self {
        self.late = Some(Late { rank, phase: phase.into(), steps });
        self
    }

    /// The same, showing the outputs of each step, put together, to `f`.
    pub fn observe(mut self, f: StepObserver<'a>) -> Self {
        self.observer = Some(f);
        self
    }

    /// Runs one phase at the symbol values `syms` with whole `params` in order; returns the phase's whole results in
    /// order.
    ///
    /// # Errors
    /// Poison that is read, memory out of bounds, parameters of another shape, an op without an answer, copies of ranks
    /// that differ. The message names the step.
    pub fn run(&mut self, phase: &Phase, syms: &SymValues, params: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        if params.len() != phase.params.len() {
            return Err(EvalError::new(format!("{} parameters for {}", params.len(), phase.params.len())));
        }
        let plan = self.plan;
        let world = World { mesh: &plan.mesh, syms, rules: self.rules };
        let mut own = Vec::with_capacity(params.len());
        for (p, t) in phase.params.values().zip(params) {
            if concrete(&p.ty, syms)? != t.shape {
                return Err(EvalError::new(format!("parameter `{}` is {}, found {:?}", p.name, p.ty, t.shape)));
            }
            own.push(world.cut(t, &p.ty)?);
        }
        let arenas = (0..world.ranks()?).map(|_| Memory::new(phase.arena_bytes)).collect();
        let mut run = Run { phase, world, params: own, arenas };
        for i in 0..=phase.steps.len() {
            // What steps ran beside is done as late as it may be, so that a wrong one is seen.
            for o in phase.overlaps.iter().filter(|o| o.done.min(phase.steps.len()) == i && o.step < i) {
                self.named_step(&mut run, o.step)?;
            }
            match phase.steps.get(i) {
                Some(step) if phase.done(i).is_some_and(|done| done > i) => run.begin(step)?,
                Some(_) => self.named_step(&mut run, i)?,
                None => {}
            }
        }
        let result = |r: &crate::plan::PhaseResult| {
            let parts = self.read_all(&run, r.mem, &r.ty).and_then(|parts| run.world.whole(parts, &r.ty));
            parts.map_err(|e| EvalError::new(format!("result `{}`: {e}", r.name)))
        };
        phase.results.iter().map(result).collect()
    }

    fn named_step(&mut self, run: &mut Run<'_>, i: usize) -> Result<(), EvalError> {
        let phase = run.phase;
        let step = &phase.steps[i];
        self.step(run, i, step).map_err(|e| EvalError::new(format!("step {i} `{}`: {e}", step.name)))
    }

    fn step(&mut self, run: &mut Run<'_>, i: usize, step: &Step) -> Result<(), EvalError> {
        let inputs: Vec<&Arg> = step.args.iter().filter(|a| a.access != Access::Write).collect();
        let types: Vec<&TensorType> = inputs.iter().map(|a| &a.ty).collect();
        let values = inputs
            .iter()
            .enumerate()
            .map(|(k, a)| {
                let parts = (0..run.arenas.len()).map(|rank| {
                    let a = self.step_of(run.phase, i, rank).args.get(k).unwrap_or(a);
                    self.read(run, rank, a.mem, &a.ty)
                });
                parts.collect::<Result<_, _>>().map_err(|e: EvalError| EvalError::new(format!("`{}`: {e}", a.name)))
            })
            .collect::<Result<Vec<Vec<Tensor>>, _>>()?;
        let targets = step.args.iter().filter(|a| a.access == Access::Update);
        let targets: Vec<&Arg> = targets.chain(step.args.iter().filter(|a| a.access == Access::Write)).collect();
        let results = match (self.rules, Op::from_attrs(step.kernel.name(), step.kernel.attrs()), targets.as_slice()) {
            (Rules::Ignored, Ok(op), [y]) if op.collective().is_some() => {
                let c = op.collective().ok_or_else(|| EvalError::new("no collective"))?;
                vec![exchange(&c, types[0], &y.ty, &run.world, &values[0])?]
            }
            _ => {
                let meaning = self.meaning(step, &types).map_err(|d| EvalError::new(d.message))?;
                self.launch(run, meaning, values)?
            }
        };
        for (k, (arg, parts)) in targets.iter().zip(results).enumerate() {
            if let Some(see) = self.observer.as_mut() {
                see(i, arg, &run.world.whole(parts.clone(), &arg.ty)?);
            }
            for (rank, part) in parts.into_iter().enumerate() {
                let own = self.step_of(run.phase, i, rank);
                let to = own.args.iter().filter(|a| a.access != Access::Read).nth(k).unwrap_or(arg);
                self.write(run, rank, to, part)?;
            }
        }
        Ok(())
    }

    /// What the step means; of placements that do not fit, what it means on whole values.
    fn meaning(&self, step: &Step, types: &[&TensorType]) -> Result<Function, Diagnostic> {
        let placed = step.kernel.meaning_on(types, &self.plan.mesh);
        if placed.is_ok() || self.rules == Rules::Kept {
            return placed;
        }
        let whole: Vec<TensorType> = types.iter().map(|t| strip(t)).collect();
        step.kernel.meaning_on(&whole.iter().collect::<Vec<_>>(), &self.plan.mesh)
    }

    /// The step that `rank` takes as its `i`-th.
    fn step_of<'p>(&self, phase: &'p Phase, i: usize, rank: usize) -> &'p Step {
        let at = match &self.late {
            Some(l) if l.rank == rank && l.phase == phase.name && i == l.steps[0] => l.steps[1],
            Some(l) if l.rank == rank && l.phase == phase.name && i == l.steps[1] => l.steps[0],
            _ => i,
        };
        phase.steps.get(at).unwrap_or(&phase.steps[i])
    }

    /// Every rank's parts of the results of a contract's meaning.
    fn launch(
        &self,
        run: &Run<'_>,
        meaning: Function,
        values: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, EvalError> {
        let world = &run.world;
        if let (Some(c), [x], [r]) = (collective_of(&meaning), values.as_slice(), meaning.results.as_slice()) {
            let parts = exchange(&c, meaning.ty(meaning.params[0]), meaning.ty(r.1), world, x)?;
            let kept = parts.into_iter().map(|t| self.arith.keep(t, meaning.ty(r.1).elem)).collect();
            return Ok(vec![kept]);
        }
        let mut out = vec![Vec::new(); meaning.results.len()];
        for rank in 0..world.ranks()? {
            let own = values.iter().map(|parts| parts[rank as usize].clone()).collect();
            let made = on_rank(world, self.arith, rank, &meaning, own)?;
            made.into_iter().zip(&mut out).for_each(|(t, out)| out.push(t));
        }
        Ok(out)
    }

    fn read_all(&self, run: &Run<'_>, mem: Mem, ty: &TensorType) -> Result<Vec<Tensor>, EvalError> {
        (0..run.arenas.len()).map(|rank| self.read(run, rank, mem, ty)).collect()
    }

    /// What `rank` holds at `mem`, seen as its part of a `ty`.
    fn read(&self, run: &Run<'_>, rank: usize, mem: Mem, ty: &TensorType) -> Result<Tensor, EvalError> {
        let local = run.world.local(ty, rank as u64)?;
        let shape = concrete(&local, run.world.syms)?;
        let n: usize = shape.iter().product();
        let part = |of: Option<&Vec<Tensor>>| {
            let t = of.and_then(|parts| parts.get(rank)).ok_or_else(|| EvalError::new(format!("there is no {mem}")))?;
            match self.rules {
                Rules::Kept => reshaped(t, shape.clone()),
                Rules::Ignored => seen_as(t, &run.world.bound(local.clone())),
            }
        };
        match mem {
            Mem::Weight(w) => {
                let recipe =
                    self.plan.weights.get(w).ok_or_else(|| EvalError::new(format!("there is no weight {w}")))?;
                let mut bytes = Vec::new();
                for s in recipe.slices.get(rank).into_iter().flatten() {
                    self.files.read(s, &mut bytes)?;
                }
                let bytes = run.world.shard(&recipe.ty, rank as u64)?.stored(bytes);
                let held = Tensor::from_bytes(local.elem, shape, &bytes);
                held.map_err(|e| {
                    if self.rules == Rules::Ignored { EvalError::new(format!("reads poison: {e}")) } else { e }
                })
            }
            Mem::State(s) => part(self.states.get(s.as_u32() as usize)),
            Mem::Param(p) => part(run.params.get(p.as_u32() as usize)),
            Mem::Buf(b) => {
                let values = run.arenas[rank].read(buffer(run.phase, b)?.offset, local.elem, n)?;
                Ok(match local.elem {
                    Elem::I32 => Tensor::i(shape, values.into_iter().map(|v| v as i64).collect()),
                    _ => Tensor::f(shape, values),
                })
            }
        }
    }

    fn write(&mut self, run: &mut Run<'_>, rank: usize, arg: &Arg, value: Tensor) -> Result<(), EvalError> {
        match arg.mem {
            Mem::Buf(b) => {
                let offset = buffer(run.phase, b)?.offset;
                let elem = run.world.local(&arg.ty, rank as u64)?.elem;
                match &value.data {
                    Data::I(v) => run.arenas[rank].write(offset, elem, v.iter().map(|x| *x as f64)),
                    Data::F(v) => run.arenas[rank].write(offset, elem, v.iter().copied()),
                    Data::Q(..) => Err(EvalError::new("a launch makes stored blocks")),
                }
            }
            Mem::State(s) => self.write_state(s, rank, value),
            m => Err(EvalError::new(format!("a launch writes {m}"))),
        }
    }

    fn write_state(&mut self, s: StateId, rank: usize, value: Tensor) -> Result<(), EvalError> {
        let slot = self.states.get_mut(s.as_u32() as usize).and_then(|parts| parts.get_mut(rank));
        let slot = slot.ok_or_else(|| EvalError::new(format!("there is no state {s}")))?;
        *slot = value;
        Ok(())
    }
}

fn buffer(phase: &Phase, b: BufId) -> Result<&crate::plan::Buffer, EvalError> {
    phase.buffers.get(b).ok_or_else(|| EvalError::new(format!("there is no buffer {b}")))
}

fn reshaped(t: &Tensor, shape: Vec<usize>) -> Result<Tensor, EvalError> {
    if shape.iter().product::<usize>() != t.len() {
        return Err(EvalError::new(format!("{:?} seen as {shape:?}", t.shape)));
    }
    Ok(Tensor { shape, data: t.data.clone() })
}
