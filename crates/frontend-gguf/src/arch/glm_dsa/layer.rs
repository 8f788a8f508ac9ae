//! Owns the graph of one `glm-dsa` block: MLA, indexer, feed-forward. Names of values follow the field's dumps
//! (`attn_norm`, `kv_cmpr`, `ffn_moe_topk`, ...), so that activations can be compared with other programs'.

use std::collections::HashMap;

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{Value, WeightId};
use glmc_ir::graph::{Function, Module};
use glmc_ir::ops::{
    Attention, Dequant, GroupedMatmul, IndexerScores, Join, LayerNorm, Matmul, MoeRoute, Mul, Reshape, RmsNorm, Rope,
    Scale, Silu, TopK,
};
use glmc_ir::ty::{Dim, Elem, TensorType};

use super::config::{Gating, GlmDsaConfig, MoeConfig};
use super::lift::{Step, add, ints, through_pool};
use super::weights::{DenseFfn, Ffn, IndexerWeights, LayerWeights, MoeFfn};
use crate::arch::LiftOptions;
use crate::weights::WeightRef;

/// What distinguishes blocks besides their weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kind {
    /// The block selects keys with its own indexer.
    pub(super) full: bool,
    /// A later block reuses the selection, so it is a result.
    pub(super) gives_top: bool,
    /// No selection at all: the draft head.
    pub(super) dense_attention: bool,
}

/// The step parameters that every block takes.
pub(super) struct LayerIo {
    pos: Value,
    pub(super) row: Value,
    seq: Value,
    len: Value,
    pub(super) table: Value,
}

impl LayerIo {
    /// Declares them: positions, pool rows to write, sequence of each token, keys each token sees, and the pool row of
    /// each position of each sequence.
    pub(super) fn params(b: &mut Builder<'_>, step: &Step<'_>) -> Self {
        let mut a_token = |name| b.param(name, ints([step.tokens.clone()]));
        let (pos, row, seq, len) = (a_token("pos"), a_token("row"), a_token("seq"), a_token("len"));
        let table = b.param("table", ints([Dim::new(step.seqs), Dim::sym("S")]));
        LayerIo { pos, row, seq, len, table }
    }

    /// In parameter order.
    pub(super) fn values(&self) -> [Value; 5] {
        [self.pos, self.row, self.seq, self.len, self.table]
    }
}

/// The types of the cache pools.
pub(super) struct PoolTypes {
    /// `[rows, {latent, rope}]`.
    pub(super) latent: TensorType,
    /// `[rows, {rope, nope}]`.
    pub(super) index: TensorType,
}

impl PoolTypes {
    pub(super) fn new(c: &GlmDsaConfig, rows: u64) -> Self {
        let latent = Dim::joined(&[("latent", c.attention.kv_lora_rank), ("rope", c.attention.rope_dim)]);
        let pool = |width: Dim| TensorType::new(Elem::F32, [Dim::new(rows), width]).as_state();
        PoolTypes { latent: pool(latent), index: pool(indexer_head(c)) }
    }
}

/// The head of the indexer: rope first. A head that is rotated whole has no pieces.
pub(super) fn indexer_head(c: &GlmDsaConfig) -> Dim {
    let (rope, all) = (c.attention.rope_dim, c.indexer.head_dim);
    if all > rope { Dim::joined(&[("rope", rope), ("nope", all - rope)]) } else { Dim::new(all) }
}

