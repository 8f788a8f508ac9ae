//! The shipped Q4_K_M model through the engine on the host emulation: the launch program that a GPU runs, every kernel
//! of it, in rising and in falling order of threads, against the CPU device, step by step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use glmc_codegen_cuda::host::{Left, Order, PlanRun, buffer};
use glmc_codegen_cuda::kernels::{Header, headers};
use glmc_codegen_cuda::nvrtc::{Compiler, Unit};
use glmc_codegen_cuda::program::{Choices, Precision, Program, Spread};
use glmc_codegen_cuda::{Arch, Generated, emit};
use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;
use glmc_ir::kernel::Access;
use glmc_ir::placement::local_type;
use glmc_ir::plan::{Mem, Phase, PhaseKind, Plan, Step, param};
use glmc_ir::ty::{Elem, PendingKind, SymValues};
use glmc_passes::target::Target;
use glmc_runtime::RuntimeError;
use glmc_runtime::device::{Device, Observer, Output, Seen, own_param};
use glmc_runtime::engine::{Engine, Running, Want};
use glmc_runtime::load::{Weights, map_weights};

use super::compile::compile_for;

/// Small, so that the emulation is quick; the chunk is cut by the prompt, and one bucket has a padded token.
pub(super) const OPTIONS: LiftOptions = LiftOptions { ctx: 24, max_batch: 2, cache_rows: 40, chunk: 4 };
/// Largest difference of an activation from the CPU's, as a share of its RMS. Sums of f32 in other orders.
const NEAR: f64 = 1e-3;

/// Bytes of a rank's memory that hold its part of the pools and no copy of all; a context so long that it is cheaper to
/// merge what each rank found than to bring rows together.
pub(super) const PARTS_FIT: u64 = 12 << 20;
pub(super) const PARTS: LiftOptions = LiftOptions { ctx: 1024, cache_rows: 4096, ..OPTIONS };

/// A device that runs the launch program in the emulation.
#[derive(Debug)]
pub(super) struct Emulated {
    run: PlanRun,
    steps: usize,
    logits: Vec<f32>,
    ran: Ran,
    /// The rank that the program is of, if it is one rank's.
    alone: Option<usize>,
}

