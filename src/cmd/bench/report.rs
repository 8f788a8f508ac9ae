//! What was measured, as a table or as JSON.

use serde_json::{Value, json};

use super::super::figures::human_seconds;
use super::super::{human_bytes, print_json, print_line};
use super::classes::{Class, Piece, Split};
use super::machine::Machine;
use super::plan::{Job, Predicted};
use super::session::Seen;
use crate::cli::BenchArgs;
use crate::error::CliError;

/// A kernel, timed alone.
pub(super) struct KernelRow {
    pub(super) name: String,
    pub(super) config: String,
    /// Of one call.
    pub(super) seconds: f64,
    /// The steps that call it.
    pub(super) steps: Vec<usize>,
}

/// Bytes of a device's memory in use.
pub(super) struct MemoryUse {
    /// By everything on the device, the driver's context and graphs too.
    pub(super) used: u64,
    /// By the plan's own pieces.
    pub(super) own: u64,
}

/// Everything that was measured.
pub(super) struct Measured {
    pub(super) device: Value,
    pub(super) machine: Machine,
    pub(super) seen: Seen,
    /// A decode step on the device alone.
    pub(super) device_s: Option<f64>,
    /// The step that the pieces are of, which is longer for being looked at.
    pub(super) traced_s: f64,
    pub(super) pieces: Vec<Piece>,
    pub(super) kernels: Vec<KernelRow>,
    pub(super) memory: Option<MemoryUse>,
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

impl Measured {
    /// What turns seconds of pieces into those of a step that nobody looks at.
    pub(super) fn scale(&self) -> f64 {
        match self.device_s {
            Some(s) if self.traced_s > 0.0 => s / self.traced_s,
            _ => 1.0,
        }
    }
}

/// A kernel with its bytes.
struct Row<'a> {
    k: &'a KernelRow,
    contract: &'static str,
    bytes: f64,
    /// Of the step, all calls together.
    total: f64,
}

/// All figures that are derived.
struct Figures<'a> {
    wall: f64,
    split: Split,
    rows: Vec<Row<'a>>,
    limit: f64,
    share: f64,
    prefill_tps: f64,
    decode_tps: f64,
    touched: f64,
}

fn figures<'a>(job: &Job, p: &Predicted, m: &'a Measured) -> Figures<'a> {
    let phase = &job.plan.phases[job.phase];
    let (timed, device) = (median(&m.seen.steps), m.device_s.unwrap_or(0.0));
    // On a processor the pieces are of the watched steps.
    let wall = if m.kernels.is_empty() { timed.max(device) } else { timed };
    let classed: Vec<(Class, Piece)> =
        m.pieces.iter().map(|x| (Class::of(&phase.steps[x.step], &p.steps[x.step]), *x)).collect();
    let split = Split::of(&classed, m.machine.gap_s, m.scale(), device, wall);
    let mut rows: Vec<Row<'a>> = m
        .kernels
        .iter()
        .map(|k| {
            let n = k.steps.len().max(1) as f64;
            let bytes = k.steps.iter().map(|s| p.steps[*s].bytes.weights + p.steps[*s].bytes.caches).sum::<u64>();
            let contract = k.steps.first().map_or("", |s| p.steps[*s].kernel);
            Row { k, contract, bytes: bytes as f64 / n, total: n * k.seconds }
        })
        .collect();
    rows.sort_by(|a, b| b.total.total_cmp(&a.total));
    let ranks = f64::from(job.plan.target.ranks.max(1));
    let tokens = phase.tokens.max(1) as f64;
    let once = (p.bytes.weights_once + p.bytes.cache) as f64;
    let limit = once / ranks / m.machine.read_bytes_per_s;
    Figures {
        wall: timed,
        split,
        rows,
        limit,
        share: limit / timed.max(f64::MIN_POSITIVE),
        prefill_tps: job.prompt as f64 / median(&m.seen.prompts),
        decode_tps: job.batch as f64 / mean(&m.seen.steps),
        touched: m.seen.touched.bytes / (p.phase.bytes.weights as f64).max(1.0) * if tokens > 0.0 { 1.0 } else { 0.0 },
    }
}

pub(super) fn show(job: &Job, args: &BenchArgs, p: &Predicted, m: &Measured) -> Result<(), CliError> {
    let f = figures(job, p, m);
    if args.json { print_json(&object(job, args, p, m, &f)) } else { lines(job, args, p, m, &f) }
}

