//! Full-size headers without data: what reads headers only must be fast and small on them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::{GgufWriter, MetaValue, TensorData};
use glmc_ir::quant::QuantType as Q;
use serde_json::Value;

use super::support::{fixture, glmc};
use super::targets::user_target;

const D: u64 = 6144;
const VOCAB: usize = 154_880;
const LAYERS: u64 = 78;

/// How a preset types a tensor: its role, its block, the number of blocks.
pub(crate) type Mix = fn(&str, u64, u64) -> Q;

/// The stock quantiser's rules.
fn q4_k_m(role: &str, i: u64, blocks: u64) -> Q {
    let more = i < blocks / 8 || i >= 7 * blocks / 8 || (i.wrapping_sub(blocks / 8)) % 3 == 2;
    match role {
        "output" => Q::Q6_K,
        r if r.contains("down") && more => Q::Q6_K,
        "attn_k_b" => Q::Q5_0,
        _ => Q::Q4_K,
    }
}

/// As seen in published dynamic files.
pub(crate) fn ud_q4_k_xl(role: &str, i: u64, blocks: u64) -> Q {
    match role {
        "ffn_gate_exps" | "ffn_up_exps" if i == blocks - 1 => Q::Q5_K,
        "ffn_gate_exps" | "ffn_up_exps" => Q::Q4_K,
        "ffn_down_exps" if [3, 4, 5, blocks - 1].contains(&i) => Q::Q6_K,
        "ffn_down_exps" => Q::Q5_K,
        "indexer.proj" => Q::F32,
        _ => Q::Q8_0,
    }
}

fn q8_0(_: &str, _: u64, _: u64) -> Q {
    Q::Q8_0
}

/// Writes the header of a GLM-5 (or, with `shared`, a GLM-5.2) as sparse files; returns the path to open.
pub(crate) fn write(dir: &Path, mix: Mix, shared: bool, parts: u16) -> PathBuf {
    let set = open(&fixture("models/tiny-Q4_K_M.gguf")).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.retain_tensors(|_| false);
    keys(&mut w, shared);
    vocabulary(&mut w);
    let full = |i: u64| !shared || i.saturating_sub(2).is_multiple_of(4);
    let blocks = LAYERS + 1;
    let mut add = |name: String, ty: Q, shape: &[u64]| {
        w.tensor(name, ty, shape, TensorData::Zeros).unwrap();
    };
    add("token_embd.weight".into(), mix("token_embd", 0, blocks), &[VOCAB as u64, D]);
    add("output_norm.weight".into(), Q::F32, &[D]);
    add("output.weight".into(), mix("output", 0, blocks), &[VOCAB as u64, D]);
    for i in 0..blocks {
        let mut norm = |n: &str, width: u64| add(format!("blk.{i}.{n}"), Q::F32, &[width]);
        norm("attn_norm.weight", D);
        norm("attn_q_a_norm.weight", 2048);
        norm("attn_kv_a_norm.weight", 512);
        norm("ffn_norm.weight", D);
        let mut t = |role: &str, shape: &[u64]| add(format!("blk.{i}.{role}.weight"), mix(role, i, blocks), shape);
        t("attn_q_a", &[2048, D]);
        t("attn_q_b", &[16384, 2048]);
        t("attn_kv_a_mqa", &[576, D]);
        t("attn_k_b", &[64, 512, 192]);
        t("attn_v_b", &[64, 256, 512]);
        t("attn_output", &[D, 16384]);
        if i >= LAYERS || full(i) {
            t("indexer.attn_q_b", &[4096, 2048]);
            t("indexer.attn_k", &[128, D]);
            t("indexer.proj", &[32, D]);
            add(format!("blk.{i}.indexer.k_norm.weight"), Q::F32, &[128]);
            add(format!("blk.{i}.indexer.k_norm.bias"), Q::F32, &[128]);
        }
        let mut t = |role: &str, shape: &[u64]| add(format!("blk.{i}.{role}.weight"), mix(role, i, blocks), shape);
        if i < 3 {
            t("ffn_gate", &[12288, D]);
            t("ffn_up", &[12288, D]);
            t("ffn_down", &[D, 12288]);
        } else {
            t("ffn_gate_exps", &[256, 2048, D]);
            t("ffn_up_exps", &[256, 2048, D]);
            t("ffn_down_exps", &[256, D, 2048]);
            t("ffn_gate_shexp", &[2048, D]);
            t("ffn_up_shexp", &[2048, D]);
            t("ffn_down_shexp", &[D, 2048]);
            add(format!("blk.{i}.ffn_gate_inp.weight"), Q::F32, &[256, D]);
            add(format!("blk.{i}.exp_probs_b.bias"), Q::F32, &[256]);
        }
        if i >= LAYERS {
            add(format!("blk.{i}.nextn.eh_proj.weight"), mix("nextn.eh_proj", i, blocks), &[D, 2 * D]);
            for n in ["enorm", "hnorm", "shared_head_norm"] {
                add(format!("blk.{i}.nextn.{n}.weight"), Q::F32, &[D]);
            }
        }
    }
    if parts > 1 {
        return w.write_split(dir, "hollow", parts).unwrap().remove(0);
    }
    let path = dir.join("hollow.gguf");
    w.write(&path).unwrap();
    path
}

