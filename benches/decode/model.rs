//! Writes a GLM-5-shaped model of a given size: valid random blocks of one quant type, small enough in its attention
//! that a decode step is bound by its weights.

use std::io;
use std::path::Path;

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::{GgufWriter, TensorData};
use glmc_ir::quant::QuantType;
use glmc_ir::quant::synth::synth_blocks;

const D: u64 = 2048;
const HEADS: u64 = 4;
const NOPE: u64 = 32;
const ROPE: u64 = 32;
const VALUE: u64 = 64;
const Q_LORA: u64 = 512;
const KV_LORA: u64 = 256;
const FF: u64 = 8192;
const EXPERTS: u64 = 8;
const USED: u64 = 4;
const EXPERT_FF: u64 = 1024;
const INDEX_HEADS: u64 = 4;
const INDEX_DIM: u64 = 64;
const VOCAB: u64 = 2048;
const DENSE: u64 = 2;

/// Writes a model of about `bytes` bytes of weights of type `ty` to `path`. Vocabulary and other keys are those of the
/// shipped tiny model.
pub(crate) fn write(path: &Path, ty: QuantType, bytes: u64) -> Result<(), Box<dyn std::error::Error>> {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-Q4_K_M.gguf");
    let set = open(&tiny)?;
    let mut w = GgufWriter::from_set(&set)?;
    w.retain_tensors(|_| false);
    let layers = layers_for(ty, bytes);
    let mut m = Maker { w, ty, next: 0 };
    m.keys(layers);
    m.tensors(layers)?;
    m.w.write(path)?;
    Ok(())
}

fn layers_for(ty: QuantType, bytes: u64) -> u64 {
    let per = |elements: u64| ty.row_bytes(elements).unwrap_or(0);
    let attention = D * Q_LORA
        + Q_LORA * HEADS * (NOPE + ROPE)
        + D * (KV_LORA + ROPE)
        + HEADS * KV_LORA * VALUE
        + HEADS * VALUE * D;
    let moe = 3 * D * EXPERT_FF * (EXPERTS + 1);
    let dense = 3 * D * FF;
    let fixed = per(2 * VOCAB * D + DENSE * (attention + dense));
    DENSE + bytes.saturating_sub(fixed).div_ceil(per(attention + moe))
}

struct Maker<'a> {
    w: GgufWriter<'a>,
    ty: QuantType,
    next: u64,
}