/// Builds the function of one block, nameless. Parameters: `x`, the step parameters, `kv`, then `index` (full) or `top`
/// (shared), then the weights. Results: `x`, `kv`, `index` (full), `top` (where reused).
#[allow(clippy::too_many_arguments, reason = "all that determines a block")]
pub(super) fn function(
    module: &Module,
    ids: &HashMap<String, WeightId>,
    config: &GlmDsaConfig,
    options: &LiftOptions,
    w: &LayerWeights,
    kind: &Kind,
    step: &Step<'_>,
    index: u64,
) -> Result<Function, Diagnostic> {
    let pools = PoolTypes::new(config, options.cache_rows);
    let mut b = Builder::new(module, "");
    let x = b.param("x", TensorType::new(Elem::F32, [step.tokens.clone(), config.embedding_length.into()]));
    let io = LayerIo::params(&mut b, step);
    let kv = b.param("kv", pools.latent);
    let k = config.indexer.top_k.min(options.ctx);
    let selection = if kind.dense_attention {
        Selection::Dense
    } else if kind.full {
        Selection::Own(b.param("index", pools.index))
    } else {
        Selection::Given(b.param("top", ints([step.tokens.clone(), k.into()])))
    };
    let mut params = HashMap::new();
    for r in w.all() {
        // Named by role, not by block: blocks of one kind are one function. The prefix keeps them apart from values
        // that carry the same name in dumps.
        let name = module.weights[ids[&r.name]].name.split_once('.').and_then(|(_, n)| n.split_once('.'));
        let name = format!("w.{}", name.map_or(r.name.as_str(), |(_, n)| n));
        params.insert(r.name.clone(), b.param(&name, module.weights[ids[&r.name]].ty.clone()));
    }
    let mut l = Layer { b, c: config, params, io, block: index };
    let eps = f64::from(config.rms_norm_eps);
    let a = l.norm("attn_norm", x, &w.attn_norm, eps)?;
    let q_a = l.linear(a, &w.q_a)?;
    let qr = l.norm("qr", q_a, &w.q_a_norm, eps)?;
    let (index_pool, top) = match (selection, &w.indexer) {
        (Selection::Own(pool), Some(x)) => {
            let (pool, top) = l.indexer(a, qr, pool, x, k)?;
            (Some(pool), Some(top))
        }
        (Selection::Given(top), _) => (None, Some(top)),
        _ => (None, None),
    };
    let (attn_out, kv) = l.attention(a, qr, kv, w, top)?;
    let h = add(&mut l.b, "ffn_inp", x, attn_out)?;
    let f = l.norm("ffn_norm", h, &w.ffn_norm, eps)?;
    let ffn = match (&w.ffn, &config.moe) {
        (Ffn::Moe(m), Some(moe)) => l.moe(f, m, moe)?,
        (Ffn::Dense(d), _) => l.mlp("ffn_out", f, d)?,
        (Ffn::Moe(_), None) => return Err(Diagnostic::new("lift", "experts without expert keys")),
    };
    let out = add(&mut l.b, "l_out", h, ffn)?;
    let mut results = vec![("x", out), ("kv", kv)];
    results.extend(index_pool.map(|p| ("index", p)));
    if kind.gives_top {
        results.extend(top.map(|t| ("top", t)));
    }
    Ok(l.b.finish(results))
}

/// Where a block's selection of keys comes from.
enum Selection {
    Dense,
    Own(Value),
    Given(Value),
}

struct Layer<'m> {
    b: Builder<'m>,
    c: &'m GlmDsaConfig,
    params: HashMap<String, Value>,
    io: LayerIo,
    block: u64,
}

