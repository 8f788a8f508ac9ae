//! Judges what was recorded of a plan: each value beside the model's, each launch beside its meaning. Owns which of the
//! two counts where, and what is named as the first divergence.

use std::collections::{HashMap, HashSet};

use glmc_ir::kernel::Access;
use glmc_ir::plan::{Mem, Plan};
use glmc_ir::tensor::{Data, Tensor};
use glmc_runtime::load::Loaded;
use glmc_runtime::scan::layer_of;

use super::ReferenceKind;
use super::launches::{At, Launches};
use super::metric::{Bound, Off, Rounding};
use super::model::{self, OnRank};
use super::names::{self, Known};
use super::record::Recorded;
use super::reference::Values;
use crate::error::CliError;

/// The worst of all ranks.
#[derive(Clone, Debug)]
pub(super) struct Worst {
    pub(super) rank: usize,
    pub(super) together: bool,
    pub(super) off: Off,
    pub(super) bound: Bound,
    /// All ranks that are beyond the bound.
    pub(super) beyond: Vec<usize>,
}

impl Worst {
    fn of(all: &[OnRank], bound: Bound) -> Option<Worst> {
        let beyond: Vec<usize> = all.iter().filter(|o| !fits(o.off, bound)).map(|o| o.rank).collect();
        // The first of those beyond is the one to look at; else the worst.
        let first = all.iter().find(|o| beyond.first() == Some(&o.rank));
        let worst = first.or(all.iter().max_by(|a, b| a.off.of(bound).total_cmp(&b.off.of(bound))))?;
        Some(Worst { rank: worst.rank, together: worst.together, off: worst.off, bound, beyond })
    }

    pub(super) fn fails(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// How many times the bound it is.
    pub(super) fn times(&self) -> f64 {
        self.off.of(self.bound)
    }
}

/// NaN is no smaller than anything.
fn fits(off: Off, bound: Bound) -> bool {
    off.of(bound) <= 1.0
}

/// What came out for one output of one step.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) run: usize,
    /// Index of the phase.
    pub(super) phase: usize,
    pub(super) step: usize,
    pub(super) output: usize,
    pub(super) value: String,
    /// What it is in any layer, with the layer's name before it.
    pub(super) column: String,
    /// Names of the same value, the best first.
    pub(super) names: Vec<String>,
    pub(super) layer: Option<u64>,
    /// Beside the model's value.
    pub(super) model: Option<Worst>,
    /// Beside what its launch means.
    pub(super) launch: Option<Worst>,
    /// Why it was not compared with the model.
    pub(super) why_not: Option<String>,
    /// Why its launch was not held to its meaning, where that was tried.
    pub(super) launch_not: Option<String>,
}

impl Outcome {
    pub(super) fn fails(&self) -> bool {
        [&self.model, &self.launch].into_iter().flatten().any(Worst::fails)
    }

    /// The larger of its errors in bounds.
    pub(super) fn times(&self) -> f64 {
        [&self.model, &self.launch].into_iter().flatten().map(Worst::times).fold(0.0, f64::max)
    }
}

pub(super) struct Judge<'p> {
    plan: &'p Plan,
    rounding: Rounding,
    kind: ReferenceKind,
    launches: Launches,
    runs: usize,
    pub(super) outcomes: Vec<Outcome>,
    /// Choices at which a plain reference went another way, and where.
    pub(super) parted: Vec<String>,
    first: Option<usize>,
}

impl<'p> Judge<'p> {
    pub(super) fn new(plan: &'p Plan, rounding: Rounding, kind: ReferenceKind) -> Self {
        let (launches, outcomes, parted) = (Launches::default(), Vec::new(), Vec::new());
        Judge { plan, rounding, kind, launches, runs: 0, outcomes, parted, first: None }
    }

    pub(super) fn rounding(&self) -> Rounding {
        self.rounding
    }

    /// The first divergence.
    pub(super) fn first(&self) -> Option<&Outcome> {
        self.outcomes.get(self.first?)
    }

