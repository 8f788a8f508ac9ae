//! Owns the tensor table of `glm-dsa`: every tensor's name and row-major shape as a function of the config, claimed
//! into typed structs.
//!
//! It never reads tensor data, and never decides by a tensor's presence what the metadata decides (which layers have
//! an indexer, which are dense). Only whether the MTP block is there is found by probing.

use glmc_ir::quant::QuantType;
use serde::Serialize;

use crate::arch::glm_dsa::config::{GlmDsaConfig, MoeConfig};
use crate::error::{Class, InputError, Result};
use crate::weights::{Ledger, WeightRef};

/// Types of norms and biases: anything coarser would distort every value after it.
const FLOATS: &[QuantType] = &[QuantType::F32, QuantType::F16, QuantType::BF16];
/// Type of the router: near ties flip with anything less.
const ROUTER: &[QuantType] = &[QuantType::F32];

/// All weights of a model. Shapes are row-major, D and the other letters as in [`crate::arch::glm_dsa`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelWeights {
    /// `[V, D]`.
    pub token_embd: WeightRef,
    /// `[D]`.
    pub output_norm: WeightRef,
    /// `[V, D]`; `None`: the embedding is used.
    pub output: Option<WeightRef>,
    /// The trunk, L layers.
    pub layers: Vec<LayerWeights>,
    /// The MTP block, if the file has it.
    pub mtp: Option<MtpWeights>,
}

/// One block.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerWeights {
    /// `[D]`.
    pub attn_norm: WeightRef,
    /// `[rq, D]`.
    pub q_a: WeightRef,
    /// `[rq]`.
    pub q_a_norm: WeightRef,
    /// `[H * (dn + dr), rq]`; in each head dn rows without rope, then dr with.
    pub q_b: WeightRef,
    /// `[rkv + dr, D]`: the latent's rows, then the rope key's.
    pub kv_a: WeightRef,
    /// `[rkv]`.
    pub kv_a_norm: WeightRef,
    /// `[H, rkv, dn]`: transposed key up-projection.
    pub k_b: WeightRef,
    /// `[H, dv, rkv]`.
    pub v_b: WeightRef,
    /// `[D, H * dv]`.
    pub o: WeightRef,
    /// `[D]`.
    pub ffn_norm: WeightRef,
    /// The layer's own indexer; `None` on shared layers.
    pub indexer: Option<IndexerWeights>,
    /// The feed-forward part.
    pub ffn: Ffn,
}

/// A lightning indexer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IndexerWeights {
    /// `[Hi * di, rq]`; in each head dr rows with rope first.
    pub q_b: WeightRef,
    /// `[di, D]`, rope first.
    pub k: WeightRef,
    /// `[di]`, LayerNorm weight.
    pub k_norm: WeightRef,
    /// `[di]`, LayerNorm bias.
    pub k_norm_bias: WeightRef,
    /// `[Hi, D]`.
    pub proj: WeightRef,
}

/// A feed-forward part.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(clippy::large_enum_variant, reason = "one per layer, built once")]
pub enum Ffn {
    /// A gated MLP.
    Dense(DenseFfn),
    /// Routed and shared experts.
    Moe(MoeFfn),
}

/// A gated MLP: `down(silu(gate x) * up x)`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DenseFfn {
    /// `[F, D]`.
    pub gate: WeightRef,
    /// `[F, D]`.
    pub up: WeightRef,
    /// `[D, F]`.
    pub down: WeightRef,
}

/// Routed experts and the shared ones, whose widths are joined.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoeFfn {
    /// `[E, D]`, F32: the router.
    pub gate_inp: WeightRef,
    /// `[E]`, F32: the bias used for choosing only; `None` when the file has none.
    pub bias: Option<WeightRef>,
    /// `[E, Fe, D]`.
    pub gate_exps: WeightRef,
    /// `[E, Fe, D]`.
    pub up_exps: WeightRef,
    /// `[E, D, Fe]`.
    pub down_exps: WeightRef,
    /// `[Fe * shared, D]`.
    pub gate_shexp: WeightRef,
    /// `[Fe * shared, D]`.
    pub up_shexp: WeightRef,
    /// `[D, Fe * shared]`.
    pub down_shexp: WeightRef,
}

