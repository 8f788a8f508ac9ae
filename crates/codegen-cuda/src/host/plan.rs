//! A whole plan on the host emulation: the program that a GPU runs, with each buffer of the arena in memory of its own,
//! so that a kernel that leaves its buffer is found.

use std::collections::HashMap;
use std::path::Path;

use glmc_ir::entities::{BufId, WeightId};
use glmc_ir::launch::{Place, WeightForm};
use glmc_ir::plan::{Mem, Phase, Plan};

use super::{Buffer, HostError, Job, Launch, Order, Program as Executable};
use crate::emit;
use crate::kernels::{Header, headers};
use crate::program::{Program, Spread};
use crate::request::LaunchShape;
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

/// Rounds of all devices, in microseconds, that a wait for another may take.
const PATIENCE: u64 = 20_000_000;

/// A plan with its weights, pools and scratch.
#[derive(Debug)]
pub struct PlanRun {
    program: Spread,
    executable: Executable,
    /// Weights as kernels read them, by rank of the plan and weight.
    weights: Vec<Vec<Vec<u8>>>,
    /// What stays from step to step: pools, scratch, and what devices have for each other.
    kept: HashMap<Key, Vec<u8>>,
}

/// A device and one of its places; ranks as the plan counts them. What several devices see is the first one's.
type Key = (usize, Place);

/// What a step left in memory.
pub type Left = HashMap<Place, Vec<u8>>;

impl From<Program> for Spread {
    fn from(p: Program) -> Self {
        Spread { arch: p.arch, kernels: p.kernels, devices: vec![p.launches] }
    }
}

