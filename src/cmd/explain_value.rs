//! `glmc explain PLAN VALUE`: one named value: who makes and reads it, where it lies, what it costs, what made it so.

use std::path::Path;

use glmc_ir::entities::Value;
use glmc_ir::graph::{InstKind, Module, ValueDef};
use glmc_ir::kernel::Access;
use glmc_ir::placement::local_type;
use glmc_ir::plan::{Mem, Phase, Plan, Step};
use glmc_ir::text::parse_module;
use glmc_passes::cost::{StepCost, step_costs};
use glmc_passes::shard::report::{Other, Placed};
use glmc_passes::target::Target;
use serde::Serialize;

use super::decisions::{Decisions, ONE_RANK, other_line};
use super::figures::human_seconds;
use super::{human_bytes, print_json, print_line};
use crate::cli::ExplainArgs;
use crate::error::CliError;

/// Names that are offered where none fits.
const OFFERED: usize = 8;

/// All that a plan knows of a value.
#[derive(Serialize)]
struct Told {
    value: String,
    phases: Vec<InPhase>,
}

/// The function that a value belongs to: that of its layer's kind, in one phase.
#[derive(Serialize)]
struct Home {
    function: String,
    /// Whether the value's name says what it is; of those that are only numbered it is not kept which rule made them.
    #[serde(skip)]
    named: bool,
    /// The rules that led to the value, the last one last; none where it is as the model says.
    made_by_rules: Vec<String>,
    /// Rules that made the function's program, with the ops that each made.
    rules: Vec<(String, usize)>,
    /// The function's predicted seconds as lifted and after saturation.
    seconds: Option<(f64, f64)>,
    placement: Option<Placement>,
}

#[derive(Serialize)]
struct Placement {
    ty: String,
    /// Predicted seconds of the function with it there.
    seconds: f64,
    /// Bytes on the largest rank, of a weight or pool.
    bytes: Option<u64>,
    /// The other places, the cheapest first.
    others: Vec<Other>,
}

/// The value in one phase.
#[derive(Serialize)]
struct InPhase {
    phase: String,
    home: Option<Home>,
    /// What it is: `buffer`, `weight`, `cache` or `parameter`.
    kind: &'static str,
    id: String,
    ty: String,
    /// Each rank's part.
    ranks: Vec<String>,
    /// Bytes on the fullest rank; of a weight on each.
    bytes: Vec<u64>,
    /// Where it starts in the arena.
    offset: Option<u64>,
    /// From the step that writes it to the last that reads it.
    life: Option<(usize, usize)>,
    result: bool,
    made_by: Vec<At>,
    read_by: Vec<At>,
}

/// A step that touches the value.
#[derive(Serialize)]
struct At {
    index: usize,
    argument: String,
    cost: StepCost,
    /// Weights that the step reads, with their types.
    weights: Vec<(String, String)>,
}

pub(super) fn run(
    args: &ExplainArgs,
    value: &str,
    plan: &Plan,
    target: &Target,
    d: &Decisions,
) -> Result<(), CliError> {
    let told = tell(args, value, plan, target, d)?;
    if args.json {
        let json = serde_json::to_value(&told).map_err(|e| CliError::internal(e.to_string()))?;
        return print_json(&json);
    }
    for line in lines(&told) {
        print_line(&line)?;
    }
    Ok(())
}

fn tell(args: &ExplainArgs, value: &str, plan: &Plan, target: &Target, d: &Decisions) -> Result<Told, CliError> {
    let mut phases = Vec::new();
    let mut module = None;
    for phase in &plan.phases {
        let found = memories(plan, phase, value);
        if found.is_empty() {
            continue;
        }
        if module.is_none() {
            module = Some(graph(&args.path)?);
        }
        let costs = step_costs(plan, phase, target, args.tune_ctx, 0);
        let costs = costs.map_err(|e| CliError::internal(e.to_string()))?;
        for mem in found {
            let mut told = in_phase(plan, phase, mem, &costs);
            told.home = module.as_ref().and_then(|m| home(m, &phase.name, value, d));
            phases.push(told);
        }
    }
    if phases.is_empty() {
        return Err(unknown(plan, value, &args.path));
    }
    Ok(Told { value: value.into(), phases })
}