/// The draft head: a block and what joins it to the trunk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MtpWeights {
    /// Index of its block in the file.
    pub block: u64,
    /// The block. Its indexer is `None`: the draft head attends densely.
    pub layer: LayerWeights,
    /// `[D, 2 * D]`: columns of the embedding half, then of the hidden half.
    pub eh_proj: WeightRef,
    /// `[D]`, on the embedding half.
    pub enorm: WeightRef,
    /// `[D]`, on the hidden half.
    pub hnorm: WeightRef,
    /// `[D]`; `None`: `output_norm` is used.
    pub shared_head_norm: Option<WeightRef>,
    /// `[V, D]`; `None`: `token_embd` is used.
    pub embed_tokens: Option<WeightRef>,
    /// `[V, D]`; `None`: `output` is used.
    pub shared_head_head: Option<WeightRef>,
}

/// Claims every tensor of the model. A file whose metadata promises an MTP block but leaves its tensors out loads
/// without it; tensors of such a block that are there without the others stay unclaimed.
///
/// # Errors
/// See [`Ledger::claim`]; also `mtp-only`, `legacy-kv-b` and `fused-gate-up` for files in shapes that are refused.
pub fn claim(ledger: &mut Ledger<'_>, config: &GlmDsaConfig) -> Result<ModelWeights> {
    let mtp_block = config.layers;
    let has_mtp = config.nextn_predict_layers > 0 && ledger.has(&mtp_name(mtp_block, "eh_proj"));
    if has_mtp && !ledger.has(&name(0, "attn_norm")) {
        let message = "the file holds only the MTP block (blk.0.attn_norm.weight is missing); give the whole model";
        let error = InputError::new(Class::Model, "mtp-only", ledger.set().path(), message);
        return Err(error.about(name(0, "attn_norm")));
    }
    let (d, v) = (config.embedding_length, config.vocab_size);
    let token_embd = claim_embedding(ledger, v, d)?;
    let output_norm = ledger.claim_as("output_norm.weight", &[d], FLOATS)?;
    let output = ledger.claim_optional("output.weight", &[v, d])?;
    let layers = (0..config.layers).map(|i| layer(ledger, config, i)).collect::<Result<_>>()?;
    if config.nextn_predict_layers > 0 && !has_mtp {
        tracing::warn!(block = mtp_block, "the MTP block's tensors were left out of the file: no draft head");
    }
    let mtp = if has_mtp { Some(mtp(ledger, config, mtp_block)?) } else { None };
    Ok(ModelWeights { token_embd, output_norm, output, layers, mtp })
}

fn claim_embedding(ledger: &mut Ledger<'_>, v: u64, d: u64) -> Result<WeightRef> {
    const NAME: &str = "token_embd.weight";
    match ledger.set().tensor(NAME) {
        Some((part, info)) if info.shape.len() == 2 && info.shape[1] == d && info.shape[0] != v => {
            let message = format!("tensor {NAME} has {} rows, but the vocabulary has {v} tokens", info.shape[0]);
            let path = ledger.set().parts()[part].path();
            Err(InputError::new(Class::Model, "vocabulary-mismatch", path, message).about(NAME))
        }
        _ => ledger.claim(NAME, &[v, d]),
    }
}

fn name(block: u64, tensor: &str) -> String {
    format!("blk.{block}.{tensor}.weight")
}

fn mtp_name(block: u64, tensor: &str) -> String {
    format!("blk.{block}.nextn.{tensor}.weight")
}

