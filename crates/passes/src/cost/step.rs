//! Owns the cost of single steps: what each launch or collective of a phase is predicted to take on a rank.

use glmc_ir::diag::Diagnostic;
use glmc_ir::plan::{Phase, Plan};
use serde::Serialize;

use super::phase::{launch, nominal, on_rank};
use super::{Bytes, Exchange};
use crate::target::Target;

/// What one step of a phase costs on one rank.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepCost {
    /// The step.
    pub step: String,
    /// The contract.
    pub kernel: &'static str,
    /// Seconds, launch included.
    pub seconds: f64,
    /// Of them, starting it.
    pub launch_s: f64,
    /// What the rest is spent on.
    pub bound: Bound,
    /// Bytes moved in the rank's own memory; none for a collective.
    pub bytes: Bytes,
    /// Bytes of the value that a collective exchanges, whole of a gather and a rank's operand of any other; 0 of a launch.
    pub exchanged: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// What keeps a step from being faster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Reading and writing memory.
    Memory,
    /// Arithmetic.
    Arithmetic,
    /// The links between ranks.
    Link,
    /// Starting it takes longer than doing it.
    Launch,
}

/// The cost of each step of `phase` on `rank`, with `tune_ctx` visible positions or the plan's bound. They add up to
/// [`super::phase_costs`].
///
/// # Errors
/// See [`super::phase_costs`].
pub fn step_costs(
    plan: &Plan,
    phase: &Phase,
    target: &Target,
    tune_ctx: u64,
    rank: usize,
) -> Result<Vec<StepCost>, Diagnostic> {
    let (syms, _) = nominal(phase, tune_ctx);
    let launch_s = target.device.launch_s;
    let saved = super::overlap::saved(phase, &plan.mesh, &syms, target)?;
    let one = |(i, step): (usize, &glmc_ir::plan::Step)| {
        let (name, kernel) = (step.name.clone(), step.kernel.name());
        let cost = |seconds: f64, bound: Bound, bytes: Bytes, flops: u64| {
            let bound = if seconds < launch_s { Bound::Launch } else { bound };
            StepCost { step: name, kernel, seconds: seconds + launch_s, launch_s, bound, bytes, exchanged: 0, flops }
        };
        if let Some(e) = Exchange::of(step, &plan.mesh, &syms)? {
            let none = || Diagnostic::new("no-link", format!("nothing joins the ranks of `{}`", step.name));
            let of = e.cost(target, &plan.mesh).ok_or_else(none)?;
            let hidden: f64 = phase.overlaps.iter().zip(&saved).filter(|(o, _)| o.step == i).map(|(_, s)| s).sum();
            let one = cost(of.seconds - hidden, Bound::Link, Bytes::default(), 0);
            return Ok(StepCost { exchanged: e.bytes, ..one });
        }
        let l = launch(step, &plan.mesh, &syms, target)?;
        let mut bytes = Bytes::default();
        l.moved.iter().for_each(|m| bytes += on_rank(plan, m, rank));
        let flops = l.flops_of_a_rank(&plan.mesh);
        let memory = bytes.total() as f64 / target.device.read_bytes_per_s;
        let arithmetic = flops as f64 / l.unit.per_s(target);
        let bound = if arithmetic > memory { Bound::Arithmetic } else { Bound::Memory };
        Ok(cost(memory.max(arithmetic), bound, bytes, flops))
    };
    phase.steps.iter().enumerate().map(one).collect()
}