/// What a plan's folder says of how its values came to be.
pub(super) struct Origins {
    module: Module,
    decisions: Decisions,
}

impl Origins {
    /// Those of the plan in `dir`.
    ///
    /// # Errors
    /// A plan without its module or decisions, or with such as this version does not read.
    pub(super) fn read(dir: &Path) -> Result<Self, CliError> {
        Ok(Origins { module: graph(dir)?, decisions: Decisions::read(dir)? })
    }

    /// How a value of a phase came to be, for people: its function, the rules that made it, where it was placed and what
    /// else there was. Nothing where the module has no value of this name.
    pub(super) fn history(&self, phase: &str, value: &str) -> Vec<String> {
        let home = home(&self.module, phase, value, &self.decisions);
        home.iter().flat_map(home_lines).map(|l| l.trim().to_owned()).collect()
    }
}

/// What is known of the function that makes `value` in a phase.
fn home(m: &Module, entry: &str, value: &str, d: &Decisions) -> Option<Home> {
    let (function, local) = function_of(m, entry, value)?;
    let local = local.as_str();
    // A function that is placed in several ways has a number behind its name.
    let lifted = function.split(".placed").next().unwrap_or(&function);
    let own = |f: &&Placed| f.name == function;
    let rewritten = d.functions.iter().find(|f| f.name == lifted);
    let placed = d.placement.iter().flat_map(|p| &p.functions).filter(own).flat_map(|f| &f.values);
    let placement = placed.filter(|v| v.value == local || v.value == value).map(|v| Placement {
        ty: v.ty.clone(),
        seconds: v.seconds,
        bytes: v.bytes,
        others: v.others.clone(),
    });
    let placement = placement.into_iter().next();
    Some(Home {
        named: super::verify::says_what(local),
        made_by_rules: rewritten.and_then(|r| r.made.get(local)).cloned().unwrap_or_default(),
        rules: rewritten.iter().flat_map(|r| &r.rules).map(|(r, n)| (r.clone(), *n)).collect(),
        seconds: rewritten.map(|r| (r.before, r.after)),
        placement,
        function,
    })
}

/// The module of the plan.
fn graph(dir: &Path) -> Result<Module, CliError> {
    let refuse = |why: String| CliError::usage("plan-invalid", why).class("plan").of(&dir.join("graph.glir"));
    let text = glmc_runtime::load::read_sealed(dir, "graph.glir")?;
    let text = String::from_utf8(text).map_err(|e| refuse(e.to_string()))?;
    parse_module(&text).map_err(|d| refuse(format!("{d}; compile the model again")))
}

/// The function that makes a value of this name in an entry, and its name there; the entry itself for a value of no
/// layer.
fn function_of(m: &Module, entry: &str, value: &str) -> Option<(String, String)> {
    let f = &m.funcs[m.func_named(entry)?];
    // What one layer makes for the next one has a name in the entry.
    if let Some(ValueDef::Result(inst, k)) = f.values.values().find(|v| v.name.as_deref() == Some(value)).map(|v| v.def)
        && let InstKind::Call { func, .. } = f.insts[inst].kind
        && let Some((_, v)) = m.funcs[func].results.get(k as usize)
    {
        return Some((m.funcs[func].name.clone(), m.funcs[func].value_name(*v)));
    }
    // A weight has the name of the parameter that its layer takes it as.
    let weight = |v: &Value| matches!(f.values[*v].def, ValueDef::Weight(w) if m.weights[w].name == value);
    for inst in f.body.iter().map(|i| &f.insts[*i]) {
        if let (InstKind::Call { func, .. }, Some(k)) = (&inst.kind, inst.args.iter().position(weight)) {
            let callee = &m.funcs[*func];
            return callee.params.get(k).map(|p| (callee.name.clone(), callee.value_name(*p)));
        }
    }
    if f.values.keys().any(|v| weight(&v)) {
        return Some((f.name.clone(), value.to_owned()));
    }
    let calls = f.body.iter().filter_map(|i| match &f.insts[*i].kind {
        InstKind::Call { func, label } => Some((*func, label)),
        InstKind::Op(_) => None,
    });
    let inside = |label: &str| value.strip_prefix(label).is_some_and(|rest| rest.starts_with('.'));
    let best = calls.filter(|(_, label)| inside(label)).max_by_key(|(_, label)| label.len());
    match best {
        Some((func, label)) => {
            let local = value[label.len()..].trim_start_matches('.').to_owned();
            m.funcs.get(func).map(|f| (f.name.clone(), local))
        }
        None => f.values.values().any(|v| v.name.as_deref() == Some(value)).then(|| (f.name.clone(), value.to_owned())),
    }
}

