//! Runs plans on one GPU: all ranks of a plan in one stream, each phase captured once as graphs that are replayed and
//! never changed. What differs from step to step is written to device memory by one copy before the graphs.
//!
//! Owns the order of work on the stream; what a kernel computes is not known here.

use std::time::Duration;

use glmc_ir::launch::{Call, Launches};
use glmc_ir::placement::strip;
use glmc_ir::plan::{Mem, Phase, Plan};
use glmc_ir::ty::{Elem, SymValues};

use super::guard::Guard;
use super::place::{MeetPlaces, Places, StepLayout};
use super::{Context, CudaError, Function, Graph, Launch, Readback, Ring, Stream, WeightSource, upload};
use crate::device::{Device, Observer, own_param};
use crate::error::RuntimeError;
use crate::load::Weights;

/// A kernel on the device: its launches in order, all with the same arguments.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// For messages.
    pub name: String,
    /// In order; each depends on the one before.
    pub launches: Vec<KernelLaunch>,
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct KernelLaunch {
    /// What is launched.
    pub function: Function,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

impl Kernel {
    /// Starts its launches; the first, and those after it, may start before the launch before them has ended.
    ///
    /// # Errors
    /// [`CudaError::Launch`], [`CudaError::Call`].
    pub fn launch(&self, stream: &Stream, args: &[u64], first: bool, rest: bool) -> Result<(), CudaError> {
        self.launches.iter().enumerate().try_for_each(|(i, l)| {
            let (grid, threads, shared) = (l.grid, l.threads, l.shared);
            let dependent = if i == 0 { first } else { rest };
            stream.launch(&l.function, &Launch { grid, threads, shared, dependent, args: args.into() })
        })
    }
}

/// How a plan is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CudaOptions {
    /// Whether the kernels wait for the launch before them, so that each may be started while that one still runs.
    pub dependent: bool,
    /// Whether phases are captured; else each step is launched and waited for, and an error names it.
    pub graphs: bool,
    /// Longest time that a step may take.
    pub limit: Duration,
}

impl Default for CudaOptions {
    fn default() -> Self {
        CudaOptions { dependent: false, graphs: true, limit: Duration::from_secs(10) }
    }
}

/// The ranks of a plan that are on one GPU.
#[derive(Debug)]
pub struct CudaDevice {
    // Dropped in this order: graphs before the kernels that they hold, memory last.
    pub(super) phases: Vec<PhaseRun>,
    ring: Ring,
    readback: Readback,
    pub(super) kernels: Vec<Kernel>,
    pub(super) launches: Launches,
    pub(super) places: Places,
    pub(super) stream: Stream,
    pub(super) options: CudaOptions,
    pub(super) guard: Guard,
    pub(super) poison: bool,
    /// The result that was read back last.
    result: Vec<f32>,
    result_name: String,
}

#[derive(Debug)]
pub(super) struct PhaseRun {
    pub(super) layout: StepLayout,
    pub(super) graphs: Vec<Graph>,
}

