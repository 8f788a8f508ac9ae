//! What was measured, as a table or as JSON.

use serde_json::{Value, json};

use super::super::figures::human_seconds;
use super::super::{human_bytes, print_json, print_line};
use super::classes::Split;
use super::machine::Machine;
use super::measured::{Measured, Row, Timed, mean, median};
use super::pace::STEPS;
use super::plan::{Job, Predicted};
use crate::cli::BenchArgs;
use crate::error::CliError;

/// All figures that are derived.
struct Figures<'a> {
    /// A decode step with the host.
    wall: f64,
    split: Split,
    rows: Vec<Row<'a>>,
    /// A chunk of a prompt.
    chunk: Option<(Split, Vec<Row<'a>>)>,
    limit: f64,
    share: f64,
    prefill_tps: f64,
    decode_tps: f64,
    touched: f64,
}

fn figures<'a>(job: &Job, p: &Predicted, prefill: &Predicted, m: &'a Measured) -> Figures<'a> {
    let (timed, gap) = (median(&m.seen.steps), m.machine.gap_s);
    let chunks = job.prompt.div_ceil(job.plan.limits.chunk.max(1)).max(1);
    let prompt = median(&m.seen.prompts);
    let of_chunk =
        |t: &'a Timed| (t.split(job, prefill, gap, (prompt / chunks as f64).max(t.device_s)), t.rows(prefill));
    let ranks = f64::from(job.plan.target.ranks.max(1));
    let once = (p.bytes.weights_once + p.bytes.cache) as f64;
    let limit = once / ranks / m.machine.read_bytes_per_s;
    Figures {
        wall: timed,
        split: m.decode.split(job, p, gap, timed),
        rows: m.decode.rows(p),
        chunk: m.prefill.as_ref().map(of_chunk),
        limit,
        share: limit / timed.max(f64::MIN_POSITIVE),
        prefill_tps: job.prompt as f64 / prompt,
        decode_tps: job.batch as f64 / mean(&m.seen.steps),
        touched: m.seen.touched.bytes / (p.phase.bytes.weights as f64).max(1.0),
    }
}

pub(super) fn show(
    job: &Job,
    args: &BenchArgs,
    p: &Predicted,
    prefill: &Predicted,
    m: &Measured,
) -> Result<(), CliError> {
    let f = figures(job, p, prefill, m);
    if args.json { print_json(&object(job, args, p, m, &f)) } else { lines(job, args, p, m, &f) }
}

/// What a rank alone must be said to be.
fn stand_ins(job: &Job) -> Option<String> {
    let (rank, ranks) = (job.rank?, job.plan.target.ranks);
    (ranks > 1).then(|| {
        format!(
            "rank {rank} of {ranks} alone: local stand-ins push, sum {ranks} buffers and join in place of its collectives"
        )
    })
}

fn kernel_json(r: &Row<'_>, machine: Machine) -> Value {
    let rate = r.bytes / r.k.seconds;
    json!({
        "kernel": r.name, "contract": r.contract, "config": r.k.config, "calls": r.k.steps.len(),
        "seconds": r.k.seconds, "bytes": r.bytes, "bytes_per_s": rate, "share": rate / machine.read_bytes_per_s,
        "step_alone_s": r.alone, "step_s": r.within,
    })
}

