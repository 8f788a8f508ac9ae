//! `glm-dsa` configs and claims: what the good files say, which edits are accepted, which are refused and how.

mod common;

use common::{edited, fixture, load, open_fixture, refused};
use glmc_frontend_gguf::arch::glm_dsa::config::Gating;
use glmc_frontend_gguf::arch::glm_dsa::weights::Ffn;
use glmc_frontend_gguf::write::{GgufWriter, MetaValue, TensorData};
use glmc_ir::quant::QuantType;

const BASE: &str = "gguf-bad/ok-base.gguf";
const ONE_LAYER: &str = "gguf-bad/ok-one-layer.gguf";

fn check(want: &str, needles: &[&str], edit: impl FnOnce(&mut GgufWriter<'_>)) {
    let (code, line) = refused(edited(BASE, edit));
    assert_eq!(code, want, "{line}");
    for needle in needles {
        assert!(line.contains(needle), "{needle:?} is missing in: {line}");
    }
}

fn key(w: &mut GgufWriter<'_>, name: &str, value: impl Into<MetaValue>) {
    w.set(format!("glm-dsa.{name}"), value);
}

fn zeros(w: &mut GgufWriter<'_>, name: &str, quant: QuantType, shape: &[u64]) {
    w.tensor(name, quant, shape, TensorData::Zeros).expect("tensor");
}

#[test]
fn the_tiny_models_config() {
    let model = load(&fixture("models/tiny-UD-Q4_K_XL-00001-of-00003.gguf")).unwrap_or_else(|e| panic!("{}", e.line()));
    let c = &model.config;
    assert_eq!((c.block_count, c.nextn_predict_layers, c.layers), (4, 1, 3));
    assert_eq!((c.embedding_length, c.vocab_size, c.context_length), (256, 2048, 4096));
    let a = &c.attention;
    assert_eq!((a.head_count, a.q_lora_rank, a.kv_lora_rank), (8, 256, 256));
    assert_eq!((a.head_dim, a.nope_dim, a.rope_dim, a.value_dim), (128, 96, 32, 64));
    let x = &c.indexer;
    assert_eq!((x.head_count, x.head_dim, x.top_k, x.norm_eps), (4, 64, 64, 1e-6));
    assert_eq!(x.types, [true; 3]);
    assert_eq!((c.rms_norm_eps, c.rope_freq_base), (1e-5, 1e6));
    let m = c.moe.as_ref().expect("experts");
    assert_eq!((m.expert_count, m.experts_used[1], m.shared_count, m.feed_forward_length[1]), (16, 4, 1, 256));
    assert_eq!((m.gating, m.weights_scale, m.weights_norm, m.group_count), (Gating::Sigmoid, 2.5, true, 1));
    let w = &model.weights;
    assert!(matches!(w.layers[0].ffn, Ffn::Dense(_)) && matches!(w.layers[1].ffn, Ffn::Moe(_)));
    assert_eq!((&w.layers[0].k_b.shape, w.layers[0].k_b.quant), (&vec![8, 256, 96], QuantType::Q8_0));
    let mtp = w.mtp.as_ref().expect("the MTP block");
    assert_eq!((mtp.block, &mtp.eh_proj.shape), (3, &vec![256, 512]));
    // The draft head attends densely: its indexer is listed, not used.
    assert!(mtp.layer.indexer.is_none() && mtp.shared_head_norm.is_some() && mtp.embed_tokens.is_none());
    assert_eq!(model.report.unused.len(), 5);
    assert!(model.report.unused.iter().all(|(n, why)| n.starts_with("blk.3.indexer.") && why.contains("densely")));
}

#[test]
fn one_dense_layer_has_no_experts() {
    let model = load(&fixture(ONE_LAYER)).unwrap_or_else(|e| panic!("{}", e.line()));
    assert_eq!((model.config.layers, model.config.moe, model.weights.layers.len()), (1, None, 1));
    let model = edited(ONE_LAYER, |w| {
        w.unset("glm-dsa.expert_count").unset("glm-dsa.expert_weights_scale");
    });
    assert!(model.is_ok(), "expert keys are not needed when no block has experts");
}

#[test]
fn keys_whose_default_would_be_wrong_are_required() {
    for name in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "leading_dense_block_count",
        "attention.head_count",
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "attention.q_lora_rank",
        "attention.kv_lora_rank",
        "attention.layer_norm_rms_epsilon",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "rope.dimension_count",
        "rope.freq_base",
        "expert_count",
        "expert_used_count",
        "expert_shared_count",
        "expert_feed_forward_length",
        "expert_weights_scale",
        "expert_weights_norm",
    ] {
        let full = format!("glm-dsa.{name}");
        check("model/key-missing", &[&full], |w| {
            w.unset(&full);
        });
        check("model/key-type", &[&full, "a string"], |w| key(w, name, "7"));
    }
}

