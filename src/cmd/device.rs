//! Where a plan runs: what `--device` names, and the engine there. A GPU that is asked for and is not there is an error,
//! never a run elsewhere; a plan for GPUs asks for one unless `--device` says otherwise.

use std::time::Instant;

use glmc_codegen_cuda::Activations;
use glmc_codegen_cuda::program::{Choices, Precision, Program, ProgramError};
use glmc_ir::plan::Plan;
use glmc_runtime::device::cuda::{CudaDevice, CudaOptions, Driver, WeightSource};
use glmc_runtime::engine::Engine;
use glmc_runtime::load::Loaded;
use serde_json::{Value, json};

use super::gpu::Gpu;
use super::human_bytes;
use super::spread::Gpus;
use crate::cli::DeviceArgs;
use crate::error::CliError;
use crate::terminal::say;

/// Kernels of one translation unit.
pub(crate) const UNIT: usize = 6;

/// What `--device` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    Cpu,
    Cuda(usize),
    /// Several GPUs.
    Several(Gpus),
}

impl std::fmt::Display for Where {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Where::Cpu => f.write_str("cpu"),
            Where::Cuda(n) => write!(f, "cuda:{n}"),
            Where::Several(gpus) => write!(f, "{gpus}"),
        }
    }
}

/// `cpu`, `cuda`, `cuda:N` or `cuda:N,M`.
pub(crate) fn parse_where(text: &str) -> Result<Where, String> {
    if text == "cpu" {
        return Ok(Where::Cpu);
    }
    if text.contains(',') {
        return Gpus::parse(text).map(Where::Several);
    }
    super::gpu::parse_device(text)
        .map(Where::Cuda)
        .map_err(|_| format!("`{text}` is no device: cpu, cuda:0, cuda:1, .."))
}

/// `exact` or `fast`.
pub(crate) fn parse_precision(text: &str) -> Result<Precision, String> {
    match text {
        "exact" => Ok(Precision::Exact),
        "fast" => Ok(Precision::Fast),
        _ => Err(format!("`{text}` is no way to round activations: exact, fast")),
    }
}

impl From<ProgramError> for CliError {
    fn from(e: ProgramError) -> Self {
        CliError::usage("program", e.to_string()).class("device")
    }
}

/// A flag that means nothing where the plan runs.
pub(crate) fn for_gpus(flag: &str) -> CliError {
    CliError::usage("arguments", format!("{flag} is for GPUs, and the plan runs on the processor: leave it out"))
}

/// A device that is open before weights are looked at, so that a missing one is said at once.
pub(crate) struct Opened {
    pub(crate) place: Where,
    gpu: Option<Box<Gpu>>,
    /// GPUs beside the first.
    more: Vec<Gpu>,
}

/// An engine, and a line for each rank of what runs it.
pub(crate) struct Placed {
    pub(crate) engine: Engine,
    pub(crate) devices: Vec<Value>,
}

impl Opened {
    /// Opens what `--device` names, if it is given.
    pub(crate) fn named(args: &DeviceArgs) -> Result<Option<Opened>, CliError> {
        args.device.map(|place| Self::open(place, args)).transpose()
    }

    fn open(place: Where, args: &DeviceArgs) -> Result<Opened, CliError> {
        let numbers = match (place, &args.map) {
            (_, Some(map)) => map.devices(place)?,
            (Where::Cpu, None) => Vec::new(),
            (Where::Cuda(n), None) => vec![n],
            (Where::Several(gpus), None) => gpus.numbers(),
        };
        let mut gpus = numbers.iter().map(|n| Gpu::open(*n, args.nvrtc.as_deref()));
        let gpu = gpus.next().transpose()?.map(Box::new);
        let more = gpus.collect::<Result<Vec<_>, _>>()?;
        Ok(Opened { place, gpu, more })
    }

    /// What runs `plan`: the device that was named, else one of those that the plan is for.
    pub(crate) fn of_plan(named: Option<Opened>, plan: &Plan, args: &DeviceArgs) -> Result<Opened, CliError> {
        let t = &plan.target;
        if let Some(map) = &args.map {
            map.check(t.ranks as usize)?;
        }
        if let Some(opened) = named {
            return opened.taking(args);
        }
        let place = if t.arch == "cpu" && args.map.is_none() { Where::Cpu } else { Where::Several(Gpus::ALL) };
        Self::open(Self::narrowed(place, t.ranks, args)?, args).map_err(|e| {
            if args.map.is_some() {
                return e;
            }
            let message = format!(
                "the plan is for `{}` ({} ranks of {}), and no GPU can be used: {}; `--device cpu` runs it on the CPU",
                t.name, t.ranks, t.arch, e.message
            );
            CliError { message, ..e }
        })?
        .taking(args)
    }

    /// Refuses what the processor does not heed.
    fn taking(self, args: &DeviceArgs) -> Result<Opened, CliError> {
        match args.for_gpus().filter(|_| self.is_cpu()) {
            Some(flag) => Err(for_gpus(flag)),
            None => Ok(self),
        }
    }

