//! `compile --emit`: the IR at each stage.

use super::support::{glmc, s, tiny};

/// Every stage, in order; the usage error must list them.
const STAGES: [&str; 9] =
    ["lift", "canonicalise", "rotate", "specialise", "saturate", "prune", "shard", "lower", "schedule"];

fn emit(stage: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "64", "--emit", stage]).ok().out
}

#[test]
fn every_stage_is_shown_alone_and_all_in_order() {
    let mut whole = String::new();
    for stage in STAGES {
        let out = emit(&format!("after={stage}"));
        let (head, body) = out.split_once('\n').unwrap();
        assert_eq!(head, format!("; after {stage}"));
        assert!(!body.contains("; after "), "{stage} shows another stage");
        assert!(body.contains("decode_1") && body.contains("prefill"), "{stage} lacks an entry");
        assert!(body.contains("matmul"), "{stage}");
        whole.push_str(&out);
    }
    assert_eq!(emit("all"), whole);
    // Launches read stored weights; the graph decodes them first.
    let of = |stage: &str| emit(&format!("after={stage}"));
    assert!(of("lift").contains("dequant") && !of("lower").contains("dequant"));
    assert!(of("lower").contains("gate_up") && of("schedule").contains("arena"));
}

#[test]
fn an_unknown_stage_is_answered_with_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    for stage in ["after=lunch", "lunch", "lower", "after="] {
        let ran = glmc(&["compile", s(&tiny()), "-o", s(&plan), "--emit", stage]);
        assert_eq!((ran.code(), ran.class()), (2, ("usage".into(), "emit".into())), "{stage}: {ran:?}");
        let line = ran.error_line();
        let at: Vec<usize> = STAGES.iter().map(|s| line.find(&format!("after={s}")).expect(s)).collect();
        assert!(at.is_sorted() && !plan.exists(), "{line}");
    }
}