/// What is called `value` in a phase: buffers, and weights, caches and parameters that a step of it names.
fn memories(plan: &Plan, phase: &Phase, value: &str) -> Vec<Mem> {
    let mut all: Vec<Mem> = phase.buffers.iter().filter(|(_, b)| b.name == value).map(|(b, _)| Mem::Buf(b)).collect();
    all.extend(plan.weights.iter().filter(|(_, w)| w.name == value || w.tensor == value).map(|(w, _)| Mem::Weight(w)));
    all.extend(plan.states.iter().filter(|(_, s)| s.name == value).map(|(s, _)| Mem::State(s)));
    all.extend(phase.params.iter().filter(|(_, p)| p.name == value).map(|(p, _)| Mem::Param(p)));
    all.retain(|m| matches!(m, Mem::Buf(_)) || phase.steps.iter().flat_map(|s| &s.args).any(|a| a.mem == *m));
    all
}

fn in_phase(plan: &Plan, phase: &Phase, mem: Mem, costs: &[StepCost]) -> InPhase {
    let touching = |writes: bool| -> Vec<At> {
        let at = |(index, s): (usize, &Step)| {
            let arg = s.args.iter().find(|a| a.mem == mem && (a.access == Access::Read) != writes)?;
            let weights = s.args.iter().filter_map(|a| match a.mem {
                Mem::Weight(w) => plan.weights.get(w).map(|w| (w.name.clone(), w.ty.to_string())),
                _ => None,
            });
            Some(At { index, argument: arg.name.clone(), cost: costs.get(index)?.clone(), weights: weights.collect() })
        };
        phase.steps.iter().enumerate().filter_map(at).collect()
    };
    let (made_by, read_by) = (touching(true), touching(false));
    let (kind, ty, mut bytes, offset) = match mem {
        Mem::Buf(b) => {
            let b = &phase.buffers[b];
            ("buffer", &b.ty, vec![b.bytes], Some(b.offset))
        }
        Mem::Weight(w) => {
            let w = &plan.weights[w];
            let held = w.slices.iter().map(|s| s.iter().map(|s| s.bytes.saturating_mul(s.count)).sum());
            ("weight", &w.ty, held.collect(), None)
        }
        Mem::State(s) => ("cache", &plan.states[s].ty, Vec::new(), None),
        Mem::Param(p) => ("parameter", &phase.params[p].ty, Vec::new(), None),
    };
    let syms = phase.bounds();
    let local = |rank: u32| local_type(ty, &plan.mesh, u64::from(rank), &syms);
    let parts: Vec<_> = (0..plan.target.ranks).map(local).collect();
    if bytes.is_empty() {
        bytes = parts.iter().map(|t| t.as_ref().map_or(0, |t| t.bytes(&syms).unwrap_or(0))).collect();
    }
    let result = phase.results.iter().any(|r| r.mem == mem);
    let life = match (mem, made_by.first()) {
        (Mem::Buf(_), Some(w)) => {
            let last = if result { phase.steps.len() } else { read_by.last().map_or(w.index, |r| r.index) };
            Some((w.index, last))
        }
        _ => None,
    };
    InPhase {
        phase: phase.name.clone(),
        home: None,
        kind,
        id: mem.to_string(),
        ty: ty.to_string(),
        ranks: parts.into_iter().map(|t| t.map_or_else(|d| d.message, |t| t.to_string())).collect(),
        bytes,
        offset,
        life,
        result,
        made_by,
        read_by,
    }
}

