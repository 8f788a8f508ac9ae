//! Every rewrite rule alone: on random shapes that meet its condition both sides compute the same, and a wrong rule is
//! caught, by its types or by its numbers.

use std::collections::BTreeMap;

use glmc_ir::graph::{Function, Module};
use glmc_ir::op::Op;
use glmc_ir::text::print_module;
use glmc_ir::ty::TensorType;
use glmc_ir::verify::verify_module;
use glmc_passes::egraph::cost::Cost;
use glmc_passes::egraph::rules::{Rule, What, all};
use glmc_passes::egraph::{Saturated, Saturator};
use glmc_passes::pass::Answer;

use super::rule_cases::{Case, Select, case, not_all};
use crate::run::{Files, Rng, all_differ, random, run_global};

/// Shapes tried for each rule.
const SHAPES: u64 = 200;
const REAL: f64 = 1e-9;

/// Makes what the function held dear, so that the other side of the rule is taken whatever machines think of it.
struct Avoid(Vec<Op>);

impl Cost for Avoid {
    fn op(&self, op: &Op, _: &[&TensorType], _: &[TensorType]) -> f64 {
        if self.0.contains(op) { 1000.0 } else { 1.0 }
    }
}

fn ops(f: &Function) -> Vec<Op> {
    f.insts
        .values()
        .filter_map(|i| match &i.kind {
            glmc_ir::graph::InstKind::Op(op) => Some(op.clone()),
            glmc_ir::graph::InstKind::Call { .. } => None,
        })
        .collect()
}

fn saturated(rule: Rule, m: &Module) -> Result<Saturated, String> {
    let f = m.funcs.values().next().ok_or("no function")?;
    let s = Saturator::new(&[rule]).map_err(|d| d.to_string())?;
    s.function(m, f, &Avoid(ops(f)), 4, &mut || Answer::Yes).map_err(|d| d.to_string())
}

/// Both sides on random operands. Small integers give equal bits where the case says that all is exact.
fn both_sides(rule: Rule, c: &Case, rng: &mut Rng) -> Result<(), String> {
    let text = || print_module(&c.module);
    verify_module(&c.module).map_err(|e| format!("{e}\n{}", text()))?;
    let found = saturated(rule, &c.module)?;
    let best = &found.best[0];
    if best.cost >= found.before {
        return Err(format!("the rule was not taken: {:?}\n{}", best.rules, text()));
    }
    let mut after = c.module.clone();
    let id = after.funcs.keys().next().ok_or("no function")?;
    after.funcs[id] = best.function.clone();
    let after = after.compacted();
    verify_module(&after).map_err(|e| format!("{e}\n{}", print_module(&after)))?;
    let (f, syms, files) = (&c.module.funcs[id], &c.syms, Files(Vec::new()));
    for exact in [false, c.exact] {
        let mut args = Vec::new();
        for p in &f.params {
            let (name, ty) = (f.value_name(*p), f.ty(*p));
            let most = c.most.get(name.as_str()).copied().unwrap_or(0);
            let mut t = random(ty, syms, rng, most);
            if let (true, glmc_ir::tensor::Data::F(v)) = (exact, &mut t.data) {
                v.iter_mut().for_each(|x| *x = (*x * 4.0).round());
            }
            args.push(t);
        }
        let run = |m: &Module| run_global(m, &f.name, &files, syms, args.clone()).map_err(|e| e.to_string());
        let (want, got) = (run(&c.module)?, run(&after)?);
        let tolerance = if exact { 0.0 } else { REAL };
        if let Some(d) = all_differ(&got, &want, tolerance) {
            return Err(format!("exact {exact}: {d}\n{}\n{}", text(), print_module(&after)));
        }
    }
    Ok(())
}

#[test]
fn both_sides_of_every_rule_are_equal() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for rule in all() {
        for seed in 0..SHAPES {
            let mut rng = Rng(seed * 977 + rule.name.len() as u64);
            let c = case(rule.name, &mut rng).unwrap_or_else(|| panic!("rule `{}` has no cases", rule.name));
            both_sides(rule, &c, &mut rng).unwrap_or_else(|e| panic!("rule `{}`, shape {seed}: {e}", rule.name));
            *counts.entry(rule.name).or_default() += 1;
        }
    }
    assert!(counts.values().all(|n| *n >= SHAPES));
    println!("{} rules on {SHAPES} shapes each", counts.len());
}

/// The rule `name` with another body.
fn changed(name: &str, change: impl Fn(&mut What)) -> Rule {
    let mut rule = all().into_iter().find(|r| r.name == name).expect("a rule of this name");
    change(&mut rule.what);
    rule
}