    /// Judges one run of a phase; false where nothing after it can be compared.
    pub(super) fn run(&mut self, weights: &Loaded, recorded: &Recorded, values: &Values) -> Result<bool, CliError> {
        let plan = self.plan;
        let phase = &plan.phases[recorded.phase];
        let known = names::of_phase(plan, phase);
        let made = known.iter().filter_map(|(at, k)| k.buffer.map(|b| (b, *at))).collect();
        let at = At { plan, phase, weights, recorded, made: &made };
        let from = self.outcomes.len();
        let mut parted: Option<usize> = None;
        for (index, k) in &known {
            if self.kind == ReferenceKind::Plain
                && let Some(row) = other_choice(&at, *index, k, values)
                && self.right_choice(&at, index.0)
            {
                parted = Some(parted.map_or(row, |p| p.min(row)));
                self.parted.push(format!("{} of token {row} in run {}", k.name, self.runs));
            }
            self.outcomes.push(self.beside_the_model(&at, *index, k, values, parted));
        }
        let wrong = |o: &Outcome| o.fails();
        let divergence = self.outcomes[from..].iter().position(wrong).map(|i| from + i);
        self.hold_launches(&at, from, divergence);
        self.first = self.outcomes[from..].iter().position(wrong).map(|i| from + i);
        self.runs += 1;
        Ok(self.first.is_none() && parted.is_none())
    }

    fn beside_the_model(
        &self,
        at: &At<'_>,
        index: (usize, usize),
        k: &Known,
        values: &Values,
        rows: Option<usize>,
    ) -> Outcome {
        let step = &at.phase.steps[index.0];
        let bound = self.rounding.model();
        let (model, why_not) = match model::compare(at, index, step, k, values, rows) {
            Ok(ranks) => (Worst::of(&ranks, bound), None),
            Err(why) => (None, Some(why)),
        };
        Outcome {
            run: self.runs,
            phase: at.recorded.phase,
            step: index.0,
            output: index.1,
            value: k.name.clone(),
            column: k.column.clone(),
            names: k.names.clone(),
            layer: layer_of(&k.name),
            model,
            launch: None,
            why_not,
            launch_not: None,
        }
    }

    /// Holds launches to their meanings, in order, up to the first divergence: with the interpreter all, else those that
    /// may have made it.
    fn hold_launches(&mut self, at: &At<'_>, from: usize, divergence: Option<usize>) {
        let last = divergence.map_or(usize::MAX, |d| self.outcomes[d].step);
        let of = match (self.kind, divergence) {
            (ReferenceKind::Interpreter, _) => None,
            (ReferenceKind::Plain, Some(d)) => Some(self.makers(at, from, d)),
            (ReferenceKind::Plain, None) => Some(HashSet::new()),
        };
        for (i, step) in at.phase.steps.iter().enumerate() {
            self.launches.keep(at, i, step);
            if i > last || of.as_ref().is_some_and(|of| !of.contains(&i)) {
                continue;
            }
            let judged = self.launches.judge(at, i, step);
            let bound = self.rounding.at(step, &at.phase.bounds()).step(step);
            for o in self.outcomes[from..].iter_mut().filter(|o| o.step == i) {
                match &judged {
                    Ok(offs) => {
                        let ranks = offs.get(o.output).into_iter().flatten().enumerate();
                        let ranks: Vec<OnRank> =
                            ranks.map(|(rank, off)| OnRank { rank, together: false, off: *off }).collect();
                        o.launch = Worst::of(&ranks, bound);
                    }
                    Err(why) => o.launch_not = Some(why.clone()),
                }
            }
            // What follows reads what is already wrong.
            if self.outcomes[from..].iter().any(|o| o.step == i && o.fails()) {
                break;
            }
        }
    }