fn layer(ledger: &mut Ledger<'_>, config: &GlmDsaConfig, i: u64) -> Result<LayerWeights> {
    ledger.refuse(
        &name(i, "attn_kv_b"),
        Class::Model,
        "legacy-kv-b",
        "an old conversion with keys and values in one piece; convert the model again, so that it has attn_k_b and attn_v_b",
    )?;
    let (a, d) = (&config.attention, config.embedding_length);
    let (h, rq, rkv) = (a.head_count, a.q_lora_rank, a.kv_lora_rank);
    Ok(LayerWeights {
        attn_norm: ledger.claim_as(&name(i, "attn_norm"), &[d], FLOATS)?,
        q_a: ledger.claim(&name(i, "attn_q_a"), &[rq, d])?,
        q_a_norm: ledger.claim_as(&name(i, "attn_q_a_norm"), &[rq], FLOATS)?,
        q_b: ledger.claim(&name(i, "attn_q_b"), &[h * a.head_dim, rq])?,
        kv_a: ledger.claim(&name(i, "attn_kv_a_mqa"), &[rkv + a.rope_dim, d])?,
        kv_a_norm: ledger.claim_as(&name(i, "attn_kv_a_norm"), &[rkv], FLOATS)?,
        k_b: ledger.claim(&name(i, "attn_k_b"), &[h, rkv, a.nope_dim])?,
        v_b: ledger.claim(&name(i, "attn_v_b"), &[h, a.value_dim, rkv])?,
        o: ledger.claim(&name(i, "attn_output"), &[d, h * a.value_dim])?,
        ffn_norm: ledger.claim_as(&name(i, "ffn_norm"), &[d], FLOATS)?,
        indexer: layer_indexer(ledger, config, i)?,
        ffn: ffn(ledger, config, i)?,
    })
}

const INDEXER_TENSORS: [&str; 5] = [
    "indexer.attn_q_b.weight",
    "indexer.attn_k.weight",
    "indexer.k_norm.weight",
    "indexer.k_norm.bias",
    "indexer.proj.weight",
];

fn layer_indexer(ledger: &mut Ledger<'_>, config: &GlmDsaConfig, i: u64) -> Result<Option<IndexerWeights>> {
    let full_name = |tensor: &str| format!("blk.{i}.{tensor}");
    let draft_head = i >= config.layers;
    if !draft_head && config.is_full_indexer(i) {
        return indexer(ledger, config, i).map(Some);
    }
    let reason = if draft_head {
        "the draft head attends densely"
    } else {
        "indexer of a layer that shares an earlier layer's selection"
    };
    for tensor in INDEXER_TENSORS {
        ledger.ignore(&full_name(tensor), reason);
    }
    Ok(None)
}

fn indexer(ledger: &mut Ledger<'_>, config: &GlmDsaConfig, i: u64) -> Result<IndexerWeights> {
    let (x, d) = (&config.indexer, config.embedding_length);
    Ok(IndexerWeights {
        q_b: ledger.claim(&name(i, "indexer.attn_q_b"), &[x.head_count * x.head_dim, config.attention.q_lora_rank])?,
        k: ledger.claim(&name(i, "indexer.attn_k"), &[x.head_dim, d])?,
        k_norm: ledger.claim_as(&name(i, "indexer.k_norm"), &[x.head_dim], FLOATS)?,
        k_norm_bias: ledger.claim_as(&format!("blk.{i}.indexer.k_norm.bias"), &[x.head_dim], FLOATS)?,
        proj: ledger.claim(&name(i, "indexer.proj"), &[x.head_count, d])?,
    })
}

fn ffn(ledger: &mut Ledger<'_>, config: &GlmDsaConfig, i: u64) -> Result<Ffn> {
    let d = config.embedding_length;
    match &config.moe {
        Some(moe) if !config.is_dense(i) => Ok(Ffn::Moe(moe_ffn(ledger, moe, d, i)?)),
        _ => {
            let f = config.feed_forward_length[i as usize];
            Ok(Ffn::Dense(DenseFfn {
                gate: ledger.claim(&name(i, "ffn_gate"), &[f, d])?,
                up: ledger.claim(&name(i, "ffn_up"), &[f, d])?,
                down: ledger.claim(&name(i, "ffn_down"), &[d, f])?,
            }))
        }
    }
}

