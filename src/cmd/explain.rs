//! `glmc explain`: why a plan costs what it costs: its steps by class, its bytes by tensor.

use std::io::Write;

use glmc_ir::plan::{Plan, Recipe};
use glmc_runtime::load::read_plan;
use serde_json::json;

use super::decisions::Decisions;
use super::figures::{self, Figures};
use super::{explain_page, explain_value, human_bytes, print_json, print_line};
use crate::cli::ExplainArgs;
use crate::error::CliError;
use crate::output::{PAGE, Place};
use crate::terminal::escaped;

/// The bytes of a weight on each rank.
fn on_ranks(w: &Recipe) -> Vec<u64> {
    let bytes = |slices: &Vec<glmc_ir::plan::Slice>| slices.iter().map(|s| s.bytes.saturating_mul(s.count)).sum();
    w.slices.iter().map(bytes).collect()
}

/// The weights of a plan, largest first.
fn tensors(plan: &Plan) -> Vec<(&Recipe, Vec<u64>)> {
    let mut all: Vec<_> = plan.weights.values().map(|w| (w, on_ranks(w))).collect();
    all.sort_by(|a, b| (b.1.iter().max(), &a.0.name).cmp(&(a.1.iter().max(), &b.0.name)));
    all
}

pub(crate) fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let page = args.html.as_deref().map(|p| Place::check(PAGE, p)).transpose()?;
    super::want_plan(&args.path)?;
    let plan = read_plan(&args.path)?;
    let target = figures::target_of(&args.path, &plan)?;
    let decisions = Decisions::read(&args.path)?;
    if let Some(value) = &args.value {
        return explain_value::run(args, value, &plan, &target, &decisions);
    }
    let of = Figures::of(&plan, &target, args.tune_ctx)?;
    if let (Some(file), Some(place)) = (&args.html, page) {
        let page = explain_page::page(&plan, &target, &of.needs, &decisions, args.tune_ctx)?;
        place.write(page.len() as u64, |f| f.write_all(page.as_bytes()))?;
        if !args.json {
            return print_line(&format!("{}: written", file.display()));
        }
    }
    let steps = plan.phases.iter().map(|p| figures::slowest(&plan, p, &target, args.tune_ctx));
    let steps = steps.collect::<Result<Vec<_>, _>>()?;
    let tensors = tensors(&plan);
    if args.json {
        return print_json(&json!({
            "target": target,
            "tune_ctx": args.tune_ctx,
            "predicted": of.predicted_json(),
            "phases": steps.iter().map(figures::step_json).collect::<Vec<_>>(),
            "collectives_per_step": figures::collectives_json(&plan),
            "placement": decisions.placement,
            "rewrites": decisions.rewrites,
            "functions": decisions.functions,
            "memory_per_rank": of.memory_json(),
            "bytes_per_token": of.bytes,
            "tensors": tensors.iter().map(|(w, ranks)| json!({
                "name": w.name, "tensor": w.tensor, "type": w.ty.to_string(), "stored": w.span.bytes, "per_rank": ranks,
            })).collect::<Vec<_>>(),
        }));
    }
    print_line(&format!("{}: plan for `{}`", escaped(&args.path.display().to_string()), target.name))?;
    for line in of.lines().iter().take(2) {
        print_line(line)?;
    }
    for line in steps.iter().flat_map(figures::step_lines) {
        print_line(&line)?;
    }
    for line in decisions.rewrite_lines().into_iter().chain(decisions.lines()) {
        print_line(&line)?;
    }
    print_line(&format!("  {} weights, largest first: bytes on the fullest rank, stored", tensors.len()))?;
    for (w, ranks) in &tensors {
        let most = human_bytes(ranks.iter().copied().max().unwrap_or(0));
        print_line(&format!("  {most:>12} {:>12}  {:<28} {}", human_bytes(w.span.bytes), w.name, w.ty))?;
    }
    Ok(())
}
