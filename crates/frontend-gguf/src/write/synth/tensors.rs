//! Owns the tensor table of a synthetic model, in the order of files.

use glmc_ir::quant::QuantType as Q;

use super::dims::Dims;
use super::mix::{Mix, Place};

/// Name, type and row-major shape of every tensor.
pub(super) fn list(d: &Dims, mix: Mix) -> Vec<(String, Q, Vec<u64>)> {
    let mut out = Vec::new();
    let place = |role, block, row| Place { role, block, blocks: d.blocks(), dense: d.dense, row };
    for (role, shape) in [("token_embd", vec![d.vocab, d.width]), ("output", vec![d.vocab, d.width])] {
        out.push((format!("{role}.weight"), mix.ty(&place(role, 0, d.width)), shape));
    }
    out.push(("output_norm.weight".into(), Q::F32, vec![d.width]));
    for block in 0..d.blocks() {
        for (role, shape) in floats(d, block) {
            out.push((format!("blk.{block}.{role}"), Q::F32, shape));
        }
        for (role, shape) in matrices(d, block) {
            let ty = mix.ty(&place(role, block, shape[shape.len() - 1]));
            out.push((format!("blk.{block}.{role}.weight"), ty, shape));
        }
    }
    out
}

fn is_dense(d: &Dims, block: u64) -> bool {
    block < d.dense
}

/// Norms, biases and the router: f32 in every file.
fn floats(d: &Dims, block: u64) -> Vec<(&'static str, Vec<u64>)> {
    let mut out = vec![
        ("attn_norm.weight", vec![d.width]),
        ("attn_q_a_norm.weight", vec![d.q_rank]),
        ("attn_kv_a_norm.weight", vec![d.kv_rank]),
        ("ffn_norm.weight", vec![d.width]),
    ];
    if d.full_indexer(block) {
        out.extend([("indexer.k_norm.weight", vec![d.index_dim]), ("indexer.k_norm.bias", vec![d.index_dim])]);
    }
    if !is_dense(d, block) {
        out.extend([("ffn_gate_inp.weight", vec![d.experts, d.width]), ("exp_probs_b.bias", vec![d.experts])]);
    }
    if block >= d.layers {
        let norms = ["nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"];
        out.extend(norms.map(|n| (n, vec![d.width])));
    }
    out
}

/// What products multiply by.
fn matrices(d: &Dims, block: u64) -> Vec<(&'static str, Vec<u64>)> {
    let mut out = vec![
        ("attn_q_a", vec![d.q_rank, d.width]),
        ("attn_q_b", vec![d.heads * (d.nope + d.rope), d.q_rank]),
        ("attn_kv_a_mqa", vec![d.kv_rank + d.rope, d.width]),
        ("attn_k_b", vec![d.heads, d.kv_rank, d.nope]),
        ("attn_v_b", vec![d.heads, d.value, d.kv_rank]),
        ("attn_output", vec![d.width, d.heads * d.value]),
    ];
    if d.full_indexer(block) {
        out.extend([
            ("indexer.proj", vec![d.index_heads, d.width]),
            ("indexer.attn_k", vec![d.index_dim, d.width]),
            ("indexer.attn_q_b", vec![d.index_heads * d.index_dim, d.q_rank]),
        ]);
    }
    if is_dense(d, block) {
        out.extend([
            ("ffn_gate", vec![d.ff, d.width]),
            ("ffn_down", vec![d.width, d.ff]),
            ("ffn_up", vec![d.ff, d.width]),
        ]);
    } else {
        let shared = d.expert_ff * d.shared;
        out.extend([
            ("ffn_gate_exps", vec![d.experts, d.expert_ff, d.width]),
            ("ffn_down_exps", vec![d.experts, d.width, d.expert_ff]),
            ("ffn_up_exps", vec![d.experts, d.expert_ff, d.width]),
            ("ffn_gate_shexp", vec![shared, d.width]),
            ("ffn_down_shexp", vec![d.width, shared]),
            ("ffn_up_shexp", vec![shared, d.width]),
        ]);
    }
    if block >= d.layers {
        out.push(("nextn.eh_proj", vec![d.width, 2 * d.width]));
    }
    out
}
