//! The order of tensors in the file never reaches the plan, and compiling twice gives equal bytes.

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;
use glmc_runtime::engine::Want;
use serde_json::Value;

use super::support::{compile, engine, fixture, prompts};

#[test]
fn the_order_of_tensors_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let original = fixture("models/tiny-Q4_K_M.gguf");
    let set = open(&original).unwrap();
    let reversed = dir.path().join("reversed.gguf");
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.reverse_tensors();
    w.write(&reversed).unwrap();
    let names = |p: &std::path::Path| open(p).unwrap().tensors().map(|(_, t)| t.name.clone()).collect::<Vec<_>>();
    let (mut a, b) = (names(&original), names(&reversed));
    assert_ne!(a, b);
    a.reverse();
    assert_eq!(a, b);

    let plans = [compile(&original), compile(&reversed)];
    let stripped = plans.each_ref().map(|p| {
        let mut json: Value = serde_json::from_slice(&std::fs::read(p.join("plan.json")).unwrap()).unwrap();
        let files = json["files"].take();
        assert_eq!(files.as_array().unwrap().len(), 1);
        for w in json["weights"].as_array_mut().unwrap() {
            w["span"]["offset"].take();
            for s in w["slices"].as_array_mut().unwrap().iter_mut().flat_map(|r| r.as_array_mut().unwrap()) {
                s["offset"].take();
            }
        }
        json.to_string()
    });
    assert_eq!(stripped[0], stripped[1]);
    assert_eq!(
        std::fs::read(plans[0].join("tokenizer.json")).unwrap(),
        std::fs::read(plans[1].join("tokenizer.json")).unwrap()
    );

    let mut engines = plans.each_ref().map(|p| engine(p));
    for (name, ids) in prompts() {
        let logits = engines.each_mut().map(|e| {
            let seq = e.start();
            let l = e.feed(seq, &ids, Want::Last).unwrap();
            e.end(seq);
            l.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert_eq!(logits[0], logits[1], "{name}");
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
    assert_eq!(files, 5);
}