/// `plan/value-unknown`, with names that are like it.
fn unknown(plan: &Plan, value: &str, dir: &Path) -> CliError {
    let buffers = plan.phases.iter().flat_map(|p| p.buffers.values().map(|b| b.name.as_str()));
    let weights = plan.weights.values().map(|w| w.name.as_str());
    let states = plan.states.values().map(|s| s.name.as_str());
    let last = value.rsplit('.').next().unwrap_or(value);
    let mut like: Vec<&str> =
        buffers.chain(weights).chain(states).filter(|n| !last.is_empty() && n.contains(last)).collect();
    like.sort_unstable();
    like.dedup();
    let like: Vec<&str> = like.into_iter().take(OFFERED).collect();
    let hint = if like.is_empty() { String::new() } else { format!("; some of its names are {}", like.join(", ")) };
    let m = format!("the plan has no value, weight or cache `{value}`{hint}");
    CliError { subject: Some(value.into()), ..CliError::usage("value-unknown", m).of(dir) }
}

fn lines(t: &Told) -> Vec<String> {
    std::iter::once(t.value.clone()).chain(t.phases.iter().flat_map(phase_lines)).collect()
}

fn home_lines(h: &Home) -> Vec<String> {
    let seconds = h.seconds.map_or_else(String::new, |(before, after)| {
        format!(": {} as lifted, {} after saturation ({ONE_RANK})", human_seconds(before), human_seconds(after))
    });
    let mut out = vec![format!("    in @{}{seconds}", h.function)];
    let rules: Vec<String> = h.made_by_rules.iter().map(|r| format!("`{r}`")).collect();
    out.push(match rules.len() {
        0 if !h.named => "    without a name in the model: made on the way by one of the rules or the lift".into(),
        0 => "    as the model says: no rule made it".into(),
        1 => format!("    made by rule {}", rules[0]),
        _ => format!("    made by rules {}", rules.join(", then ")),
    });
    if !h.rules.is_empty() {
        let rules: Vec<String> = h.rules.iter().map(|(r, n)| format!("{r} {n}")).collect();
        out.push(format!("    rules in its function: {}", rules.join(", ")));
    }
    if let Some(p) = &h.placement {
        let held = p.bytes.map_or_else(String::new, |n| format!(", {} on a rank", human_bytes(n)));
        out.push(format!("    placed as {}{held}", p.ty));
        out.extend(p.others.iter().map(|o| format!("      or {}", other_line(o, p.seconds))));
    }
    out
}

fn phase_lines(p: &InPhase) -> Vec<String> {
    let most = p.bytes.iter().copied().max().unwrap_or(0);
    let mut out =
        vec![format!("  phase {}: {} {} {}, {} on the fullest rank", p.phase, p.kind, p.id, p.ty, human_bytes(most))];
    out.extend(p.home.iter().flat_map(home_lines));
    let mut parts = p.ranks.clone();
    parts.dedup();
    match parts.as_slice() {
        [one] if p.ranks.len() > 1 => out.push(format!("    each rank holds {one}")),
        [_] => {}
        _ => p.ranks.iter().enumerate().for_each(|(r, t)| out.push(format!("    rank {r} holds {t}"))),
    }
    if let Some(offset) = p.offset {
        let life = p.life.map_or_else(String::new, |(from, to)| {
            if p.result { format!(", from step {from} to the end") } else { format!(", from step {from} to step {to}") }
        });
        out.push(format!("    at {offset} in the arena{life}"));
    }
    for (what, all) in [("made by", &p.made_by), ("read by", &p.read_by)] {
        for a in all {
            let c = &a.cost;
            let work = match c.exchanged {
                0 => format!("{} moved, {:.3} GFLOP", human_bytes(c.bytes.total()), c.flops as f64 / 1e9),
                n => format!("{} exchanged between ranks", human_bytes(n)),
            };
            out.push(format!(
                "    {what} step {} `{}` ({} as {}): {}, of it launch {}, bound by {:?}; {work}",
                a.index,
                c.step,
                c.kernel,
                a.argument,
                human_seconds(c.seconds),
                human_seconds(c.launch_s),
                c.bound
            ));
            for (name, ty) in &a.weights {
                out.push(format!("      with weight {name}: {ty}"));
            }
        }
    }
    out
}
