//! Makes a program: types of each rank's launch, its kernel (equal ones once), its arguments.

use std::collections::{BTreeMap, HashMap};

use glmc_ir::entities::WeightId;
use glmc_ir::kernel::Access;
use glmc_ir::launch::{Call, Launches, Meets, PhaseLaunches, Place, WeightForm};
use glmc_ir::plan::{Mem, Phase, Plan, Step};
use glmc_ir::ty::{PendingKind, SymValues, TensorType};

use super::choose::Choices;
use super::local::Symbols;
use super::ranks::Fault;
use super::{Program, ProgramError, Spread, graph};
use crate::arch::Arch;
use crate::family::generate;
use crate::repack;
use crate::request::{GenerateError, Generated, Request, Storage};
use crate::signature::Role;

/// Every piece of scratch starts at a multiple of this.
pub(super) const ALIGN: u64 = 256;

impl Program {
    /// The program of a plan that the verifier accepts, all its ranks on one device.
    ///
    /// # Errors
    /// A step without a kernel, or a part of the plan without a size.
    pub fn new(plan: &Plan, arch: Arch, choices: &Choices) -> Result<Program, ProgramError> {
        let map = vec![0; plan.target.ranks.max(1) as usize];
        let Spread { arch, kernels, devices } = Spread::new(plan, arch, choices, &map)?;
        let launches = devices.into_iter().next().unwrap_or_default();
        Ok(Program { arch, kernels, launches })
    }
}

impl Spread {
    /// The programs of a plan that the verifier accepts, rank `r` on device `map[r]`; devices count from 0 and each
    /// has a rank.
    ///
    /// # Errors
    /// A map that is none, a step without a kernel, or a part of the plan without a size.
    pub fn new(plan: &Plan, arch: Arch, choices: &Choices, map: &[usize]) -> Result<Spread, ProgramError> {
        let ranks = plan.target.ranks.max(1) as usize;
        let devices = map.iter().max().map_or(0, |d| d + 1);
        if map.len() != ranks || (0..devices).any(|d| !map.contains(&d)) {
            let why = format!("{map:?} for {ranks} ranks");
            return Err(ProgramError::Size { what: "the map of ranks to devices".into(), why });
        }
        let kernels = Kernels::default();
        let mut b = Build { plan, arch, choices, map, kernels, lane: Vec::new(), temporary: 0, slot: 0 };
        for rank in 0..ranks {
            let lane = b.layouts(rank)?;
            b.lane.push(lane);
        }
        let mut phases: Vec<Vec<PhaseLaunches>> = vec![Vec::new(); devices];
        for phase in &plan.phases {
            let of = b.phase(phase, ranks, devices)?;
            phases.iter_mut().zip(of).for_each(|(all, one)| all.push(one));
        }
        let arena = plan.phases.iter().map(|p| p.arena_bytes).max().unwrap_or(0);
        let mut out = Spread { arch, kernels: Vec::new(), devices: Vec::new() };
        for (me, phases) in phases.into_iter().enumerate() {
            let ranks: Vec<usize> = (0..ranks).filter(|r| map[*r] == me).collect();
            let weights = ranks.iter().map(|r| b.weights(*r)).collect::<Result<Vec<_>, _>>()?;
            let states = ranks.iter().map(|r| b.states(*r)).collect::<Result<Vec<_>, _>>()?;
            let meets = (devices > 1).then_some(Meets { devices, me, slot: b.slot });
            out.devices.push(Launches { phases, weights, states, arena, scratch: 0, ranks, meets });
        }
        out.kernels = b.kernels.list;
        let (kernels, temporary) = (&out.kernels, b.temporary);
        out.devices.iter_mut().for_each(|d| place_scratch(d, kernels, temporary));
        let Spread { kernels, devices, .. } = &mut out;
        devices.iter_mut().for_each(|d| graph::set(plan, arch, kernels, d));
        Ok(out)
    }
}

