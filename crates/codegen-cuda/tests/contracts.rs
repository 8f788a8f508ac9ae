//! Every kernel contract on the host emulation against its meaning in Real: the generated source, compiled by the
//! system's C++ compiler, over the table of contract cases. Each case runs with constant dims and, where the contract's
//! rule allows it, with symbols whose values lie in device memory below their bounds; threads run in rising and in
//! falling order, and both must give the same bits.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "support/host.rs"]
mod host;

use std::path::Path;
use std::sync::Mutex;

use glmc_codegen_cuda::cases::{Bound, Check, checks, meaning};
use glmc_codegen_cuda::host::{Job, Order, Program};
use glmc_codegen_cuda::{Activations, Arch, Generated, Options, emit};
use glmc_ir::kernel::Kernel;

/// Kernels of one translation unit.
const UNIT: usize = 48;

fn name(c: &Check) -> String {
    format!("{} {}", c.case.kernel.name(), c.what)
}

/// Failures of one translation unit, and the worst relative L2.
fn judge(list: &[Check]) -> (Vec<String>, f64) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let make = |c: &Check| c.kernel(Arch::Sm120).unwrap_or_else(|e| panic!("{}: {e}", name(c)));
    let kernels: Vec<Generated> = list.iter().map(make).collect();
    let program = Program::build(&emit::unit(&kernels), dir).unwrap_or_else(|e| panic!("{e}"));
    let pairs: Vec<(Job, Vec<Bound>)> =
        list.iter().zip(&kernels).map(|(c, k)| c.job(k).unwrap_or_else(|e| panic!("{}: {e}", name(c)))).collect();
    let jobs: Vec<Job> = pairs.iter().map(|p| p.0.clone()).collect();
    let [rising, falling] = [Order::Rising, Order::Falling].map(|o| program.run(&jobs, o).expect("the program runs"));
    let (mut failures, mut worst) = (Vec::new(), 0.0f64);
    for (((c, (_, bounds)), up), down) in list.iter().zip(&pairs).zip(rising).zip(falling) {
        let one = || -> Result<f64, String> {
            let (up, down) = (up?, down.map_err(|e| format!("falling: {e}"))?);
            if up != down {
                return Err("depends on the order of threads".into());
            }
            c.judge(bounds, &up, &meaning(&c.case)?)
        };
        match one() {
            Ok(l2) => worst = worst.max(l2),
            Err(e) => failures.push(format!("{}: {e}", name(c))),
        }
    }
    (failures, worst)
}

/// Compares all cases of these contracts; the worst relative L2, unless there is no compiler. Panics with every failure.
fn check(names: &[&str], options: &Options) -> Option<f64> {
    if !host::compiler_is_there() {
        return None;
    }
    let mut units = Vec::new();
    for name in names {
        let mut list = checks(name, 0, options);
        assert!(!list.is_empty(), "the contract `{name}` has no case");
        println!("{name}: {} kernels", list.len());
        while !list.is_empty() {
            units.push(list.split_off(list.len().saturating_sub(UNIT)));
        }
    }
    let total: usize = units.iter().map(Vec::len).sum();
    let (queue, failures) = (Mutex::new(units), Mutex::new((Vec::new(), 0.0f64)));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let Some(list) = queue.lock().expect("queue").pop() else { return };
                    let (found, worst) = judge(&list);
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
    Some(worst)
}

#[test]
fn elementwise_contracts_compute_their_meaning() {
    check(&["add", "mul", "relu", "sigmoid", "silu", "scale", "swiglu", "decode"], &Options::default());
}

#[test]
fn norms_and_moves_compute_their_meaning() {
    check(&["rms_norm", "layer_norm", "gather", "append", "split", "join", "rope"], &Options::default());
}

#[test]
fn choices_compute_their_meaning() {
    let names = ["topk", "moe_route", "indexer_scores", "paged_indexer_scores", "attention", "paged_attention"];
    check(&names, &Options::default());
}

/// With few multiprocessors a block of attention goes through many tiles; above it has one, and parts are merged.
#[test]
fn attention_computes_its_meaning_in_tiles() {
    let options = Options { multiprocessors: Some(1), ..Options::default() };
    check(&["attention", "paged_attention"], &options);
}

#[test]
fn matmuls_compute_their_meaning() {
    check(&["matmul"], &Options::default());
}

#[test]
fn fused_rows_compute_their_meaning() {
    check(&["add_rms_norm", "rope_join", "latent_row", "index_row", "append_row"], &Options::default());
}

#[test]
fn fused_products_compute_their_meaning() {
    check(&["gate_up", "grouped_gate_up", "grouped_down"], &Options::default());
}

#[test]
fn experts_compute_their_meaning() {
    check(&["grouped_matmul"], &Options::default());
}

/// Tensor cores round activations; what they may lose is the budget of bf16 inputs.
#[test]
fn rounded_activations_stay_within_their_budget() {
    let options = Options { activations: Activations::BF16, ..Options::default() };
    let worst = check(&["matmul", "grouped_matmul"], &options);
    // Some cases keep activations that halves do not hold: else no rounding would be tested.
    assert!(worst.is_none_or(|l2| l2 > 5e-5), "{worst:?}");
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
        "index_row",
        "append_row",
        "paged_attention",
        "paged_indexer_scores",
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