impl Emulated {
    /// One rank of a plan.
    pub(super) fn alone(run: PlanRun, rank: usize) -> Self {
        Emulated { run, steps: 0, logits: Vec::new(), ran: Ran::default(), alone: Some(rank) }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn floats(left: &Left, phase: &Phase, rank: usize, mem: Mem, n: usize) -> Result<Vec<f32>, RuntimeError> {
    let told = |m: &str| RuntimeError::Request(format!("phase {}: {m}", phase.name));
    let Mem::Buf(b) = mem else { return Err(told("a result that is in no buffer")) };
    if n == 0 {
        return Ok(Vec::new());
    }
    let bytes = left.get(&buffer(rank, b)).ok_or_else(|| told("a buffer that nothing wrote"))?;
    Ok(words(bytes).take(n).map(f32::from_bits).collect())
}

impl Device for Emulated {
    // Outputs always hold poison before they are written.
    fn set_poison(&mut self, _: bool) {}

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        _: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let phase = &plan.phases[index];
        let values: Vec<u64> = phase.syms.keys().map(|s| syms.get(s).unwrap_or(0)).collect();
        let order = if self.steps.is_multiple_of(2) { Order::Rising } else { Order::Falling };
        self.steps += 1;
        self.ran.lock().unwrap().push(phase.name.clone());
        let of = |rank: usize| {
            let all = phase.params.values().zip(params);
            all.map(|(p, v)| own_param(&p.ty, v, &plan.mesh, rank, syms).unwrap().into_owned()).collect()
        };
        let params: Vec<Vec<Vec<i32>>> = (0..plan.target.ranks as usize).map(of).collect();
        let left = self.run.run(plan, index, &values, &params, order);
        let left = left.map_err(|e| RuntimeError::Request(format!("phase {}: {e}", phase.name)))?;
        if let Some(see) = see {
            for (step, of) in phase.steps.iter().enumerate() {
                for (output, a) in of.args.iter().filter(|a| a.access == Access::Write).enumerate() {
                    // A graph takes sums into the products before them, whose own results are nowhere then.
                    let summed = |s: &Step| s.kernel.name() == "add" && s.args.iter().any(|x| x.mem == a.mem);
                    let shown = |rank| matches!(a.mem, Mem::Buf(b) if left.contains_key(&buffer(rank, b)));
                    if phase.steps.iter().any(summed) && !(0..plan.target.ranks as usize).any(shown) {
                        continue;
                    }
                    for rank in self.alone.map_or(0..plan.target.ranks as usize, |r| r..r + 1) {
                        let local = local_type(&a.ty, &plan.mesh, rank as u64, syms).unwrap();
                        let shape: Vec<usize> = local.shape(syms).unwrap().into_iter().map(|n| n as usize).collect();
                        let values = floats(&left, phase, rank, a.mem, shape.iter().product())?;
                        let ints: Vec<i32> = values.iter().map(|x| x.to_bits().cast_signed()).collect();
                        let data = if local.elem == Elem::I32 { Output::I32(&ints) } else { Output::F32(&values) };
                        see(Seen { rank, step, output, shape: &shape, data })?;
                    }
                }
            }
        }
        let r = phase.results.iter().find(|r| r.name == param::LOGITS).unwrap();
        self.logits = floats(&left, phase, self.alone.unwrap_or(0), r.mem, r.ty.elems(syms).unwrap_or(0) as usize)?;
        Ok(())
    }

    fn result(&self, _: &Plan, _: &Phase, _: &str, _: &SymValues) -> Result<&[f32], RuntimeError> {
        Ok(&self.logits)
    }
}

/// What the steps of one call of the engine wrote: by number of the run, step, output and rank.
pub(super) type Shown = BTreeMap<(usize, usize, usize, usize), Vec<f64>>;

/// Calls of the engine: a prompt in uneven chunks, another sequence, steps of one and of two of them.
fn script(mut engine: Engine) -> Result<(Vec<Vec<f32>>, Shown), String> {
    // Every output is scanned, a padded token's left out.
    engine.set_check(true);
    let text = |e: RuntimeError| e.to_string();
    let (mut seen, mut run) = (Shown::new(), 0);
    let mut see = |_: &Running<'_>, s: Seen<'_>| {
        // Collectives that steps run beside are shown after those; each step once a run and rank.
        if seen.contains_key(&(run, s.step, s.output, s.rank)) {
            run += 1;
        }
        let values = match s.data {
            Output::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            // Choices are compared as sets (docs/numerics.md): rounding may exchange two that score nearly the same.
            Output::I32(v) => {
                let mut v = v.to_vec();
                v.chunks_mut(s.shape.last().copied().unwrap_or(1).max(1)).for_each(<[i32]>::sort_unstable);
                v.iter().map(|x| f64::from(*x)).collect()
            }
        };
        seen.insert((run, s.step, s.output, s.rank), values);
        Ok(())
    };
    let (a, b) = (engine.start(), engine.start());
    let prompt = [65, 30, 9, 120, 7, 7, 80];
    let mut out = vec![engine.feed_observed(a, &prompt, Want::Last, Some(&mut see)).map_err(text)?];
    out.push(engine.feed_observed(b, &[17, 20, 5], Want::All, Some(&mut see)).map_err(text)?);
    out.push(engine.decode_observed(&[(a, 11)], Some(&mut see)).map_err(text)?);
    out.push(engine.decode_observed(&[(a, 31), (b, 12)], Some(&mut see)).map_err(text)?);
    out.push(engine.decode_observed(&[(b, 40)], Some(&mut see)).map_err(text)?);
    Ok((out, seen))
}

fn far(got: &[f64], want: &[f64]) -> f64 {
    let finite: Vec<f64> = want.iter().copied().filter(|x| x.is_finite()).collect();
    let rms = (finite.iter().map(|x| x * x).sum::<f64>() / finite.len().max(1) as f64).sqrt().max(1e-30);
    let off = got.iter().zip(want).filter(|(g, w)| g != w).map(|(g, w)| (g - w).abs() / rms);
    let worst = off.fold(0.0, |a: f64, d| if d.is_nan() { f64::INFINITY } else { a.max(d) });
    if got.len() == want.len() { worst } else { f64::INFINITY }
}

/// The shipped model with an indexer that selects 5 positions: some steps of the script see fewer, some more.
pub(super) fn model(dir: &Path) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-Q4_K_M.gguf");
    let set = open(&shipped).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.set("glm-dsa.attention.indexer.top_k", 5u32);
    let path = dir.join("model.gguf");
    w.write(&path).unwrap();
    path
}

