//! Every kernel contract on the CPU device against its meaning in Real: a one-launch plan for each case. Float operands
//! are f32 weights decoded by a step before, integers are step parameters, stored operands are weights, and pools are
//! filled by an append.

use std::collections::BTreeMap;
use std::path::Path;

use glmc_ir::entities::{BufId, ParamId};
use glmc_ir::graph::{Module, Span};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, NoWeights};
use glmc_ir::kernel::{Access, AppendKernel, DecodeKernel, GatherKernel, Kernel};
use glmc_ir::plan::{
    ALIGN, Arg, Buffer, FileRef, Mem, Param, Phase, PhaseKind, PhaseResult, Plan, Segment, State, Step,
};
use glmc_ir::shard_map::recipe_slices;
use glmc_ir::tensor::{Data, Tensor, concrete};
use glmc_ir::ty::{Elem, SymValues, TensorType};
use glmc_ir::verify::plan::verify_plan;
use glmc_passes::schedule::Scheduled;
use glmc_runtime::device::cpu::CpuDevice;
use glmc_runtime::device::{Device, Output, Seen};

use crate::run::{Files, wrap};
use glmc_codegen_cuda::cases::{Case, In, cases};

/// Largest relative error in L2, and of one element as a share of the RMS.
const L2: f64 = 1e-5;
const ELEMENT: f64 = 8e-5;

/// A plan under construction.
struct Maker {
    plan: Plan,
    file: Vec<u8>,
    params: Vec<Vec<i32>>,
}

impl Maker {
    fn new() -> Self {
        let none = Scheduled { weights: Default::default(), states: Default::default(), phases: Vec::new() };
        Maker { plan: wrap(&Module::default(), none, &Files(Vec::new())), file: vec![0; 64], params: Vec::new() }
    }

    fn phase(&mut self, name: &str) {
        self.plan.phases.push(Phase {
            name: name.into(),
            kind: PhaseKind::Prefill,
            tokens: 1,
            syms: Default::default(),
            params: Default::default(),
            buffers: Default::default(),
            arena_bytes: 0,
            steps: Vec::new(),
            segments: Vec::new(),
            overlaps: Vec::new(),
            results: Vec::new(),
        });
        self.params.clear();
    }

    fn last(&mut self) -> &mut Phase {
        self.plan.phases.last_mut().expect("a phase was begun")
    }

    fn weight(&mut self, ty: &TensorType, bytes: &[u8]) -> Mem {
        let span = Span { part: 0, offset: self.file.len() as u64, bytes: bytes.len() as u64 };
        self.file.extend_from_slice(bytes);
        self.file.resize(self.file.len().next_multiple_of(32), 0);
        let slices = recipe_slices(ty, &self.plan.mesh, span).expect("one rank");
        let name = format!("w{}", self.plan.weights.len());
        let recipe = glmc_ir::plan::Recipe { tensor: name.clone(), name, ty: ty.clone(), span, slices };
        Mem::Weight(self.plan.weights.push(recipe))
    }

    fn ints(&mut self, ty: &TensorType, values: &[i64]) -> Mem {
        self.params.push(values.iter().map(|x| *x as i32).collect());
        let name = format!("p{}", self.params.len());
        let id: ParamId = self.last().params.push(Param { name, ty: ty.clone() });
        Mem::Param(id)
    }

    /// A launch; its outputs.
    fn step(&mut self, kernel: Kernel, inputs: &[(Mem, TensorType)]) -> Vec<(Mem, TensorType)> {
        let types: Vec<&TensorType> = inputs.iter().map(|(_, t)| t).collect();
        let made = kernel.result_types(&types).unwrap_or_else(|e| panic!("{}: {e}", kernel.name()));
        let params = kernel.params();
        let updates = params.iter().filter(|p| p.access == Access::Update).count();
        let (mut ins, mut outs) = (inputs.iter(), made.into_iter().skip(updates));
        let (mut args, mut out) = (Vec::new(), Vec::new());
        let phase = self.last();
        for p in params {
            let (mem, ty) = if p.access == Access::Write {
                let ty = outs.next().expect("a type for each output");
                let bytes = ty.bytes(&SymValues::default()).expect("constant");
                let offset = phase.arena_bytes.next_multiple_of(ALIGN);
                phase.arena_bytes = offset + bytes;
                let b: BufId = phase.buffers.push(Buffer { name: p.name.clone(), ty: ty.clone(), offset, bytes });
                out.push((Mem::Buf(b), ty.clone()));
                (Mem::Buf(b), ty)
            } else {
                ins.next().expect("an operand for each input").clone()
            };
            args.push(Arg { name: p.name, access: p.access, mem, ty });
        }
        phase.steps.push(Step { name: kernel.name().into(), kernel, args });
        out
    }

