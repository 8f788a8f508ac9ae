//! Owns the interpreter of the plan level: bytes in buffers, launch by launch, each by its contract's meaning.
//!
//! Memory is modelled element by element and starts as poison. Reading an element that no launch wrote, or that a later
//! write has partly covered, is an error, so a disconnected output or a stale buffer cannot pass. One rank only so far:
//! ranks above the first are refused.

use crate::entities::{BufId, StateId};
use crate::graph::Module;
use crate::kernel::Access;
use crate::plan::{Arg, Mem, Phase, Plan};
use crate::tensor::{Data, EvalError, Tensor, concrete};
use crate::ty::{Elem, SymValues, TensorType};

use super::Arith;
use super::global::{Interp, NoWeights};

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
    states: Vec<Tensor>,
    observer: Option<StepObserver<'a>>,
}

impl<'a> PlanInterp<'a> {
    /// An interpreter with poisoned cache pools.
    ///
    /// # Errors
    /// A plan for several ranks, or a pool whose size is not constant.
    pub fn new(plan: &'a Plan, arith: Arith, files: &'a dyn SliceSource) -> Result<Self, EvalError> {
        if plan.target.ranks != 1 {
            return Err(EvalError::new("the plan interpreter runs one rank"));
        }
        let none = SymValues::default();
        let states = plan.states.values().map(|s| Tensor::poison(&s.ty, &none)).collect::<Result<_, _>>()?;
        Ok(PlanInterp { plan, arith, files, states, observer: None })
    }

    /// The same, showing the outputs of each step to `f`.
    pub fn observe(mut self, f: StepObserver<'a>) -> Self {
        self.observer = Some(f);
        self
    }

    /// Runs one phase at the symbol values `syms` with `params` in order; returns the phase's results in order.
    ///
    /// # Errors
    /// Poison that is read, memory out of bounds, parameters of another shape, an op without an answer. The message
    /// names the step.
    pub fn run(&mut self, phase: &Phase, syms: &SymValues, params: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        if params.len() != phase.params.len() {
            return Err(EvalError::new(format!("{} parameters for {}", params.len(), phase.params.len())));
        }
        for (p, t) in phase.params.values().zip(params) {
            if concrete(&p.ty, syms)? != t.shape {
                return Err(EvalError::new(format!("parameter `{}` is {}, found {:?}", p.name, p.ty, t.shape)));
            }
        }
        let mut arena = Memory::new(phase.arena_bytes);
        for (i, step) in phase.steps.iter().enumerate() {
            let at = |e: EvalError| EvalError::new(format!("step {i} `{}`: {e}", step.name));
            let inputs: Vec<&Arg> = step.args.iter().filter(|a| a.access != Access::Write).collect();
            let types: Vec<&TensorType> = inputs.iter().map(|a| &a.ty).collect();
            let meaning = step.kernel.meaning(&types).map_err(|d| at(EvalError::new(d.message)))?;
            let values = inputs
                .iter()
                .map(|a| {
                    self.read(phase, &arena, params, a.mem, &a.ty, syms)
                        .map_err(|e| EvalError::new(format!("`{}`: {e}", a.name)))
                })
                .collect::<Result<Vec<_>, _>>()
                .map_err(at)?;
            let mut module = Module::default();
            let func = module.funcs.push(meaning);
            let results = Interp::new(&module, self.arith, syms.clone(), &NoWeights).run(func, values).map_err(at)?;
            let targets = step.args.iter().filter(|a| a.access == Access::Update);
            let targets: Vec<&Arg> = targets.chain(step.args.iter().filter(|a| a.access == Access::Write)).collect();
            for (arg, value) in targets.iter().zip(results) {
                if let Some(see) = self.observer.as_mut() {
                    see(i, arg, &value);
                }
                self.write(phase, &mut arena, arg, value).map_err(at)?;
            }
        }
        let result = |r: &crate::plan::PhaseResult| {
            self.read(phase, &arena, params, r.mem, &r.ty, syms)
                .map_err(|e| EvalError::new(format!("result `{}`: {e}", r.name)))
        };
        phase.results.iter().map(result).collect()
    }

    fn read(
        &self,
        phase: &Phase,
        arena: &Memory,
        params: &[Tensor],
        mem: Mem,
        ty: &TensorType,
        syms: &SymValues,
    ) -> Result<Tensor, EvalError> {
        let shape = concrete(ty, syms)?;
        let n: usize = shape.iter().product();
        match mem {
            Mem::Weight(w) => {
                let recipe =
                    self.plan.weights.get(w).ok_or_else(|| EvalError::new(format!("there is no weight {w}")))?;
                let mut bytes = Vec::new();
                for s in recipe.slices.first().into_iter().flatten() {
                    self.files.read(s, &mut bytes)?;
                }
                Tensor::from_bytes(ty.elem, shape, &bytes)
            }
            Mem::State(s) => {
                let t = self
                    .states
                    .get(s.as_u32() as usize)
                    .ok_or_else(|| EvalError::new(format!("there is no state {s}")))?;
                reshaped(t, shape)
            }
            Mem::Param(p) => {
                let t = params
                    .get(p.as_u32() as usize)
                    .ok_or_else(|| EvalError::new(format!("there is no parameter {p}")))?;
                reshaped(t, shape)
            }
            Mem::Buf(b) => {
                let values = arena.read(buffer(phase, b)?.offset, ty.elem, n)?;
                Ok(match ty.elem {
                    Elem::I32 => Tensor::i(shape, values.into_iter().map(|v| v as i64).collect()),
                    _ => Tensor::f(shape, values),
                })
            }
        }
    }

    fn write(&mut self, phase: &Phase, arena: &mut Memory, arg: &Arg, value: Tensor) -> Result<(), EvalError> {
        match arg.mem {
            Mem::Buf(b) => {
                let offset = buffer(phase, b)?.offset;
                match &value.data {
                    Data::I(v) => arena.write(offset, arg.ty.elem, v.iter().map(|x| *x as f64)),
                    Data::F(v) => arena.write(offset, arg.ty.elem, v.iter().copied()),
                    Data::Q(..) => Err(EvalError::new("a launch makes stored blocks")),
                }
            }
            Mem::State(s) => self.write_state(s, value),
            m => Err(EvalError::new(format!("a launch writes {m}"))),
        }
    }

    fn write_state(&mut self, s: StateId, value: Tensor) -> Result<(), EvalError> {
        let slot =
            self.states.get_mut(s.as_u32() as usize).ok_or_else(|| EvalError::new(format!("there is no state {s}")))?;
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
