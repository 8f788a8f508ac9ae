//! The ranks' interpreter against the global one: random modules under random legal placements, on 1 to 8 ranks.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "support/placed.rs"]
mod placed;
#[path = "support/random.rs"]
mod random;
#[path = "support/values.rs"]
mod values;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use glmc_ir::graph::{InstKind, Module};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::Interp;
use glmc_ir::interp::ranks::RankInterp;
use glmc_ir::placement::Mesh;
use glmc_ir::tensor::{Data, Tensor};
use glmc_ir::text::print_module;
use glmc_ir::ty::SymValues;
use glmc_ir::verify::verify_module;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use random::{ARITHMETIC, Choices, module, module_of};
use values::{Floats, Rng, Weights, differ, operands};

const MESHES: [&[(&str, u64)]; 7] = [
    &[("tp", 1)],
    &[("tp", 2)],
    &[("tp", 3)],
    &[("tp", 4)],
    &[("dp", 2), ("tp", 2)],
    &[("tp", 8)],
    &[("ep", 4), ("tp", 2)],
];

fn mesh(axes: &[(&str, u64)]) -> Mesh {
    axes.iter().map(|(a, n)| ((*a).into(), *n)).collect()
}

/// Symbol values up to 5, so that split symbols are uneven and sometimes shorter than the axis.
fn small(m: &Module, rng: &mut Rng) -> SymValues {
    SymValues(m.syms.iter().map(|(s, n)| (s.clone(), 1 + rng.below(5.min(*n)))).collect())
}

#[derive(Default)]
struct Count {
    compared: Cell<usize>,
    ops: RefCell<BTreeMap<&'static str, usize>>,
}

/// Every function gives on the ranks of `placed` what it gives in `m`.
fn equal(m: &Module, placed: &Module, floats: Floats, seed: u64, count: &Count) -> Result<(), String> {
    for (id, f) in &m.funcs {
        let mut rng = Rng(seed);
        let syms = small(m, &mut rng);
        let args = operands(f, &syms, &mut rng, floats, seed % 4);
        let weights = Weights(m, floats);
        // Random ids may lie outside what they index; then there is nothing to compare.
        let Ok(want) = Interp::new(m, Arith::Real, syms.clone(), &weights).run(id, args.clone()) else { continue };
        let weights = Weights(placed, floats);
        let identity = Interp::new(placed, Arith::Real, syms.clone(), &weights).run(id, args.clone());
        let identity = identity.map_err(|e| format!("@{} global: {e}", f.name))?;
        if let Some(d) = differ(&identity, &want, 0.0) {
            return Err(format!("@{} is another function once it is placed: {d}", f.name));
        }
        let got = RankInterp::new(placed, Arith::Real, syms, &weights).run(id, args);
        let got = got.map_err(|e| format!("@{} ranks: {e}", f.name))?;
        if floats == Floats::Integers && want.iter().any(too_large) {
            continue;
        }
        if let Some(d) = differ(&got, &want, if floats == Floats::Integers { 0.0 } else { 1e-9 }) {
            return Err(format!("@{}: {d}", f.name));
        }
        count.compared.set(count.compared.get() + 1);
        for i in &placed.funcs[id].body {
            if let InstKind::Op(op) = &placed.funcs[id].insts[*i].kind {
                *count.ops.borrow_mut().entry(op.name()).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// Whether sums of such numbers may not be exact.
fn too_large(t: &Tensor) -> bool {
    matches!(&t.data, Data::F(v) if v.iter().any(|x| x.abs() > 1e12))
}

fn random_modules(cases: u32, floats: Floats) -> Count {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let count = Count::default();
    let outcome =
        runner.run(&(vec(any::<u32>(), 0..500), vec(any::<u32>(), 400), any::<u64>()), |(list, places, seed)| {
            let mut c = Choices::new(&list);
            let m = if floats == Floats::Real { module(&mut c) } else { module_of(&mut c, &ARITHMETIC) };
            if verify_module(&m).is_err() {
                return Err(TestCaseError::reject("a weight without a use"));
            }
            let axes = MESHES[places[0] as usize % MESHES.len()];
            let placed = placed::place(&m, &mesh(axes), &mut Choices::new(&places));
            let fail = |e: String| {
                TestCaseError::fail(format!("{axes:?}: {e}\n{}\n{}", print_module(&m), print_module(&placed)))
            };
            verify_module(&placed).map_err(|e| fail(e.to_string()))?;
            equal(&m, &placed, floats, seed, &count).map_err(fail)
        });
    if let Err(e) = outcome {
        panic!("{e}");
    }
    println!("{cases} modules, {} runs of functions compared; ops {:?}", count.compared.get(), count.ops.borrow());
    count
}

#[test]
fn random_placements_keep_the_value() {
    let count = random_modules(1500, Floats::Real);
    assert!(count.compared.get() > 2000, "{}", count.compared.get());
    for op in ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "shard", "attention", "topk", "gather"] {
        assert!(count.ops.borrow().get(op).copied().unwrap_or(0) > 20, "too few `{op}`");
    }
}

#[test]
fn linear_code_on_integers_is_equal_to_the_bit() {
    let count = random_modules(1000, Floats::Integers);
    assert!(count.compared.get() > 1500, "{}", count.compared.get());
}
