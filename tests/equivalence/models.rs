//! Random small models: the lifted module, the module after every pass and the plan agree in Real over several steps
//! with caches carried; the CPU device agrees with the plan in Typed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_ir::graph::Module;
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, NoWeights};
use glmc_ir::interp::plan::{PlanInterp, SliceSource};
use glmc_ir::kernel::Kernel;
use glmc_ir::plan::{Arg, Mem, Phase, Plan, Step};
use glmc_ir::tensor::{Tensor, concrete};
use glmc_ir::ty::{Elem, SymValues, TensorType};
use glmc_runtime::device::cpu::CpuDevice;
use glmc_runtime::device::{Device, Output, Seen};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use super::compile::{Compiled, compile};
use super::small_model;
use crate::random::Choices;
use crate::run::{Files, Rng, differ, run_global};
use crate::stages::REAL;

const CASES: u32 = 96;
/// Largest difference of logits between the device and Typed, as a share of their RMS.
const DEVICE: f64 = 1e-4;
/// A choice that noise of this size (on what is compared: scores as a share of their RMS, gates) moves is not compared.
const THIN: f64 = 1e-5;

const OPTIONS: LiftOptions = LiftOptions { ctx: 24, max_batch: 2, cache_rows: 40, chunk: 8 };

/// What a step computes: for each token its sequence (`None` is padding) and id.
struct Batch {
    phase: &'static str,
    tokens: Vec<Option<(usize, i64)>>,
    out: Vec<i64>,
}

/// Two sequences: the first in two chunks, the second in one, then together, alone, and beside padding.
fn batches(rng: &mut Rng, vocab: u64) -> Vec<Batch> {
    let mut some = |seq: usize, n: usize| -> Vec<Option<(usize, i64)>> {
        (0..n).map(|_| Some((seq, rng.below(vocab as usize) as i64))).collect()
    };
    let prefill = |tokens: Vec<_>| Batch { phase: "prefill", out: vec![tokens.len() as i64 - 1, 0], tokens };
    let (first, rest, second) = (some(0, 5), some(0, 3), some(1, 4));
    let together = [some(0, 1), some(1, 1)].concat();
    let padded = [some(1, 1), vec![None]].concat();
    vec![
        prefill(first),
        prefill(rest),
        prefill(second),
        Batch { phase: "decode_2", tokens: together, out: vec![0, 1] },
        Batch { phase: "decode_1", tokens: some(0, 1), out: vec![0] },
        Batch { phase: "decode_2", tokens: padded, out: vec![0, -1] },
    ]
}

/// Which pool rows the sequences hold.
struct World {
    free: Vec<i64>,
    seqs: [Vec<i64>; 2],
}

impl World {
    /// How many positions the longest sequence of a step will see.
    fn visible(&self, b: &Batch) -> u64 {
        let new = |s: usize| b.tokens.iter().flatten().filter(|(of, _)| *of == s).count();
        let each = (0..self.seqs.len()).filter(|s| new(*s) > 0).map(|s| self.seqs[s].len() + new(s));
        each.max().unwrap_or(1) as u64
    }

    /// Symbol values and parameters by name.
    fn step(&mut self, b: &Batch, phase: &Phase) -> (SymValues, HashMap<String, Tensor>) {
        let mut owners = Vec::new();
        for t in &b.tokens {
            owners.push(t.map(|(s, _)| {
                let row = self.free.pop().expect("the pool is large enough");
                self.seqs[s].push(row);
                (s, self.seqs[s].len() as i64 - 1, row)
            }));
        }
        let mut live: Vec<usize> = Vec::new();
        owners.iter().flatten().for_each(|(s, ..)| {
            if !live.contains(s) {
                live.push(*s)
            }
        });
        let visible = owners.iter().flatten().map(|(_, at, _)| at + 1).max().unwrap_or(1);
        let n = b.tokens.len();
        let syms = SymValues::default().with("T", n as u64).with("S", visible as u64).with("R", b.out.len() as u64);
        let each = |f: &dyn Fn((usize, i64, i64)) -> i64, none: i64| -> Tensor {
            Tensor::i(vec![n], owners.iter().map(|o| o.map_or(none, f)).collect())
        };
        let table = phase.params.values().find(|p| p.name == "table").expect("every phase has a table");
        let shape = concrete(&table.ty, &syms).expect("sizes");
        let mut rows = vec![-1; shape[0] * shape[1]];
        for (line, s) in rows.chunks_exact_mut(shape[1]).zip(&live) {
            line.iter_mut().zip(&self.seqs[*s]).for_each(|(to, from)| *to = *from);
        }
        let ids = b.tokens.iter().map(|t| t.map_or(-1, |(_, id)| id)).collect();
        let all = [
            ("tokens", Tensor::i(vec![n], ids)),
            ("pos", each(&|(_, at, _)| at, 0)),
            ("row", each(&|(.., row)| row, -1)),
            ("seq", each(&|(s, ..)| live.iter().position(|l| *l == s).unwrap_or(0) as i64, 0)),
            ("len", each(&|(_, at, _)| at + 1, 0)),
            ("table", Tensor::i(shape, rows)),
            ("out", Tensor::i(vec![b.out.len()], b.out.clone())),
        ];
        (syms, all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    }
}

/// A module with its caches.
struct Global<'a> {
    name: &'a str,
    module: &'a Module,
    pools: HashMap<String, Tensor>,
}

