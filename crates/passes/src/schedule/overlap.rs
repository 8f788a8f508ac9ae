//! Owns the overlap of collectives with independent work: a collective begins as soon as its operand is made, and
//! launches that do not depend on it run between it and the first step that does. Never changes a step, and leaves a
//! phase as it is where nothing is independent.
//!
//! Program order is kept but for two moves a collective: it goes up to what makes its operand, and launches from behind
//! its first reader come before that reader, in their order, until they take as long as the collective travels.

use std::collections::HashSet;

use glmc_ir::diag::Diagnostic;
use glmc_ir::placement::Mesh;
use glmc_ir::plan::{Overlap, Phase, Step};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use super::order::dependences;
use crate::cost::{StepTime, step_time};
use crate::egraph::cost::Machine;

/// Orders the steps of `phase` and says what runs beside collectives; `choose` is asked for each.
///
/// # Errors
/// A launch that its contract refuses.
pub(super) fn overlap(
    phase: &mut Phase,
    mesh: &Mesh,
    machine: &Machine,
    choose: &mut dyn FnMut() -> bool,
) -> Result<(), Diagnostic> {
    if phase.steps.iter().all(|s| s.kernel.collective().is_none()) {
        return Ok(());
    }
    let mut syms = phase.bounds();
    if let (Some(bound), Some(nominal)) = (syms.get(&"S".into()), machine.syms.get(&"S".into())) {
        syms = syms.with("S", bound.min(nominal));
    }
    let times: Vec<StepTime> =
        phase.steps.iter().map(|s| step_time(s, mesh, &syms, &machine.target)).collect::<Result<_, _>>()?;
    let mut list = List { g: dependences(phase), order: (0..phase.steps.len()).collect(), times };
    let collectives: Vec<usize> = (0..phase.steps.len()).filter(|i| list.times[*i].travel_s > 0.0).collect();
    let mut chosen = Vec::new();
    for c in collectives {
        if let Some(order) = list.beside(c)
            && choose()
        {
            list.order = order;
            chosen.push(c);
        }
    }
    let mut overlaps: Vec<Overlap> = chosen.iter().filter_map(|c| list.ends(*c)).collect();
    overlaps.sort_unstable_by_key(|o| o.step);
    let mut steps: Vec<Option<Step>> = std::mem::take(&mut phase.steps).into_iter().map(Some).collect();
    phase.steps = list.order.iter().filter_map(|i| steps[*i].take()).collect();
    phase.overlaps = overlaps;
    Ok(())
}

/// Steps by their number in program order.
struct List {
    g: DiGraph<usize, ()>,
    /// The order in which they run.
    order: Vec<usize>,
    times: Vec<StepTime>,
}

impl List {
    fn before(&self, i: usize) -> impl Iterator<Item = usize> {
        self.g.neighbors_directed(NodeIndex::new(i), Direction::Incoming).map(NodeIndex::index)
    }

    /// What depends on step `i`, at any distance.
    fn dependents(&self, i: usize) -> HashSet<usize> {
        let (mut found, mut open) = (HashSet::new(), vec![i]);
        while let Some(i) = open.pop() {
            open.extend(self.g.neighbors(NodeIndex::new(i)).map(NodeIndex::index).filter(|n| found.insert(*n)));
        }
        found
    }

    /// The order in which launches run beside collective `c`; none if there are none.
    fn beside(&self, c: usize) -> Option<Vec<usize>> {
        let mut order = self.order.clone();
        let at = order.iter().position(|i| *i == c)?;
        let inputs: HashSet<usize> = self.before(c).collect();
        let from = order[..at].iter().rposition(|i| inputs.contains(i)).map_or(0, |p| p + 1);
        order.remove(at);
        order.insert(from, c);
        let dependents = self.dependents(c);
        let reader = order.iter().position(|i| dependents.contains(i)).unwrap_or(order.len());
        let mut seconds: f64 = order[from + 1..reader].iter().map(|i| self.times[*i].compute_s).sum();
        // Launches that need none of the steps that stay behind them.
        let mut stays: HashSet<usize> = HashSet::new();
        let (mut moved, mut rest) = (Vec::new(), Vec::new());
        for i in order.drain(reader..) {
            let free = !dependents.contains(&i) && self.times[i].travel_s == 0.0;
            if seconds < self.times[c].travel_s && free && self.before(i).all(|p| !stays.contains(&p)) {
                seconds += self.times[i].compute_s;
                moved.push(i);
            } else {
                stays.insert(i);
                rest.push(i);
            }
        }
        let any = reader > from + 1 || !moved.is_empty();
        order.extend(moved);
        order.extend(rest);
        any.then_some(order)
    }

    /// Where collective `c` begins and is done.
    fn ends(&self, c: usize) -> Option<Overlap> {
        let step = self.order.iter().position(|i| *i == c)?;
        let readers: HashSet<usize> = self.g.neighbors(NodeIndex::new(c)).map(NodeIndex::index).collect();
        let done = self.order.iter().position(|i| readers.contains(i)).unwrap_or(self.order.len());
        (done > step + 1).then_some(Overlap { step, done })
    }
}
