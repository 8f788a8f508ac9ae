//! `glmc synth` and `glmc bench PLAN` on the processor.

use serde_json::Value;

use super::support::{glmc, s, tiny_plan};

fn check(v: &Value, tokens: u64) {
    let f = |p: &str| v.pointer(p).and_then(Value::as_f64).unwrap_or_else(|| panic!("{p} in {v}"));
    assert!(f("/machine/read_bytes_per_s") > 1e8, "{v}");
    assert!(f("/prefill/tps") > 0.0 && f("/decode/tps") > 0.0 && f("/decode/seconds") > 0.0, "{v}");
    assert_eq!((f("/decode/steps"), f("/decode/different_tokens")), (64.0, 64.0 * tokens as f64));
    // The parts are those of the step.
    let parts = v.pointer("/decode/classes/parts").and_then(Value::as_object).unwrap();
    let sum: f64 = parts.values().map(|p| p["seconds"].as_f64().unwrap()).sum();
    assert!((sum / f("/decode/seconds") - 1.0).abs() < 1e-9, "{sum} of {v}");
    assert!((f("/decode/classes/accounted") - 1.0).abs() < 1e-9, "{v}");
    assert!(f("/decode/classes/parts/weights/launches") > 0.0, "{v}");
    assert!(f("/decode/classes/parts/small ops/launches") > 20.0, "{v}");
    // Tokens of a batch may choose the same experts; the plan counts on the most.
    let least = if tokens > 1 { 0.8 } else { 0.999_999 };
    assert!((least..1.000_001).contains(&f("/touched/ratio")), "{v}");
    assert!(f("/touched/experts_of_a_launch") >= 4.0, "{v}");
    assert!(f("/limit/share") > 0.0 && f("/limit/share") < 1.5, "{v}");
}

#[test]
fn a_plan_is_measured_by_class_and_traced() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let trace = dir.path().join("trace.json");
    let ran =
        glmc(&["bench", s(&plan), "--device", "cpu", "--ctx", "100", "--prompt", "64", "--trace", s(&trace), "--json"]);
    let v = ran.ok().json();
    check(&v, 1);
    assert_eq!(
        (&v["context"], &v["batch"], &v["rank"], &v["synthetic"]),
        (&100.into(), &1.into(), &Value::Null, &false.into())
    );
    let events: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let all = events["traceEvents"].as_array().unwrap();
    let spans: Vec<&Value> = all.iter().filter(|e| e["ph"] == "X").collect();
    assert!(spans.len() > 30, "{events}");
    let mut end = 0.0;
    for e in spans {
        let (ts, dur) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        assert!(ts >= end - 1e-3 && dur >= 0.0, "{e}");
        end = ts + dur;
    }
    // An older trace is replaced, anything else is not.
    std::fs::write(&trace, "mine").unwrap();
    let ran = glmc(&["bench", s(&plan), "--device", "cpu", "--trace", s(&trace)]);
    assert_eq!(ran.code(), 2, "{}", ran.error_line());
}

#[test]
fn a_hollow_model_is_measured_whole_and_by_its_first_layers() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.gguf");
    let said = glmc(&["synth", "-o", s(&model), "--preset", "tiny", "--layers", "4", "--hollow", "--json"]).ok().json();
    assert_eq!((&said["layers"], &said["hollow"]), (&4.into(), &true.into()));
    let plan = dir.path().join("plan");
    let to = ["--target", "8x-cpu", "--ctx", "600", "--max-batch", "2", "--cache", "1200"];
    glmc(&[&["compile", s(&model), "-o", s(&plan)], &to[..]].concat()).ok();
    let base = ["bench", s(&plan), "--device", "cpu", "--synthetic", "--json", "--prompt", "64"];
    let v = glmc(&[&base[..], &["--batch", "2", "--ctx", "30"]].concat()).ok().json();
    check(&v, 2);
    assert_eq!((&v["layers"], &v["ranks"]), (&4.into(), &8.into()));
    assert!(v.pointer("/decode/classes/parts/collectives/launches").unwrap().as_u64() > Some(0), "{v}");
    let v = glmc(&[&base[..], &["--layers", "2"]].concat()).ok().json();
    assert_eq!((&v["layers"], &v["ranks"]), (&2.into(), &8.into()));
    check(&v, 1);
}

#[test]
fn a_small_context_is_measured_in_fewer_steps() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    for (ctx, seen, steps) in [("40", 20, 10), ("2", 1, 1)] {
        glmc(&["compile", s(&super::support::tiny()), "-o", s(&plan), "--ctx", ctx, "--json"]).ok();
        let v = glmc(&["bench", s(&plan), "--device", "cpu", "--json"]).ok().json();
        assert_eq!((&v["context"], &v["decode"]["steps"]), (&seen.into(), &steps.into()), "{v}");
        assert_eq!(v["decode"]["different_tokens"], steps, "{v}");
        assert!((v["decode"]["classes"]["accounted"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{v}");
    }
    let ran = glmc(&["bench", s(&plan), "--device", "cpu"]).ok();
    assert!(ran.out.contains("1 steps are timed: 64 do not fit"), "{ran:?}");
    glmc(&["compile", s(&super::support::tiny()), "-o", s(&plan), "--ctx", "1", "--json"]).ok();
    let ran = glmc(&["bench", s(&plan), "--device", "cpu"]);
    assert!(ran.code() == 2 && ran.error_line().contains("2 positions are needed"), "{ran:?}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let refused = |args: &[&str], word: &str| {
        let ran = glmc(&[&["bench", s(&plan), "--device", "cpu"], args].concat());
        assert!(ran.code() == 2 && ran.error_line().contains(word), "{args:?}: {}", ran.error_line());
    };
    refused(&["--rank", "0"], "--rank is for GPUs");
    refused(&["--nvrtc", "/lib"], "--nvrtc is for GPUs");
    refused(&["--seed", "3"], "--synthetic");
    refused(&["--ctx", "256"], "257 positions are needed of each of 1 sequences, of which each has 256");
    refused(&["--rank", "1"], "no rank 1");
    refused(&["--ctx", "1000000"], "1000001 positions");
    refused(&["--batch", "1000"], "2 positions are needed of each of 1000 sequences, of which each has 0");
    for (flag, value) in [("--batch", "2"), ("--ctx", "9"), ("--prompt", "9"), ("--target", "cpu")] {
        let ran = glmc(&["bench", "--kernels", flag, value]);
        assert!(ran.code() == 2 && ran.error_line().contains(flag), "{flag}: {}", ran.error_line());
    }
    refused(&["--layers", "2"], "--synthetic");
    refused(&["--candidates"], "--candidates");
    let out = dir.path().join("m.gguf");
    for args in
        [&["--dims", "wide=3"][..], &["--dims", "width=250"], &["--mix", "q9"], &["--preset", "x"], &["--layers", "0"]]
    {
        let ran = glmc(&[&["synth", "-o", s(&out), "--preset", "tiny"], args].concat());
        let fine = args == ["--dims", "width=250"];
        assert!(ran.code() == if fine { 0 } else { 2 }, "{args:?}: {}", ran.error_line());
        assert!(fine || !out.exists(), "{args:?} left a file");
        let _ = std::fs::remove_file(&out);
    }
    std::fs::write(&out, "mine").unwrap();
    let ran = glmc(&["synth", "-o", s(&out), "--preset", "tiny"]);
    assert!(ran.code() == 2 && std::fs::read(&out).unwrap() == b"mine", "{}", ran.error_line());
}