impl Maker<'_> {
    fn keys(&mut self, layers: u64) {
        let mut set = |key: &str, n: u64| {
            self.w.set(format!("glm-dsa.{key}"), n as u32);
        };
        set("block_count", layers);
        set("nextn_predict_layers", 0);
        set("embedding_length", D);
        set("feed_forward_length", FF);
        set("leading_dense_block_count", DENSE);
        set("attention.head_count", HEADS);
        set("attention.key_length", KV_LORA + ROPE);
        set("attention.value_length", KV_LORA);
        set("attention.key_length_mla", NOPE + ROPE);
        set("attention.value_length_mla", VALUE);
        set("attention.q_lora_rank", Q_LORA);
        set("attention.kv_lora_rank", KV_LORA);
        set("attention.indexer.head_count", INDEX_HEADS);
        set("attention.indexer.key_length", INDEX_DIM);
        set("rope.dimension_count", ROPE);
        set("expert_count", EXPERTS);
        set("expert_used_count", USED);
        set("expert_feed_forward_length", EXPERT_FF);
        self.w.unset("glm-dsa.attention.indexer.types");
    }

    fn tensors(&mut self, layers: u64) -> io::Result<()> {
        let f32 = QuantType::F32;
        self.matrix("token_embd.weight", &[VOCAB, D])?;
        for i in 0..layers {
            let b = |n: &str| format!("blk.{i}.{n}");
            for (n, width) in [
                ("attn_norm", D),
                ("attn_q_a_norm", Q_LORA),
                ("attn_kv_a_norm", KV_LORA),
                ("ffn_norm", D),
                ("indexer.k_norm", INDEX_DIM),
            ] {
                self.ones(&b(&format!("{n}.weight")), width)?;
            }
            self.random(&b("indexer.k_norm.bias"), f32, &[INDEX_DIM])?;
            self.matrix(&b("attn_q_a.weight"), &[Q_LORA, D])?;
            self.matrix(&b("attn_q_b.weight"), &[HEADS * (NOPE + ROPE), Q_LORA])?;
            self.matrix(&b("attn_kv_a_mqa.weight"), &[KV_LORA + ROPE, D])?;
            // Its rows are no multiple of 256: 32-element blocks, as in files of the field.
            self.random(&b("attn_k_b.weight"), QuantType::Q8_0, &[HEADS, KV_LORA, NOPE])?;
            self.matrix(&b("attn_v_b.weight"), &[HEADS, VALUE, KV_LORA])?;
            self.matrix(&b("attn_output.weight"), &[D, HEADS * VALUE])?;
            self.matrix(&b("indexer.attn_q_b.weight"), &[INDEX_HEADS * INDEX_DIM, Q_LORA])?;
            self.matrix(&b("indexer.attn_k.weight"), &[INDEX_DIM, D])?;
            self.random(&b("indexer.proj.weight"), f32, &[INDEX_HEADS, D])?;
            if i < DENSE {
                self.matrix(&b("ffn_gate.weight"), &[FF, D])?;
                self.matrix(&b("ffn_up.weight"), &[FF, D])?;
                self.matrix(&b("ffn_down.weight"), &[D, FF])?;
            } else {
                self.random(&b("ffn_gate_inp.weight"), f32, &[EXPERTS, D])?;
                self.random(&b("exp_probs_b.bias"), f32, &[EXPERTS])?;
                self.matrix(&b("ffn_gate_exps.weight"), &[EXPERTS, EXPERT_FF, D])?;
                self.matrix(&b("ffn_up_exps.weight"), &[EXPERTS, EXPERT_FF, D])?;
                self.matrix(&b("ffn_down_exps.weight"), &[EXPERTS, D, EXPERT_FF])?;
                self.matrix(&b("ffn_gate_shexp.weight"), &[EXPERT_FF, D])?;
                self.matrix(&b("ffn_up_shexp.weight"), &[EXPERT_FF, D])?;
                self.matrix(&b("ffn_down_shexp.weight"), &[D, EXPERT_FF])?;
            }
        }
        self.ones("output_norm.weight", D)?;
        self.matrix("output.weight", &[VOCAB, D])
    }

    fn matrix(&mut self, name: &str, shape: &[u64]) -> io::Result<()> {
        self.random(name, self.ty, shape)
    }

    fn ones(&mut self, name: &str, n: u64) -> io::Result<()> {
        let data = (0..n).flat_map(|_| 1f32.to_le_bytes()).collect();
        self.w.tensor(name, QuantType::F32, &[n], TensorData::Bytes(data)).map(drop)
    }

    /// Random blocks, row by row, with entries small enough that activations stay of size one.
    fn random(&mut self, name: &str, ty: QuantType, shape: &[u64]) -> io::Result<()> {
        let id = self.next;
        self.next += 1;
        let k = shape[shape.len() - 1];
        let rows: u64 = shape[..shape.len() - 1].iter().product();
        let rms = 1.0 / (k as f32).sqrt();
        let row_bytes = ty.row_bytes(k).ok_or_else(|| io::Error::other("a row that is no whole number of blocks"))?;
        let blocks = k / ty.block_elems() as u64;
        let stream = move |out: &mut dyn io::Write| {
            let mut row = vec![0; row_bytes as usize];
            for r in 0..rows {
                synth_blocks(ty, 1, id, r * blocks, rms, &mut row);
                out.write_all(&row)?;
            }
            Ok(())
        };
        self.w.tensor(name, ty, shape, TensorData::Stream(Box::new(stream))).map(drop)
    }
}
