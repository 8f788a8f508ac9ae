//! Sharded modules in text on every mesh of 1, 2, 4 and 8 ranks, and their mutants: whatever changes what the ranks
//! compute is refused by the verifier.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "support/placed.rs"]
mod placed;
#[path = "support/random.rs"]
mod random;
#[path = "support/sharded.rs"]
mod sharded;
#[path = "support/values.rs"]
mod values;

use std::collections::{BTreeMap, BTreeSet};

use glmc_ir::entities::FuncId;
use glmc_ir::graph::Module;
use glmc_ir::interp::Arith;
use glmc_ir::interp::ranks::RankInterp;
use glmc_ir::mutate::{ShardedMutant, mutate_sharded};
use glmc_ir::placement::Mesh;
use glmc_ir::tensor::Tensor;
use glmc_ir::text::{parse_module, parse_module_unchecked, print_module, print_with_errors};
use glmc_ir::ty::SymValues;
use glmc_ir::verify::verify_module;
use placed::place;
use random::{Choices, module};
use sharded::{check, meshes, on_mesh, whole};
use values::{Floats, Rng, Weights, differ};

const SEEDS: u64 = 40;

/// The right modules of `tests/glir/sharded`, by name.
fn modules() -> Vec<(String, Module)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/glir/sharded");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let text = |p: &std::path::PathBuf| std::fs::read_to_string(p).unwrap();
    let right = files.iter().filter(|p| p.extension().is_some_and(|e| e == "glir") && text(p).contains("; verify: ok"));
    let named = |p: &std::path::PathBuf| {
        let m = parse_module(&text(p)).unwrap_or_else(|d| panic!("{}: {d}", p.display()));
        (p.file_stem().unwrap().to_string_lossy().into_owned(), m)
    };
    right.map(named).collect()
}

#[test]
fn text_modules_give_on_ranks_what_they_give_whole() {
    let mut total = 0;
    for (name, m) in modules() {
        total += check(&m).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    println!("{total} comparisons");
    assert!(total > 300, "{total}");
}

/// How the ranks of an unverified mutant part from the right module's whole results, if they do.
enum Seen {
    /// They run it and give other numbers, or read poison.
    Numbers,
    /// They cannot run it.
    Failure(String),
    /// They give the same.
    Nothing,
}

type Answers = Vec<(FuncId, SymValues, Vec<Tensor>, Vec<Tensor>)>;

/// What a right module gives whole, on some operands of each function.
fn answers(m: &Module) -> Answers {
    let of =
        |id| (0..6).filter_map(move |seed| whole(m, id, seed)).map(move |(syms, args, want)| (id, syms, args, want));
    m.funcs.keys().flat_map(of).collect()
}

fn seen(right: &Answers, mutant: &Module) -> Seen {
    let mut failed = None;
    let weights = Weights(mutant, Floats::Real);
    for (id, syms, args, want) in right {
        let mut ranks = RankInterp::new(mutant, Arith::Real, syms.clone(), &weights).unverified();
        match ranks.run(*id, args.clone()) {
            Ok(got) if differ(&got, want, 1e-9).is_some() => return Seen::Numbers,
            Ok(_) => {}
            // A choice refuses NaN, and what holds a part refuses to be read beyond its end.
            Err(e) if ["poison", "NaN"].iter().any(|w| e.to_string().contains(w)) => return Seen::Numbers,
            Err(e) => failed = Some(e.to_string()),
        }
    }
    failed.map_or(Seen::Nothing, Seen::Failure)
}

/// Two pools, one split by rows and one by columns, each read twice after its rows of the step are written.
const CACHES: &str = r#"module caches mesh(tp: 2, cp: 2) {
  sym T <= 64
  sym S <= 32
  entry @step(%a: state f32[16/cp, 8], %b: state f32[16, 8/tp], %row: i32[T], %x: f32[T, 8], %y: f32[T, 8/tp], %table: i32[2, S], %again: i32[3, S]) -> (u: f32[2, S, 8], v: f32[2, S, 8/tp], u2: f32[3, S, 8], v2: f32[3, S, 8/tp], a: state f32[16/cp, 8], b: state f32[16, 8/tp]) {
    %a2 = append %a, %row, %x : state f32[16/cp, 8]
    %b2 = append %b, %row, %y : state f32[16, 8/tp]
    %p = gather %a2, %table : f32[2, S, 8] +cp
    %u = all_reduce %p {axis: "cp"} : f32[2, S, 8]
    %v = gather %b2, %table : f32[2, S, 8/tp]
    %p2 = gather %a2, %again : f32[3, S, 8] +cp
    %u2 = all_reduce %p2 {axis: "cp"} : f32[3, S, 8]
    %v2 = gather %b2, %again : f32[3, S, 8/tp]
    return u: %u, v: %v, u2: %u2, v2: %v2, a: %a2, b: %b2
  }
}
"#;

