//! `glmc bench --kernels`: how fast this GPU reads memory, and how near the matrices of a decode step come to it. Each
//! time is that of one launch within a captured graph of many, over weights that no cache holds.

use glmc_codegen_cuda::cases::Rng;
use glmc_codegen_cuda::{Generated, Role, ceiling};
use glmc_runtime::device::cuda::{CudaError, Event, Memory};
use serde_json::json;

use super::super::device::Where;
use super::super::gpu::{Gpu, Loaded};
use super::super::{print_json, print_line};
use super::items::{self, Arg, Item, Matrix};
use crate::cli::BenchArgs;
use crate::error::CliError;
use crate::terminal::say;

/// Bytes that a graph walks through before it comes back to the first: several times any second-level cache.
const WALK: u64 = 640 << 20;
/// Bytes that the ceiling is measured over.
pub(super) const READ: u64 = 2 << 30;
/// Fewest launches of a graph.
const LAUNCHES: u64 = 200;
/// Graphs that are timed; the median counts.
pub(super) const ROUNDS: usize = 7;
/// Random bytes that fill the weights again and again.
const PATTERN: usize = 16 << 20;
/// Where things lie beside the weights: x, y, expert ids, values of symbols, scratch.
const PLACES: [u64; 5] = [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20];
const REST: u64 = 6 << 20;

/// Seconds of one of `launches` launches in a graph: the median of some rounds after a first.
pub(super) fn time(
    gpu: &Gpu,
    launches: u64,
    rounds: usize,
    mut launch: impl FnMut(u64) -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut graph = gpu.stream.capture(|_| (0..launches).try_for_each(&mut launch))?;
    gpu.stream.replay(&mut graph)?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        let (from, to) = (Event::new(&gpu.context)?, Event::new(&gpu.context)?);
        gpu.stream.record(&from)?;
        gpu.stream.replay(&mut graph)?;
        gpu.stream.record(&to)?;
        gpu.stream.wait("a timed graph")?;
        all.push(from.seconds_to(&to)? / launches as f64);
    }
    all.sort_by(f64::total_cmp);
    Ok(all[rounds / 2])
}

/// Bytes a second of the kernel that does nothing but read.
pub(super) fn read_speed(
    gpu: &Gpu,
    loaded: &Loaded,
    k: &Generated,
    weights: &Memory,
    rest: &Memory,
) -> Result<f64, CudaError> {
    let args = [weights.address(0)?, rest.address(0)?];
    let seconds = time(gpu, 10, ROUNDS, |_| loaded.launch(&gpu.stream, k, &args, false))?;
    Ok(READ as f64 / seconds)
}

/// Seconds of a launch, its weight another copy each time, its experts others.
fn item_time(
    gpu: &Gpu,
    loaded: &Loaded,
    i: &Item,
    weights: &Memory,
    rest: &Memory,
    rounds: usize,
) -> Result<f64, CudaError> {
    let one = i.stored.next_multiple_of(256);
    let Matrix { experts, chosen, task, .. } = *i.matrix;
    let step = one * task.matrices();
    let copies = WALK.div_ceil(step).clamp(1, weights.bytes() / step);
    let turns = copies * experts / chosen;
    let launches = turns * LAUNCHES.div_ceil(turns);
    let [x, y, ids, syms, scratch] = PLACES;
    time(gpu, launches, rounds, |n| {
        let mut args = Vec::new();
        for f in &i.kernel.signature.0 {
            args.push(match &f.role {
                Role::Param { index, .. } => match task.args().get(*index) {
                    // Ones serve as weights of choices too.
                    Some(Arg::X | Arg::Weights) => rest.address(x)?,
                    Some(Arg::W(at)) => weights.address(n % copies * step + at * one)?,
                    Some(Arg::Ids) => rest.address(ids + n % (experts / chosen) * chosen * 4)?,
                    Some(Arg::Y) | None => rest.address(y)?,
                },
                Role::Symbols => rest.address(syms)?,
                Role::Scratch { .. } => rest.address(scratch)?,
                Role::Slab { .. } | Role::Control | Role::Halt => {
                    return Err(CudaError::Program(format!(
                        "{}: a kernel that meets others is not timed",
                        i.kernel.name
                    )));
                }
            });
        }
        loaded.launch(&gpu.stream, &i.kernel, &args, gpu.arch.has_bulk_copy())
    })
}

