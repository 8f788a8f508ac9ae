//! `glmc selftest`: every kernel family, stored type and shape class on the GPU, against the contract's meaning as the
//! interpreter evaluates it in exact arithmetic. Owns what is run and what is reported; the cases and their judge are
//! `glmc_codegen_cuda::cases`.

mod collectives;
mod device;
mod faults;
mod list;
mod model;
mod report;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use glmc_codegen_cuda::cases::{Bound, Check, meaning};
use glmc_codegen_cuda::host::Job;
use glmc_codegen_cuda::{Generated, Role};
use glmc_ir::tensor::Tensor;

use super::gpu::{Gpu, Loaded};
use crate::cli::SelftestArgs;
use crate::error::CliError;
use crate::terminal::say;
use device::Bench;
use report::{Outcome, Report};

/// Kernels of one translation unit.
const UNIT: usize = 24;

/// A check with all that a run needs.
struct Ready {
    index: usize,
    job: Job,
    bounds: Vec<Bound>,
    want: Vec<Tensor>,
    scratch: Vec<usize>,
}

fn ready(index: usize, check: &Check, k: &Generated) -> Result<Ready, String> {
    let (job, bounds) = check.job(k)?;
    let scratch = k.signature.0.iter().enumerate();
    let scratch = scratch.filter(|(_, f)| matches!(f.role, Role::Scratch { .. })).map(|(i, _)| i).collect();
    Ok(Ready { index, job, bounds, want: meaning(&check.case)?, scratch })
}

pub(crate) fn run(args: &SelftestArgs) -> Result<(), CliError> {
    let start = Instant::now();
    let gpu = Gpu::open(args.device, args.nvrtc.as_deref())?;
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| u64::from(d.subsec_nanos()) | 1 << 32);
    let seed = args.seed.unwrap_or_else(fresh);
    if !args.json {
        say(&format!("{:?} {}, {:?}, {:?}, seed {seed}", gpu.context, gpu.arch, gpu.driver, gpu.compiler));
    }
    if args.collectives {
        return collectives::alone(&gpu, args);
    }
    if args.faults {
        return faults::run(&gpu, args, seed);
    }
    let (checks, kernels) = list::all(seed, gpu.arch, args.quick)?;
    let loaded = gpu.load(&kernels, UNIT, args.json)?;
    let compiled = start.elapsed().as_secs_f64();
    if !args.json {
        let Loaded { kernels, units, cached, .. } = loaded;
        say(&format!("{kernels} kernels in {units} units ({cached} from the cache), {compiled:.1} s"));
    }
    let outcomes = execute(&gpu, &loaded, &checks, &kernels, if args.quick { 2 } else { 4 })?;
    let models = model::run(&gpu, args.device)?;
    let collectives = collectives::run(&gpu, args, collectives::REPLAYS)?;
    let seconds = [compiled, start.elapsed().as_secs_f64()];
    let report = Report {
        seed,
        quick: args.quick,
        seconds,
        kernels: loaded.kernels,
        checks: &checks,
        outcomes,
        models,
        collectives,
    };
    report.print(&gpu, args.json)?;
    match report.failures() {
        0 => Ok(()),
        n => {
            let message = format!("{n} of {} checks fail; run again with --seed {seed}", report.total());
            Err(CliError::usage("selftest", message).class("selftest"))
        }
    }
}

/// Runs all checks: other threads make jobs and what is expected, this one runs and judges them.
fn execute(
    gpu: &Gpu,
    loaded: &Loaded,
    checks: &[Check],
    kernels: &[Generated],
    times: usize,
) -> Result<Vec<Outcome>, CliError> {
    let mut outcomes: Vec<Outcome> = checks.iter().map(|_| Err("not run".to_owned())).collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut bench = Bench::new(gpu)?;
    std::thread::scope(|scope| {
        let (to, from) = sync_channel(2 * threads);
        for _ in 0..threads {
            let (to, next) = (to.clone(), &next);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(check), Some(k)) = (checks.get(i), kernels.get(i)) else { return };
                    // The receiver goes when a kernel has broken the device.
                    if to.send(ready(i, check, k).map_err(|e| (i, e))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(to);
        for made in from {
            let r = match made {
                Ok(r) => r,
                Err((i, e)) => {
                    outcomes[i] = Err(e);
                    continue;
                }
            };
            match bench.run(loaded, &kernels[r.index], &r.job, &r.scratch, times) {
                Ok(back) => outcomes[r.index] = back.and_then(|b| checks[r.index].judge(&r.bounds, &b, &r.want)),
                // Nothing runs on a device after a kernel has faulted.
                Err(e) => {
                    outcomes[r.index] = Err(e.to_string());
                    break;
                }
            }
        }
    });
    Ok(outcomes)
}