fn keys(w: &mut GgufWriter<'_>, shared: bool) {
    let numbers: &[(&str, u32)] = &[
        ("block_count", 79),
        ("context_length", if shared { 1_048_576 } else { 202_752 }),
        ("embedding_length", 6144),
        ("feed_forward_length", 12288),
        ("leading_dense_block_count", 3),
        ("nextn_predict_layers", 1),
        ("vocab_size", VOCAB as u32),
        ("attention.head_count", 64),
        ("attention.key_length", 576),
        ("attention.value_length", 512),
        ("attention.key_length_mla", 256),
        ("attention.value_length_mla", 256),
        ("attention.q_lora_rank", 2048),
        ("attention.kv_lora_rank", 512),
        ("attention.indexer.head_count", 32),
        ("attention.indexer.key_length", 128),
        ("attention.indexer.top_k", 2048),
        ("rope.dimension_count", 64),
        ("expert_count", 256),
        ("expert_used_count", 8),
        ("expert_feed_forward_length", 2048),
    ];
    for (key, n) in numbers {
        w.set(format!("glm-dsa.{key}"), *n);
    }
    w.set("glm-dsa.rope.freq_base", if shared { 8e6f32 } else { 1e6 });
    w.unset("glm-dsa.attention.indexer.types");
}

/// 154,880 tokens: the bytes, pairs made by merges, and the tiny model's special tokens at the end.
fn vocabulary(w: &mut GgufWriter<'_>) {
    let set = open(&fixture("models/tiny-Q4_K_M.gguf")).unwrap();
    let texts: Vec<String> = set
        .get_strings("tokenizer.ggml.tokens")
        .unwrap()
        .unwrap()
        .map(|t| String::from_utf8(t.to_vec()).unwrap())
        .collect();
    let kinds: Vec<i128> = set.get_ints("tokenizer.ggml.token_type").unwrap().unwrap().collect();
    let normal: Vec<&String> = texts.iter().zip(&kinds).filter(|(_, k)| **k == 1).map(|(t, _)| t).collect();
    let special: Vec<&String> = texts.iter().zip(&kinds).filter(|(_, k)| **k == 3).map(|(t, _)| t).collect();
    let bytes: Vec<String> = normal.iter().filter(|t| t.chars().count() == 1).map(|t| (*t).clone()).collect();
    assert_eq!(bytes.len(), 256);
    let room = VOCAB - special.len();
    let (mut tokens, mut merges) = (bytes.clone(), Vec::new());
    let mut seen: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    for i in 0.. {
        if tokens.len() == room {
            break;
        }
        let (a, b) = (tokens[i / 256].clone(), &bytes[i % 256]);
        if seen.insert(format!("{a}{b}")) {
            tokens.push(format!("{a}{b}"));
            merges.push(format!("{a} {b}"));
        }
    }
    let place = |text: &str| (room + special.iter().position(|s| *s == text).unwrap()) as u32;
    for (key, text) in [
        ("eos", "<|endoftext|>"),
        ("eot", "<|user|>"),
        ("eom", "<|observation|>"),
        ("bos", "[gMASK]"),
        ("unknown", "<|endoftext|>"),
        ("padding", "[MASK]"),
    ] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        if set.value(&key).is_some() {
            w.set(key, place(text));
        }
    }
    tokens.extend(special.into_iter().cloned());
    let kinds: Vec<i32> = (0..VOCAB).map(|i| if i < room { 1 } else { 3 }).collect();
    w.set("tokenizer.ggml.tokens", MetaValue::from(tokens));
    w.set("tokenizer.ggml.token_type", MetaValue::from(kinds));
    w.set("tokenizer.ggml.merges", MetaValue::from(merges));
}

