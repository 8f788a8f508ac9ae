//! Translation validation as `compile --check` does it: the shipped pipeline passes, a wrong pass and a wrong rule do not.

use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::{Model, open};
use glmc_ir::diag::Diagnostic;
use glmc_ir::graph::{InstKind, Module};
use glmc_ir::op::Op;
use glmc_passes::canonicalise::Canonicalise;
use glmc_passes::cost::TUNE_CTX;
use glmc_passes::egraph::Saturator;
use glmc_passes::egraph::cost::Machine;
use glmc_passes::egraph::rules::{Rule, What, all};
use glmc_passes::pass::{Pass, PassCx};
use glmc_passes::pipeline;
use glmc_passes::schedule::EntryInfo;
use glmc_passes::target::Target;
use glmc_passes::validate::{Checked, check, shrink, with_passes};

fn lifted(file: &str) -> (Module, Vec<EntryInfo>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(file);
    let set = open(&path).unwrap_or_else(|e| panic!("{}", e.line()));
    let model = Model::load(&set).unwrap_or_else(|e| panic!("{}", e.line()));
    let options = LiftOptions { ctx: 4096, max_batch: 2, cache_rows: 4096, chunk: 512 };
    let lifted = model.lift(&options).unwrap();
    let entry =
        |e: &glmc_frontend_gguf::arch::Entry| EntryInfo { func: e.func.clone(), kind: e.kind, tokens: e.tokens };
    let entries = lifted.entries.iter().map(entry).collect();
    (lifted.module, entries)
}

fn machine(target: &str, ranks: u32) -> Machine {
    let mut t = Target::named(target).unwrap();
    t.ranks = ranks;
    Machine::new(&t, TUNE_CTX)
}

#[test]
fn every_pass_of_the_shipped_models_is_right() {
    for (file, target, ranks) in [
        ("tiny-Q4_K_M.gguf", "cpu", 1),
        ("tiny-UD-Q4_K_XL-00001-of-00003.gguf", "cpu", 1),
        ("tiny-Q4_K_M.gguf", "8x-cpu", 8),
        ("tiny-Q4_K_M.gguf", "8x-cpu", 2),
    ] {
        let (m, entries) = lifted(file);
        let on = machine(target, ranks);
        let checked = check(&m, &entries, &on, None).unwrap_or_else(|e| panic!("{file} on {ranks} of {target}: {e}"));
        let names: Vec<&str> = checked.iter().map(|c| c.pass.as_str()).collect();
        let passes = ["canonicalise", "rotate", "specialise", "saturate", "prune", "shard", "schedule"];
        assert_eq!(names, passes);
        let all = |c: &Checked| c.functions + c.unchanged;
        assert!(checked.iter().all(|c| all(c) >= 3 && c.comparisons == 2 * c.functions), "{checked:?}");
        // Beside the functions themselves the variants of both decode entries and of prefill.
        assert_eq!(all(&checked[2]), all(&checked[0]) + 3);
        // What is rewritten, and what is placed and scheduled, is run; nothing is left as it was then.
        let run = |c: &Checked| c.functions >= 3 && c.unchanged == 0;
        assert!(run(&checked[3]) && (ranks == 1 || run(&checked[5])) && run(&checked[6]), "{checked:?}");
        // The stand-in takes the rewrites of the module itself.
        let done = pipeline::run(m, &entries, &on, None, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
        let mut rewritten = 0;
        for s in &done.saturated {
            let made: Vec<(String, usize)> = s.best[0].rules.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect();
            let own: Vec<(String, usize)> = checked[3].rules[&s.name].iter().map(|(r, n)| (r.clone(), *n)).collect();
            assert_eq!(own, made, "{file} on {ranks} of {target}: @{}", s.name);
            rewritten += made.len();
        }
        assert!(rewritten > 20, "{rewritten} rules in all functions");
        let worst = checked.iter().map(|c| c.worst).fold(0.0, f64::max);
        println!("{file} on {ranks} of {target}: {} functions, off by {worst:.0e} at most", checked[0].functions);
    }
}

#[test]
fn a_stand_in_keeps_kinds_and_types() {
    let (m, _) = lifted("tiny-UD-Q4_K_XL-00001-of-00003.gguf");
    let (small, sizes) = shrink::shrink(&m).unwrap();
    glmc_ir::verify::verify_module(&small).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(small.funcs.len(), m.funcs.len());
    for (a, b) in m.funcs.values().zip(small.funcs.values()).filter(|(f, _)| !f.entry) {
        let ops = |f: &glmc_ir::graph::Function| -> Vec<&str> {
            let name = |i: &glmc_ir::entities::Inst| match &f.insts[*i].kind {
                InstKind::Op(op) => op.name(),
                InstKind::Call { .. } => "call",
            };
            f.body.iter().map(name).collect()
        };
        assert_eq!(ops(a), ops(b), "@{}", a.name);
        let elems = |f: &glmc_ir::graph::Function| f.params.iter().map(|p| f.ty(*p).elem).collect::<Vec<_>>();
        assert_eq!(elems(a), elems(b), "@{}", a.name);
    }
    let bytes = |m: &Module| m.weights.values().map(|w| w.span.bytes).sum::<u64>();
    assert!(bytes(&small) <= bytes(&m), "{} and {}", bytes(&small), bytes(&m));
    assert!(sizes.0.iter().all(|(full, small)| small <= full), "{sizes:?}");
}

/// A pass that is wrong in one way: products of two values of one type become sums. Both are still read, so that only
/// numbers can tell.
struct WrongProduct;

impl Pass for WrongProduct {
    fn name(&self) -> &'static str {
        "wrong-product"
    }

    fn why(&self) -> &'static str {
        "to be caught"
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn run(&self, m: &Module, _: &mut PassCx) -> Result<Module, Diagnostic> {
        let mut out = m.clone();
        for f in out.funcs.values_mut() {
            for i in f.body.clone() {
                if let InstKind::Op(Op::Mul(_)) = f.insts[i].kind
                    && f.ty(f.insts[i].args[0]) == f.ty(f.insts[i].args[1])
                {
                    f.insts[i].kind = InstKind::Op(glmc_ir::ops::Add {}.into());
                }
            }
        }
        Ok(out)
    }
}