impl Layer<'_> {
    fn decode(&mut self, w: &WeightRef) -> Result<Value, Diagnostic> {
        let v = self.params[&w.name];
        self.b.one(Dequant {}, &[v])
    }

    fn norm(&mut self, name: &str, x: Value, w: &WeightRef, eps: f64) -> Result<Value, Diagnostic> {
        let w = self.decode(w)?;
        self.b.named(name, RmsNorm { eps }, &[x, w])
    }

    /// `x W^T`.
    fn linear(&mut self, x: Value, w: &WeightRef) -> Result<Value, Diagnostic> {
        self.contract("tk,nk->tn", x, w)
    }

    fn contract(&mut self, spec: &str, x: Value, w: &WeightRef) -> Result<Value, Diagnostic> {
        let w = self.decode(w)?;
        self.b.one(Matmul::new(spec), &[x, w])
    }

    fn rope(&mut self, x: Value) -> Result<Value, Diagnostic> {
        self.b.one(Rope { theta: f64::from(self.c.rope_freq_base) }, &[x, self.io.pos])
    }

    /// MLA, expanded: keys and values of every visible position from its cached latent.
    fn attention(
        &mut self,
        a: Value,
        qr: Value,
        kv: Value,
        w: &LayerWeights,
        top: Option<Value>,
    ) -> Result<(Value, Value), Diagnostic> {
        let q = self.contract("tr,hdr->thd", qr, &w.q_b)?;
        let q_nope = self.b.piece(q, "nope")?;
        self.b.name(q_nope, "q_nope");
        let q_rope = self.b.piece(q, "rope")?;
        let q_rope = self.rope(q_rope)?;
        let z = self.linear(a, &w.kv_a)?;
        let (c, r) = (self.b.piece(z, "latent")?, self.b.piece(z, "rope")?);
        let c = self.norm("kv_cmpr", c, &w.kv_a_norm, f64::from(self.c.rms_norm_eps))?;
        let r = self.rope(r)?;
        let cached = self.b.one(Join { names: vec!["latent".into(), "rope".into()] }, &[c, r])?;
        let (kv, seen) = through_pool(&mut self.b, kv, &self.io, cached)?;
        let (latents, k_rope) = (self.b.piece(seen, "latent")?, self.b.piece(seen, "rope")?);
        let k_nope = self.contract("qsc,hcn->qshn", latents, &w.k_b)?;
        let v = self.contract("qsc,hvc->qshv", latents, &w.v_b)?;
        let scale = 1.0 / (self.c.attention.head_dim as f64).sqrt();
        let op = Attention { parts: 2, scale, selected: top.is_some() };
        let mut args = vec![q_nope, q_rope, k_nope, k_rope, v, self.io.seq, self.io.len];
        args.extend(top);
        let o = self.b.named("kqv_out", op, &args)?;
        let heads = self.c.attention.head_count * self.c.attention.value_dim;
        let dims = vec![self.b.ty(o).dims[0].clone(), Dim::new(heads)];
        let o = self.b.one(Reshape { dims }, &[o])?;
        let out = self.linear(o, &w.o)?;
        self.b.name(out, "attn_out");
        Ok((out, kv))
    }

    /// The lightning indexer: scores of every visible position and the best `k` of them.
    fn indexer(
        &mut self,
        a: Value,
        qr: Value,
        pool: Value,
        w: &IndexerWeights,
        k: u64,
    ) -> Result<(Value, Value), Diagnostic> {
        let x = &self.c.indexer;
        let (heads, head_dim, eps) = (x.head_count as f64, x.head_dim as f64, f64::from(x.norm_eps));
        let q = self.contract("tr,hdr->thd", qr, &w.q_b)?;
        let q = self.rope_first(q)?;
        let key = self.linear(a, &w.k)?;
        let (norm, bias) = (self.decode(&w.k_norm)?, self.decode(&w.k_norm_bias)?);
        let key = self.b.one(LayerNorm { eps }, &[key, norm, bias])?;
        let key = self.rope_first(key)?;
        let (pool, keys) = through_pool(&mut self.b, pool, &self.io, key)?;
        let weights = self.linear(a, &w.proj)?;
        let weights = self.b.one(Scale { factor: 1.0 / heads.sqrt() }, &[weights])?;
        let args = [q, keys, weights, self.io.seq, self.io.len];
        let scores = self.b.named("indexer_score", IndexerScores { scale: 1.0 / head_dim.sqrt() }, &args)?;
        let top = self.b.named("top_k", TopK { k }, &[scores])?;
        Ok((pool, top))
    }

    /// Rotates the first piece of the indexer's head.
    fn rope_first(&mut self, x: Value) -> Result<Value, Diagnostic> {
        if self.c.indexer.head_dim == self.c.attention.rope_dim {
            return self.rope(x);
        }
        let (r, n) = (self.b.piece(x, "rope")?, self.b.piece(x, "nope")?);
        let r = self.rope(r)?;
        self.b.one(Join { names: vec!["rope".into(), "nope".into()] }, &[r, n])
    }

    /// `down(silu(gate x) * up x)`.
    fn mlp(&mut self, name: &str, x: Value, w: &DenseFfn) -> Result<Value, Diagnostic> {
        let (gate, up) = (self.linear(x, &w.gate)?, self.linear(x, &w.up)?);
        let h = self.swiglu(gate, up)?;
        let y = self.linear(h, &w.down)?;
        self.b.name(y, name);
        Ok(y)
    }

    fn swiglu(&mut self, gate: Value, up: Value) -> Result<Value, Diagnostic> {
        let s = self.b.one(Silu {}, &[gate])?;
        self.b.one(Mul {}, &[s, up])
    }

    /// Routed experts plus the shared one. The weight is applied after the down projection.
    fn moe(&mut self, x: Value, w: &MoeFfn, moe: &MoeConfig) -> Result<Value, Diagnostic> {
        let logits = self.linear(x, &w.gate_inp)?;
        self.b.name(logits, "ffn_moe_logits");
        let route = MoeRoute {
            gating: match moe.gating {
                Gating::Sigmoid => glmc_ir::ops::Gating::Sigmoid,
                Gating::Softmax => glmc_ir::ops::Gating::Softmax,
            },
            k: moe.experts_used[self.block as usize],
            bias: w.bias.is_some(),
            groups: moe.group_count.max(1),
            groups_used: if moe.group_count > 1 { moe.groups_used } else { 1 },
            norm: moe.weights_norm,
            scale: f64::from(moe.weights_scale),
        };
        let mut args = vec![logits];
        if let Some(bias) = &w.bias {
            args.push(self.decode(bias)?);
        }
        let chosen = self.b.op(route, &args)?;
        let (ids, weights) = (chosen[0], chosen[1]);
        self.b.name(ids, "ffn_moe_topk");
        self.b.name(weights, "ffn_moe_weights");
        let gate = self.experts(x, &w.gate_exps, ids)?;
        let up = self.experts(x, &w.up_exps, ids)?;
        let h = self.swiglu(gate, up)?;
        let down = self.experts(h, &w.down_exps, ids)?;
        let routed = self.b.one(Matmul::new("tj,tjd->td"), &[weights, down])?;
        let shared = DenseFfn { gate: w.gate_shexp.clone(), up: w.up_shexp.clone(), down: w.down_shexp.clone() };
        let shared = self.mlp("ffn_shexp", x, &shared)?;
        add(&mut self.b, "ffn_out", routed, shared)
    }

    fn experts(&mut self, x: Value, w: &WeightRef, ids: Value) -> Result<Value, Diagnostic> {
        let w = self.decode(w)?;
        self.b.one(GroupedMatmul {}, &[x, w, ids])
    }
}
