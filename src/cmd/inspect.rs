//! `glmc inspect`: what is in a GGUF file or a plan. Reads headers only.

use std::collections::BTreeMap;
use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::arch::glm_dsa::weights::{Ffn, LayerWeights, MoeFfn};
use glmc_frontend_gguf::{GgufSet, Model, WeightRef, open};
use glmc_ir::plan::Plan;
use glmc_runtime::load::read_plan;
use serde_json::json;

use super::figures::{self, Figures};
use super::{human_bytes, print_json, print_line};
use crate::cli::InspectArgs;
use crate::error::CliError;
use crate::terminal::escaped;

pub(crate) fn run(args: &InspectArgs) -> Result<(), CliError> {
    let is_plan =
        args.path.is_dir() && (args.path.join("plan.json").exists() || args.path.join("manifest.json").exists());
    if is_plan { plan(args) } else { model(&args.path, args.json) }
}

// ---- models

fn model(path: &Path, as_json: bool) -> Result<(), CliError> {
    crate::bus::reading(path);
    let set = open(path)?;
    let model = Model::load(&set)?;
    let parameters = Parameters::of(&set, &model);
    let mix = mix(&set);
    let bytes = model_bytes(&model);
    let kinds = layer_kinds(&model)?;
    let c = &model.config;
    if as_json {
        return print_json(&json!({
            "kind": "model",
            "architecture": "glm-dsa",
            "name": c.name,
            "parts": set.parts().iter().map(|p| json!({
                "path": p.path().display().to_string(), "bytes": p.size(), "version": p.version(), "tensors": p.tensors().len(),
            })).collect::<Vec<_>>(),
            "tensors": set.tensor_count(),
            "parameters": { "total": parameters.total, "trunk": parameters.trunk, "active": parameters.active },
            "quant_mix": mix.iter().map(|m| json!({ "type": m.0, "tensors": m.1.0, "elements": m.1.1, "bytes": m.1.2 })).collect::<Vec<_>>(),
            "bytes_per_token": { "weights_once": bytes.read, "weights_read": bytes.read },
            "kv_bytes_per_token": { "f32": bytes.kv_values * 4, "f16": bytes.kv_values * 2, "values": bytes.kv_values },
            "layer_kinds": kinds.iter().map(|(k, n)| json!({ "kind": k, "layers": n })).collect::<Vec<_>>(),
            "indexer": { "full": c.indexer.types.iter().filter(|f| **f).count(), "shared": c.indexer.types.iter().filter(|f| !**f).count(), "top_k": c.indexer.top_k },
            "config": c,
            "mtp": model.weights.mtp.is_some(),
            "tokenizer": { "vocab": model.tokenizer.info.vocab_size, "pre": model.tokenizer.info.pre, "stop": model.tokenizer.info.stop },
            "chat_template": model.templates.default.is_some(),
            "unused": model.report.unused.iter().map(|(n, why)| json!({ "tensor": n, "reason": why })).collect::<Vec<_>>(),
        }));
    }
    print_line(&format!(
        "{}: glm-dsa, {}",
        escaped(&path.display().to_string()),
        c.name.as_deref().unwrap_or("without a name")
    ))?;
    let size: u64 = set.parts().iter().map(|p| p.size()).sum();
    print_line(&format!("  {} in {} parts, {} tensors", human_bytes(size), set.parts().len(), set.tensor_count()))?;
    print_line(&format!(
        "  parameters: total {}, trunk {}, active {}",
        parameters.total, parameters.trunk, parameters.active
    ))?;
    print_line(&format!(
        "  {} layers, width {}, {} heads, vocabulary {}, trained context {}",
        c.layers, c.embedding_length, c.attention.head_count, c.vocab_size, c.context_length
    ))?;
    for (ty, (tensors, elements, bytes)) in &mix {
        print_line(&format!("  {ty:<8} {tensors:>5} tensors {elements:>14} elements {}", human_bytes(*bytes)))?;
    }
    print_line(&format!("  weights read for a token: {}", human_bytes(bytes.read)))?;
    print_line(&format!(
        "  cache for a token: {} in f32, {} in f16",
        human_bytes(bytes.kv_values * 4),
        human_bytes(bytes.kv_values * 2)
    ))?;
    for (kind, n) in &kinds {
        print_line(&format!("  {n:>3} x {kind}"))?;
    }
    if model.weights.mtp.is_some() {
        print_line("  a draft head (MTP), lifted but not part of plans yet")?;
    }
    for (name, why) in &model.report.unused {
        print_line(&format!("  unused: {name} ({why})"))?;
    }
    Ok(())
}

