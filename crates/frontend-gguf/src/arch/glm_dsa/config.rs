//! Owns the hyper-parameters of a `glm-dsa` model: every key, its default or refusal, resolved once.
//!
//! It never reads a tensor, and never takes a default that would be wrong for a released model: such keys are required.

use serde::Serialize;

use crate::arch::glm_dsa::NAME;
use crate::error::{InputError, Result, show};
use crate::metadata_keys::Keys;
use crate::set::GgufSet;

/// The most blocks a file may claim.
pub const MAX_BLOCKS: u64 = 512;
/// The most experts a layer may have.
pub const MAX_EXPERTS: u64 = 1024;
/// From this trained context on, a file without `indexer.types` follows the 5.2 pattern.
const SHARED_INDEXER_CONTEXT: u64 = 1_048_576;
/// Epsilon of the indexer's LayerNorm when the file names none: the value the model was trained with.
const INDEXER_NORM_EPS: f32 = 1e-6;

/// All hyper-parameters. Counts are elements, layers or heads; all are positive unless said otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GlmDsaConfig {
    /// `general.name`, for people.
    pub name: Option<String>,
    /// Blocks in the file, MTP blocks included.
    pub block_count: u64,
    /// MTP blocks at the end that the metadata claims (0 or 1); the tensors may still be left out.
    pub nextn_predict_layers: u64,
    /// L: blocks of the trunk, `block_count - nextn_predict_layers`.
    pub layers: u64,
    /// Trained context in tokens.
    pub context_length: u64,
    /// D.
    pub embedding_length: u64,
    /// V: rows of the embedding, the number of tokens.
    pub vocab_size: u64,
    /// Blocks `0..n` have a dense FFN, the others experts.
    pub leading_dense_block_count: u64,
    /// F of each block; 0 where the block has experts and the file gives no width.
    pub feed_forward_length: Vec<u64>,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Attention sizes.
    pub attention: AttentionConfig,
    /// The sparse-attention indexer.
    pub indexer: IndexerConfig,
    /// Theta of the rotary embedding; pairs are interleaved, no scaling.
    pub rope_freq_base: f32,
    /// Experts; `None` when no block has any.
    pub moe: Option<MoeConfig>,
}

/// Sizes of the multi-head latent attention.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttentionConfig {
    /// H.
    pub head_count: u64,
    /// rq.
    pub q_lora_rank: u64,
    /// rkv.
    pub kv_lora_rank: u64,
    /// dn + dr: the width of a query head; the softmax scale is `1 / sqrt(head_dim)`.
    pub head_dim: u64,
    /// dn: the part of a head without rope, first in the row.
    pub nope_dim: u64,
    /// dr: the part with rope, last in the row; even.
    pub rope_dim: u64,
    /// dv.
    pub value_dim: u64,
}

/// Sizes of the lightning indexer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IndexerConfig {
    /// Hi.
    pub head_count: u64,
    /// di; the first `rope_dim` of it are rotated.
    pub head_dim: u64,
    /// K: positions kept.
    pub top_k: u64,
    /// Epsilon of the key's LayerNorm.
    pub norm_eps: f32,
    /// Per trunk layer: true = own indexer, false = reuses the selection of the nearest earlier full layer. The first
    /// is always true.
    pub types: Vec<bool>,
}

/// Sizes and routing of the experts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoeConfig {
    /// E.
    pub expert_count: u64,
    /// Experts chosen per token, per block (entries of dense blocks are meaningless).
    pub experts_used: Vec<u64>,
    /// Shared experts; their widths are joined into one.
    pub shared_count: u64,
    /// Fe of each block (entries of dense blocks are meaningless).
    pub feed_forward_length: Vec<u64>,
    /// Groups of experts; 1 = no grouping.
    pub group_count: u64,
    /// Groups kept per token.
    pub groups_used: u64,
    /// The gate.
    pub gating: Gating,
    /// Factor on the combine weights.
    pub weights_scale: f32,
    /// Whether the chosen weights are divided by their sum.
    pub weights_norm: bool,
}

/// The function that turns router logits into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Gating {
    /// Softmax over the experts.
    Softmax,
    /// A sigmoid of each.
    Sigmoid,
}

impl GlmDsaConfig {
    /// Reads and checks every key.
    ///
    /// # Errors
    /// A key is missing, has the wrong type or an impossible value (class `model`), or asks for something that is not
    /// done (class `unsupported`). The message names the key or keys.
    pub fn load(set: &GgufSet) -> Result<GlmDsaConfig> {
        let keys = Keys::new(set, NAME);
        let block_count = keys.positive("block_count")?;
        if block_count > MAX_BLOCKS {
            return Err(keys.bad("block_count", format!("is {block_count}; at most {MAX_BLOCKS} are possible")));
        }
        let nextn = trunk_and_mtp(&keys, block_count)?;
        let layers = block_count - nextn;
        let context_length = keys.positive("context_length")?;
        let leading_dense = keys.required_u64("leading_dense_block_count")?;
        let attention = attention(&keys)?;
        let indexer = indexer(&keys, layers, context_length, attention.rope_dim)?;
        check_rope_scaling(&keys)?;
        let moe = if leading_dense < block_count { Some(moe(&keys, block_count, leading_dense)?) } else { None };
        Ok(GlmDsaConfig {
            name: set.get_str_lossy("general.name"),
            block_count,
            nextn_predict_layers: nextn,
            layers,
            context_length,
            embedding_length: keys.positive("embedding_length")?,
            vocab_size: vocab_size(&keys)?,
            leading_dense_block_count: leading_dense,
            feed_forward_length: dense_widths(&keys, block_count, leading_dense)?,
            rms_norm_eps: keys.positive_f32("attention.layer_norm_rms_epsilon")?,
            attention,
            indexer,
            rope_freq_base: keys.positive_f32("rope.freq_base")?,
            moe,
        })
    }