    /// How coarsely its products round activations.
    pub(crate) fn activations(&self, args: &DeviceArgs) -> Activations {
        if self.is_cpu() { Activations::F32 } else { args.precision().coarsest() }
    }

    /// All GPUs as those that are there, no more than there are ranks.
    fn narrowed(place: Where, ranks: u32, args: &DeviceArgs) -> Result<Where, CliError> {
        if place != Where::Several(Gpus::ALL) || args.map.is_some() {
            return Ok(place);
        }
        // Whatever is wrong with the driver is said where the device is opened.
        let count = Driver::open().and_then(|d| d.devices()).map_or(1, |d| d.len());
        Ok(match count.min(ranks as usize) {
            0 | 1 => Where::Cuda(0),
            n => Where::Several(Gpus::first(n)),
        })
    }

    /// Whether the CPU runs it.
    pub(crate) fn is_cpu(&self) -> bool {
        self.place == Where::Cpu
    }

    /// The engine of a plan on the device; `quiet` shows no progress.
    pub(crate) fn engine(&self, loaded: Loaded, args: &DeviceArgs, quiet: bool) -> Result<Placed, CliError> {
        let ranks = loaded.plan.target.ranks;
        match &self.gpu {
            None => {
                let one = |r| json!({ "rank": r, "device": "cpu", "arch": std::env::consts::ARCH });
                let devices = (0..ranks).map(one).collect();
                Ok(Placed { engine: Engine::new(loaded)?, devices })
            }
            Some(gpu) if !self.more.is_empty() || args.map.is_some() => {
                let gpus: Vec<&Gpu> = std::iter::once(&**gpu).chain(&self.more).collect();
                let (device, devices) = super::spread::group(&gpus, &loaded, args, quiet)?;
                Ok(Placed { engine: Engine::on(loaded, device)?, devices })
            }
            Some(gpu) => {
                let (device, about) = gpu_device(gpu, &loaded, args, quiet)?;
                let one = |r| {
                    let mut v = about.clone();
                    v["rank"] = json!(r);
                    v
                };
                let devices = (0..ranks).map(one).collect();
                Ok(Placed { engine: Engine::on(loaded, Box::new(device))?, devices })
            }
        }
    }
}

/// Tells how much of the weights is on the device, every two seconds and at the end.
pub(super) fn weights_told(quiet: bool) -> impl Fn(u64, u64) {
    let last = std::cell::Cell::new(Instant::now());
    move |done, all| {
        if !quiet && (last.get().elapsed().as_secs_f64() > 2.0 || done == all) {
            last.set(Instant::now());
            say(&format!("weights: {} of {}", human_bytes(done), human_bytes(all)));
        }
    }
}

/// Generates, compiles and loads the kernels of a plan, and brings its weights to the GPU.
pub(crate) fn gpu_device(
    gpu: &Gpu,
    loaded: &Loaded,
    args: &DeviceArgs,
    quiet: bool,
) -> Result<(CudaDevice, Value), CliError> {
    let start = Instant::now();
    let info = gpu.context.info();
    let multiprocessors = Some(info.multiprocessors);
    let choices = Choices { precision: args.precision(), multiprocessors, ..Choices::default() };
    let program = Program::new(&loaded.plan, gpu.arch, &choices)?;
    let kernels = gpu.load(&program.kernels, UNIT, quiet)?;
    let kernels_s = start.elapsed().as_secs_f64();
    let functions = program.kernels.iter().map(|k| kernels.kernel(k)).collect::<Result<Vec<_>, _>>()?;
    let options = CudaOptions { dependent: gpu.arch.has_bulk_copy(), graphs: !args.eager, limit: args.step_timeout() };
    let progress = weights_told(quiet);
    let start = Instant::now();
    let device = CudaDevice::new(
        &gpu.context,
        &loaded.plan,
        WeightSource::Stored(&loaded.weights),
        program.launches,
        functions,
        options,
        &progress,
    )?;
    let weights_s = start.elapsed().as_secs_f64();
    let starts: serde_json::Map<String, Value> =
        loaded.plan.phases.iter().enumerate().map(|(i, p)| (p.name.clone(), json!(device.starts(i)))).collect();
    if !quiet {
        say(&format!(
            "{:?} {}: {} kernels in {} units ({} from the cache) in {kernels_s:.1} s, {} on the device in {weights_s:.1} s",
            gpu.context,
            gpu.arch,
            kernels.kernels,
            kernels.units,
            kernels.cached,
            human_bytes(device.bytes()),
        ));
    }
    let about = json!({
        "rank": 0, "device": format!("cuda:{}", info.index), "arch": gpu.arch.name(), "name": info.name,
        "kernels": kernels.kernels, "units": kernels.units, "units_cached": kernels.cached, "kernels_s": kernels_s,
        "weights_s": weights_s, "bytes": device.bytes(), "graphs": options.graphs, "launches": starts,
    });
    Ok((device, about))
}
