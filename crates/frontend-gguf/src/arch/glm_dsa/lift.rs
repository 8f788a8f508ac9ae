//! Owns the lift: from config and claimed weights to the naive graph of `glm-dsa`. It writes the model's equations
//! down, decode by decode and product by product, and is never clever: no fusion, no absorption, no sharing.
//!
//! Each distinct layer kind (weights' types included) is one function an entry, called once a layer. MLA is in its
//! expanded form: keys and values are computed from cached latents. Pools hold `[latent | rope key]` and, on layers with
//! an indexer of their own, its keys.

use std::collections::HashMap;

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Value, WeightId};
use glmc_ir::graph::{Function, Module, Span, Weight};
use glmc_ir::ops::{Add, Append, Dequant, Gather, Join, Matmul, RmsNorm};
use glmc_ir::plan::PhaseKind;
use glmc_ir::ty::{Dim, Elem, TensorType};

use super::config::GlmDsaConfig;
use super::layer::{self, LayerIo, PoolTypes};
use super::weights::{Ffn, LayerWeights, ModelWeights, MtpWeights};
use crate::arch::{Entry, LiftOptions, Lifted};
use crate::weights::WeightRef;

/// Lifts the model: a decode entry for each bucket, a prefill entry, and, if the file has the draft head, an entry
/// `mtp` that no phase is made of yet.
///
/// # Errors
/// A type rule that the file's shapes break; claims have checked them, so this is a bug of the lift.
pub(crate) fn lift(config: &GlmDsaConfig, weights: &ModelWeights, options: &LiftOptions) -> Result<Lifted, Diagnostic> {
    let mut lifter = Lifter { config, weights, options, module: Module::default(), ids: HashMap::new() };
    lifter.module.name = "glm_dsa".into();
    lifter.module.syms.insert("S".into(), options.ctx);
    lifter.module.syms.insert("R".into(), options.chunk);
    lifter.module.syms.insert("T".into(), options.chunk);
    lifter.declare();
    let mut entries = Vec::new();
    for bucket in options.decode_buckets() {
        let func = format!("decode_{bucket}");
        lifter.entry(&Step { name: &func, tokens: Dim::new(bucket), seqs: bucket, rows: Dim::new(bucket) })?;
        entries.push(Entry { func, kind: PhaseKind::Decode, tokens: bucket });
    }
    lifter.entry(&Step { name: "prefill", tokens: Dim::sym("T"), seqs: 1, rows: Dim::sym("R") })?;
    entries.push(Entry { func: "prefill".into(), kind: PhaseKind::Prefill, tokens: options.chunk });
    if let Some(mtp) = &weights.mtp {
        lifter.mtp(mtp)?;
    }
    Ok(Lifted { module: lifter.module, entries })
}

/// The sizes of one entry.
pub(super) struct Step<'a> {
    name: &'a str,
    pub(super) tokens: Dim,
    pub(super) seqs: u64,
    rows: Dim,
}

struct Lifter<'a> {
    config: &'a GlmDsaConfig,
    weights: &'a ModelWeights,
    options: &'a LiftOptions,
    module: Module,
    ids: HashMap<String, WeightId>,
}