struct Parameters {
    total: u64,
    trunk: u64,
    active: u64,
}

impl Parameters {
    /// Total: every tensor of the file. Trunk: without the draft head. Active: what one token of the trunk
    /// reads, the embedding being a look-up of one row.
    fn of(set: &GgufSet, model: &Model) -> Self {
        let w = &model.weights;
        let globals: u64 = [Some(&w.token_embd), Some(&w.output_norm), w.output.as_ref()]
            .into_iter()
            .flatten()
            .map(WeightRef::elements)
            .sum();
        let layers: u64 = w.layers.iter().flat_map(LayerWeights::all).map(WeightRef::elements).sum();
        let trunk = globals + layers;
        let head = w.output.as_ref().unwrap_or(&w.token_embd).elements();
        let active_layers: u64 = w.layers.iter().enumerate().map(|(i, l)| active(model, i, l)).sum();
        Parameters {
            total: set.tensors().map(|(_, t)| t.shape.iter().product::<u64>()).sum(),
            trunk,
            active: active_layers + w.output_norm.elements() + head,
        }
    }
}

fn experts(m: &MoeFfn) -> [&WeightRef; 3] {
    [&m.gate_exps, &m.up_exps, &m.down_exps]
}

/// The share of the experts that a token reads in layer `i`.
fn used_of(model: &Model, i: usize) -> (u64, u64) {
    let moe = model.config.moe.as_ref();
    moe.map_or((1, 1), |m| (m.experts_used.get(i).copied().unwrap_or(1), m.expert_count))
}

fn active(model: &Model, i: usize, l: &LayerWeights) -> u64 {
    let all: u64 = l.all().into_iter().map(WeightRef::elements).sum();
    match &l.ffn {
        Ffn::Dense(_) => all,
        Ffn::Moe(m) => {
            let routed: u64 = experts(m).into_iter().map(WeightRef::elements).sum();
            let (used, of) = used_of(model, i);
            all - routed + routed / of * used
        }
    }
}

/// Type name -> (tensors, elements, bytes), over the whole file.
fn mix(set: &GgufSet) -> BTreeMap<&'static str, (u64, u64, u64)> {
    let mut mix: BTreeMap<&'static str, (u64, u64, u64)> = BTreeMap::new();
    for (_, t) in set.tensors() {
        let row = mix.entry(t.type_name).or_default();
        row.0 += 1;
        row.1 += t.shape.iter().product::<u64>();
        row.2 += t.bytes;
    }
    mix
}

struct ModelBytes {
    read: u64,
    kv_values: u64,
}

/// Bytes of the weights that one decoded token reads, and cache values a token.
fn model_bytes(model: &Model) -> ModelBytes {
    let w = &model.weights;
    let c = &model.config;
    let head = w.output.as_ref().unwrap_or(&w.token_embd).bytes;
    let row = w.token_embd.bytes / c.vocab_size.max(1);
    let mut read = head + w.output_norm.bytes + row;
    for (i, l) in w.layers.iter().enumerate() {
        let all: u64 = l.all().into_iter().map(|r| r.bytes).sum();
        let routed: u64 = if let Ffn::Moe(m) = &l.ffn { experts(m).into_iter().map(|r| r.bytes).sum() } else { 0 };
        let (used, of) = used_of(model, i);
        read += all - routed + routed / of * used;
    }
    let full = c.indexer.types.iter().filter(|f| **f).count() as u64;
    let kv_values = c.layers * (c.attention.kv_lora_rank + c.attention.rope_dim) + full * c.indexer.head_dim;
    ModelBytes { read, kv_values }
}

