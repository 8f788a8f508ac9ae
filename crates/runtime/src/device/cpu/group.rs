//! Several CPU ranks in one process. Each has its own arena, cache pools, weights and threads, and runs the one step list
//! on its own parts; they meet in collectives only. Owns their start and their common end; computes nothing.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use glmc_ir::placement::{local_type, strip};
use glmc_ir::plan::{Mem, Phase, PhaseResult, Plan};
use glmc_ir::ty::{Elem, SymValues};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::arena::Lent;
use super::exec::CpuDevice;
use super::prepare::{Op, Operand, Step, symbol_values};
use crate::collective::{Exchange, MeetError, Meeting, Seat};
use crate::device::{Device, Observer, Output, POISON, own_param};
use crate::died::{die, guarded};
use crate::error::RuntimeError;
use crate::load::Weights;

/// How long a rank waits for another that makes no step. A rank that fails ends the wait of all at once; this bounds
/// what no rank reports.
const PATIENCE: Duration = Duration::from_secs(600);

/// Called on each rank's thread with rank and step before the step; an error stops all ranks.
pub type Before = dyn Fn(usize, usize) -> Result<(), RuntimeError> + Send + Sync;

/// The CPU ranks of a plan.
pub struct CpuGroup {
    ranks: Vec<CpuDevice>,
    threads: Vec<ThreadPool>,
    poison: bool,
    patience: Duration,
    before: Option<Box<Before>>,
    /// The rank that dies in the next run, and the step before which it does.
    dies: Option<(usize, usize)>,
    /// The rank whose thread died, and what it said: the group's state is then half done.
    died: Option<(usize, String)>,
}

impl fmt::Debug for CpuGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuGroup").field("ranks", &self.ranks.len()).finish_non_exhaustive()
    }
}

impl CpuGroup {
    /// Memory and threads for every rank of `plan`. The threads of the current rayon pool are shared out, at least one a
    /// rank.
    ///
    /// # Errors
    /// Memory or threads that the system does not give, or a plan that the verifier would have refused.
    pub fn new(plan: &Plan) -> Result<Self, RuntimeError> {
        let n = plan.target.ranks as usize;
        let ranks = (0..n).map(|r| CpuDevice::of_rank(plan, r).map_err(|e| of_rank(r, e))).collect::<Result<_, _>>()?;
        let each = (rayon::current_num_threads() / n.max(1)).max(1);
        let threads = (0..n).map(|r| {
            let named = move |i| format!("rank-{r}-{i}");
            let pool = ThreadPoolBuilder::new().num_threads(each).thread_name(named).build();
            pool.map_err(|e| RuntimeError::Threads(format!("the threads of rank {r} cannot be started: {e}")))
        });
        let threads = threads.collect::<Result<_, _>>()?;
        Ok(CpuGroup { ranks, threads, poison: false, patience: PATIENCE, before: None, dies: None, died: None })
    }

    /// Waits at most this long for a rank that makes no step.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Calls `f` before each step of each rank.
    pub fn set_before(&mut self, f: Option<Box<Before>>) {
        self.before = f;
    }

    /// The shape and numbers of what `rank` holds of a result of a phase that has just run.
    ///
    /// # Errors
    /// A result or rank that is not there, or a result that is in no buffer.
    pub fn part(
        &self,
        plan: &Plan,
        phase: &Phase,
        name: &str,
        rank: usize,
        syms: &SymValues,
    ) -> Result<(Vec<u64>, Output<'_>), RuntimeError> {
        let r = result_named(phase, name)?;
        let told = |m: String| RuntimeError::Request(format!("result `{name}` of rank {rank}: {m}"));
        let device = self.ranks.get(rank).ok_or_else(|| told("there is no such rank".into()))?;
        let local = local_type(&r.ty, &plan.mesh, rank as u64, syms).map_err(|d| told(d.message))?;
        let (Mem::Buf(b), Some(shape)) = (r.mem, local.shape(syms)) else {
            return Err(told(format!("it is {} in {}", r.ty, r.mem)));
        };
        let start = phase.buffers[b].offset as usize;
        let bytes = device.arena.bytes(start..start + 4 * shape.iter().product::<u64>() as usize);
        let output = match local.elem {
            Elem::I32 => Output::I32(bytemuck::cast_slice(bytes)),
            Elem::F32 => Output::F32(bytemuck::cast_slice(bytes)),
            _ => return Err(told(format!("it is {}", r.ty))),
        };
        Ok((shape, output))
    }

