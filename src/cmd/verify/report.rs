//! What came out, for people and as JSON. Never judges.

use std::collections::BTreeMap;
use std::path::Path;

use glmc_ir::plan::{Mem, Plan};
use serde_json::{Value, json};

use super::judge::{Judge, Outcome, Worst, worst_by};
use super::metric::{Bound, Rounding};
use crate::cmd::explain_value::Origins;
use crate::error::CliError;

/// The worst value of a layer.
pub(super) struct Layer {
    pub(super) layer: Option<u64>,
    pub(super) compared: usize,
    pub(super) launches: usize,
    pub(super) model: Option<Row>,
    pub(super) launch: Option<Row>,
}

/// A value with its error.
pub(super) struct Row {
    pub(super) value: String,
    pub(super) phase: String,
    pub(super) run: usize,
    pub(super) worst: Worst,
}

/// The first divergence.
pub(super) struct First {
    pub(super) row: Outcome,
    pub(super) phase: String,
    pub(super) kernel: &'static str,
    pub(super) buffer: String,
    pub(super) reads: Vec<String>,
    pub(super) inputs: Vec<(String, String)>,
    pub(super) history: Vec<String>,
}

pub(super) struct Report<'j> {
    pub(super) title: String,
    pub(super) reference: String,
    pub(super) rounding: Rounding,
    pub(super) tokens: usize,
    pub(super) runs: Vec<String>,
    pub(super) outcomes: &'j [Outcome],
    pub(super) layers: Vec<Layer>,
    pub(super) parted: &'j [String],
    /// Values that no name of the reference means, with the reason and how often.
    pub(super) not_compared: BTreeMap<(String, String), usize>,
    pub(super) first: Option<First>,
    /// What became of a fault that was put in and led to no divergence.
    pub(super) fault: Option<Unseen>,
    devices: &'j [Value],
}

/// A fault that led to no divergence.
#[derive(Clone, Debug)]
pub(super) struct Unseen {
    /// What was put in.
    pub(super) what: String,
    /// Whether any number that a step wrote is another than without it.
    pub(super) read: bool,
}

impl Unseen {
    pub(super) fn line(&self) -> String {
        let seen = if self.read {
            "it changes what steps write, all within the bounds"
        } else {
            "the corrupted block is not read by these tokens: every number is what it is without it"
        };
        format!("{}, and nothing diverges: {seen}", self.what)
    }
}

/// A number of the table: `2.1e-6`.
fn number(x: f64) -> String {
    if x.is_finite() { format!("{x:.1e}") } else { "no number".into() }
}

/// `l2 2.1e-6 (at most 3e-4), max ..`.
pub(super) fn errors(w: &Worst) -> String {
    let Bound { l2, max } = w.bound;
    format!("relative L2 {} (at most {l2:.0e}), element {} (at most {max:.1e})", number(w.off.l2), number(w.off.max))
}

/// `rank 3`, or the ranks whose parts were added up.
pub(super) fn ranks(w: &Worst) -> String {
    if w.together { format!("the sum over the ranks from {} on", w.rank) } else { format!("rank {}", w.rank) }
}

