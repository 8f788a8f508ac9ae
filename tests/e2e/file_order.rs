//! The order of tensors in the file never reaches the plan, and compiling twice gives equal bytes.

use std::path::Path;

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::{GgufWriter, TensorData};
use glmc_ir::quant::QuantType;
use glmc_runtime::engine::Want;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use serde_json::Value;

use super::models::bf16;
use super::support::{compile, engine, fixture, prompts};

/// The plan as JSON, without paths, content hashes, and offsets in the file.
fn stripped(plan: &Path) -> Value {
    let mut json: Value = serde_json::from_slice(&std::fs::read(plan.join("plan.json")).unwrap()).unwrap();
    let files = json["files"].as_array_mut().unwrap();
    assert_eq!(files.len(), 1);
    for key in ["path", "header_hash", "sample_hash"] {
        assert!(files[0][key].take().is_string());
    }
    for w in json["weights"].as_array_mut().unwrap() {
        assert!(w["span"]["offset"].take().is_u64());
        for s in w["slices"].as_array_mut().unwrap().iter_mut().flat_map(|r| r.as_array_mut().unwrap()) {
            assert!(s["offset"].take().is_u64());
        }
    }
    json
}

/// The bytes of a file of the plan, with a dot for the number or string after each of `fields`.
fn blanked(plan: &Path, file: &str, fields: &[&str]) -> String {
    let text = std::fs::read_to_string(plan.join(file)).unwrap();
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = fields.iter().filter_map(|f| rest.find(f).map(|i| i + f.len())).min() {
        let (before, value) = rest.split_at(at);
        out.push_str(before);
        out.push('.');
        rest = value.trim_start_matches('"');
        let quoted = rest.len() < value.len();
        rest = &rest[rest.find(|c: char| if quoted { c == '"' } else { !c.is_ascii_digit() }).unwrap()..];
    }
    out + rest
}

#[test]
fn the_order_of_tensors_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (original, seed) in [(fixture("models/tiny-Q4_K_M.gguf"), None), (bf16(), Some(3))] {
        let set = open(&original).unwrap();
        let other = dir.path().join(original.file_name().unwrap());
        let mut w = GgufWriter::from_set(&set).unwrap();
        let names = |p: &Path| open(p).unwrap().tensors().map(|(_, t)| t.name.clone()).collect::<Vec<_>>();
        let mut order = names(&original);
        match seed {
            None => order.reverse(),
            Some(seed) => order.shuffle(&mut rand_chacha::ChaCha8Rng::seed_from_u64(seed)),
        }
        w.retain_tensors(|_| false);
        for name in &order {
            let (part, t) = set.tensor(name).unwrap();
            let bytes = set.tensor_bytes(part, t.offset, t.bytes).unwrap().to_vec();
            let ty = QuantType::from_ggml_id(t.type_id).unwrap();
            w.tensor(name, ty, &t.shape, TensorData::Bytes(bytes)).unwrap();
        }
        w.write(&other).unwrap();
        assert_eq!(names(&other), order);
        assert_ne!(names(&original), order);
        same_plans_and_logits([&original, &other]);
    }
}

fn same_plans_and_logits(models: [&Path; 2]) {
    let plans = models.map(compile);
    let json = plans.each_ref().map(|p| stripped(p));
    assert_eq!(json[0], json[1]);
    // Every byte, layout and the order of keys included.
    let files: [(&str, &[&str]); 4] = [
        ("plan.json", &["\"path\": ", "_hash\": ", "\"offset\": "]),
        ("graph.glir", &["\" part 0 at "]),
        ("tokenizer.json", &[]),
        ("chat_template.jinja", &[]),
    ];
    for (file, fields) in files {
        let text = plans.each_ref().map(|p| blanked(p, file, fields));
        assert!(text[0] == text[1], "{file} differs");
    }

    let mut engines = plans.each_ref().map(|p| engine(p));
    for (name, ids) in prompts() {
        let logits = engines.each_mut().map(|e| {
            let seq = e.start();
            let mut all = e.feed(seq, &ids, Want::All).unwrap();
            for token in 20..24 {
                all.extend(e.decode(&[(seq, token)]).unwrap());
            }
            e.end(seq);
            assert!(all.iter().all(|x| x.is_finite()));
            all.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert!(logits[0] == logits[1], "{name}: the logits differ");
    }
}

#[test]
fn compiling_twice_gives_equal_bytes() {
    let model = fixture("models/tiny-UD-Q4_K_XL-00001-of-00003.gguf");
    let plans = [compile(&model), compile(&model)];
    let mut files = 0;
    for entry in std::fs::read_dir(&plans[0]).unwrap() {
        let name = entry.unwrap().file_name();
        let bytes = plans.each_ref().map(|p| std::fs::read(p.join(&name)).unwrap());
        assert!(bytes[0] == bytes[1], "{name:?} differs");
        files += 1;
    }
    // The plan, its graph, target, decisions, tokenizer and template, and their manifest.
    assert_eq!(files, 7);
}
