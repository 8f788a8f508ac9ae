//! `glmc bench --kernels`: how fast this GPU reads memory, and how near the matrices of a decode step come to it. Each
//! time is that of one launch within a captured graph of many, over weights that no cache holds.

use glmc_codegen_cuda::{Activations, Generated, Options, Request, Role, Storage, ceiling, generate, repack};
use glmc_ir::kernel::{Kernel, MatmulKernel};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{SymValues, TensorType};
use glmc_runtime::device::cuda::{CudaError, Event, Memory};
use serde_json::json;

use super::gpu::{Gpu, Loaded};
use super::{print_json, print_line};
use crate::cli::BenchArgs;
use crate::error::CliError;
use crate::terminal::say;

/// Bytes that a graph walks through before it comes back to the first: several times any second-level cache.
const WALK: u64 = 640 << 20;
/// Bytes that the ceiling is measured over.
const READ: u64 = 2 << 30;
/// Fewest launches of a graph.
const LAUNCHES: u64 = 200;
/// Graphs that are timed; the median counts.
const ROUNDS: usize = 7;

/// A matrix as a rank of eight holds it of the large model.
struct Matrix {
    what: &'static str,
    rows: u64,
    k: u64,
}

const MATRICES: [Matrix; 5] = [
    Matrix { what: "shared expert, gate or up", rows: 256, k: 6144 },
    Matrix { what: "q_b", rows: 2048, k: 2048 },
    Matrix { what: "attention output", rows: 6144, k: 2048 },
    Matrix { what: "q_a, kv_a, indexer key", rows: 2752, k: 6144 },
    Matrix { what: "head", rows: 19_360, k: 6144 },
];

const TYPES: [QuantType; 4] = [QuantType::Q8_0, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K];

/// One thing to time.
struct Item {
    matrix: &'static Matrix,
    quant: QuantType,
    activations: Activations,
    bytes: u64,
    kernel: Generated,
}

fn items(gpu: &Gpu) -> Result<Vec<Item>, CliError> {
    let contract: Kernel = MatmulKernel { spec: "tk,nk->tn".into(), names: Vec::new() }.into();
    let syms = SymValues::default();
    let mut out = Vec::new();
    for quant in TYPES {
        for matrix in &MATRICES {
            let bytes = repack::lane_bytes(quant, matrix.rows * matrix.k)
                .ok_or_else(|| CliError::internal(format!("no lane layout of {quant}")))?;
            for activations in [Activations::F32, Activations::Int8] {
                let inputs =
                    [TensorType::new(QuantType::F32, [1, matrix.k]), TensorType::new(quant, [matrix.rows, matrix.k])];
                let storage = vec![Storage::Rows, Storage::Lane];
                let options =
                    Options { activations, storage, multiprocessors: Some(gpu.context.info().multiprocessors) };
                let request =
                    Request { kernel: &contract, inputs: &inputs, syms: &syms, arch: gpu.arch, options: &options };
                out.push(Item { matrix, quant, activations, bytes, kernel: generate(&request)? });
            }
        }
    }
    Ok(out)
}

/// Seconds of one of `launches` launches in a graph: the median of some rounds after a first.
fn time(gpu: &Gpu, launches: u64, mut launch: impl FnMut(u64) -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let mut graph = gpu.stream.capture(|_| (0..launches).try_for_each(&mut launch))?;
    gpu.stream.replay(&mut graph)?;
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let (from, to) = (Event::new(&gpu.context)?, Event::new(&gpu.context)?);
        gpu.stream.record(&from)?;
        gpu.stream.replay(&mut graph)?;
        gpu.stream.record(&to)?;
        gpu.stream.wait("a timed graph")?;
        all.push(from.seconds_to(&to)? / launches as f64);
    }
    all.sort_by(f64::total_cmp);
    Ok(all[ROUNDS / 2])
}

