//! `decisions.json` of a plan: what the passes decided and what else there was. `compile` writes it, `explain` reads it.
//! Owns the format and how it is shown; never decides.

use std::collections::BTreeMap;
use std::path::Path;

use glmc_passes::egraph::Saturated;
use glmc_passes::pipeline::Compiled;
use glmc_passes::shard::report::{Other, Report};
use serde::{Deserialize, Serialize};

use super::figures::human_seconds;
use super::human_bytes;
use crate::error::CliError;

/// The file's name in a plan directory.
pub(crate) const DECISIONS: &str = "decisions.json";

/// What the passes decided. Times are predicted seconds of one run of a function on the plan's target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decisions {
    /// Optional rewrites made: what `--fuel` counts.
    pub(crate) rewrites: u64,
    /// Functions as saturation left them, before anything was placed.
    pub(crate) functions: Vec<Rewritten>,
    /// Where everything lies, on several ranks.
    pub(crate) placement: Option<Report>,
}

/// What saturation did to a function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewritten {
    pub(crate) name: String,
    /// Seconds as it was lifted.
    pub(crate) before: f64,
    /// Seconds of the program that was taken.
    pub(crate) after: f64,
    /// Seconds of the next best programs, the cheapest first.
    pub(crate) others: Vec<f64>,
    /// The rules that made the program, with the ops that each made.
    pub(crate) rules: BTreeMap<String, usize>,
    /// Named values that rules made, with the rules that led to them in order.
    pub(crate) made: BTreeMap<String, Vec<String>>,
    /// How the search ended: `Saturated`, or the limit that it hit.
    pub(crate) end: String,
    pub(crate) rounds: usize,
    /// E-nodes at the end.
    pub(crate) nodes: usize,
}

impl Rewritten {
    fn of(s: &Saturated) -> Option<Self> {
        let (best, others) = s.best.split_first()?;
        Some(Rewritten {
            name: s.name.clone(),
            before: s.before,
            after: best.cost,
            others: others.iter().map(|p| p.cost).collect(),
            rules: best.rules.iter().map(|(rule, n)| ((*rule).to_owned(), *n)).collect(),
            made: best
                .made
                .iter()
                .map(|(v, rules)| (v.clone(), rules.iter().map(|r| (*r).to_owned()).collect()))
                .collect(),
            end: format!("{:?}", s.end),
            rounds: s.rounds,
            nodes: s.nodes,
        })
    }
}

/// What times of functions are of, where saturation gives them.
pub(crate) const ONE_RANK: &str = "one rank with the whole model, before anything is placed";

/// A place that was not chosen, for people: what it costs more, and what it takes of a rank's memory.
pub(crate) fn other_line(o: &Other, chosen: f64) -> String {
    let held = o.bytes.map_or_else(String::new, |n| format!(", {} on a rank", human_bytes(n)));
    format!("{}: {} more{held}", o.ty, human_seconds((o.seconds - chosen).max(0.0)))
}

impl Decisions {
    pub(crate) fn of(done: &Compiled) -> Self {
        Decisions {
            rewrites: done.rewrites,
            functions: done.saturated.iter().filter_map(Rewritten::of).collect(),
            placement: done.sharded.clone(),
        }
    }

    /// Those of the plan in `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self, CliError> {
        let text = glmc_runtime::load::read_sealed(dir, DECISIONS)?;
        serde_json::from_slice(&text).map_err(|e| {
            let m = format!("is no list of decisions of this version ({e}); compile the model again");
            CliError::usage("plan-invalid", m).class("plan").of(&dir.join(DECISIONS))
        })
    }

    /// The rewrites for people: of each function its cost before and after, and the rules that made its program.
    pub(crate) fn rewrite_lines(&self) -> Vec<String> {
        let mut lines =
            vec![format!("  {} optional rewrites; functions before and after saturation, {ONE_RANK}:", self.rewrites)];
        for f in &self.functions {
            let limit = if f.end == "Saturated" { String::new() } else { format!(" (search ended by {})", f.end) };
            lines.push(format!("  @{}: {} -> {}{limit}", f.name, human_seconds(f.before), human_seconds(f.after)));
            let rules: Vec<String> = f.rules.iter().map(|(rule, n)| format!("{rule} {n}")).collect();
            if !rules.is_empty() {
                lines.push(format!("    {}", rules.join(", ")));
            }
        }
        lines
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>, CliError> {
        let bug = |e: serde_json::Error| CliError::internal(format!("{DECISIONS}: {e}"));
        let mut text = serde_json::to_vec_pretty(self).map_err(bug)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The placements for people: of each function its collectives and where its weights and pools lie, with the next
    /// best place of each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Some(p) = &self.placement else { return Vec::new() };
        let cut = if p.cut { "; the search hit a limit: a cheaper placement may exist" } else { "" };
        let mut lines = vec![
            format!("  placed on {} ranks{cut}", p.ranks),
            "  (how a weight or pool is cut is a decision: compile --force cut:FUNCTION.NAME=STRATEGY settles it)"
                .into(),
        ];
        for f in &p.functions {
            let cut = if f.cut { " (the search hit a limit)" } else { "" };
            lines.push(format!("  @{}: {} a run{cut}", f.name, human_seconds(f.seconds)));
            for c in &f.collectives {
                let saves = match c.saves {
                    Some(s) => format!(", {} more without it", human_seconds(s)),
                    None => String::new(),
                };
                lines.push(format!("    {:<16} %{}: {}{saves}", c.op, c.value, human_seconds(c.seconds)));
            }
            for v in f.values.iter().filter(|v| v.bytes.is_some() && !v.others.is_empty()) {
                let held = v.bytes.map_or_else(String::new, |n| format!(", {} on a rank", human_bytes(n)));
                lines.push(format!("    {:<28} {}{held}", v.value, v.ty));
                lines.extend(v.others.iter().map(|o| format!("      or {}", other_line(o, v.seconds))));
            }
        }
        lines
    }
}