    /// Whether all of `rank`'s arena but the results of `phase` is poison.
    #[doc(hidden)]
    pub fn is_poisoned(&self, phase: &Phase, rank: usize) -> bool {
        let ranges = self.ranks.get(rank).map(|r| (r, r.unneeded(phase)));
        ranges.is_some_and(|(r, free)| {
            free.into_iter().all(|f| r.arena.bytes(f).chunks_exact(4).all(|w| w == POISON.to_ne_bytes()))
        })
    }
}

/// With poison, also the arena of a rank that has finished a phase is filled, but for the phase's results.
impl Device for CpuGroup {
    fn set_poison(&mut self, on: bool) {
        self.poison = on;
        self.ranks.iter_mut().for_each(|r| r.poison = on);
    }

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let n = self.ranks.len();
        if weights.len() != n {
            return Err(RuntimeError::Request(format!("the weights of {} ranks for {n}", weights.len())));
        }
        if let Some((rank, said)) = &self.died {
            return Err(of_rank(*rank, RuntimeError::Died(format!("{said}, in an earlier run"))));
        }
        let dies = self.dies.take();
        let meeting = Meeting::new(n, self.patience);
        let mut ends: Vec<Option<RuntimeError>> = (0..n).map(|_| None).collect();
        let (before, poison, see) = (self.before.as_deref(), self.poison, see.map(Mutex::new));
        let jobs =
            self.ranks.iter_mut().zip(weights).zip(&mut ends).enumerate().map(|(rank, ((device, weights), end))| {
                let dies = dies.and_then(|(r, step)| (r == rank).then_some(step));
                let run = Run { plan, index, weights, syms, params, before, dies, see: see.as_ref() };
                let seat = Seat { meeting: &meeting, mesh: &plan.mesh, syms, rank };
                move || {
                    let mut leave = Leave { meeting: seat.meeting, well: false };
                    match guarded(|| device.run_seated(run, seat)) {
                        Ok(()) => leave.well = true,
                        Err(e) => *end = Some(e),
                    }
                    if poison && leave.well {
                        device.poison_finished(&plan.phases[index]);
                    }
                }
            });
        start(&mut self.threads.iter().zip(jobs));
        // The first that failed of itself; the others only stopped. Of those that show no number the earliest step.
        let stopped = |e: &RuntimeError| matches!(e, RuntimeError::Meet { source: MeetError::Stopped, .. });
        let mut failed: Vec<(usize, RuntimeError)> =
            ends.into_iter().enumerate().filter_map(|(r, e)| Some((r, e?))).collect();
        failed.sort_by_key(|(rank, e)| (stopped(e), e.unsound_step(), *rank));
        match failed.into_iter().next() {
            Some((rank, e)) => {
                if let RuntimeError::Died(said) = &e {
                    self.died = Some((rank, said.clone()));
                }
                Err(of_rank(rank, e))
            }
            None => Ok(()),
        }
    }

    fn kill(&mut self, rank: usize, step: usize) -> Result<(), RuntimeError> {
        let n = self.ranks.len();
        if rank >= n {
            return Err(RuntimeError::Request(format!("there is no rank {rank}: the plan has {n}")));
        }
        self.dies = Some((rank, step));
        Ok(())
    }

    fn result(&self, plan: &Plan, phase: &Phase, name: &str, syms: &SymValues) -> Result<&[f32], RuntimeError> {
        let r = result_named(phase, name)?;
        if strip(&r.ty) != r.ty {
            return Err(RuntimeError::Request(format!("result `{name}` is in parts: {}", r.ty)));
        }
        match self.part(plan, phase, name, 0, syms)?.1 {
            Output::F32(v) => Ok(v),
            Output::I32(_) => Err(RuntimeError::Request(format!("result `{name}` is {}", r.ty))),
        }
    }
}