impl<'j> Report<'j> {
    pub(super) fn new(
        (dir, origins): (&Path, &Origins),
        plan: &Plan,
        judge: &'j Judge<'_>,
        reference: String,
        devices: &'j [Value],
        tokens: usize,
        fault: Option<Unseen>,
    ) -> Report<'j> {
        let outcomes = judge.outcomes.as_slice();
        let phase = |o: &Outcome| plan.phases[o.phase].name.clone();
        let row = |o: &&Outcome, w: &Option<Worst>| {
            w.clone().map(|worst| Row { value: o.value.clone(), phase: phase(o), run: o.run, worst })
        };
        let size = |w: &Option<Worst>| w.as_ref().map_or(-1.0, Worst::times);
        let model = worst_by(outcomes, |o| o.model.as_ref().map(|_| o.layer), |o| size(&o.model));
        let launch = worst_by(outcomes, |o| o.launch.as_ref().map(|_| o.layer), |o| size(&o.launch));
        let mut layers: Vec<Option<u64>> = outcomes.iter().map(|o| o.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let count =
            |l: Option<u64>, has: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|o| o.layer == l && has(o)).count();
        let layers = layers.into_iter().map(|layer| Layer {
            layer,
            compared: count(layer, &|o| o.model.is_some()),
            launches: count(layer, &|o| o.launch.is_some()),
            model: model.get(&layer).and_then(|o| row(o, &o.model)),
            launch: launch.get(&layer).and_then(|o| row(o, &o.launch)),
        });
        let mut not_compared = BTreeMap::new();
        for o in outcomes {
            if let Some(why) = &o.why_not {
                *not_compared.entry((o.value.clone(), why.clone())).or_insert(0) += 1;
            }
        }
        let mut runs: Vec<String> = Vec::new();
        for o in outcomes {
            if runs.len() == o.run {
                runs.push(phase(o));
            }
        }
        Report {
            title: format!("{} on {} ranks of {}", dir.display(), plan.target.ranks, plan.target.name),
            reference,
            rounding: judge.rounding(),
            tokens,
            runs,
            outcomes,
            layers: layers.collect(),
            parted: &judge.parted,
            not_compared,
            first: judge.first().map(|o| first(origins, plan, judge, o)),
            fault,
            devices,
        }
    }

    pub(super) fn compared(&self) -> usize {
        self.outcomes.iter().filter(|o| o.model.is_some()).count()
    }

    pub(super) fn launches(&self) -> usize {
        self.outcomes.iter().filter(|o| o.launch.is_some()).count()
    }

    /// The line that says how much was looked at.
    pub(super) fn counts(&self) -> String {
        let unheld = self.outcomes.iter().filter(|o| o.model.is_none() && o.launch.is_none()).count();
        let not: usize = self.not_compared.values().sum();
        format!(
            "{} values compared with the model, {} held to what their launch means on what it read; {not} have no \
             counterpart in the model, {unheld} of them were looked at in no way",
            self.compared(),
            self.launches()
        )
    }

    /// The outcome as an error, if there is one.
    pub(super) fn verdict(&self) -> Result<(), CliError> {
        let fail = |code, m: String| CliError::usage(code, m).class("verification");
        if let Some(f) = &self.first {
            let m = f.sentence();
            return Err(CliError { subject: Some(f.row.value.clone()), ..fail("diverged", m) });
        }
        if self.compared() == 0 {
            return Err(fail("nothing-compared", "no value of the plan could be compared with the reference".into()));
        }
        Ok(())
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut out = vec![
            format!("{}: {} tokens, runs {}", self.title, self.tokens, self.runs.join(", ")),
            format!("  reference {}; the device rounds to {}", self.reference, self.rounding.name()),
            format!("  {}", self.counts()),
        ];
        if !self.parted.is_empty() {
            out.push(format!("  ended where the reference chose otherwise: {}", self.parted.join(", ")));
        }
        out.push(format!(
            "  {:<6} {:>8} {:>8}  worst beside the model / worst launch",
            "layer", "compared", "launches"
        ));
        for l in &self.layers {
            let name = l.layer.map_or_else(|| "-".into(), |n| n.to_string());
            let cell = |r: &Option<Row>| match r {
                Some(r) => format!(
                    "{} {} (run {}, {}): {}, {}",
                    if r.worst.fails() { "FAILS" } else { "ok" },
                    r.value,
                    r.run,
                    ranks(&r.worst),
                    number(r.worst.off.l2),
                    number(r.worst.off.max)
                ),
                None => "-".into(),
            };
            out.push(format!(
                "  {name:<6} {:>8} {:>8}  {} / {}",
                l.compared,
                l.launches,
                cell(&l.model),
                cell(&l.launch)
            ));
        }
        let by_reason: BTreeMap<&String, Vec<&String>> =
            self.not_compared.keys().fold(BTreeMap::new(), |mut m, (v, why)| {
                m.entry(why).or_insert_with(Vec::new).push(v);
                m
            });
        for (why, values) in by_reason {
            let names: Vec<&str> = values.iter().take(6).map(|v| v.as_str()).collect();
            let more = if values.len() > 6 { format!(" and {} more", values.len() - 6) } else { String::new() };
            out.push(format!("  not compared with the model ({why}): {}{more}", names.join(", ")));
        }
        out.extend(self.first.iter().flat_map(First::lines));
        out.extend(self.fault.iter().map(|f| format!("  {}", f.line())));
        out
    }

    pub(super) fn json(&self) -> Value {
        let worst = |w: &Option<Worst>| {
            w.as_ref().map(
                |w| json!({ "rank": w.rank, "summed": w.together, "off": w.off, "bound": w.bound, "fails": w.fails() }),
            )
        };
        let row = |r: &Option<Row>| {
            r.as_ref().map(|r| {
                json!({ "value": r.value, "phase": r.phase, "run": r.run, "rank": r.worst.rank, "off": r.worst.off,
                        "bound": r.worst.bound, "fails": r.worst.fails() })
            })
        };
        let first = self.first.as_ref().map(|f| {
            let o = &f.row;
            json!({
                "layer": o.layer, "value": o.value, "kernel": f.kernel, "rank": f.rank(), "ranks": f.beyond(),
                "by": f.by(), "phase": f.phase, "run": o.run, "step": o.step, "buffer": f.buffer,
                "model": worst(&o.model), "launch": worst(&o.launch), "weights": f.reads,
                "inputs": f.inputs.iter().map(|(n, e)| json!({ "name": n, "error": e })).collect::<Vec<_>>(),
                "history": f.history,
            })
        });
        json!({
            "reference": self.reference,
            "devices": self.devices,
            "tokens": self.tokens,
            "runs": self.runs,
            "rounding": self.rounding.name(),
            "compared": self.compared(),
            "launches": self.launches(),
            "not_compared": self.not_compared.iter()
                .map(|((v, why), n)| json!({ "value": v, "why": why, "times": n })).collect::<Vec<_>>(),
            "parted": self.parted,
            "layers": self.layers.iter().map(|l| json!({
                "layer": l.layer, "compared": l.compared, "launches": l.launches,
                "model": row(&l.model), "launch": row(&l.launch),
            })).collect::<Vec<_>>(),
            "first": first,
            "fault": self.fault.as_ref().map(|f| json!({ "what": f.what, "read": f.read, "message": f.line() })),
        })
    }
}

