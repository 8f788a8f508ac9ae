//! Times of a step that is in device memory: whole, kernel by kernel alone, and launch by launch within it. Never knows
//! what a kernel computes; a step that is run again writes what it wrote before.

use std::collections::BTreeMap;

use glmc_ir::launch::{Call, Place};
use glmc_ir::plan::{Mem, Phase, Plan};

use super::exec::{CudaDevice, Kernel};
use super::{CudaError, Event, Launch, Memory};

/// A kernel of a phase, timed alone.
#[derive(Clone, PartialEq, Debug)]
pub struct CallTime {
    /// Its number in the launch program.
    pub kernel: usize,
    /// The phase's calls of it that were timed, by their places.
    pub calls: Vec<usize>,
    /// Seconds of one call.
    pub seconds: f64,
}

/// When a call ran within its step, in seconds from the first start.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Span {
    /// Its first block began.
    pub start: f64,
    /// Its last block ended.
    pub end: f64,
}

/// Seconds that a graph of one kernel takes at most, or two calls; and that a step is run again for, or once.
const MOST_SECONDS: f64 = 0.1;
const MOST_REPLAYING: f64 = 1.0;

/// How often a step is run again that takes so many seconds.
fn rounds_of(most: usize, once: f64) -> usize {
    most.min((MOST_REPLAYING / once.max(1e-9)) as usize).max(1)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

impl CudaDevice {
    fn seconds(&self, mut work: impl FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let context = self.stream.context();
        let (from, to) = (Event::new(context)?, Event::new(context)?);
        self.stream.record(&from)?;
        work()?;
        self.stream.record(&to)?;
        self.stream.wait("a timed step")?;
        from.seconds_to(&to)
    }

    /// Seconds on the device of the step that ran last in phase `index`: the median of at most
    /// `rounds` replays of its graphs.
    ///
    /// # Errors
    /// What the driver says, or that the device has no graphs.
    pub fn replay_seconds(&mut self, index: usize, rounds: usize) -> Result<f64, CudaError> {
        let mut graphs = match self.phases.get_mut(index) {
            Some(p) if !p.graphs.is_empty() => std::mem::take(&mut p.graphs),
            _ => return Err(CudaError::Program(format!("phase {index} has no graphs"))),
        };
        let mut one = || self.seconds(|| graphs.iter_mut().try_for_each(|g| self.stream.replay(g)));
        let all = one().and_then(|once| (0..rounds_of(rounds, once)).map(|_| one()).collect::<Result<Vec<_>, _>>());
        self.phases[index].graphs = graphs;
        all.map(median)
    }

    /// Times each kernel of phase `index` alone: the step that ran last is run again call by call, and after the last
    /// call of a kernel a graph of `launches` calls of it (fewer of what takes long) is replayed `rounds` times, each on
    /// the weights and pools of another of its calls, all else as the last one has it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn time_calls(
        &mut self,
        plan: &Plan,
        index: usize,
        launches: usize,
        rounds: usize,
    ) -> Result<Vec<CallTime>, CudaError> {
        let phase = &plan.phases[index];
        let calls = self.launches.phases[index].launched().to_vec();
        let mut of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        calls.iter().enumerate().for_each(|(i, c)| of.entry(c.kernel).or_default().push(i));
        let mut out = Vec::new();
        for (i, call) in calls.iter().enumerate() {
            self.launch(phase, index, call, false)?;
            let Some(same) = of.get(&call.kernel).filter(|s| s.last() == Some(&i)) else { continue };
            let same: Vec<usize> = same.iter().copied().filter(|k| calls[*k].rank == call.rank).collect();
            let turns = same.iter().map(|k| turned(call, &calls[*k])).collect::<Vec<_>>();
            self.stream.wait("the step up to a timed kernel")?;
            let once = self.seconds(|| self.launch(phase, index, call, false))?;
            // Fewer of those that take long.
            let n = launches.min((MOST_SECONDS / once.max(1e-9)) as usize).max(2);
            let mut graph = self.stream.capture(|_| {
                let dependent = self.options.dependent;
                (0..n).try_for_each(|t| self.launch(phase, index, &turns[t % turns.len()], dependent && t > 0))
            })?;
            self.stream.replay(&mut graph)?;
            let one = |_| self.seconds(|| self.stream.replay(&mut graph));
            let all = (0..rounds.max(1)).map(one).collect::<Result<Vec<_>, _>>()?;
            out.push(CallTime { kernel: call.kernel, calls: same, seconds: median(all) / n as f64 });
        }
        self.stream.wait("the timed kernels")?;
        Ok(out)
    }

    /// When each call of phase `index` runs within the step that ran last: means over at most `rounds` replays of a graph of
    /// `kernels`, the program's kernels as they are compiled with `GLMC_TRACE`. Also the seconds of such a step, which
    /// the stamps make longer.
    ///
    /// # Errors
    /// What the driver says.
    pub fn trace(
        &mut self,
        plan: &Plan,
        index: usize,
        kernels: &[Kernel],
        rounds: usize,
    ) -> Result<(Vec<Span>, f64), CudaError> {
        let phase = &plan.phases[index];
        let calls = self.launches.phases[index].launched().to_vec();
        if kernels.len() != self.kernels.len() {
            return Err(CudaError::Program(format!("{} kernels for {}", kernels.len(), self.kernels.len())));
        }
        let mut stamps = Memory::new(self.stream.context(), 16 * calls.len().max(1) as u64)?;
        let mut graph = self.stream.capture(|_| {
            calls.iter().enumerate().try_for_each(|(i, call)| {
                self.launch_traced(phase, index, call, &kernels[call.kernel], stamps.address(16 * i as u64)?, i > 0)
            })
        })?;
        let mut spans = vec![Span::default(); calls.len()];
        let mut times = Vec::new();
        // A first one warms up and says how long it takes.
        let rounds = rounds_of(rounds, self.seconds(|| self.stream.replay(&mut graph))?);
        for _ in 0..rounds {
            stamps.fill(u32::MAX)?;
            times.push(self.seconds(|| self.stream.replay(&mut graph))?);
            let mut words = vec![0u64; 2 * calls.len()];
            stamps.download(0, bytemuck::cast_slice_mut(&mut words))?;
            let first = words.iter().step_by(2).min().copied().unwrap_or(0);
            for (span, w) in spans.iter_mut().zip(words.chunks_exact(2)) {
                // The end is stored as its complement: both stamps are minima.
                span.start += w[0].saturating_sub(first) as f64 * 1e-9 / rounds as f64;
                span.end += (!w[1]).saturating_sub(first) as f64 * 1e-9 / rounds as f64;
            }
        }
        Ok((spans, median(times)))
    }

    fn launch_traced(
        &self,
        phase: &Phase,
        index: usize,
        call: &Call,
        kernel: &Kernel,
        stamp: u64,
        follows: bool,
    ) -> Result<(), CudaError> {
        let layout = &self.phases[index].layout;
        let args = call.args.iter().map(|a| self.places.address(phase, layout, *a));
        let args = args.chain([Ok(stamp)]).collect::<Result<Vec<_>, _>>()?;
        let dependent = self.options.dependent;
        for (i, l) in kernel.launches.iter().enumerate() {
            let (grid, threads, shared) = (l.grid, l.threads, l.shared);
            let dependent = dependent && (follows || i > 0);
            self.stream.launch(&l.function, &Launch { grid, threads, shared, dependent, args: args.clone() })?;
        }
        Ok(())
    }
}

/// `call` on the weights and pools of `other`, a call of the same kernel.
fn turned(call: &Call, other: &Call) -> Call {
    let held = |p: &Place| matches!(p, Place::Mem { mem: Mem::Weight(_) | Mem::State(_), .. });
    let args = call.args.iter().zip(&other.args).map(|(own, o)| if held(own) && held(o) { *o } else { *own });
    Call { args: args.collect(), ..call.clone() }
}

#[cfg(test)]
mod tests {
    use glmc_ir::entities::{BufId, StateId, WeightId};

    use super::*;

    #[test]
    fn another_call_lends_its_weights_and_pools_alone() {
        let place = |mem| Place::Mem { rank: 0, mem };
        let of = |w: u32, s: u32, b: u32| Call {
            step: w as usize,
            rank: 0,
            kernel: 3,
            args: vec![
                place(Mem::Weight(WeightId::from_u32(w))),
                place(Mem::State(StateId::from_u32(s))),
                place(Mem::Buf(BufId::from_u32(b))),
                Place::Scratch(0),
            ],
        };
        let t = turned(&of(1, 2, 3), &of(7, 8, 9));
        assert_eq!(t, Call { step: 1, ..of(7, 8, 3) });
    }
}