    fn decoded(&mut self, ty: &TensorType, values: &[f64]) -> (Mem, TensorType) {
        let bytes: Vec<u8> = values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
        let plain = TensorType { state: false, ..ty.clone() };
        let w = self.weight(&plain, &bytes);
        self.step(DecodeKernel {}.into(), &[(w, plain)]).remove(0)
    }

    /// A pool with these rows.
    fn pool(&mut self, ty: &TensorType, values: &[f64]) -> Mem {
        let s = match self.plan.states.keys().next() {
            Some(s) => s,
            None => self.plan.states.push(State { name: "pool".into(), ty: ty.clone() }),
        };
        let x = self.decoded(ty, values);
        let rows = self.all_rows(ty);
        self.step(AppendKernel {}.into(), &[(Mem::State(s), ty.clone()), rows, x]);
        Mem::State(s)
    }

    fn all_rows(&mut self, pool: &TensorType) -> (Mem, TensorType) {
        let n = pool.shape(&SymValues::default()).expect("constant")[0];
        let ty = TensorType::new(Elem::I32, [n]);
        (self.ints(&ty, &(0..n as i64).collect::<Vec<_>>()), ty)
    }

    fn end(&mut self, results: &[(Mem, TensorType)]) {
        let phase = self.last();
        for (i, (mem, ty)) in results.iter().enumerate() {
            phase.results.push(PhaseResult { name: format!("r{i}"), mem: *mem, ty: ty.clone() });
        }
        phase.segments = vec![Segment { first: 0, count: phase.steps.len() }];
    }
}

/// What the device computes: the outputs of the launch, or the pool that it changed.
fn on_device(case: &Case) -> Result<Vec<Vec<f64>>, String> {
    let mut m = Maker::new();
    let append = matches!(case.kernel, Kernel::Append(_) | Kernel::AppendRow(_));
    let mut first: Option<Vec<Vec<i32>>> = None;
    if let (true, In::Pool(ty, values)) = (append, &case.inputs[0]) {
        m.phase("fill");
        m.pool(ty, values);
        let rows = m.all_rows(ty);
        let state = m.plan.states.keys().next().expect("the pool");
        let seen = m.step(GatherKernel {}.into(), &[(Mem::State(state), ty.clone()), rows]);
        m.end(&seen);
        first = Some(m.params.clone());
    }
    m.phase("case");
    let mut inputs = Vec::new();
    for input in &case.inputs {
        inputs.push(match input {
            In::F(ty, v) => m.decoded(ty, v),
            In::W(ty, bytes) => (m.weight(ty, bytes), ty.clone()),
            In::I(ty, v) => (m.ints(ty, v), ty.clone()),
            In::Pool(ty, _) if append => (Mem::State(m.plan.states.keys().next().expect("the pool")), ty.clone()),
            In::Pool(ty, v) => (m.pool(ty, v), ty.clone()),
        });
    }
    let mut made = m.step(case.kernel.clone(), &inputs);
    if append {
        let rows = m.all_rows(&inputs[0].1);
        made = m.step(GatherKernel {}.into(), &[inputs[0].clone(), rows]);
    }
    m.end(&made);
    run(m, first)
}

/// Runs the phases; the outputs of the last step.
fn run(mut m: Maker, first: Option<Vec<Vec<i32>>>) -> Result<Vec<Vec<f64>>, String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = dir.path().join("weights");
    std::fs::write(&path, &m.file).map_err(|e| e.to_string())?;
    let hash = |r: std::io::Result<String>| r.map_err(|e| e.to_string());
    m.plan.files = vec![FileRef {
        path: path.to_string_lossy().into_owned(),
        bytes: m.file.len() as u64,
        header_bytes: 64,
        header_hash: hash(glmc_content::header_hash(&path, 64))?,
        sample_hash: hash(glmc_content::sample_hash(&path, 64))?,
    }];
    verify_plan(&m.plan).map_err(|e| format!("the plan of the case is refused: {e}"))?;
    let loaded = glmc_runtime::load::map_weights(m.plan, Path::new(".")).map_err(|e| e.to_string())?;
    let mut device = CpuDevice::new(&loaded.plan).map_err(|e| e.to_string())?;
    device.set_poison(true);
    let none = SymValues::default();
    if let Some(params) = &first {
        device.run(&loaded.plan, 0, &loaded.weights, &none, params, None).map_err(|e| e.to_string())?;
    }
    let index = loaded.plan.phases.len() - 1;
    let last = loaded.plan.phases[index].steps.len() - 1;
    let mut out: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut see = |s: Seen<'_>| {
        if s.step == last {
            let numbers = match s.data {
                Output::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
                Output::I32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            };
            out.insert(s.output, numbers);
        }
        Ok(())
    };
    device.run(&loaded.plan, index, &loaded.weights, &none, &m.params, Some(&mut see)).map_err(|e| e.to_string())?;
    Ok(out.into_values().collect())
}