fn moe_ffn(ledger: &mut Ledger<'_>, moe: &MoeConfig, d: u64, i: u64) -> Result<MoeFfn> {
    ledger.refuse(
        &name(i, "ffn_gate_up_exps"),
        Class::Unsupported,
        "fused-gate-up",
        "gate and up experts fused in one tensor are not supported; convert the model again without fusing them",
    )?;
    let (e, fe) = (moe.expert_count, moe.feed_forward_length[i as usize]);
    let shared = fe * moe.shared_count;
    let bias = format!("blk.{i}.exp_probs_b.bias");
    let bias = if ledger.has(&bias) { Some(ledger.claim_as(&bias, &[e], ROUTER)?) } else { None };
    Ok(MoeFfn {
        gate_inp: ledger.claim_as(&name(i, "ffn_gate_inp"), &[e, d], ROUTER)?,
        bias,
        gate_exps: ledger.claim(&name(i, "ffn_gate_exps"), &[e, fe, d])?,
        up_exps: ledger.claim(&name(i, "ffn_up_exps"), &[e, fe, d])?,
        down_exps: ledger.claim(&name(i, "ffn_down_exps"), &[e, d, fe])?,
        gate_shexp: ledger.claim(&name(i, "ffn_gate_shexp"), &[shared, d])?,
        up_shexp: ledger.claim(&name(i, "ffn_up_shexp"), &[shared, d])?,
        down_shexp: ledger.claim(&name(i, "ffn_down_shexp"), &[d, shared])?,
    })
}

fn mtp(ledger: &mut Ledger<'_>, config: &GlmDsaConfig, i: u64) -> Result<MtpWeights> {
    let (d, v) = (config.embedding_length, config.vocab_size);
    let norm = mtp_name(i, "shared_head_norm");
    let shared_head_norm = if ledger.has(&norm) { Some(ledger.claim_as(&norm, &[d], FLOATS)?) } else { None };
    Ok(MtpWeights {
        block: i,
        layer: layer(ledger, config, i)?,
        eh_proj: ledger.claim(&mtp_name(i, "eh_proj"), &[d, 2 * d])?,
        enorm: ledger.claim_as(&mtp_name(i, "enorm"), &[d], FLOATS)?,
        hnorm: ledger.claim_as(&mtp_name(i, "hnorm"), &[d], FLOATS)?,
        shared_head_norm,
        embed_tokens: ledger.claim_optional(&mtp_name(i, "embed_tokens"), &[v, d])?,
        shared_head_head: ledger.claim_optional(&mtp_name(i, "shared_head_head"), &[v, d])?,
    })
}

impl ModelWeights {
    /// Every claimed weight, in a fixed order: globals, layers, MTP.
    pub fn iter(&self) -> impl Iterator<Item = &WeightRef> {
        let globals = [Some(&self.token_embd), Some(&self.output_norm), self.output.as_ref()];
        let layers = self.layers.iter().flat_map(LayerWeights::all);
        let mtp = self.mtp.iter().flat_map(|m| {
            let own = [
                Some(&m.eh_proj),
                Some(&m.enorm),
                Some(&m.hnorm),
                m.shared_head_norm.as_ref(),
                m.embed_tokens.as_ref(),
                m.shared_head_head.as_ref(),
            ];
            m.layer.all().into_iter().chain(own.into_iter().flatten())
        });
        globals.into_iter().flatten().chain(layers).chain(mtp)
    }
}

impl LayerWeights {
    /// Every weight of the block, in a fixed order.
    pub fn all(&self) -> Vec<&WeightRef> {
        let mut all = vec![
            &self.attn_norm,
            &self.q_a,
            &self.q_a_norm,
            &self.q_b,
            &self.kv_a,
            &self.kv_a_norm,
            &self.k_b,
            &self.v_b,
            &self.o,
            &self.ffn_norm,
        ];
        if let Some(x) = &self.indexer {
            all.extend([&x.q_b, &x.k, &x.k_norm, &x.k_norm_bias, &x.proj]);
        }
        match &self.ffn {
            Ffn::Dense(f) => all.extend([&f.gate, &f.up, &f.down]),
            Ffn::Moe(m) => {
                all.extend([&m.gate_inp, &m.gate_exps, &m.up_exps, &m.down_exps]);
                all.extend([&m.gate_shexp, &m.up_shexp, &m.down_shexp]);
                all.extend(&m.bias);
            }
        }
        all
    }
}
