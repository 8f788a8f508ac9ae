//! The layer with experts of a full-size GLM-5 on eight ranks, as it stands after the last module pass: one page that a
//! person can read, and what it must show.

use std::collections::HashMap;

use glmc_ir::graph::{Function, InstKind, Module};
use glmc_ir::op::Op;
use glmc_ir::text::{parse_module, print_function};

use super::hollow::{on_eight_cards, ud_q4_k_xl, write};

/// The most called function of the smallest decode step: the layer that most of the model is.
fn most_called(m: &Module) -> &Function {
    let entry = m.func_named("decode_1").expect("a decode step");
    let mut calls = HashMap::new();
    for i in &m.funcs[entry].body {
        if let InstKind::Call { func, .. } = m.funcs[entry].insts[*i].kind {
            *calls.entry(func).or_insert(0) += 1;
        }
    }
    let (func, times) = calls.into_iter().max_by_key(|(f, n)| (*n, std::cmp::Reverse(*f))).expect("layers");
    println!("@{} is called {times} times", m.funcs[func].name);
    assert!(times > 60, "{times}");
    &m.funcs[func]
}

#[test]
fn the_layer_with_experts_fits_on_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p");
    on_eight_cards(&write(dir.path(), ud_q4_k_xl, false, 1), &plan).ok();
    let m = parse_module(&std::fs::read_to_string(plan.join("graph.glir")).unwrap()).unwrap();
    let f = most_called(&m);
    let text = print_function(&m, f);
    assert!(text.lines().count() <= 60, "{} lines:\n{text}", text.lines().count());
    let ops = |what: fn(&Op) -> bool| {
        let of = |i: &&glmc_ir::entities::Inst| matches!(&f.insts[**i].kind, InstKind::Op(op) if what(op));
        f.body.iter().filter(of).count()
    };
    assert_eq!(ops(|op| matches!(op, Op::Dequant(_))), 0, "every decode is in its consumer:\n{text}");
    assert_eq!(ops(|op| matches!(op, Op::AllReduce(_))), 2, "{text}");
    // Nothing else travels but the parts of the products that share the normed input, joined by one gather.
    assert_eq!(ops(|op| matches!(op, Op::AllGather(_))), 1, "{text}");
    assert_eq!(ops(|op| op.collective().is_some()), 3, "{text}");
    assert!(text.contains("%1 = all_gather %0 "), "{text}");
    // Two sums with the norm after each: that of the experts' input, and that of the next layer's.
    assert_eq!(text.matches("\"add_rms_norm\"").count(), 2, "{text}");
    // What reads the normed input is one product: both latents, the indexer's key and its weights.
    let readers = |name: &str| -> Vec<Vec<String>> {
        let reads =
            |i: &&glmc_ir::entities::Inst| f.insts[**i].args.iter().any(|a| f.values[*a].name.as_deref() == Some(name));
        let names = |i: &glmc_ir::entities::Inst| match &f.insts[*i].kind {
            InstKind::Op(Op::Matmul(p)) => p.names.clone(),
            _ => Vec::new(),
        };
        f.body.iter().filter(reads).map(names).collect()
    };
    assert_eq!(readers("attn_norm"), [["attn_q_a", "attn_kv_a_mqa", "indexer.attn_k", "indexer.proj"]], "{text}");
    for fused in ["grouped_gate_up", "grouped_down", "gate_up"] {
        assert!(text.contains(&format!("\"{fused}\"")), "{fused}:\n{text}");
    }
    assert!(text.contains("%q_nope_absorbed = matmul "), "{text}");
    insta::assert_snapshot!(text);
}
