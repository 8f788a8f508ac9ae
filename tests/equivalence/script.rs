//! A short run of a one-rank plan, in the plan interpreter and on the CPU device: a chunk of prefill, then two steps of
//! decode.

use std::path::Path;

use glmc_ir::interp::Arith;
use glmc_ir::interp::plan::PlanInterp;
use glmc_ir::mutate::Reordered;
use glmc_ir::plan::{Phase, Plan};
use glmc_ir::tensor::{EvalError, Tensor};
use glmc_ir::ty::SymValues;
use glmc_runtime::device::Device;
use glmc_runtime::device::cpu::CpuDevice;

use crate::run::Files;

/// Rows of the pools that the run uses lie below this.
pub(super) const ROWS: i64 = 16;

/// A step: its phase, the values of its symbols, its parameters in order.
struct Step<'p> {
    index: usize,
    phase: &'p Phase,
    syms: SymValues,
    params: Vec<Tensor>,
}

/// Prompt and decoded tokens, with the positions from which they start.
const STEPS: [(&str, &[i64], i64); 3] =
    [("prefill", &[65, 300, 9, 1200], 0), ("decode_1", &[17], 4), ("decode_1", &[2000], 5)];

fn steps(plan: &Plan) -> Result<Vec<Step<'_>>, EvalError> {
    let step = |(index, (_, tokens, at)): (usize, (&str, &[i64], i64))| {
        let phase = &plan.phases[index];
        let n = tokens.len();
        let seen = at + n as i64;
        let syms = SymValues::default().with("T", n as u64).with("S", seen as u64).with("R", 1);
        let i = |v: Vec<i64>| Tensor::i(vec![v.len()], v);
        let row = |p: i64| (p * 5 + 3) % ROWS;
        let positions: Vec<i64> = (at..seen).collect();
        let params = phase.params.values().map(|p| match p.name.as_str() {
            "tokens" => i(tokens.iter().map(|t| t % (plan.model.vocab.max(1) as i64)).collect()),
            "pos" => i(positions.clone()),
            "row" => i(positions.iter().map(|p| row(*p)).collect()),
            "seq" => i(vec![0; n]),
            "len" => i(positions.iter().map(|p| p + 1).collect()),
            "table" => Tensor::i(vec![1, seen as usize], (0..seen).map(row).collect()),
            _ => i(vec![n as i64 - 1]),
        });
        Ok(Step { index, phase, syms, params: params.collect() })
    };
    // Each step by every phase that admits it: the same rows are written again.
    let mut all = Vec::new();
    for s in STEPS {
        let seen = (s.2 + s.1.len() as i64) as u64;
        let named = plan.phase(s.0).ok_or_else(|| EvalError::new("no phase"))?;
        let same =
            |p: &Phase| (p.kind, p.tokens) == (named.kind, named.tokens) && p.visible().is_none_or(|n| seen <= n);
        all.extend(plan.phases.iter().enumerate().filter(|(_, p)| same(p)).map(|(i, _)| (i, s)));
    }
    all.into_iter().map(step).collect()
}

/// All logits by the plan interpreter.
pub(super) fn interpret(plan: &Plan, arith: Arith, files: &Files) -> Result<Vec<f64>, EvalError> {
    logits(plan, PlanInterp::new(plan, arith, files)?)
}

/// The same of a plan that the verifier has not seen, perhaps with two collectives in the other order on one rank.
pub(super) fn interpret_unverified(
    plan: &Plan,
    files: &Files,
    order: Option<&Reordered>,
) -> Result<Vec<f64>, EvalError> {
    let interp = PlanInterp::new(plan, Arith::Real, files)?.unverified();
    match order {
        Some(r) => logits(plan, interp.reordered(r.rank, &r.phase, r.steps)),
        None => logits(plan, interp),
    }
}

fn logits(plan: &Plan, mut interp: PlanInterp<'_>) -> Result<Vec<f64>, EvalError> {
    let mut out = Vec::new();
    for s in steps(plan)? {
        for (r, t) in s.phase.results.iter().zip(interp.run(s.phase, &s.syms, &s.params)?) {
            if r.name == "logits" {
                out.extend(t.floats()?);
            }
        }
    }
    Ok(out)
}

/// All logits by the CPU device, on the weight files that the plan names.
pub(super) fn execute(plan: &Plan) -> Result<Vec<f64>, String> {
    let loaded = glmc_runtime::load::map_weights(plan.clone(), Path::new(".")).map_err(|e| e.to_string())?;
    let mut device = CpuDevice::new(plan).map_err(|e| e.to_string())?;
    device.set_poison(true);
    let mut out = Vec::new();
    for s in steps(plan).map_err(|e| e.to_string())? {
        let ints = |t: &Tensor| t.ints().expect("parameters are integers").iter().map(|x| *x as i32).collect();
        let params: Vec<Vec<i32>> = s.params.iter().map(ints).collect();
        device.run(plan, s.index, &loaded.weights, &s.syms, &params, None).map_err(|e| e.to_string())?;
        let logits = device.result(plan, s.phase, "logits", &s.syms).map_err(|e| e.to_string())?;
        out.extend(logits.iter().map(|x| f64::from(*x)));
    }
    Ok(out)
}
