//! Synthetic models: their headers are those of real files, their weights are what the counter function says, and they
//! run, on one rank as on eight.

use std::path::{Path, PathBuf};

use glmc_frontend_gguf::write::synth::{Dims, Mix, fill, model};
use glmc_frontend_gguf::{GgufSet, Model, open};
use glmc_ir::entities::WeightId;
use glmc_ir::quant::QuantType;
use glmc_runtime::engine::{Engine, Want};
use glmc_runtime::load::{load, make_weights, read_plan};
use glmc_runtime::made;

use super::support::{fixture, glmc, scratch};

/// A synthetic model written by the command.
fn synth(name: &str, args: &[&str]) -> PathBuf {
    let path = scratch().join(name);
    glmc(&[&["synth", "-o", path.to_str().unwrap(), "--json"], args].concat());
    path
}

fn plan(model: &Path, target: &str) -> PathBuf {
    let plan = scratch().join(format!("{}-{target}", model.file_stem().unwrap().to_str().unwrap()));
    let args = ["compile", model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--target", target, "--ctx", "512"];
    glmc(&[&args[..], &["--json"]].concat());
    plan
}

/// Logits of a prompt, then of steps of single tokens.
fn logits(engine: &mut Engine) -> Vec<f32> {
    let seq = engine.start();
    let prompt: Vec<u32> = (0..70).map(|i| (i * 97 + 5) % 2000).collect();
    let mut out = engine.feed(seq, &prompt, Want::All).unwrap();
    for token in [3, 1999, 400] {
        out.extend(engine.decode(&[(seq, token)]).unwrap());
    }
    out
}

fn far(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let off = a.iter().zip(b).map(|(x, y)| (x - y).abs());
    off.fold(0.0, |worst, d| if d.is_nan() { f32::INFINITY } else { d.max(worst) })
}

#[test]
fn a_synthetic_model_runs_and_eight_ranks_give_the_logits_of_one() {
    for (name, mix) in [("tiny-ud.gguf", "ud-q4_k_xl"), ("tiny-q4.gguf", "q4_k_m")] {
        let model = synth(name, &["--preset", "tiny", "--mix", mix, "--seed", "5"]);
        let one = logits(&mut Engine::new(load(&plan(&model, "cpu")).unwrap()).unwrap());
        let rms = (one.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / one.len() as f64).sqrt();
        assert!(one.iter().all(|x| x.is_finite()) && (0.3..3.0).contains(&rms), "{mix}: logits of RMS {rms}");
        // No token's logits are another's.
        let rows: Vec<&[f32]> = one.chunks_exact(2048).collect();
        assert_eq!(rows.len(), 73);
        assert!(rows.windows(2).all(|w| far(w[0], w[1]) > 0.5), "{mix}: rows that are alike");
        let eight = logits(&mut Engine::new(load(&plan(&model, "8x-cpu")).unwrap()).unwrap());
        let off = far(&one, &eight);
        println!("{mix}: logits of RMS {rms:.2}, eight ranks off by {off:.1e}");
        assert!(off < 1e-3, "{mix}: eight ranks are off by {off}");
    }
}

#[test]
fn any_slice_of_a_weight_is_made_again_without_the_file() {
    let model = synth("tiny-slices.gguf", &["--preset", "tiny", "--mix", "q4_k_m", "--seed", "9"]);
    let set = open(&model).unwrap();
    let mut apart = 0;
    for target in ["cpu", "8x-cpu"] {
        let dir = plan(&model, target);
        let loaded = load(&dir).unwrap();
        let p = &loaded.plan;
        for (i, recipe) in p.weights.values().enumerate() {
            let row = *set.tensor(&recipe.tensor).unwrap().1.shape.last().unwrap();
            let fill = fill(9, &recipe.tensor, row);
            apart += usize::from(recipe.ty.elem != recipe.ty.elem.in_file());
            for (rank, weights) in loaded.weights.iter().enumerate() {
                let again = made::stored(p, recipe, rank, &fill).unwrap();
                let held = weights.bytes(WeightId::from_u32(i as u32));
                assert!(again == held, "{target}: {} of rank {rank} differs", recipe.name);
            }
        }
    }
    assert!(apart > 0, "nothing is cut inside blocks");
}

#[test]
fn a_plan_of_a_hollow_file_runs_on_weights_that_are_made() {
    let args = ["--preset", "tiny", "--mix", "q5_K", "--seed", "2"];
    let (whole, hollow) =
        (synth("tiny-whole.gguf", &args), synth("tiny-hollow.gguf", &[&args[..], &["--hollow"]].concat()));
    let on_disk = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&hollow).unwrap()) * 512;
    assert!(on_disk < 400 << 10 && std::fs::metadata(&hollow).unwrap().len() > 4 << 20, "{on_disk} bytes on disk");
    let want = logits(&mut Engine::new(load(&plan(&whole, "cpu")).unwrap()).unwrap());
    let dir = plan(&hollow, "cpu");
    let p = read_plan(&dir).unwrap();
    let set = open(&hollow).unwrap();
    let row = |t: &str| *set.tensor(t).unwrap().1.shape.last().unwrap();
    let fills: Vec<_> = p.weights.values().map(|r| fill(2, &r.tensor, row(&r.tensor))).collect();
    assert!(make_weights(p.clone(), &dir, &fills[1..]).is_err());
    let got = logits(&mut Engine::new(make_weights(p, &dir, &fills).unwrap()).unwrap());
    assert_eq!(got, want);
}

