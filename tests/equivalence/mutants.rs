//! Mutants of the plan of a shipped model: what changes its numbers is refused by the verifier.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;
use glmc_ir::interp::Arith;
use glmc_ir::mutate::{MutantClass, mutate};
use glmc_ir::plan::Plan;
use glmc_ir::verify::plan::verify_plan;

use super::compile::compile;
use super::script::{interpret, interpret_unverified};
use crate::run::Files;

/// Mutants that are counted for each class, and seeds that are tried for them.
const WANTED: usize = 4;
const SEEDS: u64 = 96;

/// Whether a run without the verifier shows the bug: other numbers, or poison.
fn counts(mutant: &Plan, files: &Files, right: &[f64]) -> bool {
    match interpret_unverified(mutant, files, None) {
        Ok(v) => {
            let far = |(a, b): (&f64, &f64)| a.is_nan() || (a - b).abs() > 1e-9 * (1.0 + b.abs());
            v.len() != right.len() || v.iter().zip(right).any(far)
        }
        // Rows of a pool that no append wrote are NaN, which a choice refuses.
        Err(e) => ["poison", "NaN"].iter().any(|w| e.to_string().contains(w)),
    }
}

/// One line of the kill table, the number of counted mutants, and those that live.
fn class(plan: &Plan, files: &Files, right: &[f64], class: MutantClass) -> (String, usize, Vec<String>) {
    let (mut seen, mut codes) = (BTreeSet::new(), BTreeMap::<&str, usize>::new());
    let (mut counted, mut survivors) = (0, Vec::new());
    for seed in 0..SEEDS {
        if counted == WANTED {
            break;
        }
        let Some(mutant) = mutate(plan, class, seed) else { continue };
        if !seen.insert(serde_json::to_string(&mutant).expect("plans serialise")) || !counts(&mutant, files, right) {
            continue;
        }
        counted += 1;
        match verify_plan(&mutant) {
            Ok(()) => survivors.push(format!("{class:?} seed {seed}")),
            Err(found) => {
                for code in found.0.iter().map(|d| d.code).collect::<BTreeSet<_>>() {
                    *codes.entry(code).or_default() += 1;
                }
            }
        }
    }
    let codes: Vec<String> = codes.iter().map(|(c, n)| format!("{c} {n}")).collect();
    let refused = counted - survivors.len();
    (format!("{class:?}: {refused} of {counted} refused: {}\n", codes.join(", ")), counted, survivors)
}

#[test]
fn every_mutant_of_a_shipped_models_plan_that_counts_is_refused() {
    // The run sees up to 6 positions: with this indexer some steps have phases for short contexts, one has not.
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-Q4_K_M.gguf");
    let set = open(&shipped).unwrap_or_else(|e| panic!("{}", e.line()));
    let mut w = GgufWriter::from_set(&set).unwrap_or_else(|e| panic!("{e}"));
    w.set("glm-dsa.attention.indexer.top_k", 5u32);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("model.gguf");
    w.write(&file).unwrap_or_else(|e| panic!("{e}"));
    let options = LiftOptions { ctx: 16, max_batch: 1, cache_rows: 16, chunk: 4 };
    let c = compile(&file, &options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(c.plan.phases.iter().map(|p| p.visible()).collect::<Vec<_>>(), [16, 16, 5, 5].map(Some));
    let right = interpret(&c.plan, Arith::Real, &c.files).unwrap_or_else(|e| panic!("{e}"));
    assert!(right.iter().all(|x| x.is_finite()) && right.iter().any(|x| x.abs() > 1.0));
    let (mut table, mut total, mut survivors) = (String::new(), 0, Vec::new());
    for k in MutantClass::ALL.into_iter().filter(|k| !MutantClass::ON_RANKS.contains(k)) {
        let (line, counted, lived) = class(&c.plan, &c.files, &right, k);
        assert!(counted > 0, "no mutant of {k:?} counts");
        table += &line;
        total += counted;
        survivors.extend(lived);
    }
    table += &format!("all: {total}, survivors: {}\n", survivors.len());
    print!("{table}");
    assert_eq!(survivors, [""; 0]);
    assert!(total >= 40, "only {total} mutants count");
    insta::assert_snapshot!(table);
}