/// Gives each kernel that keeps its scratch a piece of its own behind the first `temporary` bytes; all others share the
/// piece behind them, for the launches of a stream run one after the other.
fn place_scratch(launches: &mut Launches, kernels: &[Generated], temporary: u64) {
    let (mut kept, mut loose) = (temporary, 0u64);
    let mut of: BTreeMap<usize, Option<u64>> = BTreeMap::new();
    for call in launches.phases.iter().flat_map(|p| &p.calls) {
        for f in &kernels[call.kernel].signature.0 {
            match f.role {
                Role::Scratch { bytes, kept: true } => {
                    of.entry(call.kernel).or_insert_with(|| {
                        let at = kept;
                        kept += bytes.next_multiple_of(ALIGN);
                        Some(at)
                    });
                }
                Role::Scratch { bytes, kept: false } => {
                    loose = loose.max(bytes.next_multiple_of(ALIGN));
                    of.entry(call.kernel).or_insert(None);
                }
                _ => {}
            }
        }
    }
    for call in launches.phases.iter_mut().flat_map(|p| &mut p.calls) {
        let fields = &kernels[call.kernel].signature.0;
        for (a, field) in call.args.iter_mut().zip(fields) {
            if let (Place::Scratch(at), Role::Scratch { .. }) = (a, &field.role) {
                *at = of.get(&call.kernel).copied().flatten().unwrap_or(kept);
            }
        }
    }
    launches.scratch = kept + loose;
}

/// Kernels by what they were made from.
#[derive(Default)]
pub(super) struct Kernels {
    pub(super) list: Vec<Generated>,
    by_name: HashMap<String, usize>,
    by_request: HashMap<String, usize>,
}

impl Kernels {
    pub(super) fn add(&mut self, k: Generated) -> usize {
        if let Some(i) = self.by_name.get(&k.name) {
            return *i;
        }
        self.by_name.insert(k.name.clone(), self.list.len());
        self.list.push(k);
        self.list.len() - 1
    }

    fn get(&mut self, request: &Request<'_>) -> Result<usize, GenerateError> {
        let types: Vec<String> = request.inputs.iter().map(ToString::to_string).collect();
        let key = format!("{:?} {types:?} {:?} {:?}", request.kernel, request.syms, request.options);
        if let Some(i) = self.by_request.get(&key) {
            return Ok(*i);
        }
        let i = self.add(generate(request)?);
        self.by_request.insert(key, i);
        Ok(i)
    }
}

pub(super) struct Build<'a> {
    pub(super) plan: &'a Plan,
    arch: Arch,
    pub(super) choices: &'a Choices,
    /// The device of each rank.
    pub(super) map: &'a [usize],
    pub(super) kernels: Kernels,
    /// For each rank, which weights lie in lanes.
    lane: Vec<Vec<bool>>,
    /// Bytes that a step's calls hand to each other, at the start of scratch.
    pub(super) temporary: u64,
    /// Bytes of a slot that the largest meeting of devices needs.
    pub(super) slot: u64,
}

/// The inputs of a rank's launch.
pub(super) struct Inputs {
    pub(super) types: Vec<TensorType>,
    pub(super) mems: Vec<Mem>,
}

pub(super) fn inputs(plan: &Plan, step: &Step, rank: usize, symbols: &mut Symbols) -> Result<Inputs, String> {
    let of = step.args.iter().filter(|a| a.access != Access::Write);
    let mut out = Inputs { types: Vec::new(), mems: Vec::new() };
    for a in of {
        out.types.push(symbols.local(&a.ty, &plan.mesh, rank as u64)?);
        out.mems.push(a.mem);
    }
    Ok(out)
}