impl PlanRun {
    /// Compiles the program's kernels into `dir` and repacks the weights, which `stored` gives by rank and weight.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(
        plan: &Plan,
        program: impl Into<Spread>,
        stored: &dyn Fn(usize, WeightId) -> Vec<u8>,
        dir: &Path,
    ) -> Result<Self, PlanError> {
        Self::with_headers(plan, program, stored, &headers(), dir)
    }

    /// The same over other headers: tests plant faults in them.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn with_headers(
        plan: &Plan,
        program: impl Into<Spread>,
        stored: &dyn Fn(usize, WeightId) -> Vec<u8>,
        headers: &[Header],
        dir: &Path,
    ) -> Result<Self, PlanError> {
        let program = program.into();
        let executable = Executable::build_with(&emit::unit(&program.kernels), headers, dir)?;
        let mut kept = HashMap::new();
        for (d, launches) in program.devices.iter().enumerate() {
            for (rank, states) in launches.ranks.iter().zip(&launches.states) {
                for ((s, _), bytes) in plan.states.iter().zip(states) {
                    kept.insert((d, Place::Mem { rank: *rank, mem: Mem::State(s) }), vec![0; *bytes as usize]);
                }
            }
            if let Some(m) = &launches.meets {
                let control = m.control(PATIENCE).iter().flat_map(|w| w.to_le_bytes()).collect();
                kept.insert((d, Place::Control), control);
                kept.insert((0, Place::Slab { device: d }), vec![0; m.slab() as usize]);
                kept.insert((0, Place::Halt), vec![0; m.halt() as usize]);
            }
        }
        let mut run = PlanRun { program, executable, weights: Vec::new(), kept };
        let mut weights = vec![Vec::new(); plan.target.ranks as usize];
        for launches in &run.program.devices {
            for (at, rank) in launches.ranks.iter().enumerate() {
                weights[*rank] = run.repacked(plan, *rank, &launches.weights[at], stored)?;
            }
        }
        run.weights = weights;
        Ok(run)
    }

    /// The weights of a rank in their forms.
    fn repacked(
        &self,
        plan: &Plan,
        rank: usize,
        forms: &[WeightForm],
        stored: &dyn Fn(usize, WeightId) -> Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, PlanError> {
        let (mut out, mut jobs, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for ((w, recipe), form) in plan.weights.iter().zip(forms) {
            let bytes = stored(rank, w);
            if bytes.len() as u64 != form.stored {
                let (have, want) = (bytes.len(), form.stored);
                return Err(run_error(format!("weight `{}` has {have} bytes, expected {want}", recipe.name)));
            }
            if let Some(k) = form.repack {
                let buffers = vec![Buffer::Input(bytes), Buffer::Output(form.bytes as usize)];
                let launches = &self.program.kernels[k].launches;
                let launches =
                    launches.iter().map(|s| Launch { shape: s.clone(), args: vec![0, 1], device: 0 }).collect();
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
        let (mut job, mut places) = (Job::default(), Vec::<Key>::new());
        let mut at: HashMap<Key, u32> = HashMap::new();
        for (d, launches) in self.program.devices.iter().enumerate() {
            for call in launches.phases[index].launched() {
                let kernel = &self.program.kernels[call.kernel];
                let mut args = Vec::new();
                for (place, field) in call.args.iter().zip(&kernel.signature.0) {
                    let key = key(d, *place, &launches.ranks);
                    if let Place::Scratch(_) = place {
                        let bytes = match &field.role {
                            Role::Scratch { bytes, .. } => *bytes,
                            // Handed from one call of a step to the next.
                            Role::Param { ty, .. } => ty.bytes(&phase.bounds()).unwrap_or(0),
                            _ => 0,
                        };
                        let have = self.kept.entry(key).or_default();
                        have.resize(have.len().max(bytes as usize), 0);
                    }
                    if let std::collections::hash_map::Entry::Vacant(e) = at.entry(key) {
                        e.insert(job.buffers.len() as u32);
                        job.buffers.push(Buffer::Output(0));
                        places.push(key);
                    }
                    args.push(at[&key]);
                }
                let one = |s: &LaunchShape| Launch { shape: s.clone(), args: args.clone(), device: d as u32 };
                job.launches.extend(kernel.launches.iter().map(one));
            }
        }
        for (buffer, (d, place)) in job.buffers.iter_mut().zip(&places) {
            let launches = &self.program.devices[*d];
            let own = |rank: usize| launches.ranks.iter().position(|r| *r == rank).unwrap_or(0);
            *buffer = match place {
                Place::Symbols { rank } => {
                    let parts = launches.phases[index].symbols[own(*rank)].iter();
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
                _ => Buffer::Changed(self.kept.get(&(*d, *place)).cloned().unwrap_or_default()),
            };
        }
        let result = self.executable.run(&[job.clone()], order)?.pop();
        let back = result.unwrap_or_else(|| Err("the program did nothing".into())).map_err(run_error)?;
        let mut back = back.into_iter();
        let mut left = Left::new();
        for (buffer, (d, place)) in job.buffers.iter().zip(&places) {
            match buffer {
                Buffer::Input(_) => {}
                Buffer::Changed(_) => {
                    self.kept.insert((*d, *place), back.next().unwrap_or_default());
                }
                Buffer::Output(_) => {
                    left.insert(*place, back.next().unwrap_or_default());
                }
            }
        }
        self.halted(phase, index)?;
        Ok(left)
    }

    /// Whether a device gave up waiting for another.
    fn halted(&self, phase: &Phase, index: usize) -> Result<(), PlanError> {
        let Some(words) = self.kept.get(&(0, Place::Halt)) else { return Ok(()) };
        let words: Vec<u64> = words.as_chunks().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
        if words[0] == 0 {
            return Ok(());
        }
        let meetings = &self.program.devices[0].phases[index].meetings;
        let told =
            words[2..].as_chunks::<2>().0.iter().enumerate().filter(|(_, w)| w[0] != 0).map(|(d, [peer, at])| {
                let step = meetings.get(*at as usize % meetings.len().max(1)).and_then(|s| phase.steps.get(*s));
                format!("device {d} waits for device {} in step `{}`", peer - 1, step.map_or("?", |s| &s.name))
            });
        Err(run_error(told.collect::<Vec<_>>().join("; ")))
    }

    /// The bytes of a pool.
    pub fn state(&self, place: Place) -> Option<&[u8]> {
        (0..self.program.devices.len()).find_map(|d| self.kept.get(&(d, place))).map(Vec::as_slice)
    }
}

/// Whose a device's place is.
fn key(device: usize, place: Place, ranks: &[usize]) -> Key {
    match place {
        Place::Mem { rank, mem } => (device, Place::Mem { rank: ranks[rank], mem }),
        Place::Symbols { rank } => (device, Place::Symbols { rank: ranks[rank] }),
        Place::Slab { .. } | Place::Halt => (0, place),
        Place::Scratch(_) | Place::Control => (device, place),
    }
}

/// Where a rank's buffer is.
pub fn buffer(rank: usize, b: BufId) -> Place {
    Place::Mem { rank, mem: Mem::Buf(b) }
}
