//! Every kernel contract on the host emulation against its meaning in Real: the generated source, compiled by the
//! system's C++ compiler, over the table of contract cases. Each case runs with constant dims and, where the contract's
//! rule allows it, with symbols whose values lie in device memory below their bounds; threads run in rising and in
//! falling order, and both must give the same bits.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "../../../tests/equivalence/contract_cases.rs"]
mod contract_cases;
#[path = "support/device.rs"]
mod device;
#[path = "../../../tests/support/run.rs"]
mod run;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use contract_cases::{Case, In, cases};
use device::{Bound, L2, compare, job, meaning, untouched};
use glmc_codegen_cuda::host::{Job, Order, Program};
use glmc_codegen_cuda::{Activations, Arch, Generated, Options, Request, emit, generate};
use glmc_ir::kernel::Kernel;
use glmc_ir::ty::{Dim, Extent, SymValues, TensorType};

/// Kernels of one translation unit.
const UNIT: usize = 48;

/// A case with the types that its kernel is made for.
struct Run<'a> {
    case: &'a Case,
    what: String,
    types: Vec<TensorType>,
    bounds: SymValues,
    values: SymValues,
}

/// The case as it is, and with symbols for tokens and keys.
fn variants(case: &Case) -> Vec<Run<'_>> {
    let types: Vec<TensorType> = case.inputs.iter().map(|i| i.ty().clone()).collect();
    let none = SymValues::default();
    let mut out =
        vec![Run { case, what: case.what.clone(), types: types.clone(), bounds: none.clone(), values: none.clone() }];
    let lead = usize::from(matches!(case.kernel, Kernel::Gather(_) | Kernel::Append(_)));
    let constant = |t: &TensorType, d: usize| {
        t.dims.get(d).and_then(|d| match d.extent {
            Extent::Const(n) => Some(n),
            _ => None,
        })
    };
    let Some(tokens) = constant(&types[lead], 0) else { return out };
    let mut symbolic = types;
    for (i, t) in symbolic.iter_mut().enumerate() {
        // Experts are a matrix even where a case holds them as floats.
        let experts = match case.kernel {
            Kernel::GroupedMatmul(_) | Kernel::GroupedDown(_) => i == 1,
            Kernel::GroupedGateUp(_) => i == 1 || i == 2,
            // The right operands of a matmul are a matrix too.
            _ => false,
        };
        let free = !matches!(case.inputs[i], In::W(..) | In::Pool(..)) && i >= lead && !experts;
        if free && constant(t, 0) == Some(tokens) {
            t.dims[0] = Dim::sym("T");
        }
    }
    let (mut bounds, mut values) = (none.clone().with("T", tokens + 3), none.with("T", tokens));
    let keyed: Vec<usize> = match &case.kernel {
        Kernel::Attention(k) => (k.0.parts..=2 * k.0.parts).collect(),
        Kernel::Indexer(_) => vec![1],
        Kernel::TopK(_) => vec![0],
        _ => Vec::new(),
    };
    for i in keyed {
        if let Some(n) = constant(&symbolic[i], 1) {
            (bounds, values) = (bounds.with("S", n + 70), values.with("S", n));
            symbolic[i].dims[1] = Dim::sym("S");
        }
    }
    if case.kernel.result_types(&symbolic.iter().collect::<Vec<_>>()).is_ok() {
        out.push(Run { case, what: format!("{} with symbols", case.what), types: symbolic, bounds, values });
    }
    out
}

fn make(run: &Run<'_>, options: &Options) -> Generated {
    let request =
        Request { kernel: &run.case.kernel, inputs: &run.types, syms: &run.bounds, arch: Arch::Sm120, options };
    generate(&request).unwrap_or_else(|e| panic!("{} {}: {e}", run.case.kernel.name(), run.what))
}

