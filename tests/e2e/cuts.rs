//! Each way to cut a weight over ranks, asked for by its name: the plan has it, and the ranks give the goldens. What cannot
//! be had is refused with tensor, type and reason.

use std::path::{Path, PathBuf};
use std::process::Command;

use glmc_ir::placement::local_type;
use glmc_ir::plan::{Plan, Recipe};
use glmc_ir::ty::SymValues;

use super::ranks::{Links, goes_on_counting, golden_logits, target};
use super::support::{engine, fixture, glmc, scratch};

const MODELS: [(&str, &str); 2] =
    [("Q4_K_M", "models/tiny-Q4_K_M.gguf"), ("UD-Q4_K_XL", "models/tiny-UD-Q4_K_XL-00001-of-00003.gguf")];

fn arguments(model: &str, ranks: u32, force: &[&str], plan: &Path) -> Vec<String> {
    let (model, target) = (fixture(model), target(ranks, Links::Shipped));
    let [model, plan, target] = [&model, plan, &target].map(|p| p.to_str().unwrap().to_owned());
    let args = ["compile".into(), model, "-o".into(), plan, "--target".into(), target, "--ctx".into(), "1024".into()];
    args.into_iter().chain(force.iter().flat_map(|f| ["--force".to_owned(), (*f).to_owned()])).collect()
}

fn compiled(model: &str, ranks: u32, force: &[&str]) -> PathBuf {
    let plan = scratch().join(format!("cut-{ranks}-{}", force.join("-").replace([':', '='], "_")));
    let args = arguments(model, ranks, force, &plan);
    glmc(&args.iter().map(String::as_str).collect::<Vec<_>>());
    plan
}

/// What `compile` says instead of making a plan.
fn refused(model: &str, ranks: u32, force: &[&str]) -> String {
    let plan = scratch().join("refused");
    let out = Command::new(env!("CARGO_BIN_EXE_glmc")).args(arguments(model, ranks, force, &plan)).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(!plan.exists(), "a plan was written");
    said
}

/// Elements that each rank holds.
fn held(plan: &Plan, w: &Recipe) -> Vec<u64> {
    let none = SymValues::default();
    let part = |r| local_type(&w.ty, &plan.mesh, r, &none).unwrap().elems(&none).unwrap();
    (0..u64::from(plan.target.ranks)).map(part).collect()
}

fn inside_a_block(plan: &Plan, w: &Recipe) -> bool {
    let file = w.ty.elem.in_file();
    let (block, run) = (file.block().0, w.ty.elem.block().0);
    let last = local_type(&w.ty, &plan.mesh, 0, &SymValues::default()).unwrap().dims.pop().unwrap();
    file != w.ty.elem && run < block && !last.extent.as_const().unwrap().is_multiple_of(block)
}

fn unequal(plan: &Plan, w: &Recipe) -> bool {
    let held = held(plan, w);
    w.ty.elem == w.ty.elem.in_file() && held.iter().any(|n| *n != held[0])
}

fn copied(plan: &Plan, w: &Recipe) -> bool {
    let whole = w.ty.elems(&SymValues::default()).unwrap();
    held(plan, w).iter().all(|n| *n == whole)
}

/// Compiles with `force`, checks that `shows` of the weights are cut so, runs it, compares with the goldens.
fn gives_the_goldens(ranks: u32, force: &str, shows: fn(&Plan, &Recipe) -> bool, all: bool) {
    for (golden, model) in MODELS {
        let what = format!("{golden} on {ranks} ranks, {force}");
        let dir = compiled(model, ranks, &[force]);
        let mut many = engine(&dir);
        let plan = many.plan();
        let named = plan.weights.values().filter(|w| shows(plan, w)).map(|w| w.name.clone());
        let cut: Vec<String> = named.collect();
        let (n, of) = (cut.len(), plan.weights.len());
        assert!(n > 0 && (!all || n == of), "{what}: {n} of {of} weights");
        let apart = golden_logits(&mut many, golden, &what);
        goes_on_counting(&dir, golden, &what);
        println!("{what}: {n} of {of} weights, the first {}; off by {apart:.1e}", cut[0]);
    }
}

#[test]
fn cut_at_sub_blocks() {
    // Rows of one block of 256: 8 ranks hold one sub-block of 32 each, 3 ranks 3, 3 and 2 of them.
    gives_the_goldens(8, "cut=sub-block", inside_a_block, false);
    gives_the_goldens(3, "cut=sub-block", inside_a_block, false);
}

/// One weight by the name of its decision, of a type with sub-blocks of its own kind.
#[test]
fn one_weight_cut_at_sub_blocks() {
    let (golden, model) = MODELS[0];
    let dir = compiled(model, 8, &["cut=replicate", "cut:decode_1.moe_full.2.w.ffn_down_exps=sub-block"]);
    let mut many = engine(&dir);
    let plan = many.plan();
    let split = plan.weights.values().filter(|w| !copied(plan, w));
    let split: Vec<String> = split.map(|w| format!("{} {}", w.tensor, w.ty)).collect();
    assert_eq!(split, ["blk.2.ffn_down_exps.weight q6_K_sub[16, 256, 256/tp] rows"]);
    golden_logits(&mut many, golden, "one weight");
}

#[test]
fn cut_into_parts_that_differ() {
    gives_the_goldens(3, "cut=uneven", unequal, false);
}

#[test]
fn replicated() {
    gives_the_goldens(2, "cut=replicate", copied, true);
}

#[test]
fn refused_with_tensor_type_and_reason() {
    let (_, model) = MODELS[0];
    let said = refused(model, 3, &["cut=refuse"]);
    let parts = ["error[usage/cut-refused]", ".weight, ", "cannot be cut over 3 ranks as `refuse`: ", "blocks of 256"];
    for part in parts {
        assert!(said.contains(part), "{said}");
    }
    // A type without a form that keeps sub-blocks apart, by the name of one decision.
    let said = refused(model, 8, &["cut:decode_1.dense_full.w.attn_k_b=sub-block"]);
    for part in ["cut-refused", "attn_k_b.weight, q5_0[8, 256, 96]", "as `sub-block`: no form of q5_0 keeps sub-blocks"]
    {
        assert!(said.contains(part), "{said}");
    }
    let said = refused(model, 8, &["cut=sideways"]);
    assert!(said.contains("usage/no-candidate") && said.contains("equal, sub-block, uneven"), "{said}");
    let said = refused(model, 8, &["cut:nowhere.w=equal"]);
    assert!(said.contains("usage/no-decision") && said.contains("cut:nowhere.w=equal"), "{said}");
}