/// What the contract means.
fn meaning(case: &Case) -> Result<Vec<Tensor>, String> {
    let types: Vec<&TensorType> = case.inputs.iter().map(In::ty).collect();
    let mut m = Module::default();
    let f = m.funcs.push(case.kernel.meaning(&types).map_err(|e| e.to_string())?);
    let none = SymValues::default();
    let mut args = Vec::new();
    for i in &case.inputs {
        let shape = concrete(i.ty(), &none).map_err(|e| e.to_string())?;
        args.push(match i {
            In::F(_, v) | In::Pool(_, v) => Tensor::f(shape, v.iter().map(|x| f64::from(*x as f32)).collect()),
            In::I(_, v) => Tensor::i(shape, v.clone()),
            In::W(ty, b) => Tensor::from_bytes(ty.elem, shape, b).map_err(|e| e.to_string())?,
        });
    }
    Interp::new(&m, Arith::Real, none, &NoWeights).run(f, args).map_err(|e| e.to_string())
}

/// Within the budget; the worst relative L2 and element.
fn compare(got: &[f64], want: &Tensor) -> Result<(f64, f64), String> {
    let want: Vec<f64> = match &want.data {
        Data::F(v) => v.clone(),
        Data::I(v) => {
            let same = v.iter().map(|x| *x as f64).eq(got.iter().copied());
            return if same { Ok((0.0, 0.0)) } else { Err(format!("chose {got:?} for {v:?}")) };
        }
        Data::Q(..) => return Err("stored blocks as a result".into()),
    };
    if got.len() != want.len() {
        return Err(format!("{} elements for {}", got.len(), want.len()));
    }
    let size = want.iter().filter(|x| x.is_finite()).map(|x| x * x).sum::<f64>();
    let rms = (size / want.len() as f64).sqrt();
    let (mut sum, mut worst) = (0.0, 0.0f64);
    for (i, (g, w)) in got.iter().zip(&want).enumerate().filter(|(_, (g, w))| g != w) {
        let d = (g - w).abs();
        if !d.is_finite() || rms == 0.0 {
            return Err(format!("element {i} is {g}, expected {w}"));
        }
        sum += d * d;
        worst = worst.max(d / rms);
    }
    let l2 = if sum == 0.0 { 0.0 } else { (sum / size).sqrt() };
    if l2 <= L2 && worst <= ELEMENT { Ok((l2, worst)) } else { Err(format!("relative L2 {l2:e}, worst {worst:e}")) }
}

#[test]
fn every_contract_computes_its_meaning_on_the_cpu() {
    let (mut failures, mut total) = (Vec::new(), 0);
    // Collectives are no work of one device: tests/glir/sharded runs them.
    let moves = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "shard"];
    for name in Kernel::NAMES.iter().filter(|n| !moves.contains(n)) {
        let mut list = cases(name, 0);
        // A plan of one rank cuts no blocks; e2e::cuts runs these forms on ranks.
        list.retain(|c| c.inputs.iter().all(|i| i.ty().elem.in_file() == i.ty().elem));
        assert!(!list.is_empty(), "the contract `{name}` has no case");
        let (mut l2, mut worst) = (0.0f64, 0.0f64);
        for case in &list {
            assert_eq!(case.kernel.name(), *name, "{}", case.what);
            let mut judge = || -> Result<(), String> {
                let (got, want) = (on_device(case)?, meaning(case)?);
                if got.len() != want.len() {
                    return Err(format!("{} outputs for {}", got.len(), want.len()));
                }
                for (g, w) in got.iter().zip(&want) {
                    let (a, b) = compare(g, w)?;
                    (l2, worst) = (l2.max(a), worst.max(b));
                }
                Ok(())
            };
            if let Err(e) = judge() {
                failures.push(format!("{name} {}: {e}", case.what));
            }
        }
        println!("{name}: {} cases, relative L2 up to {l2:.1e}, an element up to {worst:.1e} of the RMS", list.len());
        total += list.len();
    }
    println!("all: {total} cases");
    assert!(failures.is_empty(), "{} of {total} fail:\n{}", failures.len(), failures.join("\n"));
}