#[test]
fn zero_negative_and_broken_numbers_are_refused() {
    for name in ["attention.layer_norm_rms_epsilon", "rope.freq_base", "expert_weights_scale"] {
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            check("model/key-value", &[name], |w| key(w, name, value));
        }
    }
    for name in
        ["attention.head_count", "expert_count", "attention.indexer.top_k", "context_length", "expert_shared_count"]
    {
        check("model/key-value", &[name], |w| key(w, name, 0u32));
        check("model/key-value", &[name, "-3"], |w| key(w, name, -3i32));
        check("model/key-value", &[name], |w| key(w, name, u64::MAX));
    }
}

#[test]
fn contradictions_name_both_sides() {
    check("model/key-value", &["attention.key_length ", "kv_lora_rank", "40"], |w| {
        key(w, "attention.key_length", 96u32)
    });
    check("model/key-value", &["attention.value_length ", "32"], |w| key(w, "attention.value_length", 16u32));
    check("model/key-value", &["head_count_kv"], |w| key(w, "attention.head_count_kv", 2u32));
    check("model/key-value", &["indexer.key_length", "rope.dimension_count"], |w| {
        key(w, "attention.indexer.key_length", 4u32)
    });
    check("model/key-value", &["vocab_size", "281", "280"], |w| key(w, "vocab_size", 281u32));
    check("model/key-value", &["expert_group_count", "3"], |w| key(w, "expert_group_count", 3u32));
    check("model/key-value", &["expert_group_used_count", "2"], |w| {
        key(w, "expert_group_count", 2u32);
        key(w, "expert_group_used_count", 2u32);
    });
    check("model/tensor-missing", &["blk.1.ffn_gate.weight"], |w| key(w, "leading_dense_block_count", 2u32));
    check("model/tensor-missing", &["blk.0.ffn_gate_inp.weight"], |w| key(w, "leading_dense_block_count", 0u32));
}

#[test]
fn rope_scaling_must_be_the_identity() {
    let fine = edited(BASE, |w| {
        key(w, "rope.scaling.type", "none");
        key(w, "rope.scaling.factor", 1.0f32);
        key(w, "rope.scaling.original_context_length", 4096u32);
    });
    assert!(fine.is_ok(), "{:?}", fine.err());
    check("unsupported/rope-scaling", &["rope.scaling.factor", "40"], |w| key(w, "rope.scaling.factor", 40.0f32));
    check("unsupported/rope-scaling", &["rope.scaling.type", "yarn"], |w| key(w, "rope.scaling.type", "yarn"));
    check("unsupported/rope-scaling", &["rope.scaling.attn_factor"], |w| key(w, "rope.scaling.attn_factor", 1.1f32));
}

#[test]
fn indexer_types_come_from_the_key_else_from_the_context() {
    let types = |edit: &dyn Fn(&mut GgufWriter<'_>)| {
        let model = edited(BASE, |w| edit(w)).unwrap_or_else(|e| panic!("{}", e.line()));
        (model.config.indexer.types.clone(), model)
    };
    assert_eq!(types(&|_| {}).0, [true, true]);
    for value in [MetaValue::Bools(vec![true, false]), MetaValue::U32s(vec![1, 0]), MetaValue::I32s(vec![1, 0])] {
        let (found, model) = types(&|w| key(w, "attention.indexer.types", value.clone()));
        assert_eq!(found, [true, false]);
        // The shared layer's own tensors are there: listed, not used.
        let shared: Vec<_> = model.report.unused.iter().filter(|(n, _)| n.starts_with("blk.1.indexer.")).collect();
        assert_eq!(shared.len(), 5);
        assert!(shared.iter().all(|(_, why)| why.contains("shares")));
        assert!(model.weights.layers[1].indexer.is_none());
    }
    assert_eq!(types(&|w| key(w, "attention.indexer.types", true)).0, [true, true]);
    check("model/key-value", &["indexer.types", "layer 0"], |w| key(w, "attention.indexer.types", vec![false, true]));
    check("model/key-value", &["indexer.types", "2"], |w| key(w, "attention.indexer.types", vec![1u32, 2]));
    // One entry for each trunk layer, not for each block.
    check("model/array-length", &["indexer.types", "3", "2"], |w| key(w, "attention.indexer.types", vec![true; 3]));
    check("model/tensor-missing", &["blk.1.indexer.attn_q_b.weight"], |w| {
        w.retain_tensors(|n| !n.starts_with("blk.1.indexer."));
    });
}

#[test]
fn the_long_context_pattern() {
    // 8 layers by repeating the one dense layer, with a trained context of a million.
    let set = open_fixture(ONE_LAYER);
    let model = edited(ONE_LAYER, |w| {
        key(w, "block_count", 8u32);
        key(w, "leading_dense_block_count", 8u32);
        key(w, "context_length", 1_048_576u32);
        for i in 1..8 {
            for (_, info) in set.tensors().filter(|t| t.1.name.starts_with("blk.0.")) {
                let quant = QuantType::from_ggml_id(info.type_id).expect("a weight's type");
                zeros(w, &info.name.replace("blk.0.", &format!("blk.{i}.")), quant, &info.shape);
            }
        }
    })
    .unwrap_or_else(|e| panic!("{}", e.line()));
    assert_eq!(model.config.indexer.types, [true, true, true, false, false, false, true, false]);
    assert_eq!(model.report.unused.len(), 4 * 5);
}