impl Global<'_> {
    /// The results that are no state.
    fn run(
        &mut self,
        entry: &str,
        files: &Files,
        syms: &SymValues,
        params: &HashMap<String, Tensor>,
    ) -> Result<Vec<(String, Tensor)>, String> {
        let f = &self.module.funcs[self.module.func_named(entry).ok_or("no such entry")?];
        let mut args = Vec::new();
        for p in &f.params {
            let (name, ty) = (f.value_name(*p), f.ty(*p));
            args.push(match (ty.state, self.pools.get(&name)) {
                (true, Some(pool)) => pool.clone(),
                (true, None) => Tensor::poison(ty, syms).map_err(|e| e.to_string())?,
                (false, _) => params.get(&name).ok_or_else(|| format!("no parameter {name}"))?.clone(),
            });
        }
        let results = run_global(self.module, entry, files, syms, args).map_err(|e| format!("{}: {e}", self.name))?;
        let mut out = Vec::new();
        for ((name, v), t) in f.results.iter().zip(results) {
            if f.ty(*v).state {
                self.pools.insert(name.clone(), t);
            } else {
                out.push((name.clone(), t));
            }
        }
        Ok(out)
    }
}

/// What a step of the plan wrote in Typed.
type Log = RefCell<Vec<(usize, Arg, Tensor)>>;

/// What the device showed, by step.
struct Shown {
    chosen: BTreeMap<usize, Vec<i64>>,
    floats: BTreeMap<usize, Vec<f64>>,
}

/// How a case ended.
enum End {
    /// All steps were compared.
    Whole,
    /// The device chose otherwise where the choice was thin.
    Thin,
}