/// Runs each job on its rank's threads; returns when all have ended.
fn start<'a, J: FnOnce() + Send + 'a>(jobs: &mut dyn Iterator<Item = (&'a ThreadPool, J)>) {
    if let Some((pool, job)) = jobs.next() {
        pool.in_place_scope(|s| {
            s.spawn(|_| job());
            start(jobs);
        });
    }
}

/// Ends the meeting when a rank leaves it in any way but well, so that none waits for it.
struct Leave<'a> {
    meeting: &'a Meeting,
    well: bool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if !self.well {
            self.meeting.fail();
        }
    }
}

fn of_rank(rank: usize, e: RuntimeError) -> RuntimeError {
    match e {
        // It names its rank.
        RuntimeError::Unsound(_) => e,
        e => RuntimeError::Rank { rank, source: Box::new(e) },
    }
}

fn result_named<'p>(phase: &'p Phase, name: &str) -> Result<&'p PhaseResult, RuntimeError> {
    let r = phase.results.iter().find(|r| r.name == name);
    r.ok_or_else(|| RuntimeError::Request(format!("phase `{}` has no result `{name}`", phase.name)))
}

/// Which part of a collective a rank takes part in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    /// It hands its part over and goes on.
    Begin,
    /// It waits for the others' parts.
    End,
    Both,
}

/// What one rank runs.
struct Run<'a, 's> {
    plan: &'a Plan,
    index: usize,
    weights: &'a Weights,
    syms: &'a SymValues,
    params: &'a [Vec<i32>],
    before: Option<&'a Before>,
    /// The step before which the rank's thread dies.
    dies: Option<usize>,
    see: Option<&'a Mutex<Observer<'s>>>,
}

impl CpuDevice {
    fn run_seated(&mut self, run: Run<'_, '_>, seat: Seat<'_>) -> Result<(), RuntimeError> {
        let Run { plan, index, weights, syms, params, before, dies, see } = run;
        let phase = &plan.phases[index];
        let failed = |step: &str, kernel, source| RuntimeError::Kernel { step: step.into(), kernel, source };
        let values = symbol_values(phase, syms).map_err(|e| failed(&phase.name, "symbols", e))?;
        let own = phase
            .params
            .values()
            .zip(params)
            .map(|(p, v)| own_param(&p.ty, v, seat.mesh, seat.rank, seat.syms).map_err(RuntimeError::Request))
            .collect::<Result<Vec<_>, _>>()?;
        let own: Vec<&[i32]> = own.iter().map(|v| &**v).collect();
        let shown = |of: &Self, step: &Step, i: usize| match see {
            Some(see) => of.show(seat.rank, step, &values, i, &mut see.lock().unwrap_or_else(PoisonError::into_inner)),
            None => Ok(()),
        };
        let prepared = std::mem::take(&mut self.phases[index].steps);
        let result = prepared.iter().zip(&phase.steps).enumerate().try_for_each(|(i, (step, of))| {
            seat.meeting.begins(seat.rank, i);
            if dies.is_some_and(|step| i == step.min(phase.steps.len() - 1)) {
                die();
            }
            if let Some(before) = before {
                before(seat.rank, i)?;
            }
            // What ran beside earlier steps and is due.
            for o in phase.overlaps.iter().filter(|o| o.done == i) {
                self.met(Half::End, &prepared[o.step], o.step, phase, weights, &values, &own, &seat)?;
                shown(self, &prepared[o.step], o.step)?;
            }
            let half = if phase.done(i).is_some() { Half::Begin } else { Half::Both };
            if let Op::Meet(_) = &step.op {
                self.met(half, step, i, phase, weights, &values, &own, &seat)?;
            } else {
                self.launch(step, weights, &values, &own).map_err(|e| failed(&of.name, of.kernel.name(), e))?;
            }
            if half == Half::Both { shown(self, step, i) } else { Ok(()) }
        });
        let last = |o: &&glmc_ir::plan::Overlap| o.done >= prepared.len();
        let result = result.and_then(|()| {
            phase.overlaps.iter().filter(last).try_for_each(|o| {
                self.met(Half::End, &prepared[o.step], o.step, phase, weights, &values, &own, &seat)?;
                shown(self, &prepared[o.step], o.step)
            })
        });
        self.phases[index].steps = prepared;
        result
    }