impl Build<'_> {
    fn local_weight(&self, w: WeightId, rank: usize) -> Result<TensorType, ProgramError> {
        let recipe = &self.plan.weights[w];
        let ty = Symbols::of(&SymValues::default()).local(&recipe.ty, &self.plan.mesh, rank as u64);
        ty.map_err(|why| ProgramError::Size { what: format!("weight `{}`", recipe.name), why })
    }

    /// Which weights of a rank lie in lanes: those for which it is worth it and which every kernel that reads them
    /// takes so.
    fn layouts(&self, rank: usize) -> Result<Vec<bool>, ProgramError> {
        let mut uses: Vec<Vec<(&Phase, &Step)>> = vec![Vec::new(); self.plan.weights.len()];
        for phase in &self.plan.phases {
            for step in &phase.steps {
                for a in &step.args {
                    if let Mem::Weight(w) = a.mem {
                        uses[w.as_u32() as usize].push((phase, step));
                    }
                }
            }
        }
        let mut verdicts: HashMap<String, bool> = HashMap::new();
        let mut out = Vec::with_capacity(uses.len());
        for (i, uses) in uses.iter().enumerate() {
            let w = WeightId::from_u32(i as u32);
            let ty = self.local_weight(w, rank)?;
            let takes = |verdicts: &mut HashMap<String, bool>, phase: &Phase, step: &Step| {
                let mut symbols = Symbols::of(&phase.bounds());
                let Ok(inputs) = inputs(self.plan, step, rank, &mut symbols) else { return false };
                let of = |m: &Mem| if *m == Mem::Weight(w) { Storage::Lane } else { Storage::Rows };
                let storage: Vec<Storage> = inputs.mems.iter().map(of).collect();
                let types: Vec<String> = inputs.types.iter().map(ToString::to_string).collect();
                let key = format!("{:?} {types:?} {:?} {storage:?}", step.kernel, symbols.bounds);
                *verdicts.entry(key).or_insert_with(|| {
                    let options = self.choices.options(&inputs, &symbols.bounds, storage, None);
                    let (kernel, inputs, syms) = (&step.kernel, &inputs.types, &symbols.bounds);
                    generate(&Request { kernel, inputs, syms, arch: self.arch, options: &options }).is_ok()
                })
            };
            let wants = self.choices.wants_lane(&ty, uses.iter().map(|(_, s)| &s.kernel));
            out.push(wants && uses.iter().all(|(p, s)| takes(&mut verdicts, p, s)));
        }
        Ok(out)
    }

    /// The calls of a phase, a program a device.
    fn phase(&mut self, phase: &Phase, ranks: usize, devices: usize) -> Result<Vec<PhaseLaunches>, ProgramError> {
        let mut symbols = vec![Symbols::of(&phase.bounds()); ranks];
        let mut out = vec![PhaseLaunches::default(); devices];
        for (index, step) in phase.steps.iter().enumerate() {
            let calls = match step.kernel.collective() {
                Some(c) => self.meetings(step, &c, &mut symbols).map_err(Fault::Why).map(|made| {
                    let of = |d: &mut PhaseLaunches| d.meetings.extend(std::iter::repeat_n(index, made.exchanges));
                    out.iter_mut().for_each(of);
                    for (d, before, moves) in made.transfers {
                        let before = out[d].calls.len() + before;
                        out[d].transfers.push(self.transfer(before, index, moves));
                    }
                    made.calls
                }),
                None => (0..ranks).try_fold(Vec::new(), |mut calls, rank| {
                    let of = self.launch(phase, step, rank, &mut symbols[rank])?;
                    calls.extend(of.into_iter().map(|c| (self.map[rank], c)));
                    Ok(calls)
                }),
            };
            let (step, phase) = (step.name.clone(), phase.name.clone());
            let calls = calls.map_err(|e| match e {
                Fault::Why(why) => ProgramError::Unsupported { step, phase, why },
                Fault::Kernel(error) => ProgramError::Step { step, phase, error: Box::new(error) },
            })?;
            for (device, call) in calls {
                out[device].calls.push(self.numbered(Call { step: index, ..call }));
            }
        }
        for (rank, s) in symbols.into_iter().enumerate() {
            let of = &mut out[self.map[rank]];
            of.params.push(self.params(phase, rank)?);
            of.symbols.push(s.parts);
        }
        Ok(out)
    }

    /// The call with ranks as its device counts them.
    fn numbered(&self, mut call: Call) -> Call {
        call.args.iter_mut().for_each(|a| self.number(a));
        call.rank = self.own(call.rank);
        call
    }

    /// A rank as its device counts it.
    fn own(&self, rank: usize) -> usize {
        self.map[..rank].iter().filter(|d| **d == self.map[rank]).count()
    }

    pub(super) fn number(&self, place: &mut Place) {
        if let Place::Mem { rank, .. } | Place::Symbols { rank } = place {
            *rank = self.own(*rank);
        }
    }

    pub(super) fn kernel(
        &mut self,
        step: &Step,
        inputs: &Inputs,
        symbols: &Symbols,
        rank: usize,
        merge: Option<PendingKind>,
    ) -> Result<usize, GenerateError> {
        let of = |m: &Mem| match m {
            Mem::Weight(w) if self.lane[rank].get(w.as_u32() as usize) == Some(&true) => Storage::Lane,
            _ => Storage::Rows,
        };
        let (kernel, syms) = (&step.kernel, &symbols.bounds);
        let options = self.choices.options(inputs, syms, inputs.mems.iter().map(of).collect(), merge);
        self.kernels.get(&Request { kernel, inputs: &inputs.types, syms, arch: self.arch, options: &options })
    }

    pub(super) fn args(&self, step: &Step, kernel: usize, rank: usize) -> Result<Vec<Place>, String> {
        let field = |role: &Role| match role {
            Role::Param { index, .. } => {
                let arg = step.args.get(*index).ok_or("the step has fewer arguments than its contract".to_owned())?;
                Ok(Place::Mem { rank, mem: arg.mem })
            }
            Role::Symbols => Ok(Place::Symbols { rank }),
            Role::Scratch { .. } => Ok(Place::Scratch(0)),
            Role::Slab { .. } | Role::Control | Role::Halt => Err("a launch of one rank that meets others".to_owned()),
        };
        self.kernels.list[kernel].signature.0.iter().map(|f| field(&f.role)).collect()
    }

    fn params(&self, phase: &Phase, rank: usize) -> Result<Vec<u64>, ProgramError> {
        let one = |p: &glmc_ir::plan::Param| {
            let mut symbols = Symbols::of(&phase.bounds());
            let told = |why| ProgramError::Size { what: format!("step parameter `{}`", p.name), why };
            let ty = symbols.local(&p.ty, &self.plan.mesh, rank as u64).map_err(told)?;
            ty.bytes(&symbols.bounds).ok_or_else(|| told(format!("no size of {ty}")))
        };
        phase.params.values().map(one).collect()
    }

    fn weights(&mut self, rank: usize) -> Result<Vec<WeightForm>, ProgramError> {
        let mut out = Vec::with_capacity(self.plan.weights.len());
        for (w, recipe) in &self.plan.weights {
            let ty = self.local_weight(w, rank)?;
            let told = |why| ProgramError::Size { what: format!("weight `{}`", recipe.name), why };
            let stored = ty.bytes(&SymValues::default()).ok_or_else(|| told(format!("no size of {ty}")))?;
            let lane = self.lane[rank].get(w.as_u32() as usize) == Some(&true);
            out.push(if lane {
                let missing = || told(format!("{ty} has no lane layout"));
                let elems = ty.elems(&SymValues::default()).ok_or_else(missing)?;
                let q = ty.elem.storage().ok_or_else(missing)?;
                let bytes = repack::lane_bytes(q, elems).ok_or_else(missing)?;
                let kernel = repack::kernel(&ty).ok_or_else(missing)?;
                WeightForm { stored, bytes, repack: Some(self.kernels.add(kernel)) }
            } else {
                WeightForm { stored, bytes: stored, repack: None }
            });
        }
        Ok(out)
    }

    fn states(&self, rank: usize) -> Result<Vec<u64>, ProgramError> {
        let one = |s: &glmc_ir::plan::State| {
            let told = |why| ProgramError::Size { what: format!("cache pool `{}`", s.name), why };
            let none = SymValues::default();
            let ty = Symbols::of(&none).local(&s.ty, &self.plan.mesh, rank as u64).map_err(told)?;
            ty.bytes(&none).ok_or_else(|| told(format!("no size of {ty}")))
        };
        self.plan.states.values().map(one).collect()
    }
}