fn check(c: &Compiled, seed: u64) -> Result<End, String> {
    let mut rng = Rng(seed);
    let text = |e: glmc_ir::tensor::EvalError| e.to_string();
    let mut world = World { free: rng.shuffled(OPTIONS.cache_rows as usize), seqs: [vec![], vec![]] };
    let mut globals: Vec<Global<'_>> =
        c.stages.iter().map(|(name, module)| Global { name, module, pools: HashMap::new() }).collect();
    let mut real = PlanInterp::new(&c.plan, Arith::Real, &c.files).map_err(text)?;
    let log: Log = RefCell::default();
    let mut see = |i: usize, a: &Arg, t: &Tensor| log.borrow_mut().push((i, a.clone(), t.clone()));
    let mut typed = PlanInterp::new(&c.plan, Arith::Typed, &c.files).map_err(text)?.observe(&mut see);
    let loaded = glmc_runtime::load::map_weights(c.plan.clone(), Path::new(".")).map_err(|e| e.to_string())?;
    let mut device = CpuDevice::new(&c.plan).map_err(|e| e.to_string())?;
    device.set_poison(true);
    for (k, b) in batches(&mut rng, c.plan.model.vocab).iter().enumerate() {
        let named = c.plan.phase(b.phase).ok_or("a phase is missing")?;
        let visible = world.visible(b);
        let index = c.plan.phase_for(named.kind, named.tokens, visible).ok_or("no phase admits the step")?;
        let phase = &c.plan.phases[index];
        let (syms, by_name) = world.step(b, phase);
        let at_once = SymValues(syms.0.iter().map(|(s, n)| (format!("{s}.short").as_str().into(), *n)).collect());
        let all = SymValues(syms.0.iter().chain(&at_once.0).map(|(s, n)| (s.clone(), *n)).collect());
        let params: Vec<Tensor> = phase.params.values().map(|p| by_name[&p.name].clone()).collect();
        let want = real.run(phase, &syms, &params).map_err(|e| format!("step {k} in Real: {e}"))?;
        for g in &mut globals {
            // Modules before the pass that makes variants have the entry itself.
            let entry = if g.module.func_named(&phase.name).is_some() { phase.name.as_str() } else { b.phase };
            let got = g.run(entry, &c.files, &all, &by_name)?;
            for (r, want) in phase.results.iter().zip(&want) {
                let (_, got) = got.iter().find(|(n, _)| *n == r.name).ok_or("a result is missing")?;
                if let Some(d) = differ(want, got, REAL) {
                    return Err(format!("step {k} ({}): plan and `{}` differ in {}: {d}", b.phase, g.name, r.name));
                }
            }
        }
        log.borrow_mut().clear();
        let want = typed.run(phase, &syms, &params).map_err(|e| format!("step {k} in Typed: {e}"))?;
        let ints: Vec<Vec<i32>> = params
            .iter()
            .map(|t| t.ints().expect("parameters are integers").iter().map(|x| *x as i32).collect())
            .collect();
        let mut chosen: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        let mut floats: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut see = |s: Seen<'_>| {
            match s.data {
                Output::I32(v) => {
                    chosen.insert(s.step, v.iter().map(|x| i64::from(*x)).collect());
                }
                Output::F32(v) => {
                    floats.entry(s.step).or_insert_with(|| v.iter().map(|x| f64::from(*x)).collect());
                }
            }
            Ok(())
        };
        device
            .run(&c.plan, index, &loaded.weights, &syms, &ints, Some(&mut see))
            .map_err(|e| format!("step {k}: {e}"))?;
        if !same_choices(c, phase, &syms, &log.borrow(), &Shown { chosen, floats })
            .map_err(|e| format!("step {k}: {e}"))?
        {
            return Ok(End::Thin);
        }
        let at = phase.results.iter().position(|r| r.name == "logits").ok_or("no logits")?;
        let got = device.result(&c.plan, phase, "logits", &syms).map_err(|e| e.to_string())?;
        near(got, want[at].floats().map_err(text)?).map_err(|e| format!("step {k} ({}): device: {e}", b.phase))?;
    }
    Ok(End::Whole)
}

fn near(got: &[f32], want: &[f64]) -> Result<(), String> {
    let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    if got.len() != want.len() || !rms.is_finite() || rms == 0.0 {
        return Err(format!("{} logits for {}, RMS {rms}", got.len(), want.len()));
    }
    let far = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs() / rms);
    let worst = far.fold(0.0, |a: f64, d| if d.is_nan() { f64::INFINITY } else { a.max(d) });
    if worst <= DEVICE { Ok(()) } else { Err(format!("off by {worst:e} of the RMS")) }
}

/// Whether the device chose the same keys and experts; an error if it parts from a choice that is not thin.
fn same_choices(
    c: &Compiled,
    phase: &Phase,
    syms: &SymValues,
    log: &[(usize, Arg, Tensor)],
    device: &Shown,
) -> Result<bool, String> {
    for (i, step) in phase.steps.iter().enumerate() {
        if !matches!(step.kernel, Kernel::TopK(_) | Kernel::Route(_)) {
            continue;
        }
        let made = |(at, a, _): &&(usize, Arg, Tensor)| *at == i && a.name == "ids";
        let (_, _, want) = log.iter().find(made).ok_or("a choice was not seen")?;
        let k = *want.shape.last().unwrap_or(&1);
        let got = device.chosen.get(&i).ok_or("the device did not show a choice")?;
        if sets(want.ints().map_err(|e| e.to_string())?, k) != sets(got, k) {
            return if thin(c, step, syms, log, device, k)? {
                Ok(false)
            } else {
                Err(format!("`{}` chooses otherwise on the device", step.name))
            };
        }
    }
    Ok(true)
}

fn sets(ids: &[i64], k: usize) -> Vec<BTreeSet<i64>> {
    ids.chunks(k).map(|r| r.iter().copied().collect()).collect()
}

