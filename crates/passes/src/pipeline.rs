//! Owns the order of passes and the driver that verifies after each. Never owns a rewrite.

use std::time::Instant;

use glmc_ir::graph::Module;

use crate::canonicalise::{self, Canonicalise};
use crate::egraph::cost::Machine;
use crate::egraph::{self, Saturate};
use crate::lower::{self, Lowered};
use crate::pass::{Choices, Pass, PassCx, PassError, Timing, Variant};
use crate::prune::{self, Prune};
use crate::rotate::{self, Rotate};
use crate::schedule::{self, EntryInfo, Scheduled};
use crate::shard::{self, Shard};
use crate::specialise::{self, Specialise};

/// The module passes in order, for a machine.
pub fn passes(machine: &Machine) -> Vec<Box<dyn Pass>> {
    vec![
        Box::new(Canonicalise),
        Box::new(Rotate),
        Box::new(Specialise::new(machine.clone())),
        Box::new(Saturate::new(machine.clone())),
        Box::new(Prune),
        Box::new(Shard::new(machine.clone()).explained()),
    ]
}

/// The stage before all passes.
pub const LIFT: &str = "lift";
/// The stage at which functions are launches.
pub const LOWER: &str = "lower";
/// The stage at which there is a plan.
pub const SCHEDULE: &str = "schedule";

/// The names of all stages that `--emit after=NAME` knows, in order.
pub const STAGES: [&str; 9] =
    [LIFT, canonicalise::NAME, rotate::NAME, specialise::NAME, egraph::NAME, prune::NAME, shard::NAME, LOWER, SCHEDULE];

/// What compiling gave, besides the plan's parts.
#[derive(Debug)]
pub struct Compiled {
    /// The module after the last module pass.
    pub module: Module,
    /// Its functions as launches.
    pub lowered: Vec<Lowered>,
    /// The plan's parts.
    pub scheduled: Scheduled,
    /// Times of passes and verifications.
    pub timings: Vec<Timing>,
    /// Rewrites made.
    pub rewrites: u64,
    /// What saturation found, function by function: programs, costs, rules.
    pub saturated: Vec<crate::egraph::Saturated>,
    /// Where everything was placed, on several ranks.
    pub sharded: Option<crate::shard::report::Report>,
}

/// Shown each module stage as it is reached: its name and the module.
pub type Emit<'a> = &'a mut dyn FnMut(&str, &Module);

/// Runs all passes on a lifted module for a machine, verifying after each.
///
/// # Errors
/// The pass that failed, or after which the verifier found something.
pub fn run(
    lifted: Module,
    entries: &[EntryInfo],
    machine: &Machine,
    choices: impl Into<Choices>,
    emit: Emit<'_>,
) -> Result<Compiled, PassError> {
    let mut cx = PassCx::new(choices);
    cx.phases = Some(entries.iter().map(|e| e.func.clone()).collect());
    let mut timings = Vec::new();
    verify(LIFT, &lifted, &mut timings)?;
    emit(LIFT, &lifted);
    let mut module = lifted;
    for pass in passes(machine) {
        let start = Instant::now();
        module = pass.run(&module, &mut cx).map_err(|error| PassError::Failed { pass: pass.name().into(), error })?;
        timings.push(Timing { name: pass.name().into(), time: start.elapsed() });
        verify(pass.name(), &module, &mut timings)?;
        emit(pass.name(), &module);
    }
    let none = |error| PassError::Failed { pass: crate::shard::NAME.into(), error };
    cx.all_met().map_err(none)?;
    let start = Instant::now();
    let failed = |pass: &str| {
        let pass = pass.to_owned();
        move |error| PassError::Failed { pass, error }
    };
    let lowered = lower::lower(&module, &mut cx).map_err(failed(LOWER))?;
    timings.push(Timing { name: LOWER.into(), time: start.elapsed() });
    let start = Instant::now();
    let entries = with_variants(entries, &cx);
    let scheduled = schedule::schedule_for(&module, &lowered, &entries, machine, &mut cx).map_err(failed(SCHEDULE))?;
    timings.push(Timing { name: SCHEDULE.into(), time: start.elapsed() });
    Ok(Compiled {
        module,
        lowered,
        scheduled,
        timings,
        rewrites: cx.rewrites,
        saturated: cx.saturated,
        sharded: cx.sharded,
    })
}

/// The entries that phases are made of: also those that passes added, after those that were asked for.
pub(crate) fn with_variants(entries: &[EntryInfo], cx: &PassCx) -> Vec<EntryInfo> {
    let like = |v: &Variant| {
        let of = entries.iter().find(|e| e.func == v.of)?;
        Some(EntryInfo { func: v.entry.clone(), ..of.clone() })
    };
    entries.iter().cloned().chain(cx.variants.iter().filter_map(like)).collect()
}

fn verify(pass: &str, m: &Module, timings: &mut Vec<Timing>) -> Result<(), PassError> {
    let start = Instant::now();
    let found = glmc_ir::verify::verify_module(m);
    timings.push(Timing { name: format!("verify {pass}"), time: start.elapsed() });
    found.map_err(|errors| PassError::Invalid { pass: pass.into(), errors })
}