/// Random numbers that are finite in every type, a vector of ones, and expert ids of which each is met once.
fn fill(weights: &mut Memory, rest: &mut Memory) -> Result<(), CudaError> {
    let mut rng = Rng(1);
    // Halves without the upper exponent bit: neither infinite nor NaN.
    let pattern: Vec<u8> = (0..PATTERN / 8).flat_map(|_| (rng.next() & 0xbfff_bfff_bfff_bfff).to_le_bytes()).collect();
    let mut at = 0;
    while at < weights.bytes() {
        let n = (weights.bytes() - at).min(PATTERN as u64);
        weights.upload(at, &pattern[..n as usize])?;
        at += n;
    }
    rest.fill(0x3f80_0000)?;
    let ids: Vec<u8> = rng.shuffled(256).iter().flat_map(|id| (*id as i32).to_le_bytes()).collect();
    rest.upload(PLACES[2], &ids)?;
    rest.upload(PLACES[4], &vec![0; (REST - PLACES[4]) as usize])
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let index = match args.device {
        Some(Where::Cpu) => return Err(CliError::usage("device", "--kernels are those of a GPU")),
        Some(Where::Cuda(n)) => n,
        Some(Where::Several(_)) => return Err(CliError::usage("device", "--kernels are those of one GPU")),
        None => 0,
    };
    let gpu = Gpu::open(index, args.nvrtc.as_deref())?;
    let mut items = if args.candidates { items::candidates(&gpu)? } else { items::usual(&gpu)? };
    let read = ceiling::kernel(READ);
    let loaded =
        gpu.load(items.iter().map(|i| &i.kernel).chain([&read]), if args.candidates { 12 } else { 4 }, args.json)?;
    let largest = items.iter().map(|i| i.stored * i.matrix.task.matrices()).max().unwrap_or(0);
    let mut weights = Memory::new(&gpu.context, READ.max(WALK + 2 * (largest + 512)))?;
    let mut rest = Memory::new(&gpu.context, REST)?;
    fill(&mut weights, &mut rest)?;
    let speed = read_speed(&gpu, &loaded, &read, &weights, &rest)?;
    if !args.json {
        say(&format!("{:?} {}, {:?}, {:?}", gpu.context, gpu.arch, gpu.driver, gpu.compiler));
        print_line(&format!("reading: {:.0} GB/s", speed / 1e9))?;
        print_line(&format!(
            "{:<26} {:<5} {:<5} {:>7} {:>8} {:>7} {:>9}  configuration",
            "one token against", "type", "acts", "MB", "us", "share", "formula"
        ))?;
    }
    let rounds = if args.candidates { 3 } else { ROUNDS };
    let mut timed = Vec::new();
    for i in items.drain(..) {
        let seconds = item_time(&gpu, &loaded, &i, &weights, &rest, rounds)?;
        timed.push((i, seconds));
    }
    if args.candidates {
        // The best of each matrix, type and rounding, after the generator's own choice.
        let group = |i: &Item| (i.matrix.what, i.quant, i.acts());
        let mut groups: Vec<_> = timed.iter().map(|(i, _)| group(i)).collect();
        groups.dedup();
        let mut all = Vec::new();
        for g in groups.iter().take(items::MATRICES.len() * items::TYPES.len() * 2) {
            let mut of: Vec<_> = timed.iter().filter(|(i, _)| group(i) == *g).collect();
            of.sort_by(|a, b| a.0.tuning.is_some().cmp(&b.0.tuning.is_some()).then(a.1.total_cmp(&b.1)));
            all.extend(of.into_iter().take(if args.json { usize::MAX } else { 5 }));
        }
        return report(&gpu, args, speed, &all);
    }
    report(&gpu, args, speed, &timed.iter().collect::<Vec<_>>())
}

fn report(gpu: &Gpu, args: &BenchArgs, speed: f64, timed: &[&(Item, f64)]) -> Result<(), CliError> {
    let mut rows = Vec::new();
    for (i, seconds) in timed {
        let share = i.bytes as f64 / seconds / speed;
        // What is expected of a matrix: 85 % of the ceiling and two microseconds, half of one more where bits are spread.
        let spread = !matches!(i.quant, glmc_ir::quant::QuantType::Q8_0 | glmc_ir::quant::QuantType::Q4_K);
        let formula = i.bytes as f64 / (0.85 * speed) + if spread { 2.5e-6 } else { 2e-6 };
        let acts = i.acts();
        if !args.json {
            let Matrix { what, rows, k, .. } = i.matrix;
            print_line(&format!(
                "{what:<26} {:<5} {acts:<5} {:>7.2} {:>8.2} {:>6.1}% {:>9.2}{} [{rows}, {k}] {}",
                i.quant.to_string(),
                i.bytes as f64 / 1e6,
                1e6 * seconds,
                100.0 * share,
                1e6 * formula,
                if *seconds <= formula { ' ' } else { '!' },
                i.kernel.config
            ))?;
        }
        rows.push(json!({
            "matrix": i.matrix.what, "rows": i.matrix.rows, "k": i.matrix.k, "type": i.quant.to_string(),
            "activations": acts, "bytes": i.bytes, "seconds": seconds, "share": share, "formula_seconds": formula,
            "config": i.kernel.config, "tuning": i.tuning.map(|t| format!("{t:?}")),
        }));
    }
    if args.json {
        print_json(&json!({ "machine": gpu.json(), "read_bytes_per_s": speed, "kernels": rows }))?;
    }
    Ok(())
}