/// Failures of one translation unit, and the worst relative L2.
fn judge(runs: &[Run<'_>], options: &Options, budget: f64) -> (Vec<String>, f64) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kernels: Vec<Generated> = runs.iter().map(|r| make(r, options)).collect();
    let program = Program::build(&emit::unit(&kernels), dir).unwrap_or_else(|e| panic!("{e}"));
    let pairs: Vec<(Job, Vec<Bound>)> =
        runs.iter().zip(&kernels).map(|(r, k)| job(k, &r.case.inputs, &r.bounds, &r.values)).collect();
    let jobs: Vec<Job> = pairs.iter().map(|p| p.0.clone()).collect();
    let [rising, falling] = [Order::Rising, Order::Falling].map(|o| program.run(&jobs, o).expect("the program runs"));
    let (mut failures, mut worst) = (Vec::new(), 0.0f64);
    for (((r, (_, bounds)), up), down) in runs.iter().zip(&pairs).zip(rising).zip(falling) {
        let one = || -> Result<(), String> {
            let (up, down) = (up?, down.map_err(|e| format!("falling: {e}"))?);
            if up != down {
                return Err("depends on the order of threads".into());
            }
            let want = meaning(r.case)?;
            if bounds.len() != want.len() {
                return Err(format!("{} outputs for {}", bounds.len(), want.len()));
            }
            for (b, w) in bounds.iter().zip(&want) {
                let bytes = &up[b.buffer];
                untouched(bytes, b)?;
                let (l2, _) = compare(&b.numbers(bytes), w, budget)?;
                worst = worst.max(l2);
            }
            Ok(())
        };
        if let Err(e) = one() {
            failures.push(format!("{} {}: {e}", r.case.kernel.name(), r.what));
        }
    }
    (failures, worst)
}

/// Compares all cases of these contracts; panics with every failure.
fn check(names: &[&str], options: &Options, budget: f64) {
    let all: BTreeMap<&str, Vec<Case>> = names.iter().map(|n| (*n, cases(n))).collect();
    let mut units = Vec::new();
    for (name, list) in &all {
        assert!(!list.is_empty(), "the contract `{name}` has no case");
        let mut runs: Vec<Run<'_>> = list.iter().flat_map(variants).collect();
        println!("{name}: {} cases, {} kernels", list.len(), runs.len());
        while !runs.is_empty() {
            units.push(runs.split_off(runs.len().saturating_sub(UNIT)));
        }
    }
    let total: usize = units.iter().map(Vec::len).sum();
    let (queue, failures) = (Mutex::new(units), Mutex::new((Vec::new(), 0.0f64)));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let Some(runs) = queue.lock().expect("queue").pop() else { return };
                    let (found, worst) = judge(&runs, options, budget);
                    let mut f = failures.lock().expect("failures");
                    f.0.extend(found);
                    f.1 = f.1.max(worst);
                }
            });
        }
    });
    let (failures, worst) = failures.into_inner().expect("failures");
    println!("{names:?}: {total} kernels, relative L2 up to {worst:.1e}");
    assert!(failures.is_empty(), "{} of {total} fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn elementwise_contracts_compute_their_meaning() {
    check(&["add", "mul", "relu", "sigmoid", "silu", "scale", "swiglu", "decode"], &Options::default(), L2);
}

#[test]
fn norms_and_moves_compute_their_meaning() {
    check(&["rms_norm", "layer_norm", "gather", "append", "split", "join", "rope"], &Options::default(), L2);
}

#[test]
fn choices_compute_their_meaning() {
    check(&["topk", "moe_route", "indexer_scores", "attention"], &Options::default(), L2);
}

/// With few multiprocessors a block of attention goes through many tiles; above it has one, and parts are merged.
#[test]
fn attention_computes_its_meaning_in_tiles() {
    let options = Options { multiprocessors: Some(1), ..Options::default() };
    check(&["attention"], &options, L2);
}

#[test]
fn matmuls_compute_their_meaning() {
    check(&["matmul"], &Options::default(), L2);
}

#[test]
fn fused_rows_compute_their_meaning() {
    check(&["add_rms_norm", "rope_join", "latent_row"], &Options::default(), L2);
}

#[test]
fn fused_products_compute_their_meaning() {
    check(&["gate_up", "grouped_gate_up", "grouped_down"], &Options::default(), L2);
}

#[test]
fn experts_compute_their_meaning() {
    check(&["grouped_matmul"], &Options::default(), L2);
}

/// Tensor cores round activations; what they may lose is the budget of bf16 inputs.
#[test]
fn rounded_activations_stay_within_their_budget() {
    let options = Options { activations: Activations::BF16, ..Options::default() };
    check(&["matmul", "grouped_matmul"], &options, 2e-3);
}

/// A contract without a family would be left out of the lists above.
#[test]
fn every_contract_is_in_a_list() {
    let listed = [
        "add",
        "mul",
        "relu",
        "sigmoid",
        "silu",
        "scale",
        "swiglu",
        "decode",
        "rms_norm",
        "layer_norm",
        "gather",
        "append",
        "split",
        "join",
        "rope",
        "topk",
        "moe_route",
        "indexer_scores",
        "attention",
        "matmul",
        "grouped_matmul",
        "add_rms_norm",
        "rope_join",
        "latent_row",
        "gate_up",
        "grouped_gate_up",
        "grouped_down",
    ];
    // Collectives span ranks, so that no launch of one rank computes their meaning; transports do.
    let collectives = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "shard"];
    for name in Kernel::NAMES {
        assert!(listed.contains(name) != collectives.contains(name), "no test for `{name}`");
    }
}