/// Distinct layer functions of a decode entry with the number of layers that call each.
fn layer_kinds(model: &Model) -> Result<Vec<(String, u64)>, CliError> {
    use glmc_ir::graph::InstKind;
    let options = LiftOptions { ctx: 1, max_batch: 1, cache_rows: 1, chunk: 1 };
    let lifted = model.lift(&options).map_err(|d| CliError::internal(d.to_string()))?;
    let m = &lifted.module;
    let mut kinds: Vec<(String, u64)> = Vec::new();
    let Some(entry) = m.func_named("decode_1") else { return Ok(kinds) };
    for inst in &m.funcs[entry].body {
        if let InstKind::Call { func, .. } = &m.funcs[entry].insts[*inst].kind {
            let name = m.funcs[*func].name.trim_start_matches("decode_1.").to_owned();
            match kinds.iter_mut().find(|(k, _)| *k == name) {
                Some((_, n)) => *n += 1,
                None => kinds.push((name, 1)),
            }
        }
    }
    Ok(kinds)
}

// ---- plans

/// Contract name -> launches over all phases.
pub(crate) fn kernels(plan: &Plan) -> BTreeMap<&'static str, usize> {
    let mut count = BTreeMap::new();
    for s in plan.phases.iter().flat_map(|p| &p.steps) {
        *count.entry(s.kernel.name()).or_insert(0) += 1;
    }
    count
}

fn plan(args: &InspectArgs) -> Result<(), CliError> {
    let (dir, as_json) = (args.path.as_path(), args.json);
    let plan = read_plan(dir)?;
    let target = figures::target_of(dir, &plan)?;
    let figures = Figures::of(&plan, &target, args.tune_ctx)?;
    let mut mix: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for w in plan.weights.values() {
        let row = mix.entry(w.ty.elem.in_file().name()).or_default();
        row.0 += 1;
        row.1 += w.span.bytes;
    }
    if as_json {
        return print_json(&json!({
            "kind": "plan",
            "format": plan.format,
            "producer": plan.producer,
            "target": plan.target,
            "model": plan.model,
            "limits": plan.limits,
            "files": plan.files,
            "weights": { "count": plan.weights.len(), "bytes": plan.weight_bytes(0) },
            "quant_mix": mix.iter().map(|(t, (n, b))| json!({ "type": t, "tensors": n, "bytes": b })).collect::<Vec<_>>(),
            "memory_per_rank": figures.memory_json(),
            "bytes_per_token": figures.bytes,
            "tune_ctx": args.tune_ctx,
            "predicted": figures.predicted_json(),
            "kernels": kernels(&plan),
            "collectives_per_step": figures::collectives_json(&plan),
            "phases": plan.phases.iter().map(|p| json!({ "name": p.name, "kind": p.kind, "tokens": p.tokens, "visible": p.visible(), "steps": p.steps.len(), "segments": p.segments.len(), "arena": p.arena_bytes })).collect::<Vec<_>>(),
        }));
    }
    print_line(&format!(
        "{}: plan for `{}` made by {}",
        escaped(&dir.display().to_string()),
        plan.target.name,
        plan.producer
    ))?;
    print_line(&format!(
        "  model {} {}, {} layers, vocabulary {}",
        plan.model.arch, plan.model.name, plan.model.layers, plan.model.vocab
    ))?;
    print_line(&format!(
        "  context {}, batch {}, cache rows {}, prefill chunk {}",
        plan.limits.ctx, plan.limits.max_batch, plan.limits.cache_rows, plan.limits.chunk
    ))?;
    for line in figures.lines() {
        print_line(&line)?;
    }
    for (ty, (n, b)) in &mix {
        print_line(&format!("  {ty:<8} {n:>5} weights {}", human_bytes(*b)))?;
    }
    for p in &plan.phases {
        let most = p.visible().map_or_else(String::new, |n| format!("up to {n} visible positions, "));
        let (name, steps, arena) = (&p.name, p.steps.len(), human_bytes(p.arena_bytes));
        print_line(&format!("  phase {name:<14} {most}{steps} steps, arena {arena}"))?;
    }
    for (k, n) in kernels(&plan) {
        print_line(&format!("  kernel {k:<16} {n} launches"))?;
    }
    for f in &plan.files {
        print_line(&format!("  file {} ({})", f.path, human_bytes(f.bytes)))?;
    }
    Ok(())
}