    /// Takes part in the collective `step`, which is the phase's step `index`.
    #[allow(clippy::too_many_arguments, reason = "all of a step's surroundings")]
    fn met(
        &mut self,
        half: Half,
        step: &Step,
        index: usize,
        phase: &Phase,
        weights: &Weights,
        syms: &[usize],
        params: &[&[i32]],
        seat: &Seat<'_>,
    ) -> Result<(), RuntimeError> {
        let of = &phase.steps[index];
        let met = match &step.op {
            Op::Meet(e) => self.meet(half, step, e, weights, syms, params, seat, index),
            _ => Err(MeetError::Shape("steps run beside what is no collective".into())),
        };
        met.map_err(|source| RuntimeError::Meet { step: of.name.clone(), kernel: of.kernel.name(), source })
    }

    /// Takes part in a collective, or a half of it, with the operand of `step` and for its output.
    #[allow(clippy::too_many_arguments, reason = "all of a step's surroundings")]
    fn meet(
        &mut self,
        half: Half,
        step: &Step,
        e: &Exchange,
        weights: &Weights,
        syms: &[usize],
        params: &[&[i32]],
        seat: &Seat<'_>,
        index: usize,
    ) -> Result<(), MeetError> {
        let told = |m: &str| MeetError::Shape(m.to_owned());
        let ([x], [y]) = (step.inputs.as_slice(), step.outputs.as_slice()) else {
            return Err(told("a collective takes and gives one value"));
        };
        let word = |o: &Operand| matches!(o.elem, Elem::F32 | Elem::I32);
        if !word(x) || !word(y) {
            return Err(told("stored blocks do not travel"));
        }
        let range = |o: &Operand| o.range(&o.shape(syms));
        let (reads, to) = (range(x), range(y).ok_or_else(|| told("a collective writes a buffer"))?);
        if self.poison && half != Half::End {
            self.arena.poison(to.clone());
        }
        let reads: Vec<_> = reads.into_iter().collect();
        let lent = self.arena.lend(&reads, &[to]).map_err(|e| MeetError::Shape(e.to_string()))?;
        let Lent { reads, mut writes } = lent;
        let own: Option<&[u32]> = match x.mem {
            Mem::Buf(_) => reads.first().map(|b| bytemuck::cast_slice(b)),
            Mem::Param(p) => params.get(p.as_u32() as usize).map(|v| bytemuck::cast_slice(v)),
            Mem::State(s) => self.states.get(s.as_u32() as usize).map(|p| bytemuck::cast_slice(p.rows())),
            Mem::Weight(w) => Some(bytemuck::cast_slice(weights.floats(w))),
        };
        let own = own.ok_or_else(|| told("the operand is not there"))?;
        if half != Half::End {
            seat.begin(e, index, own)?;
        }
        if half == Half::Begin {
            return Ok(());
        }
        let out = writes.first_mut().ok_or_else(|| told("the result is not there"))?;
        seat.end(e, index, own, bytemuck::cast_slice_mut(out))
    }

    fn poison_finished(&mut self, phase: &Phase) {
        self.unneeded(phase).into_iter().for_each(|r| self.arena.poison(r));
    }

    /// The ranges of the arena that hold no result of `phase`.
    fn unneeded(&self, phase: &Phase) -> Vec<std::ops::Range<usize>> {
        let result = |r: &PhaseResult| match r.mem {
            Mem::Buf(b) => phase.buffers.get(b).map(|b| (b.offset as usize, (b.offset + b.bytes) as usize)),
            _ => None,
        };
        let mut kept: Vec<(usize, usize)> = phase.results.iter().filter_map(result).collect();
        kept.sort_unstable();
        let (mut at, mut free) = (0, Vec::new());
        for (start, end) in kept {
            free.push(at..start.max(at));
            at = at.max(end);
        }
        free.push(at..(phase.arena_bytes as usize).max(at));
        free
    }
}