/// What the step must be said to be.
fn stand_ins(job: &Job) -> Option<String> {
    let rank = job.rank?;
    let ranks = job.plan.target.ranks;
    (ranks > 1).then(|| {
        format!("rank {rank} of {ranks} alone: local stand-ins push, sum {ranks} buffers and join in place of its collectives")
    })
}

fn object(job: &Job, args: &BenchArgs, p: &Predicted, m: &Measured, f: &Figures<'_>) -> Value {
    let kernel = |r: &Row<'_>| {
        let rate = r.bytes / r.k.seconds;
        json!({
            "kernel": r.k.name, "contract": r.contract, "config": r.k.config, "calls": r.k.steps.len(),
            "seconds": r.k.seconds, "bytes": r.bytes, "bytes_per_s": rate, "share": rate / m.machine.read_bytes_per_s,
        })
    };
    let fit = p.need.total() - p.need.reserve;
    json!({
        "plan": job.dir.display().to_string(), "target": job.plan.target.name, "ranks": job.plan.target.ranks,
        "rank": job.rank, "stand_ins": stand_ins(job), "layers": job.plan.model.layers, "synthetic": args.synthetic,
        "devices": [m.device], "machine": m.machine.json(),
        "context": job.ctx, "batch": job.batch, "phase": job.plan.phases[job.phase].name,
        "prefill": { "tokens": job.prompt, "seconds": median(&m.seen.prompts), "tps": f.prefill_tps },
        "decode": {
            "steps": m.seen.steps.len(), "different_tokens": m.seen.tokens, "seconds": f.wall,
            "mean_s": mean(&m.seen.steps), "device_s": m.device_s, "traced_s": m.traced_s, "tps": f.decode_tps,
            "classes": f.split.json(), "predicted_s": p.phase.step_s,
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
        "kernels": f.rows.iter().map(kernel).collect::<Vec<_>>(),
    })
}

fn lines(job: &Job, args: &BenchArgs, p: &Predicted, m: &Measured, f: &Figures<'_>) -> Result<(), CliError> {
    let us = |s: f64| format!("{:.2}", s * 1e6);
    let plan = &job.plan;
    print_line(&format!(
        "{} layers for `{}`, {} ranks; {}; batch {}, context {}, phase {}",
        plan.model.layers,
        plan.target.name,
        plan.target.ranks,
        if args.synthetic { "random weights" } else { "the model's weights" },
        job.batch,
        job.ctx,
        plan.phases[job.phase].name
    ))?;
    if let Some(line) = stand_ins(job) {
        print_line(&format!("  {line}"))?;
    }
    print_line(&format!(
        "  this machine: reads {:.0} GB/s, a launch that does nothing {} us",
        m.machine.read_bytes_per_s / 1e9,
        us(m.machine.gap_s)
    ))?;
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
    print_line(&format!(
        "  prefill: {} tokens in {}, {:.0} tok/s",
        job.prompt,
        human_seconds(median(&m.seen.prompts)),
        f.prefill_tps
    ))?;
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
    print_line(&format!("  a decode step by class, {:.1} % accounted for:", 100.0 * f.split.accounted()))?;
    for (name, seconds, launches) in f.split.parts() {
        let n = launches.map_or_else(String::new, |n| format!("{n} launches"));
        print_line(&format!("    {name:<12} {:>10}  {n}", human_seconds(seconds)))?;
    }
    if !f.rows.is_empty() {
        print_line(&format!(
            "  {:<28} {:<18} {:>5} {:>8} {:>9} {:>8} {:>7} {:>9}",
            "kernel alone", "contract", "calls", "us", "MB", "GB/s", "share", "us a step"
        ))?;
    }
    for r in &f.rows {
        let rate = r.bytes / r.k.seconds;
        print_line(&format!(
            "  {:<28} {:<18} {:>5} {:>8} {:>9.3} {:>8.0} {:>6.1}% {:>9.1}",
            r.k.name,
            r.contract,
            r.k.steps.len(),
            us(r.k.seconds),
            r.bytes / 1e6,
            rate / 1e9,
            100.0 * rate / m.machine.read_bytes_per_s,
            1e6 * r.total
        ))?;
    }
    Ok(())
}