    /// The steps that made a value, back to values that are right.
    fn makers(&self, at: &At<'_>, from: usize, divergence: usize) -> HashSet<usize> {
        let right = |step: usize| {
            let mut of = self.outcomes[from..].iter().filter(|o| o.step == step).peekable();
            of.peek().is_some() && of.all(|o| o.model.as_ref().is_some_and(|m| !m.fails()))
        };
        let mut out = HashSet::new();
        let mut open = vec![self.outcomes[divergence].step];
        while let Some(i) = open.pop() {
            if !out.insert(i) {
                continue;
            }
            for a in at.phase.steps[i].args.iter().filter(|a| a.access != Access::Write) {
                let maker = match a.mem {
                    Mem::Buf(b) => at.made.get(&b).map(|(s, _)| *s),
                    // What this run put into the pool.
                    Mem::State(_) => {
                        let puts = |s: &glmc_ir::plan::Step| {
                            s.args.iter().any(|x| x.mem == a.mem && x.access == Access::Update)
                        };
                        at.phase.steps[..i].iter().position(puts)
                    }
                    _ => None,
                };
                open.extend(maker.filter(|m| !right(*m)));
            }
        }
        out
    }

    /// Whether a step chose rightly among the scores that it read.
    fn right_choice(&self, at: &At<'_>, step: usize) -> bool {
        let judged = self.launches.judge(at, step, &at.phase.steps[step]);
        let exact = Rounding::F32.launch();
        judged.is_ok_and(|offs| offs.iter().flatten().all(|o| fits(*o, exact)))
    }

    /// What a step read: names with what came out for them, in the same run.
    pub(super) fn inputs(&self, of: &Outcome) -> Vec<(String, Option<&Outcome>)> {
        let phase = &self.plan.phases[of.phase];
        let writes = |i: usize, b| {
            let mut writes = phase.steps[i].args.iter().filter(|a| a.access == Access::Write);
            writes.position(|a| a.mem == Mem::Buf(b))
        };
        let mut out = Vec::new();
        for a in phase.steps[of.step].args.iter().filter(|a| a.access != Access::Write) {
            match a.mem {
                Mem::Buf(b) => {
                    let made = self
                        .outcomes
                        .iter()
                        .find(|o| (o.run, o.phase) == (of.run, of.phase) && writes(o.step, b) == Some(o.output));
                    out.push((phase.buffers[b].name.clone(), made));
                }
                Mem::State(s) => out.push((format!("cache {}", self.plan.states[s].name), None)),
                Mem::Param(p) => out.push((format!("parameter {}", phase.params[p].name), None)),
                Mem::Weight(w) => {
                    let w = &self.plan.weights[w];
                    out.push((format!("weight {} {} of tensor {}", w.name, w.ty, w.tensor), None));
                }
            }
        }
        out
    }
}

/// The first token for which a plain reference chose otherwise.
fn other_choice(at: &At<'_>, index: (usize, usize), k: &Known, values: &Values) -> Option<usize> {
    let want = k.names.iter().find_map(|n| values.get(n))?;
    let have = at.recorded.whole_ids(at.plan, index, &k.ty)?;
    let sets = |t: &Tensor| -> Option<Vec<Vec<i64>>> {
        let Data::I(v) = &t.data else { return None };
        let row = |r: &[i64]| {
            let mut r = r.to_vec();
            r.sort_unstable();
            r
        };
        Some(v.chunks(t.shape.last().copied()?.max(1)).map(row).collect())
    };
    let (a, b) = (sets(&have)?, sets(want)?);
    a.iter().zip(&b).position(|(a, b)| a != b)
}

/// Outcomes by name, for tables: the worst of each.
pub(super) fn worst_by<K: std::hash::Hash + Eq>(
    outcomes: &[Outcome],
    key: impl Fn(&Outcome) -> Option<K>,
    size: impl Fn(&Outcome) -> f64,
) -> HashMap<K, &Outcome> {
    let mut out: HashMap<K, &Outcome> = HashMap::new();
    for o in outcomes {
        let Some(k) = key(o) else { continue };
        let worse = out.get(&k).is_none_or(|w| size(o).total_cmp(&size(w)).is_gt());
        if worse {
            out.insert(k, o);
        }
    }
    out
}