    /// Whether block `i` has a dense FFN.
    pub fn is_dense(&self, block: u64) -> bool {
        block < self.leading_dense_block_count
    }

    /// Whether trunk layer `i` has its own indexer. MTP blocks count as full.
    pub fn is_full_indexer(&self, block: u64) -> bool {
        usize::try_from(block).ok().and_then(|i| self.indexer.types.get(i).copied()).unwrap_or(true)
    }
}

fn trunk_and_mtp(keys: &Keys<'_>, block_count: u64) -> Result<u64> {
    const KEY: &str = "nextn_predict_layers";
    let nextn = keys.optional_u64(KEY)?.unwrap_or(0);
    if nextn >= block_count {
        let what = format!("is {nextn}, but {} is {block_count}: no trunk layer is left", keys.full("block_count"));
        return Err(keys.bad(KEY, what));
    }
    if nextn > 1 {
        return Err(keys.unsupported("mtp-blocks", KEY, format!("is {nextn}; 0 or 1 MTP block is supported")));
    }
    Ok(nextn)
}

fn attention(keys: &Keys<'_>) -> Result<AttentionConfig> {
    let head_count = keys.uniform("attention.head_count")?;
    if let Some(kv) = keys.optional_uniform("attention.head_count_kv")?
        && kv != 1
    {
        let what = format!("is {kv}, and must be 1 (all heads share one latent); convert the model again");
        return Err(keys.bad("attention.head_count_kv", what));
    }
    let q_lora_rank = keys.positive("attention.q_lora_rank")?;
    let kv_lora_rank = keys.positive("attention.kv_lora_rank")?;
    let head_dim = keys.positive("attention.key_length_mla")?;
    let value_dim = keys.positive("attention.value_length_mla")?;
    let rope_dim = keys.positive("rope.dimension_count")?;
    if rope_dim >= head_dim {
        let what = format!(
            "is {head_dim}, but {} is {rope_dim}: nothing is left for the part without rope",
            keys.full("rope.dimension_count")
        );
        return Err(keys.bad("attention.key_length_mla", what));
    }
    if !rope_dim.is_multiple_of(2) {
        return Err(keys.bad("rope.dimension_count", format!("is {rope_dim}, and must be even")));
    }
    let must_be = |key: &str, want: u64, why: String| {
        let found = keys.positive(key)?;
        if found == want { Ok(()) } else { Err(keys.bad(key, format!("is {found}, and must be {want} ({why})"))) }
    };
    let latent = keys.full("attention.kv_lora_rank");
    let rope = keys.full("rope.dimension_count");
    must_be("attention.key_length", kv_lora_rank + rope_dim, format!("{latent} + {rope}"))?;
    must_be("attention.value_length", kv_lora_rank, latent)?;
    Ok(AttentionConfig {
        head_count,
        q_lora_rank,
        kv_lora_rank,
        head_dim,
        nope_dim: head_dim - rope_dim,
        rope_dim,
        value_dim,
    })
}

fn indexer(keys: &Keys<'_>, layers: u64, context: u64, rope_dim: u64) -> Result<IndexerConfig> {
    let head_dim = keys.positive("attention.indexer.key_length")?;
    if rope_dim > head_dim {
        let what = format!("is {head_dim}, but {} is {rope_dim} of it", keys.full("rope.dimension_count"));
        return Err(keys.bad("attention.indexer.key_length", what));
    }
    let norm_eps = match keys.optional_f32("attention.layer_norm_epsilon")? {
        Some(_) => keys.positive_f32("attention.layer_norm_epsilon")?,
        None => INDEXER_NORM_EPS,
    };
    Ok(IndexerConfig {
        head_count: keys.positive("attention.indexer.head_count")?,
        head_dim,
        top_k: keys.positive("attention.indexer.top_k")?,
        norm_eps,
        types: indexer_types(keys, layers, context)?,
    })
}

/// Resolves which trunk layers are full: the key, else the rule by trained context.
fn indexer_types(keys: &Keys<'_>, layers: u64, context: u64) -> Result<Vec<bool>> {
    const KEY: &str = "attention.indexer.types";
    let types = match keys.flags(KEY, layers)? {
        Some(types) => types,
        None if context < SHARED_INDEXER_CONTEXT => vec![true; layers as usize],
        None => (0..layers).map(|i| i.saturating_sub(2) % 4 == 0).collect(),
    };
    if types.first() != Some(&true) {
        return Err(
            keys.bad(KEY, "marks layer 0 as shared, but there is no earlier layer whose selection it could reuse")
        );
    }
    Ok(types)
}

