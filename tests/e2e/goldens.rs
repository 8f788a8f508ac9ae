//! The CPU device against HF transformers in float32 on the same file's weights: logits, forced arg-max, text,
//! perplexity, for every model and prompt.

use glmc_runtime::engine::{Engine, Want};

use super::models::models;
use super::support::{arg_max, engine, fixture, glmc, golden_json, golden_npy, prompts};

/// Largest difference of a logit.
const LOGIT: f64 = 1e-3;
/// Steps whose two best logits are closer than this may choose either.
const GAP: f64 = 0.01;
/// Forced steps of each prompt.
const STEPS: usize = 64;

#[test]
fn last_logits_equal_hf() {
    for m in models() {
        let mut e = engine(m.plan());
        let (shape, golden) = golden_npy(&format!("logits-{}.npy", m.golden));
        assert_eq!(shape, [12, 2, 2048]);
        let (mut worst, mut compared) = (0.0f64, 0);
        for (i, (name, ids)) in prompts().iter().enumerate() {
            let logits = last(&mut e, ids);
            let want = &golden[(2 * i + 1) * 2048..(2 * i + 2) * 2048];
            assert_eq!(logits.len(), want.len());
            for (have, want) in logits.iter().zip(want) {
                let d = (f64::from(*have) - want).abs();
                assert!(d <= LOGIT, "{} {name}: a logit is off by {d}", m.golden);
                worst = worst.max(d);
            }
            compared += 1;
        }
        println!("{}: last logits of {compared} prompts, largest difference {worst:.1e}", m.golden);
        assert_eq!(compared, 12, "{}", m.golden);
    }
}

#[test]
fn forced_steps_choose_what_hf_chooses() {
    let forced = golden_json("forced-hf.json");
    for m in models() {
        let Some(hf) = forced.get(&m.golden) else {
            assert!(m.retyped, "forced-hf.json lacks {}", m.golden);
            println!("{}: made here from bf16, HF was not forced on it: skipped in this test only", m.golden);
            continue;
        };
        let generated = golden_json(&format!("gen-{}.json", m.golden));
        let mut e = engine(m.plan());
        let (mut compared, mut thin) = (0, 0);
        for (name, ids) in prompts() {
            let list = |v: &serde_json::Value| serde_json::from_value::<Vec<u32>>(v["ids"].clone()).unwrap();
            let (given, want) = (list(&generated[&name]), list(&hf[&name]));
            let gaps: Vec<f64> = serde_json::from_value(hf[&name]["gap"].clone()).unwrap();
            assert_eq!([given.len(), want.len(), gaps.len()], [STEPS; 3], "{} {name}", m.golden);
            let seq = e.start();
            let mut logits = e.feed(seq, &ids, Want::Last).unwrap();
            for step in 0..STEPS {
                let have = arg_max(&logits);
                assert!(gaps[step] >= 0.0);
                if gaps[step] > GAP {
                    assert_eq!(have, want[step], "{} {name} step {step}, gap {}", m.golden, gaps[step]);
                } else {
                    thin += 1;
                }
                compared += 1;
                logits = e.decode(&[(seq, given[step])]).unwrap();
            }
            e.end(seq);
        }
        println!("{}: {compared} forced steps, {thin} of them with a gap of at most {GAP}", m.golden);
        assert_eq!(compared, 768, "{}", m.golden);
        assert!(thin * 50 <= compared, "{}: {thin} steps were let pass", m.golden);
    }
}

#[test]
fn counting_goes_on_as_in_the_goldens() {
    for m in models() {
        let golden = golden_json(&format!("gen-{}.json", m.golden));
        let want: Vec<u32> = serde_json::from_value(golden["count"]["ids"].clone()).unwrap();
        let out =
            glmc(&["run", m.plan().to_str().unwrap(), "--prompt", "1 2 3 4 5", "-n", "64", "--ignore-eos", "--json"]);
        let out: serde_json::Value = serde_json::from_str(&out).unwrap();
        let have: Vec<u32> = serde_json::from_value(out["tokens"].clone()).unwrap();
        assert_eq!(have, want, "{}", m.golden);
        assert_eq!(have.len(), 64);
        println!("{}: the {} golden ids of `count`", m.golden, have.len());
        assert!(out["text"].as_str().unwrap().starts_with(" 6 7 8 9 10 11 12"), "{out}");
    }
}

#[test]
fn perplexity_equals_hf() {
    let summary = golden_json("summary.json");
    for m in models() {
        let golden = &m.golden;
        let plan = m.plan();
        let of = |file: &str| -> serde_json::Value {
            let file = fixture("models/goldens").join(file);
            let args = ["perplexity", plan.to_str().unwrap(), "-f", file.to_str().unwrap(), "--json"];
            serde_json::from_str(&glmc(&args)).unwrap()
        };
        // The text holds control tokens, and is tokenised as a prompt is.
        let out = of("ppl_ids.json");
        assert_eq!(of("ppl_text.txt"), out, "{golden}");
        let (have, want) = (out["perplexity"].as_f64().unwrap(), summary[golden]["ppl_hf"].as_f64().unwrap());
        println!("{golden}: perplexity {have:.5}, HF {want:.5}");
        assert_eq!(out["tokens"], 8 * 511);
        assert!((have / want - 1.0).abs() < 1e-3, "{golden}: {have} against {want}");
    }
}

fn last(e: &mut Engine, ids: &[u32]) -> Vec<f32> {
    let seq = e.start();
    let logits = e.feed(seq, ids, Want::Last).unwrap();
    e.end(seq);
    assert!(logits.iter().all(|x| x.is_finite()));
    logits
}