fn first_error(rule: Rule) -> Option<String> {
    (0..20).find_map(|seed| {
        let mut rng = Rng(seed);
        let c = case(rule.name, &mut rng).expect("cases");
        both_sides(rule, &c, &mut rng).err()
    })
}

#[test]
fn wrong_rules_are_caught() {
    // By numbers: factors added instead of multiplied; the key weight not moved to the query; pieces mixed up.
    let sum = changed("scale-of-scale", |w| {
        if let What::Rewrite { when, .. } = w {
            *when = |_, m| {
                let (Op::Scale(a), Op::Scale(b)) = (m.op("a"), m.op("b")) else { return None };
                let factor = a.factor + b.factor;
                m.bind_op("c", glmc_ir::ops::Scale { factor });
                Some(())
            };
        }
    });
    assert!(first_error(sum).is_some_and(|e| e.contains("element")), "factors added");
    let negative = changed("scale-into-indexer", |w| {
        if let What::Rewrite { when, .. } = w {
            *when = |_, m| {
                let (Op::IndexerScores(i), Op::Scale(_)) = (m.op("i"), m.op("f")) else { return None };
                let scale = i.scale;
                m.bind_op("j", glmc_ir::ops::IndexerScores { scale });
                Some(())
            };
        }
    });
    assert!(first_error(negative).is_some_and(|e| e.contains("element")), "a factor dropped");
    // By types: the value's weight left where it was, the result another width.
    let dropped = changed("absorb-value-weight", |w| {
        if let What::Rewrite { right, .. } = w {
            *right = "(attention@a ?pre* ?lat ?post*)";
        }
    });
    let e = first_error(dropped).expect("a value of another type");
    assert!(e.contains("rule-type") && e.contains("absorb-value-weight"), "{e}");
    // At the start: a name that nothing binds, an op that is not there.
    for right in ["(scale@d ?x)", "(scale@c ?y)", "(scal@c ?x)", "(scale ?x)", "(scale@c ?x"] {
        let rule = Rule {
            name: "wrong",
            why: "",
            what: What::Rewrite { left: "(scale@a (scale@b ?x))", right, binds: &["@c"], when: |_, _| Some(()) },
        };
        assert_eq!(Saturator::new(&[rule]).expect_err(right).code, "bad-pattern", "{right}");
    }
    let twice = all()[0];
    assert_eq!(Saturator::new(&[twice, twice]).expect_err("one name").code, "bad-pattern");
}

#[test]
fn a_wrong_proposal_of_a_contract_is_not_taken() {
    // Every swiglu proposed with its halves exchanged, and a norm with another eps: no meaning in the graph matches.
    use glmc_ir::kernel::{AddRmsNormKernel, SwigluKernel};
    let swapped = changed("fuse-swiglu", |w| {
        if let What::Contract { make, .. } = w {
            *make = |_, m| Some((SwigluKernel { pieces: vec![] }.into(), vec![m.var("up"), m.var("gate")]));
        }
    });
    let eps = changed("fuse-add-norm", |w| {
        if let What::Contract { make, .. } = w {
            *make = |_, m| Some((AddRmsNormKernel { eps: 0.5 }.into(), ["x", "y", "w"].map(|v| m.var(v)).to_vec()));
        }
    });
    for rule in [swapped, eps] {
        let e = first_error(rule).expect("nothing is taken");
        assert!(e.contains("was not taken"), "{}: {e}", rule.name);
    }
}

/// Without its condition the rule `attend-to-all` is wrong, and seen to be; with it, it is not taken.
#[test]
fn a_selection_that_may_leave_something_out_stays() {
    let always = changed("attend-to-all", |w| {
        if let What::Rewrite { when, .. } = w {
            *when = |_, m| {
                let Op::Attention(a) = m.op("a") else { return None };
                let all = glmc_ir::ops::Attention { selected: false, ..a.clone() };
                m.bind_op("all", all);
                Some(())
            };
        }
    });
    let rule = changed("attend-to-all", |_| ());
    let mut caught = 0;
    for seed in 0..SHAPES {
        for what in [Select::Fewer, Select::OfOthers] {
            let mut rng = Rng(seed);
            let c = not_all(what, &mut rng);
            let e = both_sides(rule, &c, &mut rng).expect_err("nothing is equal here");
            assert!(e.contains("was not taken"), "{what:?}, shape {seed}: {e}");
        }
        let mut rng = Rng(seed);
        let c = not_all(Select::Fewer, &mut rng);
        let wrong = both_sides(always, &c, &mut rng);
        caught += usize::from(wrong.is_err_and(|e| e.contains("element")));
    }
    println!("the rule without its condition is caught on {caught} of {SHAPES} shapes");
    assert!(caught * 4 >= SHAPES as usize, "{caught}");
}