#[test]
fn per_block_arrays() {
    let model = edited(BASE, |w| {
        key(w, "feed_forward_length", vec![64u32, 0, 0]);
        key(w, "expert_feed_forward_length", vec![0u32, 32, 32]);
        key(w, "expert_used_count", vec![0i32, 1, 2]);
        key(w, "attention.head_count", vec![2u32; 3]);
    })
    .unwrap_or_else(|e| panic!("{}", e.line()));
    assert_eq!(model.config.feed_forward_length, [64, 0, 0]);
    assert_eq!(model.config.moe.expect("experts").experts_used, [0, 1, 2]);
    check("model/array-length", &["feed_forward_length", "2", "3"], |w| key(w, "feed_forward_length", vec![64u32, 64]));
    check("unsupported/per-layer-value", &["head_count"], |w| key(w, "attention.head_count", vec![2u32, 4, 2]));
}

#[test]
fn shapes_of_files_with_and_without_the_draft_head() {
    let trunk = |name: &str| !name.starts_with("blk.2.");
    let model = edited(BASE, |w| {
        w.retain_tensors(trunk);
    })
    .unwrap_or_else(|e| panic!("{}", e.line()));
    assert!(model.weights.mtp.is_none());
    // Only its indexer left out: still complete. Anything else left out: refused, not dropped in silence.
    let model = edited(BASE, |w| {
        w.retain_tensors(|n| !n.starts_with("blk.2.indexer."));
    });
    assert!(model.unwrap_or_else(|e| panic!("{}", e.line())).weights.mtp.expect("MTP").layer.indexer.is_none());
    check("model/tensor-missing", &["blk.2.nextn.enorm.weight"], |w| {
        w.retain_tensors(|n| n != "blk.2.nextn.enorm.weight");
    });
    check("model/tensor-unexpected", &["blk.2."], |w| {
        w.retain_tensors(|n| n != "blk.2.nextn.eh_proj.weight");
    });
    check("model/mtp-only", &["blk.0.attn_norm.weight"], |w| {
        w.retain_tensors(|n| !n.starts_with("blk.0.") && !n.starts_with("blk.1."));
    });
    check("model/tensor-unexpected", &["blk.2."], |w| {
        key(w, "nextn_predict_layers", 0u32);
        key(w, "block_count", 2u32);
    });
    check("unsupported/mtp-blocks", &["nextn_predict_layers"], |w| key(w, "nextn_predict_layers", 2u32));
}

#[test]
fn tied_head_and_optional_bias() {
    let model = edited(BASE, |w| {
        w.retain_tensors(|n| n != "output.weight" && n != "blk.1.exp_probs_b.bias");
    })
    .unwrap_or_else(|e| panic!("{}", e.line()));
    assert!(model.weights.output.is_none());
    let Ffn::Moe(moe) = &model.weights.layers[1].ffn else { panic!("layer 1 has experts") };
    assert!(moe.bias.is_none());
}

#[test]
fn tensors_that_are_never_ignored() {
    check("unsupported/scale-tensor", &["blk.1.ffn_up_exps.scale"], |w| {
        zeros(w, "blk.1.ffn_up_exps.scale", QuantType::F32, &[4]);
    });
    check("unsupported/fused-gate-up", &["blk.1.ffn_gate_up_exps.weight", "convert"], |w| {
        w.retain_tensors(|n| n != "blk.1.ffn_gate_exps.weight");
        zeros(w, "blk.1.ffn_gate_up_exps.weight", QuantType::Q4_0, &[4, 64, 32]);
    });
    check("model/legacy-kv-b", &["blk.2.attn_kv_b.weight", "convert"], |w| {
        zeros(w, "blk.2.attn_kv_b.weight", QuantType::Q8_0, &[128, 32]);
    });
    check("model/tensor-unexpected", &["rope_freqs.weight"], |w| zeros(w, "rope_freqs.weight", QuantType::F32, &[4]));
}

#[test]
fn routers_and_norms_keep_their_precision() {
    let retyped = |name: &'static str, quant, shape: &'static [u64]| {
        move |w: &mut GgufWriter<'_>| {
            w.retain_tensors(|n| n != name);
            zeros(w, name, quant, shape);
        }
    };
    check(
        "unsupported/tensor-type",
        &["blk.1.ffn_gate_inp.weight", "bf16", "f32"],
        retyped("blk.1.ffn_gate_inp.weight", QuantType::BF16, &[4, 32]),
    );
    check(
        "unsupported/tensor-type",
        &["output_norm.weight", "q8_0"],
        retyped("output_norm.weight", QuantType::Q8_0, &[32]),
    );
}