/// Names, shapes and keys with their types.
fn outline(set: &GgufSet) -> (Vec<String>, Vec<String>) {
    let tensors = set.tensors().map(|(_, t)| format!("{} {:?}", t.name, t.shape)).collect();
    // A text, a list of texts: the kind is what the value's debug form begins with.
    let kind = |v: &dyn std::fmt::Debug| format!("{v:?}").split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
    (tensors, set.values().map(|(k, v)| format!("{k} {}", kind(v))).collect())
}

#[test]
fn the_tiny_preset_has_the_tensors_and_keys_of_a_converted_file() {
    let real = open(&fixture("models/tiny-Q4_K_M.gguf")).unwrap();
    let ours = open(&synth("tiny-keys.gguf", &["--preset", "tiny", "--mix", "q4_k_m", "--hollow"])).unwrap();
    let ((mut a, mut ka), (mut b, mut kb)) = (outline(&real), outline(&ours));
    [&mut a, &mut b, &mut ka, &mut kb].into_iter().for_each(|l| l.sort());
    assert_eq!(a, b, "tensors");
    // Names for people; and a file says that it has no draft head, or says nothing.
    ka.retain(|k| !k.starts_with("general.size_label"));
    kb.retain(|k| !k.starts_with("general.description") && !k.starts_with("glm-dsa.nextn_predict_layers"));
    assert_eq!(ka, kb, "keys");
    // The stock quantiser's types, but for the embedding of the tied kind.
    let types = |s: &GgufSet| {
        s.tensors().map(|(_, t)| (t.name.clone(), t.type_id)).collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(types(&real), types(&ours), "types");
}

#[test]
fn full_size_headers_are_those_of_the_released_models() {
    for (preset, tensors, full) in [("glm-5", 1809, 78), ("glm-5.2", 1524, 21)] {
        for (mix, bits) in [("ud-q4_k_xl", 4.9..5.1), ("q4_k_m", 4.7..5.0), ("q8_0", 8.4..8.6), ("iq2_xs", 2.3..2.4)] {
            let set =
                open(&synth(&format!("{preset}-{mix}.gguf"), &["--preset", preset, "--mix", mix, "--hollow"])).unwrap();
            let m = Model::load(&set).unwrap();
            let c = &m.config;
            assert_eq!((set.tensor_count(), c.layers, c.nextn_predict_layers), (tensors, 78, 1), "{preset}");
            assert_eq!(c.indexer.types.iter().filter(|f| **f).count(), full, "{preset}");
            assert!(m.weights.mtp.is_some() && m.report.unused.len() <= 5, "{preset}: {:?}", m.report.unused);
            let all = set.tensors().map(|(_, t)| (t.shape.iter().product::<u64>(), t.bytes));
            let (elems, bytes) = all.fold((0, 0), |a, t| (a.0 + t.0, a.1 + t.1));
            let each = bytes as f64 * 8.0 / elems as f64;
            println!("{preset} {mix}: {tensors} tensors, {:.1} GB, {each:.2} bits a weight", bytes as f64 / 1e9);
            assert!(bits.contains(&each), "{preset} {mix}: {each} bits a weight");
        }
    }
}

#[test]
fn rows_that_fit_no_block_get_smaller_blocks_and_bad_dims_are_refused() {
    let mut dims = Dims::preset("tiny").unwrap();
    dims.set("kv_rank", 160).unwrap();
    let path = scratch().join("odd.gguf");
    model(&dims, Mix::One(QuantType::Q6_K), 0, true).unwrap().write(&path).unwrap();
    let set = open(&path).unwrap();
    Model::load(&set).unwrap();
    let ty = |n: &str| QuantType::from_ggml_id(set.tensor(n).unwrap().1.type_id).unwrap();
    assert_eq!(ty("blk.0.attn_v_b.weight"), QuantType::Q8_0);
    assert_eq!(ty("blk.0.attn_q_a.weight"), QuantType::Q6_K);
    assert!(dims.set("wide", 3).unwrap_err().contains("width"));
    for (name, n) in
        [("layers", 0), ("used", 17), ("vocab", 100), ("rope", 33), ("dense", 9), ("mtp", 2), ("width", 1 << 40)]
    {
        let mut bad = Dims::preset("tiny").unwrap();
        bad.set(name, n).unwrap();
        assert!(model(&bad, Mix::Q4KM, 0, true).is_err(), "{name}={n}");
    }
}