fn object(job: &Job, args: &BenchArgs, p: &Predicted, m: &Measured, f: &Figures<'_>) -> Value {
    let kernels = |rows: &[Row<'_>]| rows.iter().map(|r| kernel_json(r, m.machine)).collect::<Vec<_>>();
    let fit = p.need.total() - p.need.reserve;
    json!({
        "plan": job.dir.display().to_string(), "target": job.plan.target.name, "ranks": job.plan.target.ranks,
        "rank": job.rank, "stand_ins": stand_ins(job), "layers": job.plan.model.layers, "synthetic": args.synthetic,
        "devices": [m.device], "machine": m.machine.json(),
        "context": job.pace.ctx, "batch": job.batch, "phase": job.plan.phases[job.phase].name,
        "prefill": {
            "tokens": job.prompt, "seconds": median(&m.seen.prompts), "tps": f.prefill_tps,
            "chunk": m.prefill.as_ref().zip(f.chunk.as_ref()).map(|(t, (split, rows))| json!({
                "phase": job.plan.phases[t.phase].name, "device_s": t.device_s, "traced_s": t.traced_s,
                "classes": split.json(), "kernels": kernels(rows),
            })),
        },
        "decode": {
            "steps": m.seen.steps.len(), "different_tokens": m.seen.tokens, "seconds": f.wall,
            "mean_s": mean(&m.seen.steps), "device_s": m.decode.device_s, "traced_s": m.decode.traced_s,
            "tps": f.decode_tps, "classes": f.split.json(), "predicted_s": p.phase.step_s,
        },
        "limit": {
            "weights_once": p.bytes.weights_once, "cache": p.bytes.cache, "seconds": f.limit, "share": f.share,
        },
        "touched": {
            "weights": m.seen.touched.bytes, "weights_read": p.phase.bytes.weights, "ratio": f.touched,
            "steps": m.seen.touched.steps, "experts_of_a_launch": m.seen.touched.experts,
        },
        "memory": m.memory.as_ref().map(|u| json!({
            "used": u.used, "own": u.own, "fit": fit, "ratio": u.used as f64 / fit as f64,
        })),
        "kernels": kernels(&f.rows),
    })
}

fn us(s: f64) -> String {
    format!("{:.2}", s * 1e6)
}

/// A step by class and by kernel.
fn step_lines(what: &str, split: &Split, rows: &[Row<'_>], machine: Machine) -> Result<(), CliError> {
    print_line(&format!("  {what} by class, {:.1} % accounted for:", 100.0 * split.accounted()))?;
    for (name, seconds, launches) in split.parts() {
        let n = launches.map_or_else(String::new, |n| format!("{n} launches"));
        print_line(&format!("    {name:<12} {:>10}  {n}", human_seconds(seconds)))?;
    }
    if !rows.is_empty() {
        print_line(&format!(
            "  {:<30} {:<18} {:>5} {:>9} {:>9} {:>6} {:>7} {:>10} {:>10}",
            "kernel", "contract", "calls", "alone us", "MB", "GB/s", "share", "calls us", "in step us"
        ))?;
    }
    for r in rows {
        let rate = r.bytes / r.k.seconds;
        print_line(&format!(
            "  {:<30} {:<18} {:>5} {:>9} {:>9.3} {:>6.0} {:>6.1}% {:>10.1} {:>10.1}",
            r.name,
            r.contract,
            r.k.steps.len(),
            us(r.k.seconds),
            r.bytes / 1e6,
            rate / 1e9,
            100.0 * rate / machine.read_bytes_per_s,
            1e6 * r.alone,
            1e6 * r.within
        ))?;
    }
    Ok(())
}

fn lines(job: &Job, args: &BenchArgs, p: &Predicted, m: &Measured, f: &Figures<'_>) -> Result<(), CliError> {
    let plan = &job.plan;
    print_line(&format!(
        "{} layers for `{}`, {} ranks; {}; batch {}, context {}, phase {}",
        plan.model.layers,
        plan.target.name,
        plan.target.ranks,
        if args.synthetic { "random weights" } else { "the model's weights" },
        job.batch,
        job.pace.ctx,
        plan.phases[job.phase].name
    ))?;
    if let Some(line) = stand_ins(job) {
        print_line(&format!("  {line}"))?;
    }
    let (read, gap) = (m.machine.read_bytes_per_s / 1e9, us(m.machine.gap_s));
    print_line(&format!("  this machine: reads {read:.0} GB/s, a launch that does nothing {gap} us"))?;
    if let Some(u) = &m.memory {
        let fit = p.need.total() - p.need.reserve;
        print_line(&format!(
            "  memory: {} in use, {} by the plan's pieces; {} were counted on ({:.1} %)",
            human_bytes(u.used),
            human_bytes(u.own),
            human_bytes(fit),
            100.0 * u.used as f64 / fit as f64
        ))?;
    }
    if job.pace.steps < STEPS {
        print_line(&format!("  {} steps are timed: {STEPS} do not fit into the plan's context", job.pace.steps))?;
    }
    let prompt = human_seconds(median(&m.seen.prompts));
    print_line(&format!("  prefill: {} tokens in {prompt}, {:.0} tok/s", job.prompt, f.prefill_tps))?;
    print_line(&format!(
        "  decode: {} a step, {:.1} tok/s ({} steps of {} different tokens); predicted {}",
        human_seconds(f.wall),
        f.decode_tps,
        m.seen.steps.len(),
        m.seen.tokens,
        human_seconds(p.phase.step_s)
    ))?;
    print_line(&format!(
        "  byte limit: {} ({} of weights and {} of caches over {} ranks): a share of {:.1} %",
        human_seconds(f.limit),
        human_bytes(p.bytes.weights_once),
        human_bytes(p.bytes.cache),
        plan.target.ranks,
        100.0 * f.share
    ))?;
    print_line(&format!(
        "  weights touched a step: {} by the ids of {} steps, {} by the plan ({:.2} %)",
        human_bytes(m.seen.touched.bytes as u64),
        m.seen.touched.steps,
        human_bytes(p.phase.bytes.weights),
        100.0 * f.touched
    ))?;
    step_lines("a decode step", &f.split, &f.rows, m.machine)?;
    match &f.chunk {
        Some((split, rows)) => step_lines("the last chunk of a prompt", split, rows, m.machine),
        None => Ok(()),
    }
}