/// Bytes a second of the kernel that does nothing but read.
fn read_speed(gpu: &Gpu, loaded: &Loaded, k: &Generated, weights: &Memory, rest: &Memory) -> Result<f64, CudaError> {
    let args = [weights.address(0)?, rest.address(0)?];
    let seconds = time(gpu, 10, |_| loaded.launch(&gpu.stream, k, &args, false))?;
    Ok(READ as f64 / seconds)
}

/// Seconds of a launch, its weight another copy each time.
fn item_time(gpu: &Gpu, loaded: &Loaded, i: &Item, weights: &Memory, rest: &Memory) -> Result<f64, CudaError> {
    let step = i.bytes.next_multiple_of(256);
    let copies = WALK.div_ceil(step).max(2).min(weights.bytes() / step);
    let launches = copies * LAUNCHES.div_ceil(copies);
    time(gpu, launches, |n| {
        let mut args = Vec::new();
        for f in &i.kernel.signature.0 {
            args.push(match &f.role {
                Role::Param { index: 0, .. } => rest.address(0)?,
                Role::Param { index: 1, .. } => weights.address(n % copies * step)?,
                Role::Param { .. } => rest.address(1 << 20)?,
                Role::Symbols => rest.address(2 << 20)?,
                Role::Scratch { .. } => rest.address(3 << 20)?,
            });
        }
        loaded.launch(&gpu.stream, &i.kernel, &args, gpu.arch.has_bulk_copy())
    })
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let gpu = Gpu::open(args.device, args.nvrtc.as_deref())?;
    let items = items(&gpu)?;
    let read = ceiling::kernel(READ);
    let loaded = gpu.load(items.iter().map(|i| &i.kernel).chain([&read]), 4, args.json)?;
    let largest = items.iter().map(|i| 2 * i.bytes.next_multiple_of(256)).max().unwrap_or(0);
    let mut weights = Memory::new(&gpu.context, READ.max(WALK + largest))?;
    let mut rest = Memory::new(&gpu.context, 4 << 20)?;
    // Small finite numbers in every type: speed must not come from special values.
    weights.fill(0x1111_1111)?;
    rest.fill(0x3f80_0000)?;
    let speed = read_speed(&gpu, &loaded, &read, &weights, &rest)?;
    if !args.json {
        say(&format!("{:?} {}, {:?}, {:?}", gpu.context, gpu.arch, gpu.driver, gpu.compiler));
        print_line(&format!("reading: {:.0} GB/s", speed / 1e9))?;
        print_line(&format!(
            "{:<26} {:<5} {:<5} {:>7} {:>8} {:>7} {:>9}  configuration",
            "one token against", "type", "acts", "MB", "us", "share", "formula"
        ))?;
    }
    let mut rows = Vec::new();
    for i in &items {
        let seconds = item_time(&gpu, &loaded, i, &weights, &rest)?;
        let share = i.bytes as f64 / seconds / speed;
        // What is expected of a matrix: 85 % of the ceiling and two microseconds.
        let formula = i.bytes as f64 / (0.85 * speed) + 2e-6;
        let acts = format!("{:?}", i.activations).to_lowercase();
        if !args.json {
            let Matrix { what, rows, k } = i.matrix;
            print_line(&format!(
                "{what:<26} {:<5} {acts:<5} {:>7.2} {:>8.2} {:>6.1}% {:>9.2}  [{rows}, {k}] {}",
                i.quant.to_string(),
                i.bytes as f64 / 1e6,
                1e6 * seconds,
                100.0 * share,
                1e6 * formula,
                i.kernel.config
            ))?;
        }
        rows.push(json!({
            "matrix": i.matrix.what, "rows": i.matrix.rows, "k": i.matrix.k, "type": i.quant.to_string(),
            "activations": acts, "bytes": i.bytes, "seconds": seconds, "share": share, "formula_seconds": formula,
            "config": i.kernel.config,
        }));
    }
    if args.json {
        print_json(&json!({ "machine": gpu.json(), "read_bytes_per_s": speed, "kernels": rows }))?;
    }
    Ok(())
}