fn first(origins: &Origins, plan: &Plan, judge: &Judge<'_>, o: &Outcome) -> First {
    let phase = &plan.phases[o.phase];
    let step = &phase.steps[o.step];
    let out = step.args.iter().filter(|a| a.access == glmc_ir::kernel::Access::Write).nth(o.output);
    let buffer = match out.map(|a| a.mem) {
        Some(Mem::Buf(b)) => {
            let of = &phase.buffers[b];
            format!("{b} {} at {} of the arena", of.ty, of.offset)
        }
        _ => step.args.first().map_or_else(String::new, |a| format!("rows of {} {}", a.mem, a.ty)),
    };
    let mut inputs = Vec::new();
    for (name, made) in judge.inputs(o) {
        let tell = |w: &Option<Worst>, what: &str| w.as_ref().map(|w| format!("{what} {}", errors(w)));
        let told = made.map(|m| match tell(&m.model, "beside the model").or(tell(&m.launch, "of its launch")) {
            Some(t) => t,
            None => "not compared".into(),
        });
        inputs.push((name, told.unwrap_or_else(|| "as it is".into())));
    }
    let weights = step.args.iter().filter_map(|a| match a.mem {
        Mem::Weight(w) => Some(plan.weights[w].name.clone()),
        _ => None,
    });
    // A value that is only numbered is told of as what it is a part of.
    let names = std::iter::once(&o.value).chain(&o.names);
    let history = names.map(|n| origins.history(&phase.name, n)).find(|lines| !lines.is_empty());
    let history = history.unwrap_or_else(|| vec!["the plan's module has no value of this name".into()]);
    First {
        row: o.clone(),
        phase: phase.name.clone(),
        kernel: step.kernel.name(),
        buffer,
        reads: weights.collect(),
        inputs,
        history,
    }
}

impl First {
    /// The judgement that counts: a launch that is wrong by itself is nearer to the fault.
    fn worst(&self) -> Option<&Worst> {
        let failing = |w: &&Worst| w.fails();
        self.row.launch.as_ref().filter(failing).or(self.row.model.as_ref().filter(failing))
    }

    fn by(&self) -> &'static str {
        if self.row.launch.as_ref().is_some_and(Worst::fails) { "launch" } else { "model" }
    }

    fn rank(&self) -> Option<usize> {
        self.worst().map(|w| w.rank)
    }

    fn beyond(&self) -> &[usize] {
        self.worst().map_or(&[], |w| &w.beyond)
    }

    /// One line for the error.
    pub(super) fn sentence(&self) -> String {
        let layer = self.row.layer.map_or_else(String::new, |l| format!("layer {l}: "));
        let (o, kernel, phase) = (&self.row, self.kernel, &self.phase);
        let (on, off) = self.worst().map_or_else(Default::default, |w| (ranks(w), errors(w)));
        let what = match self.by() {
            "launch" => "is not what its launch means on what it read",
            _ => "is not the model's value",
        };
        let with = if self.reads.is_empty() { String::new() } else { format!(" with {}", self.reads.join(", ")) };
        format!(
            "{layer}`{}`, made by {kernel}{with} (step {} of phase {phase}) on {on}, {what}: {off}",
            o.value, o.step
        )
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut out = vec![format!("  first divergence, in run {}: {}", self.row.run, self.sentence())];
        out.push(format!("    buffer {}", self.buffer));
        for (what, w) in [("beside the model", &self.row.model), ("its launch", &self.row.launch)] {
            out.extend(w.as_ref().map(|w| format!("    {what}: {}, {}", ranks(w), errors(w))));
        }
        out.extend(self.inputs.iter().map(|(n, e)| format!("    reads {n}: {e}")));
        out.extend(self.history.iter().map(|l| format!("    {l}")));
        out
    }
}
