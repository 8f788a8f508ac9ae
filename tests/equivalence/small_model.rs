//! Random small models of the architecture: sizes, storage types, routing and indexer patterns drawn from a list of
//! choices, so that proptest shrinks them.

use std::path::Path;

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::{GgufWriter, TensorData};
use glmc_ir::quant::QuantType;
use glmc_ir::tensor::Tensor;
use glmc_ir::ty::Elem;

use crate::random::Choices;
use crate::run::{Rng, blocks};

/// Writes a model to `path`, with tokenizer and vocabulary of the file `base`; returns what it is, for messages.
pub(super) fn write(c: &mut Choices<'_>, base: &Path, path: &Path) -> String {
    let set = open(base).unwrap_or_else(|e| panic!("{}", e.line()));
    let mut w = GgufWriter::from_set(&set).expect("the base is a model");
    w.retain_tensors(|_| false);
    let mut m = Maker { w, rng: Rng(c.below(1 << 20) as u64), c, text: String::new() };
    m.model(vocabulary(&set));
    let Maker { w, text, .. } = m;
    w.write(path).expect("the folder takes the file");
    text
}

fn vocabulary(set: &glmc_frontend_gguf::GgufSet) -> u64 {
    set.tensor("token_embd.weight").map(|(_, t)| t.shape[0]).expect("the base has an embedding")
}

/// Sizes that several tensors share.
struct Sizes {
    d: u64,
    h: u64,
    rq: u64,
    rkv: u64,
    dn: u64,
    dr: u64,
    dv: u64,
    hi: u64,
    di: u64,
}

struct Maker<'a, 'c, 'l> {
    w: GgufWriter<'a>,
    rng: Rng,
    c: &'c mut Choices<'l>,
    text: String,
}