/// Names of the phases that run, in order; the emulated device writes them down.
pub(super) type Ran = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

fn check(target: &str, choices: &Choices, near: f64) {
    check_on(&crate::run::machine(target).target, &OPTIONS, choices, near);
}

/// Steps of a phase whose results are pending such a merge.
pub(super) fn pending(plan: &Plan, kind: PendingKind) -> usize {
    let owes = |s: &&Step| s.args.iter().any(|a| matches!(&a.ty.pending, Some((k, _)) if *k == kind));
    plan.phases.iter().map(|p| p.steps.iter().filter(owes).count()).sum()
}

/// The script on the emulation of a launch program, over these headers.
pub(super) fn emulated(
    plan: &Plan,
    program: Spread,
    headers: &[Header],
) -> Result<(Vec<Vec<f32>>, Shown, String), String> {
    let loaded = || map_weights(plan.clone(), Path::new(".")).unwrap();
    let stored = loaded();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let run = PlanRun::with_headers(plan, program, &|rank, w| stored.weights[rank].bytes(w).to_vec(), headers, dir);
    let ran = Ran::default();
    let emulated =
        Emulated { run: run.map_err(|e| e.to_string())?, steps: 0, logits: Vec::new(), ran: ran.clone(), alone: None };
    let (out, seen) = script(Engine::on(loaded(), Box::new(emulated)).unwrap())?;
    let ran = ran.lock().unwrap().join(" ");
    Ok((out, seen, ran))
}

fn check_on(machine: &Target, options: &LiftOptions, choices: &Choices, near: f64) -> Plan {
    let folder = tempfile::tempdir().unwrap();
    let target = machine.name.as_str();
    let c = compile_for(&model(folder.path()), options, machine).unwrap_or_else(|e| panic!("{target}: {e}"));
    let program = Program::new(&c.plan, Arch::Sm90, choices).unwrap_or_else(|e| panic!("{target}: {e}"));
    let kernels = program.kernels.len();
    for (phase, of) in c.plan.phases.iter().zip(&program.launches.phases) {
        let (launched, decodes) = (of.launched().len(), phase.kind == PhaseKind::Decode);
        println!("{target}: {} calls of {} in {launched} launches", of.calls.len(), phase.name);
        assert_eq!(launched < of.calls.len(), decodes, "{target}: {}", phase.name);
    }
    let meets = program.kernels.iter().filter(|k| k.name.starts_with("meet_")).count();
    assert!(c.plan.target.ranks == 1 || meets > 0, "{target}: the ranks never meet");
    let lanes = program.launches.weights[0].iter().filter(|w| w.repack.is_some()).count();
    let (weights, ranks) = (c.plan.weights.len(), c.plan.target.ranks);
    // Rows that are cut inside blocks have no lanes.
    let apart = c.plan.weights.values().filter(|w| w.ty.elem != w.ty.elem.in_file()).count();
    let whole = weights - apart;
    assert!(choices.rows_only || lanes * 3 > whole, "{lanes} of {whole} weights of whole blocks lie in lanes");
    assert!(ranks == 1 || apart > 0, "{target}: nothing is cut inside blocks");
    let loaded = || map_weights(c.plan.clone(), Path::new(".")).unwrap();
    let (want, mut shown) = script(Engine::new(loaded()).unwrap()).unwrap();
    let (got, seen, ran) = emulated(&c.plan, program.into(), &headers()).unwrap_or_else(|e| panic!("{target}: {e}"));
    // The CPU also shows the rows that it made for a pool, which no buffer holds.
    shown.retain(|at, _| seen.contains_key(at));
    assert_eq!(seen.len(), shown.len(), "{target}: other steps are shown");
    assert_eq!(ran, "prefill.short prefill prefill.short decode_1 decode_2 decode_1.short", "{target}");
    let mut worst = 0.0f64;
    for (at, w) in &shown {
        let w = &w;
        let d = far(&seen[at], w);
        worst = worst.max(d);
        let names = c.plan.phases.iter().map(|p| p.steps.get(at.1).map_or("", |s| s.name.as_str()));
        let names = names.collect::<Vec<_>>().join(" or ");
        if d > near {
            let apart = seen[at].iter().zip(w.iter()).enumerate().filter(|(_, (g, w))| g != w).take(8);
            println!("{:?}", apart.collect::<Vec<_>>());
            let kernel = c.plan.phases.iter().map(|p| p.steps.get(at.1).map_or("", |s| s.kernel.name()));
            println!("{:?}", kernel.collect::<Vec<_>>());
        }
        assert!(
            d <= near,
            "{target}: run {}, step {} ({names}), output {}, rank {}: off by {d:e} of the RMS",
            at.0,
            at.1,
            at.2,
            at.3
        );
    }
    let logits = got.iter().zip(&want).map(|(g, w)| {
        let f = |v: &[f32]| v.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        far(&f(g), &f(w))
    });
    let logits = logits.fold(0.0, f64::max);
    println!(
        "{target}: {ranks} ranks, {kernels} kernels ({meets} collectives), {lanes} of {weights} weights in lanes, {} outputs compared, activations off by up \
         to {worst:.1e}, logits by {logits:.1e}",
        shown.len()
    );
    assert!(logits <= near, "{target}: logits off by {logits:e}");
    c.plan
}

