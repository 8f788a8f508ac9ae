//! A plan on a GPU: all its ranks there, or one alone.

use std::time::Instant;

use glmc_codegen_cuda::program::{Choices, Program};
use glmc_codegen_cuda::{Generated, synth};
use glmc_ir::quant::QuantType;
use glmc_runtime::device::cuda::{CudaDevice, CudaOptions, Kernel, WeightSource};
use glmc_runtime::engine::Engine;
use glmc_runtime::load::{Loaded, Weights, map_rank, map_weights};
use serde_json::json;

use super::super::device::UNIT;
use super::super::gpu::Gpu;
use super::super::human_bytes;
use super::classes::Piece;
use super::machine::Machine;
use super::measured::{KernelRow, Measured, MemoryUse, Timed};
use super::plan::Job;
use super::probe::Probe;
use super::session;
use crate::bus;
use crate::cli::BenchArgs;
use crate::error::CliError;
use crate::terminal::say;

/// Longest time of a step: a chunk of a full-size model, its launches traced, takes seconds.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
/// Calls of a graph that a kernel is timed alone with, and replays.
const LAUNCHES: usize = 200;
const ROUNDS: usize = 5;
/// Replays that a step is timed and traced with.
const REPLAYS: usize = 21;
/// Makes kernels stamp when they begin and end.
const TRACE: &str = "#define GLMC_TRACE\n";

/// The kernels that make the blocks of a plan's weights.
fn makers(job: &Job) -> Vec<(QuantType, Generated)> {
    let mut types: Vec<QuantType> = job.plan.weights.values().filter_map(|w| w.ty.elem.in_file().storage()).collect();
    types.sort_unstable();
    types.dedup();
    types.into_iter().filter_map(|q| Some((q, synth::kernel(q)?))).collect()
}

pub(super) fn measure(job: &Job, args: &BenchArgs, index: usize) -> Result<Measured, CliError> {
    let plan = &job.plan;
    let note = |what: &str, start: Instant| {
        if !args.json {
            say(&format!("{what}: {:.1} s", start.elapsed().as_secs_f64()));
        }
    };
    let start = Instant::now();
    let gpu = Gpu::open(index, args.nvrtc.as_deref())?;
    let machine = Machine::of_gpu(&gpu)?;
    note("ceilings", start);
    let start = Instant::now();
    let multiprocessors = Some(gpu.context.info().multiprocessors);
    let choices = Choices { precision: args.activations.unwrap_or_default(), multiprocessors, ..Choices::default() };
    let mut program = Program::new(plan, gpu.arch, &choices)?;
    if let Some(rank) = job.rank {
        program = program.alone(plan, rank)?;
    }
    let makers = if job.fills.is_some() { makers(job) } else { Vec::new() };
    let loaded = gpu.load(program.kernels.iter().chain(makers.iter().map(|m| &m.1)), UNIT, args.json)?;
    let kernels = program.kernels.iter().map(|k| loaded.kernel(k)).collect::<Result<Vec<_>, _>>()?;
    let made = makers.iter().map(|(q, k)| Ok((*q, loaded.kernel(k)?))).collect::<Result<Vec<_>, CliError>>()?;
    note("kernels", start);
    let start = Instant::now();
    let stored: Vec<Weights>;
    let source = match &job.fills {
        Some(fills) => WeightSource::Made { fills, kernels: &made },
        None => {
            bus::reading_files(&plan.files);
            stored = match job.rank {
                Some(r) => vec![map_rank(plan, r)?],
                None => map_weights(plan.clone(), &job.dir)?.weights,
            };
            match (job.rank, stored.as_slice()) {
                (Some(r), [own]) => WeightSource::Alone(r, own),
                (_, all) => WeightSource::Stored(all),
            }
        }
    };
    let options = CudaOptions { dependent: gpu.arch.has_bulk_copy(), graphs: true, limit: LIMIT };
    let launches = program.launches.clone();
    let device = CudaDevice::new(&gpu.context, plan, source, launches, kernels.clone(), options, &|_, _| ())?;
    let (free, total) = gpu.context.memory()?;
    let memory = MemoryUse { used: total - free, own: device.bytes() };
    note(&format!("{} on the device", human_bytes(device.bytes())), start);
    let probe = Probe::of(device);
    let held = Loaded { plan: plan.clone(), dir: job.dir.clone(), weights: Vec::new() };
    let mut engine = Engine::on(held, Box::new(probe.clone()))?;
    let start = Instant::now();
    let mut timed = Vec::new();
    let mut look = |phase: usize| -> Result<(), CliError> {
        note("prompts or steps", start);
        let start = Instant::now();
        // First of all, what the step left is what it reads again.
        let device_s = probe.with(|d| d.replay_seconds(phase, REPLAYS))??;
        let (pieces, traced_s) = probe.with(|d| traced(&gpu, &program, &kernels, job, phase, d, args.json))??;
        note("trace", start);
        let start = Instant::now();
        let times = probe.with(|d| d.time_calls(plan, phase, LAUNCHES, ROUNDS))??;
        let calls = program.launches.phases[phase].launched();
        let row = |t: glmc_runtime::device::cuda::CallTime| KernelRow {
            number: t.kernel,
            config: program.kernels[t.kernel].config.clone(),
            seconds: t.seconds,
            steps: t.calls.iter().map(|c| calls[*c].step).collect(),
        };
        let names = program.kernels.iter().map(|k| k.name.clone()).collect();
        let kernels = times.into_iter().map(row).collect();
        timed.push(Timed { phase, device_s, traced_s, pieces, names, kernels });
        note("kernels alone", start);
        Ok(())
    };
    let seen = session::run(job, &mut engine, &mut look)?;
    let missing = || CliError::internal("a step that nobody looked at");
    let decode = timed.pop().ok_or_else(missing)?;
    let about = json!({ "device": format!("cuda:{index}"), "machine": gpu.json(), "kernels": loaded.kernels });
    Ok(Measured { device: about, machine, seen, decode, prefill: timed.pop(), memory: Some(memory) })
}

/// The step as stamps of its launches see it, and its seconds with them.
fn traced(
    gpu: &Gpu,
    program: &Program,
    kernels: &[Kernel],
    job: &Job,
    phase: usize,
    device: &mut CudaDevice,
    quiet: bool,
) -> Result<(Vec<Piece>, f64), CliError> {
    let calls = program.launches.phases[phase].launched();
    let mut used: Vec<usize> = calls.iter().map(|c| c.kernel).collect();
    used.sort_unstable();
    used.dedup();
    let loaded = gpu.load_with(TRACE, used.iter().map(|k| &program.kernels[*k]), UNIT, quiet)?;
    let mut with_stamps = kernels.to_vec();
    for k in used {
        with_stamps[k] = loaded.kernel(&program.kernels[k])?;
    }
    let (spans, seconds) = device.trace(&job.plan, phase, &with_stamps, REPLAYS)?;
    let piece = |(c, s): (&glmc_ir::launch::Call, &glmc_runtime::device::cuda::Span)| Piece {
        step: c.step,
        kernel: Some(c.kernel),
        start: s.start,
        end: s.end,
    };
    Ok((calls.iter().zip(&spans).map(piece).collect(), seconds))
}
