//! Owns what overlap saves: the time that a collective travels while launches run beside it.

use glmc_ir::diag::Diagnostic;
use glmc_ir::placement::Mesh;
use glmc_ir::plan::{Phase, Step};
use glmc_ir::ty::SymValues;

use super::phase::{launch, local_bytes};
use super::{Exchange, launch_seconds};
use crate::target::Target;

/// What a step takes on the rank that holds most of its values.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StepTime {
    /// Seconds in which the rank does nothing else: a launch, or the start of a collective.
    pub compute_s: f64,
    /// Seconds in which a collective travels; 0 for what is none.
    pub travel_s: f64,
}

/// The time of `step` with its symbols at these values. Ranks that nothing joins do not travel.
///
/// # Errors
/// A launch whose contract refuses its arguments; the verifier finds it first.
pub fn step_time(step: &Step, mesh: &Mesh, syms: &SymValues, target: &Target) -> Result<StepTime, Diagnostic> {
    if let Some(e) = Exchange::of(step, mesh, syms)? {
        let travel_s = e.cost(target, mesh).map_or(0.0, |c| c.seconds);
        return Ok(StepTime { compute_s: target.device.launch_s, travel_s });
    }
    let l = launch(step, mesh, syms, target)?;
    let held = |m: &super::phase::Moved<'_>| match m.spread {
        Some(s) => s.bytes(m.bytes),
        None => local_bytes(m.ty, m.bytes, mesh),
    };
    let bytes = l.moved.iter().map(held).fold(0, u64::saturating_add);
    let compute_s = launch_seconds(target, bytes, l.flops_of_a_rank(mesh), l.unit);
    Ok(StepTime { compute_s, travel_s: 0.0 })
}

/// For each overlap of `phase` the seconds that it saves: no launch hides two collectives.
///
/// # Errors
/// See [`step_time`].
pub(super) fn saved(phase: &Phase, mesh: &Mesh, syms: &SymValues, target: &Target) -> Result<Vec<f64>, Diagnostic> {
    let mut spent = vec![0.0; phase.steps.len()];
    let mut out = Vec::with_capacity(phase.overlaps.len());
    for o in &phase.overlaps {
        let travel = phase.steps.get(o.step).map(|s| step_time(s, mesh, syms, target)).transpose()?;
        let travel = travel.unwrap_or_default().travel_s;
        let mut left = travel;
        for (step, spent) in phase.steps.iter().zip(&mut spent).take(o.done).skip(o.step.saturating_add(1)) {
            let time = step_time(step, mesh, syms, target)?;
            let free = if time.travel_s > 0.0 { 0.0 } else { (time.compute_s - *spent).min(left).max(0.0) };
            *spent += free;
            left -= free;
        }
        out.push(travel - left);
    }
    Ok(out)
}