/// Inspects and compiles a header within the limits; what `inspect` and `compile` said.
fn check(model: &Path) -> (Value, Value) {
    let m = model.to_str().unwrap();
    let ran = glmc(&["inspect", m, "--json"]).ok();
    println!("inspect: {:?}, {} MB", ran.time, ran.peak >> 20);
    assert!(ran.busy < Duration::from_secs(2) && ran.peak < 400 << 20, "{:?}, {}", ran.busy, ran.peak);
    let plan = tempfile::tempdir().unwrap();
    let ran2 = glmc(&["compile", m, "-o", plan.path().join("p").to_str().unwrap(), "--target", "cpu", "--json"]).ok();
    println!("compile: {:?}, {} MB", ran2.time, ran2.peak >> 20);
    assert!(ran2.busy < Duration::from_secs(20), "{:?}", ran2.busy);
    assert!(ran2.peak < 1 << 30, "weight data was read: {}", ran2.peak);
    let of_plan = glmc(&["inspect", plan.path().join("p").to_str().unwrap(), "--json"]).ok().json();
    assert_eq!(of_plan["model"]["layers"], LAYERS);
    // Each of four for contexts beyond the indexer's selection, and for those that it holds whole.
    let phases = of_plan["phases"].as_array().unwrap();
    let short = phases.iter().filter(|p| p["visible"] == 2048).count();
    assert_eq!((phases.len(), short), (8, 4));
    (ran.json(), ran2.json())
}

/// Bytes of the weights that one token needs, counted by hand from the model's shapes: q8_0 but for the routed experts
/// (gate and up q4_K, down q5_K: 22,806,528 bytes each), norms, router and indexer projection (f32).
fn counted(full_indexers: u64) -> f64 {
    let q8 = |parameters: u64| parameters / 32 * 34;
    // q_a, q_b, kv_a, k_b, v_b, output.
    let attention = q8(12_582_912 + 33_554_432 + 3_538_944 + 6_291_456 + 8_388_608 + 100_663_296);
    let norms = 4 * (2048 + 512 + 2 * 6144);
    let indexer = q8(8_388_608 + 786_432) + 4 * (196_608 + 256);
    let dense = q8(3 * 6144 * 12288);
    let moe = q8(3 * 6144 * 2048) + 8 * 22_806_528 + 4 * (256 * 6144 + 256);
    let head = q8(154_880 * 6144);
    (78 * (attention + norms) + full_indexers * indexer + 3 * dense + 75 * moe + head) as f64
}

/// Within half a percent: three layers of the header have larger down experts.
#[track_caller]
fn near(found: &Value, expected: f64) {
    let found = found.as_u64().unwrap() as f64;
    assert!((found / expected - 1.0).abs() < 0.005, "{found}, counted {expected}");
}

#[test]
fn what_does_not_fit_is_refused_quickly() {
    let dir = tempfile::tempdir().unwrap();
    let model = write(dir.path(), ud_q4_k_xl, false, 1);
    let plan = dir.path().join("p");
    // One H200's memory, and one that holds the weights but not the caches and arenas.
    for (memory, some) in [(150_000_000_000u64, false), (480_000_000_000, true)] {
        let target = user_target(dir.path(), &format!("memory_bytes = {memory}"));
        let (m, p, t) = (model.to_str().unwrap(), plan.to_str().unwrap(), target.to_str().unwrap());
        let ran = glmc(&["compile", m, "-o", p, "--target", t, "--ctx", "131072", "--max-batch", "1"]);
        println!("refused: {:?} of {:?}, {} MB: {}", ran.busy, ran.time, ran.peak >> 20, ran.error_line());
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "memory"), "{ran:?}");
        assert_eq!(ran.error_line().contains("the largest context that fits is"), some, "{ran:?}");
        // 78 layers of 576 latent and 128 index values in f32.
        let caches = [("kv", 576u64), ("index", 128)].map(|(k, n)| format!("{k} cache {}", 131_072 * 78 * n * 4));
        assert!(caches.iter().all(|c| ran.error_line().contains(c)), "{ran:?}");
        assert!(ran.busy < Duration::from_secs(10) && ran.peak < 800 << 20, "{:?}, {}", ran.busy, ran.peak);
        assert!(!plan.exists());
    }
}