/// Whether noise of [`THIN`] of the input's RMS moves a choice.
fn thin(
    c: &Compiled,
    step: &Step,
    syms: &SymValues,
    log: &[(usize, Arg, Tensor)],
    device: &Shown,
    k: usize,
) -> Result<bool, String> {
    let source = &step.args[0];
    // The last write of the buffer's memory is by the one step that makes it.
    let (maker, _, input) = log.iter().rfind(|(_, a, _)| a.mem == source.mem).ok_or("a choice without its input")?;
    let input = input.floats().map_err(|e| e.to_string())?;
    let finite: Vec<f64> = input.iter().copied().filter(|x| x.is_finite()).collect();
    let rms = (finite.iter().map(|x| x * x).sum::<f64>() / finite.len().max(1) as f64).sqrt();
    let found = device.floats.get(maker).ok_or("the device did not show the input of a choice")?;
    let off = input.iter().zip(found).filter(|(a, b)| a != b).map(|(a, b)| (a - b).abs() / rms);
    if !off.fold(0.0, |a: f64, d| if d.is_nan() { f64::INFINITY } else { a.max(d) }).le(&DEVICE) {
        return Err(format!("`{}` chooses from other numbers on the device", step.name));
    }
    let shape = concrete(&source.ty, syms).map_err(|e| e.to_string())?;
    let mut rng = Rng(1);
    let mut seen = BTreeSet::new();
    for _ in 0..64 {
        let noisy = input.iter().map(|x| x + THIN * rms * rng.float()).collect();
        let mut args = vec![Tensor::f(shape.clone(), noisy)];
        let mut types = vec![source.ty.clone()];
        let mut kernel = step.kernel.clone();
        if let Kernel::Route(r) = &mut kernel {
            // Gates that an f32 cannot tell apart are as thin: noise on them enters as a bias.
            let experts = shape[1];
            let own = step.args.iter().find(|a| a.name == "bias").map(|a| stored(&c.plan, &c.files, a)).transpose()?;
            let own = own.map_or(vec![0.0; experts], |t| t.floats().map(<[f64]>::to_vec).unwrap_or_default());
            args.push(Tensor::f(vec![experts], own.iter().map(|b| b + THIN * rng.float()).collect()));
            types.push(TensorType::new(Elem::F32, [experts as u64]));
            r.0.bias = true;
        }
        let mut m = Module::default();
        let f = m.funcs.push(kernel.meaning(&types.iter().collect::<Vec<_>>()).map_err(|e| e.to_string())?);
        let out = Interp::new(&m, Arith::Real, syms.clone(), &NoWeights).run(f, args).map_err(|e| e.to_string())?;
        seen.insert(sets(out[0].ints().map_err(|e| e.to_string())?, k));
    }
    Ok(seen.len() > 1)
}

fn stored(plan: &Plan, files: &Files, a: &Arg) -> Result<Tensor, String> {
    let Mem::Weight(w) = a.mem else { return Err("a bias is a weight".into()) };
    let mut bytes = Vec::new();
    for s in &plan.weights[w].slices[0] {
        files.read(s, &mut bytes).map_err(|e| e.to_string())?;
    }
    let shape = concrete(&a.ty, &SymValues::default()).map_err(|e| e.to_string())?;
    Tensor::from_bytes(a.ty.elem, shape, &bytes).map_err(|e| e.to_string())
}

#[test]
fn random_models_mean_the_same_at_every_level() {
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 40, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf-bad/ok-base.gguf");
    let (whole, thin) = (Cell::new(0), Cell::new(0));
    let outcome = runner.run(&vec(any::<u32>(), 60..260), |list| {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("model.gguf");
        let what = small_model::write(&mut Choices::new(&list), &base, &path);
        let fail = |e: String| TestCaseError::fail(format!("{e}\n{what}"));
        let compiled = compile(&path, &OPTIONS).map_err(fail)?;
        match check(&compiled, u64::from(list[0])).map_err(fail)? {
            End::Whole => whole.set(whole.get() + 1),
            End::Thin => thin.set(thin.get() + 1),
        }
        Ok(())
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
    println!("{CASES} models: {} compared over 6 steps, {} parted where a choice was thin", whole.get(), thin.get());
    assert!(thin.get() * 4 <= CASES, "{} of {CASES} models parted", thin.get());
}