/// What is mutated, with the number of seeds: the text modules as they are and on 8 ranks, and random modules under
/// random placements.
fn bases() -> Vec<(String, Module, Answers, u64)> {
    let mut all = Vec::new();
    let caches = parse_module(CACHES).unwrap_or_else(|d| panic!("{d}"));
    verify_module(&caches).unwrap_or_else(|e| panic!("{e}"));
    for (name, m) in modules().into_iter().chain([("caches".to_owned(), caches)]) {
        for mesh in meshes(&m, 8) {
            all.push((format!("{name} on {mesh:?}"), on_mesh(&m, &mesh).unwrap(), SEEDS / 2));
        }
        all.push((name, m, SEEDS));
    }
    let mut rng = Rng(1);
    let mut draw = |n: usize| (0..n).map(|_| rng.next() as u32).collect::<Vec<u32>>();
    for i in 0..30 {
        let m = module(&mut Choices::new(&draw(400)));
        let mesh: Mesh = [("ep", 2), ("tp", 2 + i % 3)].into_iter().map(|(a, n)| (a.into(), n)).collect();
        let placed = place(&m, &mesh, &mut Choices::new(&draw(400)));
        if verify_module(&placed).is_ok() {
            all.push((format!("random module {i}"), placed, 8));
        }
    }
    let answered = |(name, m, seeds): (String, Module, u64)| {
        let right = answers(&m);
        match seen(&right, &m) {
            Seen::Nothing => {}
            Seen::Numbers => panic!("{name}: unverified ranks change what is right:\n{}", print_module(&m)),
            Seen::Failure(e) => panic!("{name}: unverified ranks cannot run what is right: {e}\n{}", print_module(&m)),
        }
        (name, m, right, seeds)
    };
    all.into_iter().map(answered).collect()
}

#[test]
fn every_mutant_that_the_ranks_show_is_refused() {
    let (mut table, mut all) = (String::new(), (0, 0, 0));
    let bases = bases();
    for class in ShardedMutant::ALL {
        let mut codes = BTreeMap::<&str, u32>::new();
        let (mut numbers, mut failures, mut equal) = (0, 0, 0);
        for (name, m, right, seeds) in &bases {
            let mut tried = BTreeSet::new();
            for seed in 0..*seeds {
                let Some(mutant) = mutate_sharded(m, class, seed) else { continue };
                let verdict = verify_module(&mutant);
                if !tried.insert(print_module(&mutant)) {
                    continue;
                }
                let saw = seen(right, &mutant);
                if matches!(saw, Seen::Nothing) {
                    equal += 1;
                    continue;
                }
                let Err(found) = verdict else {
                    let (before, after) = (print_module(m), print_module(&mutant));
                    let mut changed = before.lines().zip(after.lines()).filter(|(a, b)| a != b).map(|(_, b)| b.trim());
                    // A function that nothing calls takes or gives another type and agrees with itself: another
                    // module, not a wrong one.
                    if changed.any(|line| line.starts_with("entry ") || line.starts_with("func ")) {
                        continue;
                    }
                    panic!("{class:?} seed {seed} of {name} is accepted:\n{after}");
                };
                match saw {
                    Seen::Numbers => numbers += 1,
                    _ => failures += 1,
                }
                for code in found.0.iter().map(|d| d.code).collect::<BTreeSet<_>>() {
                    *codes.entry(code).or_default() += 1;
                }
            }
        }
        assert!(numbers >= 12, "{class:?}: only {numbers} mutants count, {failures} fail");
        let codes: Vec<String> = codes.iter().map(|(c, n)| format!("{c} {n}")).collect();
        table += &format!("{class:?}: {numbers} give other numbers, {failures} fail, {equal} are equal\n");
        table += &format!("  refused by {}\n", codes.join(", "));
        all = (all.0 + numbers, all.1 + failures, all.2 + equal);
    }
    table += &format!("all: {} give other numbers, {} fail, {} are equal\n", all.0, all.1, all.2);
    insta::assert_snapshot!(table);
}