impl Lifter<'_> {
    /// Declares every claimed weight, with the dims it is used with, in the model's order (never the file's).
    fn declare(&mut self) {
        let c = self.config;
        let d = Dim::new(c.embedding_length);
        self.weight(&self.weights.token_embd, &[c.vocab_size.into(), d.clone()]);
        for layer in self.weights.layers.iter().chain(self.weights.mtp.iter().map(|m| &m.layer)) {
            self.declare_layer(layer);
        }
        self.weight(&self.weights.output_norm, std::slice::from_ref(&d));
        if let Some(w) = &self.weights.output {
            self.weight(w, &[c.vocab_size.into(), d.clone()]);
        }
        if let Some(m) = &self.weights.mtp {
            self.weight(&m.eh_proj, &[d, Dim::joined(&[("embd", c.embedding_length), ("hidden", c.embedding_length)])]);
            let norms = [Some(&m.enorm), Some(&m.hnorm), m.shared_head_norm.as_ref()];
            let heads = [m.embed_tokens.as_ref(), m.shared_head_head.as_ref()];
            for w in norms.into_iter().chain(heads).flatten() {
                self.weight(w, &plain(w));
            }
        }
    }

    fn declare_layer(&mut self, w: &LayerWeights) {
        let (a, d) = (&self.config.attention, Dim::new(self.config.embedding_length));
        let head = Dim::joined(&[("nope", a.nope_dim), ("rope", a.rope_dim)]);
        let latent = Dim::joined(&[("latent", a.kv_lora_rank), ("rope", a.rope_dim)]);
        let indexer_head = layer::indexer_head(self.config);
        for r in w.all() {
            let dims = if std::ptr::eq(r, &w.q_b) {
                vec![a.head_count.into(), head.clone(), a.q_lora_rank.into()]
            } else if std::ptr::eq(r, &w.kv_a) {
                vec![latent.clone(), d.clone()]
            } else {
                match &w.indexer {
                    Some(x) if std::ptr::eq(r, &x.q_b) => {
                        vec![self.config.indexer.head_count.into(), indexer_head.clone(), a.q_lora_rank.into()]
                    }
                    Some(x) if std::ptr::eq(r, &x.k) => vec![indexer_head.clone(), d.clone()],
                    _ => plain(r),
                }
            };
            self.weight(r, &dims);
        }
    }

    fn weight(&mut self, w: &WeightRef, dims: &[Dim]) {
        let span = Span { part: w.part as u32, offset: w.offset, bytes: w.bytes };
        let name = w.name.strip_suffix(".weight").unwrap_or(&w.name).to_owned();
        let ty = TensorType::new(Elem::from(w.quant), dims.iter().cloned());
        let id = self.module.weights.push(Weight { name, tensor: w.name.clone(), span, ty });
        self.ids.insert(w.name.clone(), id);
    }

    /// One entry of the trunk.
    fn entry(&mut self, step: &Step<'_>) -> Result<(), Diagnostic> {
        let kinds = self.layer_functions(step)?;
        let (config, weights) = (self.config, self.weights);
        let pools = PoolTypes::new(config, self.options.cache_rows);
        let mut b = Builder::new(&self.module, step.name).entry();
        let tokens = b.param("tokens", ints([step.tokens.clone()]));
        let io = LayerIo::params(&mut b, step);
        let out = b.param("out", ints([step.rows.clone()]));
        let states: Vec<(Value, Option<Value>)> = (0..config.layers)
            .map(|i| {
                let kv = b.param(&format!("blk.{i}.kv"), pools.latent.clone());
                (kv, config.is_full_indexer(i).then(|| b.param(&format!("blk.{i}.index"), pools.index.clone())))
            })
            .collect();
        let table = self.used(&mut b, &weights.token_embd);
        let table = b.one(Dequant {}, &[table])?;
        let mut x = b.named("embd", Gather {}, &[table, tokens])?;
        let mut top = None;
        let mut results = Vec::new();
        for (i, layer) in weights.layers.iter().enumerate() {
            let (kv, index) = states[i];
            let mut args = vec![x];
            args.extend(io.values());
            args.push(kv);
            args.extend(index);
            if index.is_none() {
                args.extend(top);
            }
            args.extend(layer.all().into_iter().map(|w| self.used(&mut b, w)));
            let r = b.call(kinds[i], &format!("blk.{i}"), &args)?;
            x = r[0];
            results.push((format!("blk.{i}.kv"), r[1]));
            let mut rest = r[2..].iter().copied();
            if index.is_some() {
                results.extend(rest.next().map(|v| (format!("blk.{i}.index"), v)));
            }
            top = rest.next().or(top);
        }
        let x = b.one(Gather {}, &[x, out])?;
        let norm = self.used(&mut b, &weights.output_norm);
        let norm = b.one(Dequant {}, &[norm])?;
        let y = b.named("result_norm", RmsNorm { eps: f64::from(config.rms_norm_eps) }, &[x, norm])?;
        let head = self.used(&mut b, weights.output.as_ref().unwrap_or(&weights.token_embd));
        let head = b.one(Dequant {}, &[head])?;
        let logits = b.named("logits", Matmul::new("tk,nk->tn"), &[y, head])?;
        let f = b.finish([("logits".to_owned(), logits), ("hidden".to_owned(), y)].into_iter().chain(results));
        self.module.funcs.push(f);
        Ok(())
    }

    /// The function of each layer; layers of one kind share one.
    fn layer_functions(&mut self, step: &Step<'_>) -> Result<Vec<FuncId>, Diagnostic> {
        let (config, weights) = (self.config, self.weights);
        let mut made: Vec<(Function, FuncId)> = Vec::new();
        let mut out = Vec::new();
        for (i, layer) in weights.layers.iter().enumerate() {
            let i = i as u64;
            let kind = layer::Kind {
                full: config.is_full_indexer(i),
                gives_top: config.is_full_indexer(i) && i + 1 < config.layers && !config.is_full_indexer(i + 1),
                dense_attention: false,
            };
            let ffn = match layer.ffn {
                Ffn::Dense(_) => "dense",
                Ffn::Moe(_) => "moe",
            };
            let name = format!("{}.{ffn}_{}", step.name, if kind.full { "full" } else { "shared" });
            out.push(self.intern(&mut made, &name, layer, &kind, step, i)?);
        }
        Ok(out)
    }

    fn intern(
        &mut self,
        made: &mut Vec<(Function, FuncId)>,
        name: &str,
        layer: &LayerWeights,
        kind: &layer::Kind,
        step: &Step<'_>,
        index: u64,
    ) -> Result<FuncId, Diagnostic> {
        let f = layer::function(&self.module, &self.ids, self.config, self.options, layer, kind, step, index)?;
        if let Some((_, id)) = made.iter().find(|(g, _)| *g == f) {
            return Ok(*id);
        }
        let numbered = format!("{name}.");
        let named_so = |n: &str| n == name || n.starts_with(&numbered);
        let same_name = made.iter().filter(|(_, id)| named_so(&self.module.funcs[*id].name)).count();
        let unique = if same_name == 0 { name.to_owned() } else { format!("{name}.{}", same_name + 1) };
        let id = self.module.funcs.push(Function { name: unique, ..f.clone() });
        made.push((f, id));
        Ok(id)
    }

    /// The draft head: `m = eh_proj [rms(embd) | rms(hidden)]`, one block over its own pool with dense attention, its
    /// norm and head. `hidden` is the trunk's result after `output_norm` of the position before the token.
    fn mtp(&mut self, mtp: &MtpWeights) -> Result<(), Diagnostic> {
        let config = self.config;
        let step = Step { name: "mtp", tokens: Dim::sym("T"), seqs: 1, rows: Dim::sym("R") };
        let kind = layer::Kind { full: false, gives_top: false, dense_attention: true };
        let block = self.intern(&mut Vec::new(), "mtp.block", &mtp.layer, &kind, &step, mtp.block)?;
        let pools = PoolTypes::new(config, self.options.cache_rows);
        let eps = f64::from(config.rms_norm_eps);
        let mut b = Builder::new(&self.module, "mtp").entry();
        let tokens = b.param("tokens", ints([step.tokens.clone()]));
        let hidden =
            b.param("hidden", TensorType::new(Elem::F32, [step.tokens.clone(), config.embedding_length.into()]));
        let io = LayerIo::params(&mut b, &step);
        let out = b.param("out", ints([step.rows.clone()]));
        let kv = b.param("mtp.kv", pools.latent.clone());
        let decode = |b: &mut Builder<'_>, w: &WeightRef| {
            let v = self.used(b, w);
            b.one(Dequant {}, &[v])
        };
        let table = decode(&mut b, mtp.embed_tokens.as_ref().unwrap_or(&self.weights.token_embd))?;
        let embd = b.one(Gather {}, &[table, tokens])?;
        let (enorm, hnorm) = (decode(&mut b, &mtp.enorm)?, decode(&mut b, &mtp.hnorm)?);
        let e = b.one(RmsNorm { eps }, &[embd, enorm])?;
        let h = b.one(RmsNorm { eps }, &[hidden, hnorm])?;
        let eh = b.one(Join { names: vec!["embd".into(), "hidden".into()] }, &[e, h])?;
        let eh_proj = decode(&mut b, &mtp.eh_proj)?;
        let x = b.named("eh", Matmul::new("tk,nk->tn"), &[eh, eh_proj])?;
        let mut args = vec![x];
        args.extend(io.values());
        args.push(kv);
        args.extend(mtp.layer.all().into_iter().map(|w| self.used(&mut b, w)));
        let r = b.call(block, "mtp", &args)?;
        let x = b.one(Gather {}, &[r[0], out])?;
        let norm = decode(&mut b, mtp.shared_head_norm.as_ref().unwrap_or(&self.weights.output_norm))?;
        let y = b.named("result_norm", RmsNorm { eps }, &[x, norm])?;
        let trunk_head = self.weights.output.as_ref().unwrap_or(&self.weights.token_embd);
        let head = decode(&mut b, mtp.shared_head_head.as_ref().unwrap_or(trunk_head))?;
        let logits = b.named("logits", Matmul::new("tk,nk->tn"), &[y, head])?;
        let f = b.finish([("logits", logits), ("hidden", y), ("mtp.kv", r[1])]);
        self.module.funcs.push(f);
        Ok(())
    }

    fn used(&self, b: &mut Builder<'_>, w: &WeightRef) -> Value {
        b.weight(self.ids[&w.name])
    }
}

/// The dims of a weight as the file has them.
fn plain(w: &WeightRef) -> Vec<Dim> {
    w.shape.iter().map(|n| Dim::new(*n)).collect()
}

/// An `i32` type.
pub(super) fn ints<const N: usize>(dims: [Dim; N]) -> TensorType {
    TensorType::new(Elem::I32, dims)
}

/// Appends `x` to `pool` and gathers the rows of `table` from the changed pool.
pub(super) fn through_pool(
    b: &mut Builder<'_>,
    pool: Value,
    io: &LayerIo,
    x: Value,
) -> Result<(Value, Value), Diagnostic> {
    let pool = b.one(Append {}, &[pool, io.row, x])?;
    let rows = b.one(Gather {}, &[pool, io.table])?;
    Ok((pool, rows))
}

/// `x + y`.
pub(super) fn add(b: &mut Builder<'_>, name: &str, x: Value, y: Value) -> Result<Value, Diagnostic> {
    b.named(name, Add {}, &[x, y])
}
