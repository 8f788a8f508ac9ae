//! Pass `schedule`. Owns order, overlap, lifetimes, memory and segments: from lowered functions to the phases of a plan.
//! Never chooses a kernel.

mod arena;
mod flatten;
mod order;
mod overlap;

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{StateId, WeightId};
use glmc_ir::graph::Module;
use glmc_ir::plan::{Phase, PhaseKind, Recipe, Segment, State};

use cranelift_entity::PrimaryMap;

use crate::egraph::cost::Machine;
use crate::lower::Lowered;
use crate::pass::PassCx;

/// What an entry function is for.
#[derive(Clone, Debug)]
pub struct EntryInfo {
    /// Name of the entry function; the phase's name too.
    pub func: String,
    /// See [`Phase::kind`].
    pub kind: PhaseKind,
    /// See [`Phase::tokens`].
    pub tokens: u64,
}

/// The parts of a plan that come from the module.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// Recipes of the weights that some phase reads, in module order.
    pub weights: PrimaryMap<WeightId, Recipe>,
    /// Cache pools of the phases.
    pub states: PrimaryMap<StateId, State>,
    /// The phases, in the order of the entries.
    pub phases: Vec<Phase>,
}

/// Makes the phases of `entries` from the lowered functions of `m`, in program order.
///
/// # Errors
/// `no-entry` for an entry that is not there; `state-mismatch` when two entries disagree about a cache pool;
/// `symbol-twice` for an entry with two symbols of one count; `too-large` for a buffer whose size overflows.
pub fn schedule(m: &Module, lowered: &[Lowered], entries: &[EntryInfo]) -> Result<Scheduled, Diagnostic> {
    phases(m, lowered, entries, &mut |_| Ok(()))
}

/// The same for a machine: launches run beside collectives that they do not depend on.
///
/// # Errors
/// As [`schedule`].
pub fn schedule_for(
    m: &Module,
    lowered: &[Lowered],
    entries: &[EntryInfo],
    machine: &Machine,
    cx: &mut PassCx,
) -> Result<Scheduled, Diagnostic> {
    phases(m, lowered, entries, &mut |phase| overlap::overlap(phase, &m.mesh, machine, &mut || cx.choose()))
}

fn phases(
    m: &Module,
    lowered: &[Lowered],
    entries: &[EntryInfo],
    overlap: &mut dyn FnMut(&mut Phase) -> Result<(), Diagnostic>,
) -> Result<Scheduled, Diagnostic> {
    let mut shared = flatten::Shared::default();
    let mut phases = Vec::new();
    for e in entries {
        let id = m.func_named(&e.func).filter(|id| m.funcs[*id].entry);
        let id = id.ok_or_else(|| Diagnostic::new("no-entry", format!("there is no entry @{}", e.func)))?;
        let mut phase = flatten::flatten(m, lowered, id, e, &mut shared)?;
        order::order(&mut phase);
        overlap(&mut phase)?;
        arena::place(&mut phase, &m.mesh)?;
        // Every address is stable and nothing is written by the host in between, so one segment holds all.
        phase.segments = vec![Segment { first: 0, count: phase.steps.len() }];
        phases.push(phase);
    }
    let (weights, states) = shared.finish(m, &mut phases)?;
    Ok(Scheduled { weights, states, phases })
}

/// The recipe of a weight: what each rank reads, by the one code that slices.
fn recipe(w: &glmc_ir::graph::Weight, m: &Module) -> Result<Recipe, Diagnostic> {
    let slices = glmc_ir::shard_map::recipe_slices(&w.ty, &m.mesh, w.span)?;
    Ok(Recipe { name: w.name.clone(), tensor: w.tensor.clone(), ty: w.ty.clone(), span: w.span, slices })
}