#[test]
fn the_mutator_is_a_function_of_its_seed() {
    let (_, m) = &modules()[0];
    for class in ShardedMutant::ALL {
        assert_eq!(mutate_sharded(m, class, 5), mutate_sharded(m, class, 5));
    }
}

/// The module's errors; fails unless the unverified ranks show that it is wrong too.
fn refused(right: &str, wrong: &str) -> String {
    let good = parse_module(right).unwrap();
    verify_module(&good).unwrap();
    check(&good).unwrap();
    let bad = parse_module_unchecked(wrong).unwrap();
    assert!(!matches!(seen(&answers(&good), &bad), Seen::Nothing), "the ranks do not show it");
    print_with_errors(&bad, &verify_module(&bad).unwrap_err().0)
}

/// The merged attention output is written, and the projection's consumer reads another value of its type.
#[test]
fn seed_bug_disconnected_output() {
    let right = r#"module layer mesh(tp: 8) {
  sym T <= 64
  func @layer(%x: f32[T, 16], %q: f32[T, 8/tp, 4], %k: f32[1, 7, 4], %w: f32[16, 32/tp], %seq: i32[T], %len: i32[T]) -> (y: f32[T, 16]) {
    %o = attention %q, %k, %k, %seq, %len {parts: 1, scale: 0.5, selected: false} : f32[T, 8/tp, 4]
    %flat = reshape %o {dims: ["T", "32"]} : f32[T, 32/tp]
    %p = matmul %flat, %w {spec: "tk,nk->tn"} : f32[T, 16] +tp
    %m = all_reduce %p {axis: "tp"} : f32[T, 16]
    %y = add %x, %m : f32[T, 16]
    return y: %y
  }
}
"#;
    insta::assert_snapshot!(refused(right, &right.replace("add %x, %m", "add %x, %x")));
}

/// A fused gate|up weight is cut across its seam: the first ranks hold gates, the last ones ups, each takes its part for
/// both.
#[test]
fn seed_bug_shard_order() {
    let right = r#"module mlp mesh(tp: 8) {
  sym T <= 64
  func @mlp(%x: f32[T, 4], %w: f32[{gate: 16, up: 16}/tp, 4], %down: f32[4, 16/tp]) -> (y: f32[T, 4]) {
    %gu = matmul %x, %w {spec: "tk,nk->tn"} : f32[T, {gate: 16, up: 16}/tp]
    %g = piece %gu {name: "gate", of: [["gate", 16], ["up", 16]]} : f32[T, 16/tp]
    %u = piece %gu {name: "up", of: [["gate", 16], ["up", 16]]} : f32[T, 16/tp]
    %a = silu %g : f32[T, 16/tp]
    %h = mul %a, %u : f32[T, 16/tp]
    %p = matmul %h, %down {spec: "tk,nk->tn"} : f32[T, 4] +tp
    %y = all_reduce %p {axis: "tp"} : f32[T, 4]
    return y: %y
  }
}
"#;
    // The weight is declared without its pieces, and its product read as if it had them.
    let wrong = right
        .replace("%w: f32[{gate: 16, up: 16}/tp, 4]", "%w: f32[32/tp, 4]")
        .replace("%gu = matmul %x, %w {spec: \"tk,nk->tn\"} : f32[T, {gate: 16, up: 16}/tp]", "%flat = matmul %x, %w {spec: \"tk,nk->tn\"} : f32[T, 32/tp]\n    %gu = reshape %flat {dims: [\"T\", \"{gate: 16, up: 16}\"]} : f32[T, {gate: 16, up: 16}/tp]");
    insta::assert_snapshot!(refused(right, &wrong));
    // Placed on one rank, the same words mean the same.
    let one = on_mesh(&parse_module_unchecked(right).unwrap(), &[("tp".into(), 1)].into_iter().collect()).unwrap();
    verify_module(&one).unwrap();
}