impl CudaDevice {
    /// Brings a plan to the device: memory, weights, graphs. `weights` are those of all ranks of the plan, `kernels`
    /// those that `launches` number; `progress` gets the bytes of weights that are on their way and all bytes.
    ///
    /// # Errors
    /// A plan that does not fit the device, a launch program that does not fit the plan, what the driver says.
    pub fn new(
        context: &Context,
        plan: &Plan,
        weights: WeightSource<'_>,
        launches: Launches,
        kernels: Vec<Kernel>,
        options: CudaOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<CudaDevice, RuntimeError> {
        Self::member(context, plan, weights, launches, kernels, options, None, progress)
    }

    /// The same, of a device that meets others through what `meets` says.
    #[allow(clippy::too_many_arguments, reason = "all that a device is made of")]
    pub(super) fn member(
        context: &Context,
        plan: &Plan,
        weights: WeightSource<'_>,
        launches: Launches,
        kernels: Vec<Kernel>,
        options: CudaOptions,
        meets: Option<MeetPlaces>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<CudaDevice, RuntimeError> {
        let failed = |source| RuntimeError::Cuda { step: "load".into(), source };
        check(plan, &launches, &kernels, &weights).map_err(failed)?;
        let layouts: Vec<StepLayout> = launches
            .phases
            .iter()
            .map(|p| StepLayout::of(&p.symbols.iter().map(Vec::len).collect::<Vec<_>>(), &p.params))
            .collect();
        let steps = layouts.iter().map(|l| l.bytes).max().unwrap_or(0);
        let staging = upload::staging(&launches);
        let mut places = Places::new(context, plan, &launches, steps, staging).map_err(failed)?;
        let guard = Guard {
            limit: options.limit,
            halt: meets.as_ref().map(|m| m.words.clone()),
            comms: meets.as_ref().and_then(|m| m.comms.clone()),
        };
        places.meets = meets;
        let stream = Stream::new(context).map_err(failed)?;
        upload::upload(&stream, plan, &launches, &kernels, &weights, &mut places, progress).map_err(failed)?;
        let largest = plan.phases.iter().map(result_bytes).max().unwrap_or(0);
        let ring = Ring::new(context, 2, usize::try_from(steps).unwrap_or(usize::MAX)).map_err(failed)?;
        let readback = Readback::new(context, usize::try_from(largest).unwrap_or(usize::MAX)).map_err(failed)?;
        let phases = layouts.into_iter().map(|layout| PhaseRun { layout, graphs: Vec::new() }).collect();
        let mut device = CudaDevice {
            phases,
            ring,
            readback,
            kernels,
            launches,
            places,
            stream,
            options,
            guard,
            poison: false,
            result: Vec::new(),
            result_name: String::new(),
        };
        // Devices that a library joins capture at the same time: see `CudaGroup`.
        if device.guard.comms.is_none() {
            device.capture_all(plan)?;
        }
        Ok(device)
    }

    /// Bytes of device memory that the plan's own pieces take.
    pub fn bytes(&self) -> u64 {
        let p = &self.places;
        let all = p.weights.iter().chain(&p.states).chain(&p.arenas).chain([&p.scratch, &p.steps]);
        all.map(super::Memory::bytes).sum()
    }

    /// Launches of a step of phase `index`, counted by kernel starts.
    pub fn starts(&self, index: usize) -> usize {
        let calls = self.launches.phases.get(index).map_or(&[][..], |p| p.launched());
        calls.iter().map(|c| self.kernels[c.kernel].launches.len()).sum()
    }

    pub(super) fn launch(&self, phase: &Phase, index: usize, call: &Call, dependent: bool) -> Result<(), CudaError> {
        let layout = &self.phases[index].layout;
        let args = call.args.iter().map(|a| self.places.address(phase, layout, *a)).collect::<Result<Vec<_>, _>>()?;
        self.kernels[call.kernel].launch(&self.stream, &args, dependent, self.options.dependent)
    }

    /// Writes what differs from step to step.
    fn send(
        &mut self,
        plan: &Plan,
        index: usize,
        syms: &SymValues,
        symbols: &[u64],
        params: &[Vec<i32>],
    ) -> Result<(), CudaError> {
        let types = plan.phases[index].params.values().map(|p| &p.ty);
        let of = &self.launches.phases[index];
        let layout = &self.phases[index].layout;
        let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
        for (parts, at) in of.symbols.iter().zip(&layout.symbols) {
            pieces.push((*at, parts.iter().flat_map(|p| (p.value(symbols) as u32).to_le_bytes()).collect()));
        }
        for ((sizes, at), rank) in of.params.iter().zip(&layout.params).zip(&self.launches.ranks) {
            for (((words, bytes), at), ty) in params.iter().zip(sizes).zip(at).zip(types.clone()) {
                let own = own_param(ty, words, &plan.mesh, *rank, syms).map_err(CudaError::Program)?;
                let words: &[u8] = bytemuck::cast_slice(&own);
                if words.len() as u64 > *bytes {
                    return Err(CudaError::Range { offset: 0, len: words.len() as u64, bytes: *bytes });
                }
                pieces.push((*at, words.to_vec()));
            }
        }
        let end = pieces.iter().map(|(at, b)| *at + b.len() as u64).max().unwrap_or(0);
        let len = usize::try_from(end).unwrap_or(usize::MAX);
        self.ring.send(&self.stream, &mut self.places.steps, 0, len, |slot| {
            for (at, bytes) in &pieces {
                slot[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
        })
    }

    /// Waits for the step. The device of rank 0 reads the floats back that the phase gives whole.
    fn read_results(&mut self, phase: &Phase, syms: &SymValues) -> Result<(), CudaError> {
        self.result.clear();
        self.result_name.clear();
        let what = format!("phase {}; run with --eager to learn which step fails", phase.name);
        if self.places.meets.is_some() && self.launches.ranks.first() != Some(&0) {
            return self.guard.wait(&self.stream, &what);
        }
        for r in &phase.results {
            let Mem::Buf(b) = r.mem else { continue };
            let bytes = r.ty.bytes(syms).unwrap_or(0);
            if r.ty.elem != Elem::F32 || strip(&r.ty) != r.ty || bytes == 0 {
                continue;
            }
            let len = usize::try_from(bytes).unwrap_or(usize::MAX);
            let guard = &self.guard;
            let back =
                self.readback.get(guard, &self.stream, &self.places.arenas[0], phase.buffers[b].offset, len, &what)?;
            self.result = bytemuck::cast_slice(back).to_vec();
            self.result_name.clone_from(&r.name);
            return Ok(());
        }
        self.guard.wait(&self.stream, &what)
    }
}

/// Most bytes of the result that is read back.
fn result_bytes(phase: &Phase) -> u64 {
    let bounds = phase.bounds();
    let of = |r: &glmc_ir::plan::PhaseResult| r.ty.bytes(&bounds).unwrap_or(0);
    phase.results.iter().filter(|r| r.ty.elem == Elem::F32).map(of).max().unwrap_or(0)
}

/// Whether the launch program is one of this plan with these kernels.
fn check(plan: &Plan, launches: &Launches, kernels: &[Kernel], weights: &WeightSource<'_>) -> Result<(), CudaError> {
    let fail = |what: String| Err(CudaError::Program(what));
    let held = &launches.ranks;
    if launches.weights.len() != held.len() || held.is_empty() || held.iter().any(|r| !weights.has(plan, *r)) {
        return fail(format!("ranks {held:?} without their weights"));
    }
    if launches.phases.len() != plan.phases.len() {
        return fail(format!("{} phases for {}", launches.phases.len(), plan.phases.len()));
    }
    for (of, phase) in launches.phases.iter().zip(&plan.phases) {
        let calls = &of.calls;
        if let Some(c) =
            calls.iter().chain(&of.graph).find(|c| c.kernel >= kernels.len() || c.step >= phase.steps.len())
        {
            return fail(format!("phase {} has no step {} or kernel {}", phase.name, c.step, c.kernel));
        }
        if [calls, &of.graph].iter().any(|l| l.windows(2).any(|w| w[0].step > w[1].step)) {
            return fail(format!("the calls of phase {} are not in the order of its steps", phase.name));
        }
        if of.params.iter().any(|p| p.len() != phase.params.len()) {
            return fail(format!("phase {} has {} step parameters", phase.name, phase.params.len()));
        }
        let covered: usize = phase.segments.iter().map(|s| s.count).sum();
        if covered != phase.steps.len() {
            return fail(format!("the segments of phase {} hold {covered} steps", phase.name));
        }
    }
    Ok(())
}

impl Device for CudaDevice {
    fn set_poison(&mut self, on: bool) {
        self.poison = on;
    }

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        _: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let phase = &plan.phases[index];
        let named = |source| RuntimeError::Cuda { step: phase.name.clone(), source };
        let mut values = Vec::with_capacity(phase.syms.len());
        for (s, bound) in &phase.syms {
            let n = syms.get(s).unwrap_or(0);
            if n > *bound {
                return Err(RuntimeError::Request(format!("symbol {s} is {n}, at most {bound} in {}", phase.name)));
            }
            values.push(n);
        }
        self.send(plan, index, syms, &values, params).map_err(named)?;
        if self.options.graphs && !self.poison && see.is_none() {
            for graph in &mut self.phases[index].graphs {
                self.stream.replay(graph).map_err(named)?;
            }
        } else {
            self.step_by_step(plan, index, syms, params, see)?;
        }
        self.read_results(phase, syms).map_err(named)
    }

    fn result(&self, _: &Plan, phase: &Phase, name: &str, _: &SymValues) -> Result<&[f32], RuntimeError> {
        if self.result_name == name {
            return Ok(&self.result);
        }
        Err(RuntimeError::Request(format!("phase `{}` left no whole floats called `{name}`", phase.name)))
    }
}

/// That another device failed has been said.
fn stopped(e: CudaError) -> Result<(), CudaError> {
    if e == CudaError::Stopped { Ok(()) } else { Err(e) }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Nothing is taken from under a kernel that runs.
        if let Err(e) = self.guard.wait(&self.stream, "the last step").or_else(stopped) {
            tracing::warn!("{e}");
        }
    }
}
