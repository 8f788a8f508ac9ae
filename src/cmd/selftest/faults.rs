//! `selftest --faults`: faults planted in the kernels of every family and class of shapes, on this GPU. A fault that the
//! comparison does not see fails.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use glmc_codegen_cuda::Generated;
use glmc_codegen_cuda::cases::Check;
use glmc_codegen_cuda::cases::faults::{self, Fault, Tally};
use glmc_codegen_cuda::host::JobResult;
use serde_json::json;

use super::super::gpu::{Gpu, Loaded};
use super::super::{print_json, print_line};
use super::device::Bench;
use super::{Ready, UNIT, ready};
use crate::cli::SelftestArgs;
use crate::error::CliError;

/// Checks of one class and stored type.
const EACH: usize = 1;
/// Failures that are told one by one.
const TOLD: usize = 20;

/// Jobs and what is expected of them, made by all processors.
fn prepare(list: &[(Check, Generated)]) -> Result<Vec<Ready>, CliError> {
    let next = AtomicUsize::new(0);
    let slots: Vec<Mutex<Option<Result<Ready, String>>>> = list.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let (Some((check, k)), Some(slot)) = (list.get(i), slots.get(i)) else { return };
                    if let Ok(mut slot) = slot.lock() {
                        *slot = Some(ready(i, check, k));
                    }
                }
            });
        }
    });
    let missing = || Err("a thread that did not end".to_owned());
    let made = slots.into_iter().map(|s| s.into_inner().ok().flatten().unwrap_or_else(missing));
    made.collect::<Result<_, _>>().map_err(CliError::internal)
}

fn once(bench: &mut Bench<'_>, on: &Loaded, k: &Generated, r: &Ready, check: &Check) -> Result<JobResult, CliError> {
    let job = check.job(k).map_err(CliError::internal)?.0;
    Ok(bench.run(on, k, &job, &r.scratch, 1)?)
}

pub(super) fn run(gpu: &Gpu, args: &SelftestArgs, seed: u64) -> Result<(), CliError> {
    let start = Instant::now();
    let list = faults::all(seed, gpu.arch, EACH)?;
    let loaded = gpu.load(list.iter().map(|l| &l.1), UNIT, args.json)?;
    let made = prepare(&list)?;
    let mut bench = Bench::new(gpu)?;
    let right = list.iter().zip(&made).map(|((c, k), r)| once(&mut bench, &loaded, k, r, c));
    let right = right.collect::<Result<Vec<_>, _>>()?;
    let mut tally = Tally::default();
    for fault in Fault::ALL {
        let planted = faults::plant_all(fault, &list);
        let own;
        let on = if fault.is_of_blocks() {
            &loaded
        } else {
            own = gpu.load(planted.iter().map(|p| &p.1.1), UNIT, args.json)?;
            &own
        };
        for (i, (check, kernel)) in &planted {
            // A device that a fault broke runs nothing more, so that the rest is not known.
            let back = once(&mut bench, on, kernel, &made[*i], check).map_err(|e| {
                let m = format!("{} in {}: {}", fault.name(), check.what, e.message);
                CliError { message: m, ..e }
            })?;
            let (check, kernel) = &list[*i];
            tally.add(fault, (check, kernel), &made[*i].bounds, &right[*i], &back, &made[*i].want);
        }
    }
    report(gpu, args, seed, &tally, start.elapsed().as_secs_f64())
}

fn report(gpu: &Gpu, args: &SelftestArgs, seed: u64, tally: &Tally, seconds: f64) -> Result<(), CliError> {
    let failures = tally.failures();
    if args.json {
        let row = |((f, class, quant), r): (&(Fault, String, String), &faults::Row)| {
            json!({
                "fault": f.name(), "class": class, "type": quant, "checks": r.checks, "reached": r.reached, "found": r.found,
                "missed": r.missed,
            })
        };
        let rows: Vec<_> = tally.rows.iter().map(row).collect();
        let passed = failures.is_empty();
        print_json(&json!({
            "machine": gpu.json(), "seed": seed, "seconds": seconds, "rows": rows, "failures": failures,
            "passed": passed,
        }))?;
    } else {
        print_line(&format!(
            "{:<28} {:<22} {:>7} {:>7} {:>8} {:>7}",
            "fault", "contract", "classes", "checks", "reached", "found"
        ))?;
        for ((fault, contract), [classes, checks, reached, found]) in tally.by_contract() {
            let name = fault.name();
            print_line(&format!("{name:<28} {contract:<22} {classes:>7} {checks:>7} {reached:>8} {found:>7}"))?;
        }
        failures.iter().take(TOLD).try_for_each(|f| print_line(&format!("NOT SEEN {f}")))?;
        print_line(&format!(
            "{} of {} classes have what is not seen; {seconds:.1} s",
            failures.len(),
            tally.rows.len()
        ))?;
    }
    match failures.len() {
        0 => Ok(()),
        n => {
            let m = format!("{n} planted faults are not seen; run again with --faults --seed {seed}");
            Err(CliError::usage("selftest", m).class("selftest"))
        }
    }
}