impl Maker<'_, '_, '_> {
    fn pick(&mut self, of: &[u64]) -> u64 {
        *self.c.pick(of)
    }

    fn key(&mut self, name: &str, value: impl Into<glmc_frontend_gguf::write::MetaValue> + std::fmt::Display) {
        self.text += &format!("{name} {value}, ");
        self.w.set(format!("glm-dsa.{name}"), value);
    }

    fn model(&mut self, vocab: u64) {
        let dr = self.pick(&[4, 2, 8]);
        let s = Sizes {
            d: self.pick(&[32, 64, 24, 256]),
            h: self.pick(&[1, 2, 3]),
            rq: self.pick(&[32, 64, 20]),
            rkv: self.pick(&[32, 64, 12]),
            dn: self.pick(&[32, 8]),
            dr,
            dv: self.pick(&[32, 16, 6]),
            hi: self.pick(&[1, 2, 3]),
            di: dr + self.pick(&[4, 0, 28]),
        };
        let layers = 1 + self.c.below(3) as u64;
        let dense = self.c.below(layers as usize + 1) as u64;
        self.keys(&s, layers, dense);
        let experts = self.pick(&[4, 2, 8]);
        let groups = if experts >= 4 { self.pick(&[1, 2]) } else { 1 };
        self.routing(experts, groups);
        let (f, fe, shared) = (self.pick(&[32, 48]), self.pick(&[32, 16, 64]), 1 + self.c.below(2) as u64);
        self.key("feed_forward_length", f as u32);
        self.key("expert_feed_forward_length", fe as u32);
        self.key("expert_shared_count", shared as u32);
        let types: Vec<bool> = (0..layers).map(|i| i == 0 || self.c.flip()).collect();
        self.text += &format!("full {types:?}, ");
        self.w.set("glm-dsa.attention.indexer.types", types.clone());
        self.weight("token_embd.weight", &[vocab, s.d]);
        self.norm("output_norm.weight", s.d);
        if self.c.flip() {
            self.weight("output.weight", &[vocab, s.d]);
        }
        for i in 0..layers {
            self.attention(i, &s, types[i as usize]);
            if i < dense { self.dense(i, s.d, f) } else { self.experts(i, s.d, experts, fe, shared) }
        }
    }

    fn keys(&mut self, s: &Sizes, layers: u64, dense: u64) {
        let all = [
            ("block_count", layers),
            ("leading_dense_block_count", dense),
            ("nextn_predict_layers", 0),
            ("embedding_length", s.d),
            ("attention.head_count", s.h),
            ("attention.q_lora_rank", s.rq),
            ("attention.kv_lora_rank", s.rkv),
            ("attention.key_length", s.rkv + s.dr),
            ("attention.value_length", s.rkv),
            ("attention.key_length_mla", s.dn + s.dr),
            ("attention.value_length_mla", s.dv),
            ("rope.dimension_count", s.dr),
            ("attention.indexer.head_count", s.hi),
            ("attention.indexer.key_length", s.di),
        ];
        all.into_iter().for_each(|(k, v)| self.key(k, v as u32));
        let top_k = self.pick(&[2, 3, 5, 64]);
        self.key("attention.indexer.top_k", top_k as u32);
    }

    fn routing(&mut self, experts: u64, groups: u64) {
        let kept = experts / groups;
        let used = 1 + self.c.below(kept.min(3) as usize) as u64;
        self.key("expert_count", experts as u32);
        self.key("expert_used_count", used as u32);
        self.key("expert_group_count", groups as u32);
        self.key("expert_group_used_count", 1u32);
        let gating = self.pick(&[2, 1]);
        self.key("expert_gating_func", gating as u32);
        let norm = self.c.flip();
        self.key("expert_weights_norm", norm);
        self.key("expert_weights_scale", 1.5f32);
    }

    fn attention(&mut self, i: u64, s: &Sizes, full: bool) {
        let n = |t: &str| format!("blk.{i}.{t}.weight");
        self.norm(&n("attn_norm"), s.d);
        self.weight(&n("attn_q_a"), &[s.rq, s.d]);
        self.norm(&n("attn_q_a_norm"), s.rq);
        self.weight(&n("attn_q_b"), &[s.h * (s.dn + s.dr), s.rq]);
        self.weight(&n("attn_kv_a_mqa"), &[s.rkv + s.dr, s.d]);
        self.norm(&n("attn_kv_a_norm"), s.rkv);
        self.weight(&n("attn_k_b"), &[s.h, s.rkv, s.dn]);
        self.weight(&n("attn_v_b"), &[s.h, s.dv, s.rkv]);
        self.weight(&n("attn_output"), &[s.d, s.h * s.dv]);
        self.norm(&n("ffn_norm"), s.d);
        if full {
            self.weight(&n("indexer.attn_q_b"), &[s.hi * s.di, s.rq]);
            self.weight(&n("indexer.attn_k"), &[s.di, s.d]);
            self.norm(&n("indexer.k_norm"), s.di);
            self.norm(&format!("blk.{i}.indexer.k_norm.bias"), s.di);
            self.weight(&n("indexer.proj"), &[s.hi, s.d]);
        }
    }

    fn dense(&mut self, i: u64, d: u64, f: u64) {
        let n = |t: &str| format!("blk.{i}.{t}.weight");
        self.weight(&n("ffn_gate"), &[f, d]);
        self.weight(&n("ffn_up"), &[f, d]);
        self.weight(&n("ffn_down"), &[d, f]);
    }

    fn experts(&mut self, i: u64, d: u64, e: u64, fe: u64, shared: u64) {
        let n = |t: &str| format!("blk.{i}.{t}.weight");
        self.typed(&n("ffn_gate_inp"), QuantType::F32, &[e, d], 1.5 / (d as f32).sqrt());
        if self.c.flip() {
            self.typed(&format!("blk.{i}.exp_probs_b.bias"), QuantType::F32, &[e], 0.2);
        }
        self.weight(&n("ffn_gate_exps"), &[e, fe, d]);
        self.weight(&n("ffn_up_exps"), &[e, fe, d]);
        self.weight(&n("ffn_down_exps"), &[e, d, fe]);
        self.weight(&n("ffn_gate_shexp"), &[fe * shared, d]);
        self.weight(&n("ffn_up_shexp"), &[fe * shared, d]);
        self.weight(&n("ffn_down_shexp"), &[d, fe * shared]);
    }

    /// A weight of any type whose blocks its rows are made of.
    fn weight(&mut self, name: &str, shape: &[u64]) {
        let row = shape[shape.len() - 1];
        let fit: Vec<QuantType> =
            QuantType::ALL.iter().copied().filter(|q| row.is_multiple_of(q.block_elems() as u64)).collect();
        let q = *self.c.pick(&fit);
        self.typed(name, q, shape, 1.5 / (row as f32).sqrt());
    }

    fn typed(&mut self, name: &str, q: QuantType, shape: &[u64], rms: f32) {
        let bytes = blocks(q, shape.iter().product::<u64>() as usize, self.rng.next(), rms);
        self.w.tensor(name, q, shape, TensorData::Bytes(bytes)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }

    /// Entries near one.
    fn norm(&mut self, name: &str, n: u64) {
        let q = *self.c.pick(&[QuantType::F32, QuantType::F16, QuantType::BF16]);
        let values = (0..n).map(|_| 1.0 + 0.3 * self.rng.float()).collect();
        let bytes = Tensor::f(vec![n as usize], values).to_bytes(Elem::from(q)).expect("floats");
        self.w.tensor(name, q, &[n], TensorData::Bytes(bytes)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