/// A pass that is wrong in what scores alone depend on: a token that sees nothing but itself cannot tell.
struct WrongScores;

impl Pass for WrongScores {
    fn name(&self) -> &'static str {
        "wrong-scores"
    }

    fn why(&self) -> &'static str {
        "to be caught"
    }

    fn idempotent(&self) -> bool {
        false
    }

    fn run(&self, m: &Module, _: &mut PassCx) -> Result<Module, Diagnostic> {
        let mut out = m.clone();
        for f in out.funcs.values_mut() {
            for i in f.body.clone() {
                if let InstKind::Op(Op::Attention(a)) = &mut f.insts[i].kind {
                    a.scale *= 1.5;
                }
            }
        }
        Ok(out)
    }
}

/// Saturation with one more rule, which neither types nor the verifier can tell from a right one: a rotation is its
/// operand. Positions are still read by the fused rows of the cache, so that only numbers can tell.
struct WrongRule(Machine);

impl Pass for WrongRule {
    fn name(&self) -> &'static str {
        "wrong-rule"
    }

    fn why(&self) -> &'static str {
        "to be caught"
    }

    fn idempotent(&self) -> bool {
        false
    }

    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic> {
        let mut rules = all();
        rules.push(Rule {
            name: "rope-is-nothing",
            why: "to be caught",
            what: What::Rewrite { left: "(rope@r ?x ?pos)", right: "?x", binds: &[], when: |_, _| Some(()) },
        });
        let saturator = Saturator::new(&rules)?;
        let mut on = self.0.clone();
        on.syms = on.nominal(m);
        let mut out = m.clone();
        for (id, f) in m.funcs.iter() {
            out.funcs[id] = saturator.function(m, f, &on, 1, &mut || cx.answer())?.best[0].function.clone();
        }
        Ok(out.compacted())
    }
}

#[test]
fn a_wrong_pass_is_caught_and_named() {
    let (m, entries) = lifted("tiny-Q4_K_M.gguf");
    let (small, _) = shrink::shrink(&m).unwrap();
    let wrong: Vec<Box<dyn Pass>> = vec![Box::new(Canonicalise), Box::new(WrongProduct)];
    let e = with_passes(&small, &entries, &wrong, None).expect_err("products became sums");
    assert_eq!(e.pass, "wrong-product", "{e}");
    assert!(e.why.contains("differ by") && m.func_named(&e.function).is_some(), "{e}");
}

#[test]
fn wrong_scores_are_caught_where_one_token_is_decoded() {
    let (m, entries) = lifted("tiny-Q4_K_M.gguf");
    let (mut small, _) = shrink::shrink(&m).unwrap();
    // Only what decodes one token.
    for f in small.funcs.values_mut() {
        f.entry &= f.name == "decode_1";
    }
    let entries: Vec<EntryInfo> = entries.into_iter().filter(|e| e.func == "decode_1").collect();
    let small = glmc_passes::prune::Prune.run(&small, &mut PassCx::default()).unwrap_or_else(|e| panic!("{e}"));
    let wrong: Vec<Box<dyn Pass>> = vec![Box::new(Canonicalise), Box::new(WrongScores)];
    let e = with_passes(&small, &entries, &wrong, None).expect_err("scores were changed");
    assert!(e.pass == "wrong-scores" && e.why.contains("differ by"), "{e}");
    assert!(e.function.starts_with("decode_1"), "{e}");
}

#[test]
fn a_wrong_rule_is_caught_in_the_model_it_changes() {
    let (m, entries) = lifted("tiny-Q4_K_M.gguf");
    let (small, sizes) = shrink::shrink(&m).unwrap();
    let on = machine("cpu", 1).standing_for(sizes.inverse(), &m);
    let wrong: Vec<Box<dyn Pass>> = vec![Box::new(Canonicalise), Box::new(WrongRule(on))];
    match with_passes(&small, &entries, &wrong, None) {
        Err(e) => assert!(e.pass == "wrong-rule" && e.why.contains("differ by"), "{e}"),
        Ok(c) => panic!("nothing was found: {c:?}"),
    }
}
