//! A whole plan on the host emulation: the program that a GPU runs, with each buffer of the arena in memory of its own,
//! so that a kernel that leaves its buffer is found.

use std::collections::HashMap;
use std::path::Path;

use glmc_ir::entities::{BufId, WeightId};
use glmc_ir::launch::Place;
use glmc_ir::plan::{Mem, Plan};

use super::{Buffer, HostError, Job, Launch, Order, Program as Executable};
use crate::emit;
use crate::program::Program;
use crate::signature::Role;

/// Why a plan did not run.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The program was not built or did not start.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A kernel failed, or what it is given does not fit.
    #[error("{0}")]
    Run(String),
}

fn run_error(m: impl Into<String>) -> PlanError {
    PlanError::Run(m.into())
}

/// A plan with its weights, pools and scratch.
#[derive(Debug)]
pub struct PlanRun {
    program: Program,
    executable: Executable,
    /// Weights as kernels read them, by rank and weight.
    weights: Vec<Vec<Vec<u8>>>,
    /// What stays from step to step: pools and scratch.
    kept: HashMap<Place, Vec<u8>>,
}

/// What a step left in memory.
pub type Left = HashMap<Place, Vec<u8>>;

impl PlanRun {
    /// Compiles the program's kernels into `dir` and repacks the weights, which `stored` gives by rank and weight.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(
        plan: &Plan,
        program: Program,
        stored: &dyn Fn(usize, WeightId) -> Vec<u8>,
        dir: &Path,
    ) -> Result<Self, PlanError> {
        let executable = Executable::build(&emit::unit(&program.kernels), dir)?;
        let mut kept = HashMap::new();
        for (rank, states) in program.launches.states.iter().enumerate() {
            for ((s, _), bytes) in plan.states.iter().zip(states) {
                kept.insert(Place::Mem { rank, mem: Mem::State(s) }, vec![0; *bytes as usize]);
            }
        }
        let mut run = PlanRun { program, executable, weights: Vec::new(), kept };
        for rank in 0..run.program.launches.weights.len() {
            let of = run.repacked(plan, rank, stored)?;
            run.weights.push(of);
        }
        Ok(run)
    }

    /// The weights of a rank in their forms.
    fn repacked(
        &self,
        plan: &Plan,
        rank: usize,
        stored: &dyn Fn(usize, WeightId) -> Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, PlanError> {
        let (mut out, mut jobs, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for ((w, recipe), form) in plan.weights.iter().zip(&self.program.launches.weights[rank]) {
            let bytes = stored(rank, w);
            if bytes.len() as u64 != form.stored {
                let (have, want) = (bytes.len(), form.stored);
                return Err(run_error(format!("weight `{}` has {have} bytes, expected {want}", recipe.name)));
            }
            if let Some(k) = form.repack {
                let buffers = vec![Buffer::Input(bytes), Buffer::Output(form.bytes as usize)];
                let launches = &self.program.kernels[k].launches;
                let launches = launches.iter().map(|s| Launch { shape: s.clone(), args: vec![0, 1] }).collect();
                jobs.push(Job { buffers, launches });
                places.push(out.len());
                out.push(Vec::new());
            } else {
                out.push(bytes);
            }
        }
        for (at, result) in places.into_iter().zip(self.executable.run(&jobs, Order::Rising)?) {
            out[at] = result.map_err(run_error)?.pop().unwrap_or_default();
        }
        Ok(out)
    }

    /// Runs phase `index` of the plan at these values of its symbols and step parameters (of each rank); what is then in the
    /// arena, each buffer as large as its bound.
    ///
    /// # Errors
    /// [`PlanError`], with what the kernel did.
    pub fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        symbols: &[u64],
        params: &[Vec<Vec<i32>>],
        order: Order,
    ) -> Result<Left, PlanError> {
        let phase = &plan.phases[index];
        let program = &self.program.launches.phases[index];
        let (mut job, mut places) = (Job::default(), Vec::<Place>::new());
        let mut at: HashMap<Place, u32> = HashMap::new();
        for call in &program.calls {
            let kernel = &self.program.kernels[call.kernel];
            let mut args = Vec::new();
            for (place, field) in call.args.iter().zip(&kernel.signature.0) {
                if let Place::Scratch(_) = place {
                    let bytes = match &field.role {
                        Role::Scratch { bytes, .. } => *bytes,
                        // Handed from one call of a step to the next.
                        Role::Param { ty, .. } => ty.bytes(&phase.bounds()).unwrap_or(0),
                        Role::Symbols => 0,
                    };
                    let have = self.kept.entry(*place).or_default();
                    have.resize(have.len().max(bytes as usize), 0);
                }
                if !at.contains_key(place) {
                    at.insert(*place, job.buffers.len() as u32);
                    job.buffers.push(Buffer::Output(0));
                    places.push(*place);
                }
                args.push(at[place]);
            }
            job.launches.extend(kernel.launches.iter().map(|s| Launch { shape: s.clone(), args: args.clone() }));
        }
        for (buffer, place) in job.buffers.iter_mut().zip(&places) {
            *buffer = match place {
                Place::Symbols { rank } => {
                    let parts = program.symbols[*rank].iter();
                    Buffer::Input(parts.flat_map(|p| (p.value(symbols) as u32).to_le_bytes()).collect())
                }
                Place::Mem { rank, mem: Mem::Param(p) } => {
                    let words = params.get(*rank).and_then(|r| r.get(p.as_u32() as usize));
                    let words = words.ok_or_else(|| run_error(format!("no step parameter {p} of rank {rank}")))?;
                    Buffer::Input(words.iter().flat_map(|w| w.to_le_bytes()).collect())
                }
                Place::Mem { rank, mem: Mem::Weight(w) } => {
                    Buffer::Input(self.weights[*rank][w.as_u32() as usize].clone())
                }
                Place::Mem { mem: Mem::Buf(b), .. } => Buffer::Output(phase.buffers[*b].bytes as usize),
                Place::Scratch(_) | Place::Mem { mem: Mem::State(_), .. } => {
                    Buffer::Changed(self.kept.get(place).cloned().unwrap_or_default())
                }
            };
        }
        let result = self.executable.run(&[job.clone()], order)?.pop();
        let back = result.unwrap_or_else(|| Err("the program did nothing".into())).map_err(run_error)?;
        let mut back = back.into_iter();
        let mut left = Left::new();
        for (buffer, place) in job.buffers.iter().zip(&places) {
            match buffer {
                Buffer::Input(_) => {}
                Buffer::Changed(_) => {
                    self.kept.insert(*place, back.next().unwrap_or_default());
                }
                Buffer::Output(_) => {
                    left.insert(*place, back.next().unwrap_or_default());
                }
            }
        }
        Ok(left)
    }

    /// The bytes of a pool.
    pub fn state(&self, place: Place) -> Option<&[u8]> {
        self.kept.get(&place).map(Vec::as_slice)
    }
}

/// Where a rank's buffer is.
pub fn buffer(rank: usize, b: BufId) -> Place {
    Place::Mem { rank, mem: Mem::Buf(b) }
}