#[test]
fn the_launch_program_of_a_cpu_plan_gives_the_logits_of_the_cpu() {
    check("cpu", &Choices::default(), NEAR);
}

#[test]
fn the_launch_program_of_a_gpu_plan_gives_the_logits_of_the_cpu() {
    let plan = check_on(&crate::run::machine("1x-h200").target, &OPTIONS, &Choices::default(), NEAR);
    // The variants that graphs launch are among what ran: sums taken in, operands read early.
    let program = Program::new(&plan, Arch::Sm90, &Choices::default()).unwrap();
    let launched = program.launches.phases.iter().flat_map(|p| p.launched()).map(|c| &program.kernels[c.kernel]);
    for of in ["MORE = true;", "SETTLED = true;"] {
        assert!(launched.clone().any(|k| k.body.contains(of)), "no kernel with {of}");
    }
}

#[test]
fn eight_ranks_of_one_device_give_the_logits_of_eight_cpu_ranks() {
    check("8x-cpu", &Choices::default(), NEAR);
}

#[test]
fn caches_in_parts_merge_as_on_eight_cpu_ranks() {
    // Copies of the pools do not fit a rank, parts do.
    let mut machine = crate::run::machine("8x-cpu").target;
    machine.device.memory_bytes = Some(PARTS_FIT);
    let plan = check_on(&machine, &PARTS, &Choices::default(), NEAR);
    let merges = [PendingKind::Softmax, PendingKind::TopK].map(|k| pending(&plan, k));
    println!("merges by softmax and of choices: {merges:?}");
    assert!(merges.iter().all(|n| *n > 0), "nothing is split: {merges:?}");
}

#[test]
fn weights_as_in_the_file_and_rounded_activations_come_near() {
    // What is chosen by scores may differ where activations are rounded; this model and prompt have no such choice.
    let choices = Choices {
        precision: Precision::Fast,
        rows_only: true,
        multiprocessors: Some(4),
        small_bytes: None,
        library: false,
    };
    check("cpu", &choices, 5e-2);
}