#[test]
fn glm_5_in_one_file_and_in_parts() {
    for (parts, mix, published) in
        [(1, ud_q4_k_xl as Mix, true), (11, ud_q4_k_xl, true), (1, q4_k_m, false), (1, q8_0, false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (i, c) = check(&write(dir.path(), mix, false, parts));
        let p = &i["parameters"];
        assert_eq!(p["total"], 753_864_139_008u64);
        assert_eq!(p["trunk"], 743_911_218_432u64);
        assert_eq!(p["active"], 40_833_146_112u64);
        assert_eq!(i["kv_bytes_per_token"]["f16"], 109_824);
        assert_eq!(i["parts"].as_array().unwrap().len(), usize::from(parts));
        let layers: u64 = i["layer_kinds"].as_array().unwrap().iter().map(|k| k["layers"].as_u64().unwrap()).sum();
        assert_eq!(layers, LAYERS);
        if published {
            let bytes: u64 = i["quant_mix"].as_array().unwrap().iter().map(|m| m["bytes"].as_u64().unwrap()).sum();
            assert_eq!(bytes, 467_279_569_920);
            assert!((counted(78) / 33.4e9 - 1.0).abs() < 0.001);
            near(&i["bytes_per_token"]["weights_read"], counted(78));
            near(&c["bytes_per_token"]["weights_once"], counted(78));
            assert_eq!(c["bytes_per_token"]["weights_once"], c["bytes_per_token"]["weights_read"]);
        }
    }
}

/// `compile` for eight cards at a context of 131072, one sequence.
pub(crate) fn on_eight_cards(model: &Path, plan: &Path) -> super::support::Ran {
    let args = ["compile", model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--target", "8x-rtx-pro-6000"];
    glmc(&[&args[..], &["--ctx", "131072", "--max-batch", "1", "--no-kernels", "--json"]].concat())
}

#[test]
fn glm_5_on_eight_ranks() {
    let mixes: [(&str, Mix); 2] = [("ud-q4_k_xl", ud_q4_k_xl), ("q4_k_m", q4_k_m)];
    for ((mix, types), shared) in mixes.into_iter().flat_map(|m| [(m, false), (m, true)]) {
        let what = format!("{} {mix}", if shared { "glm-5.2" } else { "glm-5" });
        let dir = tempfile::tempdir().unwrap();
        let plan = dir.path().join("p");
        let ran = on_eight_cards(&write(dir.path(), types, shared, 1), &plan).ok();
        let c = ran.json();
        let of = |phase: &Value, names: &[&str]| {
            let steps = phase["steps"].as_array().unwrap().iter();
            steps.filter(|s| names.contains(&s["kernel"]["name"].as_str().unwrap())).count()
        };
        let text: Value = serde_json::from_slice(&std::fs::read(plan.join("plan.json")).unwrap()).unwrap();
        let decode = text["phases"].as_array().unwrap().iter().find(|p| p["name"] == "decode_1").unwrap();
        let reductions = of(decode, &["all_reduce", "reduce_scatter"]);
        let others = of(decode, &["all_gather", "all_to_all"]);
        assert_eq!(c["collectives_per_step"]["decode"], reductions + others);
        let ranks: Vec<u64> =
            c["memory_per_rank"].as_array().unwrap().iter().map(|r| r["weights"].as_u64().unwrap()).collect();
        println!(
            "{what}: {:?}, {} MB; {reductions} reductions and {others} others a token; weights {ranks:?}; {} tok/s",
            ran.time,
            ran.peak >> 20,
            c["predicted"]["decode_tps"]
        );
        assert!(ran.busy < Duration::from_secs(10) && ran.peak < 800 << 20, "{what}: {:?}, {}", ran.busy, ran.peak);
        // Beside reductions the logits travel, and in each layer the parts of what shares its normed input.
        assert!((78..=158).contains(&reductions) && others <= 2 + 78, "{what}: {reductions}, {others}");
        let (least, most) = (ranks.iter().min().unwrap(), ranks.iter().max().unwrap());
        assert!(ranks.len() == 8 && *most <= 62_500_000_000 && (most - least) * 50 <= *most, "{what}: {ranks:?}");
        if mix == "ud-q4_k_xl" {
            near(&c["bytes_per_token"]["weights_once"], counted(if shared { 21 } else { 78 }));
        }
        // Reading a plan verifies it, for all ranks. What is no reduction pays.
        let e = glmc(&["explain", plan.to_str().unwrap(), "--json"]).ok().json();
        assert_eq!((&e["placement"]["fits"], &e["placement"]["cut"]), (&true.into(), &false.into()), "{what}");
        let functions = e["placement"]["functions"].as_array().unwrap();
        let (mut paid, mut others_of_weights) = (0, 0);
        let weighed = |f: &Value, weight: &str| {
            let value = f["values"].as_array()?.iter().find(|v| v["value"] == weight)?;
            Some(value["others"].as_array()?.len())
        };
        // Variants for short contexts find the weights where the others left them.
        let leads = |f: &&Value| {
            let name = f["name"].as_str().unwrap();
            name.starts_with("decode_1") && !name.ends_with(".short")
        };
        for f in functions.iter().filter(leads) {
            for m in f["collectives"].as_array().unwrap() {
                if !["all_reduce", "reduce_scatter"].contains(&m["op"].as_str().unwrap()) {
                    assert!(m["saves"].as_f64().unwrap() > 0.0, "{what}: {m}");
                    paid += 1;
                }
            }
            // Whether to copy these, or to split and gather them, or their input: each stands there with its cost.
            if f["name"].as_str().unwrap().contains("_full") {
                for w in ["w.attn_q_a", "w.attn_kv_a_mqa", "w.indexer.attn_k", "w.indexer.proj"] {
                    assert!(weighed(f, w).is_some_and(|n| n >= 2), "{what}: {w} {:?}", weighed(f, w));
                }
            }
            let values = f["values"].as_array().unwrap();
            let others = values.iter().filter(|v| v["bytes"].is_u64()).filter_map(|v| v["others"].as_array());
            others_of_weights += others.map(Vec::len).sum::<usize>();
        }
        // The logits, and one in each kind of layer where reading less pays for it (not where `q_a` has 4 bits).
        assert!(
            paid >= 1 && (others == 1 || paid > 1) && others_of_weights > 30,
            "{what}: {paid}, {others_of_weights}"
        );
    }
}

#[test]
fn eight_bits_do_not_fit_eight_cards() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p");
    let ran = on_eight_cards(&write(dir.path(), q8_0, false, 1), &plan);
    assert_eq!((ran.code(), ran.class()), (3, ("memory".into(), "too-large".into())), "{ran:?}");
    println!("refused: {:?} of {:?}, {} MB: {}", ran.busy, ran.time, ran.peak >> 20, ran.error_line());
    let part = |name: &str| -> u64 {
        let line = ran.error_line();
        let at = line.find(&format!("{name} ")).unwrap_or_else(|| panic!("no {name}: {line}"));
        let digits = line[at + name.len() + 1..].chars().take_while(char::is_ascii_digit).collect::<String>();
        digits.parse().unwrap_or_else(|e| panic!("{name}: {e}: {line}"))
    };
    for name in ["kv cache", "index cache", "arena", "collective buffers", "context", "graphs", "reserve"] {
        assert!(part(name) > 0, "{name}");
    }
    // At a short context, with small steps, they do.
    assert!(ran.error_line().contains("; the largest context that fits is "), "{}", ran.error_line());
    // An eighth of the trunk's 743.9e9 parameters at 34 bytes for 32.
    let (weights, all) = (part("weights") as f64, 743.9e9 * 34.0 / 32.0);
    assert!(weights >= all / 8.0 * 0.998 && weights < all / 8.0 * 1.05, "{weights}");
    assert!(ran.busy < Duration::from_secs(120) && ran.peak < 800 << 20, "{:?}, {}", ran.busy, ran.peak);
    assert!(!plan.exists());
}

#[test]
fn glm_5_2_shares_selections() {
    let dir = tempfile::tempdir().unwrap();
    let (i, c) = check(&write(dir.path(), ud_q4_k_xl, true, 1));
    assert!((counted(21) / 32.8e9 - 1.0).abs() < 0.001);
    near(&c["bytes_per_token"]["weights_once"], counted(21));
    assert_eq!(i["parameters"]["trunk"], 743_377_019_904u64);
    assert_eq!((&i["indexer"]["full"], &i["indexer"]["shared"]), (&21.into(), &57.into()));
    assert_eq!(i["kv_bytes_per_token"]["f16"], 95_232);
}