fn moe(keys: &Keys<'_>, block_count: u64, leading_dense: u64) -> Result<MoeConfig> {
    let first = leading_dense as usize; // below block_count, so a valid index
    let expert_count = keys.positive("expert_count")?;
    if expert_count > MAX_EXPERTS {
        return Err(keys.bad("expert_count", format!("is {expert_count}; at most {MAX_EXPERTS} are possible")));
    }
    let experts_used = keys.per_block("expert_used_count", block_count)?;
    if let Some(used) = experts_used[first..].iter().find(|&&k| k == 0 || k > expert_count) {
        let what = format!("is {used}, but {} is {expert_count}", keys.full("expert_count"));
        return Err(keys.bad("expert_used_count", what));
    }
    let feed_forward_length = keys.per_block("expert_feed_forward_length", block_count)?;
    if feed_forward_length[first..].contains(&0) {
        return Err(keys.bad("expert_feed_forward_length", "is 0"));
    }
    let gating = match keys.optional_u64("expert_gating_func")?.unwrap_or(0) {
        0 | 2 => Gating::Sigmoid,
        1 => Gating::Softmax,
        other => {
            let what = format!("is {other}; 1 (softmax) and 2 (sigmoid) are supported");
            return Err(keys.unsupported("gating-function", "expert_gating_func", what));
        }
    };
    let (group_count, groups_used) = groups(keys, expert_count)?;
    Ok(MoeConfig {
        expert_count,
        experts_used,
        shared_count: keys.positive("expert_shared_count")?,
        feed_forward_length,
        group_count,
        groups_used,
        gating,
        weights_scale: keys.positive_f32("expert_weights_scale")?,
        weights_norm: keys.required_bool("expert_weights_norm")?,
    })
}

fn groups(keys: &Keys<'_>, experts: u64) -> Result<(u64, u64)> {
    let count = keys.optional_u64("expert_group_count")?.unwrap_or(0).max(1);
    if count == 1 {
        return Ok((1, 1));
    }
    if !experts.is_multiple_of(count) || experts / count < 2 {
        let what = format!("is {count}, which does not divide the {experts} experts into groups of two or more");
        return Err(keys.bad("expert_group_count", what));
    }
    let used = keys.optional_u64("expert_group_used_count")?.unwrap_or(0);
    if used == 0 || used >= count {
        let what = format!(
            "is {used}, and must be between 1 and {} ({} is {count})",
            count - 1,
            keys.full("expert_group_count")
        );
        return Err(keys.bad("expert_group_used_count", what));
    }
    Ok((count, used))
}

fn dense_widths(keys: &Keys<'_>, block_count: u64, leading_dense: u64) -> Result<Vec<u64>> {
    const KEY: &str = "feed_forward_length";
    let dense = leading_dense.min(block_count) as usize;
    if dense == 0 && !keys.has(KEY) {
        return Ok(vec![0; block_count as usize]);
    }
    let widths = keys.per_block(KEY, block_count)?;
    if widths[..dense].contains(&0) {
        return Err(keys.bad(KEY, "is 0 for a dense block"));
    }
    Ok(widths)
}

/// V is the number of tokens; the key must not contradict it.
fn vocab_size(keys: &Keys<'_>) -> Result<u64> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let stated = keys.optional_u64("vocab_size")?;
    let tokens = keys.set().get_strings(TOKENS)?.map(|t| t.len() as u64);
    match (stated, tokens) {
        (Some(stated), Some(tokens)) if stated != tokens => {
            Err(keys.bad("vocab_size", format!("is {stated}, but {TOKENS} has {tokens} entries")))
        }
        (Some(0), _) | (_, Some(0)) => Err(keys.bad("vocab_size", "is 0")),
        (_, Some(n)) | (Some(n), None) => Ok(n),
        (None, None) => Err(keys.set().key_missing(TOKENS)),
    }
}

/// The released models have no rope scaling; anything but the identity is refused.
fn check_rope_scaling(keys: &Keys<'_>) -> Result<()> {
    let refuse = |key: &str, what: String| -> InputError {
        keys.unsupported("rope-scaling", key, format!("{what}; only files without rope scaling are supported"))
    };
    for key in ["rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear"] {
        match keys.optional_f32(key)? {
            None | Some(1.0) => {}
            Some(factor) => return Err(refuse(key, format!("is {factor}"))),
        }
    }
    const TYPE: &str = "rope.scaling.type";
    match keys.set().get_str(&keys.full(TYPE))? {
        None | Some("none" | "linear") => Ok(()),
        // YaRN by a factor of 1 changes nothing.
        Some("yarn") if keys.optional_f32("rope.scaling.factor")? == Some(1.0) => Ok(()),
        Some(other) => Err(refuse(TYPE, format!("is '{}'", show(other)))),
    }
}
