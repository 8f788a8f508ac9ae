//! Random modules: passes keep the meaning of every function, and plans compute what entries mean.

use std::cell::Cell;

use glmc_ir::plan::PhaseKind;
use glmc_ir::text::print_module;
use glmc_ir::verify::plan::verify_plan;
use glmc_ir::verify::verify_module;
use glmc_passes::pipeline;
use glmc_passes::schedule::EntryInfo;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::random::{Choices, module};
use crate::run::{Files, wrap};
use crate::stages::{equivalent, same_as_plan};

const CASES: u32 = 300;

/// What a random entry does and a model's entry may not: return what no launch writes, ignore what a call makes, read a
/// pool that it does not append to, append twice, launch nothing.
const LAWFUL: [&str; 8] = [
    // A view of a weight under other dims.
    "weight-type",
    "bad-result",
    "bad-segment",
    "weight-unused",
    "output-unread",
    "stale-state",
    "state-never-written",
    "state-unread",
];

#[test]
fn random_modules_keep_their_meaning_to_the_plan() {
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let (functions, plans, clean) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let outcome = runner.run(&vec(any::<u32>(), 0..800), |list| {
        let m = module(&mut Choices::new(&list));
        let fail = |e: String| TestCaseError::fail(format!("{e}\n{}", print_module(&m)));
        verify_module(&m).map_err(|found| fail(found.to_string()))?;
        let entry = m.entries().next().ok_or_else(|| fail("no entry".into()))?.1;
        let entries = [EntryInfo { func: entry.name.clone(), kind: PhaseKind::Prefill, tokens: 1 }];
        for fuel in [None, Some(u64::from(list.first().copied().unwrap_or(0) % 8))] {
            let done = pipeline::run(m.clone(), &entries, &crate::run::machine("cpu"), fuel, &mut |_, _| {})
                .map_err(|e| fail(e.to_string()))?;
            functions.set(functions.get() + equivalent(&m, &done.module, false).map_err(fail)?);
            let files = Files::synth(&m);
            let plan = wrap(&m, done.scheduled, &files);
            match verify_plan(&plan) {
                Ok(()) => clean.set(clean.get() + 1),
                Err(found) if found.0.iter().all(|d| LAWFUL.contains(&d.code)) => {}
                Err(found) => return Err(fail(found.to_string())),
            }
            let f = &done.module.funcs[done.module.func_named(&entry.name).expect("passes keep entries")];
            plans.set(plans.get() + same_as_plan(&done.module, f, &plan, &files).map_err(fail)?);
        }
        Ok(())
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
    let (functions, plans, clean) = (functions.get(), plans.get(), clean.get());
    println!("{CASES} modules: {functions} runs of functions, {plans} steps of plans compared; {clean} plans verified");
    assert!(functions > 2000 && plans > 1000 && clean > 40, "{functions} {plans} {clean}");
}