/// The mean KL divergence of rows of logits, in nats.
fn divergence(got: &[Vec<f32>], want: &[Vec<f32>], vocab: usize) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let most = row.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)));
        let total: f64 = row.iter().map(|x| (f64::from(*x) - most).exp()).sum();
        row.iter().map(|x| f64::from(*x) - most - total.ln()).collect()
    };
    let rows = |all: &[Vec<f32>]| all.iter().flat_map(|v| v.chunks(vocab)).map(log_softmax).collect::<Vec<_>>();
    let (got, want) = (rows(got), rows(want));
    assert_eq!(got.len(), want.len());
    let one = |(g, w): (&Vec<f64>, &Vec<f64>)| g.iter().zip(w).map(|(g, w)| w.exp() * (w - g)).sum::<f64>();
    got.iter().zip(&want).map(one).sum::<f64>() / want.len() as f64
}

#[test]
fn rounded_activations_hardly_move_what_is_predicted() {
    // What is chosen by scores differs here and there, so only logits are compared.
    let folder = tempfile::tempdir().unwrap();
    let machine = crate::run::machine("1x-h200").target;
    let c = compile_for(&model(folder.path()), &OPTIONS, &machine).unwrap_or_else(|e| panic!("{e}"));
    let (want, _) = script(Engine::new(map_weights(c.plan.clone(), Path::new(".")).unwrap()).unwrap()).unwrap();
    let vocab = c.plan.model.vocab as usize;
    let of = |precision| {
        let choices = Choices { precision, ..Choices::default() };
        let program = Program::new(&c.plan, Arch::Sm90, &choices).unwrap_or_else(|e| panic!("{e}"));
        let (got, ..) = emulated(&c.plan, program.into(), &headers()).unwrap_or_else(|e| panic!("{e}"));
        divergence(&got, &want, vocab)
    };
    let (exact, fast) = (of(Precision::Exact), of(Precision::Fast));
    println!("mean KL to the CPU: exact {exact:.1e}, fast {fast:.1e}");
    // Another engine that rounds to 8 bits is at 6.8e-3 from the same logits (tests/fixtures/README.md).
    assert!(exact < 1e-8 && fast > exact && fast < 1e-2, "mean KL: exact {exact:e}, fast {fast:e}");
}

#[test]
fn every_kernel_of_the_launch_programs_compiles_without_spills() {
    let compiler = match Compiler::find(None, None) {
        Ok(c) => c,
        Err(e) => return println!("SKIPPED: {e}"),
    };
    for (target, arch) in [("cpu", Arch::Sm90), ("1x-h200", Arch::Sm120)] {
        let folder = tempfile::tempdir().unwrap();
        let c = compile_for(&model(folder.path()), &OPTIONS, &crate::run::machine(target).target)
            .unwrap_or_else(|e| panic!("{target}: {e}"));
        let program = Program::new(&c.plan, arch, &Choices::default()).unwrap_or_else(|e| panic!("{target}: {e}"));
        let groups: Vec<&[Generated]> = program.kernels.chunks(6).collect();
        let unit = |g: &&[Generated]| Unit { name: g[0].name.clone(), source: emit::unit(g.iter()) };
        let units: Vec<Unit> = groups.iter().map(unit).collect();
        // With stamps, as a bench traces them; spills may come with those.
        let traced: Vec<Unit> =
            units.iter().map(|u| Unit { source: format!("#define GLMC_TRACE\n{}", u.source), ..u.clone() }).collect();
        let traced =
            compiler.compile_all(&traced, arch, 2, &|_| ()).unwrap_or_else(|e| panic!("{target}, traced: {e}"));
        for (made, group) in traced.iter().zip(&groups) {
            made.check(group.iter(), arch).unwrap_or_else(|e| panic!("{target}, traced: {e}"));
        }
        let made = compiler.compile_all(&units, arch, 2, &|_| ()).unwrap_or_else(|e| panic!("{target}: {e}"));
        for (made, group) in made.iter().zip(&groups) {
            made.check(group.iter(), arch).unwrap_or_else(|e| panic!("{target}: {e}"));
            let spills: Vec<_> = made.resources.iter().filter(|r| r.spill_stores + r.spill_loads > 0).collect();
            assert!(spills.is_empty(), "{target} on {arch}: {spills:#?}");
        }
        println!("{target} on {arch}: {} kernels in {} units, no spills", program.kernels.len(), units.len());
    }
}
