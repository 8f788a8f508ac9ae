//! The lane layout: repacked on the host and by the device kernel to the same bytes, read back to the reference
//! decoder's bits, and multiplied by every kernel that takes it.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "../../../tests/equivalence/contract_cases.rs"]
#[allow(dead_code, reason = "the table of all cases is another test's")]
mod contract_cases;
#[path = "support/device.rs"]
mod device;
#[path = "../../../tests/support/run.rs"]
mod run;

use std::path::Path;

use contract_cases::{Case, In};
use device::{L2, compare, job, meaning, untouched};
use glmc_codegen_cuda::host::{Buffer, Job, Launch, Order, Program};
use glmc_codegen_cuda::{Activations, Arch, Generated, Options, Request, Storage, emit, generate, repack};
use glmc_ir::kernel::{GroupedMatmulKernel, Kernel, MatmulKernel};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, SymValues, TensorType};
use run::{Rng, blocks};

const TYPES: [QuantType; 4] = [QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0];

fn program(kernels: &[Generated]) -> Program {
    Program::build(&emit::unit(kernels), Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn host_and_device_repack_to_the_same_bytes() {
    let mut rng = Rng(5);
    let (mut kernels, mut jobs, mut wants) = (Vec::new(), Vec::new(), Vec::new());
    for q in TYPES {
        for elems in [256, 7 * 256, 64 * 256] {
            let file = blocks(q, elems, rng.next(), 0.5);
            let want = repack::to_lane(q, &file).expect("whole blocks");
            assert_eq!(want.len() as u64, repack::lane_bytes(q, elems as u64).expect("it has the layout"), "{q}");
            // Nothing but padding is added.
            assert!((file.len()..file.len() + 64).contains(&want.len()), "{q}");
            let k = repack::kernel(&TensorType::new(q, [elems as u64])).expect("it has the layout");
            jobs.push(Job {
                buffers: vec![Buffer::Input(file), Buffer::Output(want.len())],
                launches: vec![Launch { shape: k.launches[0].clone(), args: vec![0, 1] }],
            });
            kernels.push(k);
            wants.push((q, want));
        }
    }
    let program = program(&kernels);
    for order in [Order::Rising, Order::Falling] {
        for (got, (q, want)) in program.run(&jobs, order).expect("it runs").into_iter().zip(&wants) {
            assert!(got.unwrap_or_else(|e| panic!("{q}: {e}"))[0] == *want, "{q}: other bytes");
        }
    }
    assert_eq!(repack::lane_bytes(QuantType::Q4_0, 256), None);
    assert_eq!(repack::to_lane(QuantType::Q8_0, &[0; 33]), None);
}

/// A case with its weights as the file has them, the same repacked, and what the kernel is made for.
struct Lane {
    case: Case,
    inputs: Vec<In>,
    types: Vec<TensorType>,
    bounds: SymValues,
    values: SymValues,
    options: Options,
    budget: f64,
}

fn floats(rng: &mut Rng, dims: &[u64]) -> In {
    let n: u64 = dims.iter().product();
    In::F(TensorType::new(Elem::F32, dims.iter().copied()), (0..n).map(|_| rng.float()).collect())
}

fn weight(rng: &mut Rng, q: QuantType, dims: &[u64]) -> In {
    let n: u64 = dims.iter().product();
    In::W(TensorType::new(q, dims.iter().copied()), blocks(q, n as usize, rng.next(), 0.5))
}

fn copy(i: &In) -> In {
    match i {
        In::F(t, v) => In::F(t.clone(), v.clone()),
        In::I(t, v) => In::I(t.clone(), v.clone()),
        In::Pool(t, v) => In::Pool(t.clone(), v.clone()),
        In::W(t, b) => {
            let q = t.elem.storage().expect("a weight");
            In::W(t.clone(), repack::to_lane(q, b).expect("it has the layout"))
        }
    }
}

fn lane(what: String, kernel: Kernel, inputs: Vec<In>, activations: Activations, symbolic: bool) -> Lane {
    let stored = |i: &In| if matches!(i, In::W(..)) { Storage::Lane } else { Storage::Rows };
    let options = Options { activations, storage: inputs.iter().map(stored).collect(), multiprocessors: Some(1) };
    let mut types: Vec<TensorType> = inputs.iter().map(|i| i.ty().clone()).collect();
    let (mut bounds, mut values) = (SymValues::default(), SymValues::default());
    let tokens = types[0].dims[0].extent.as_const().expect("constant");
    if symbolic {
        (bounds, values) = (bounds.with("T", tokens + 1), values.with("T", tokens));
        for (t, i) in types.iter_mut().zip(&inputs) {
            if !matches!(i, In::W(..)) {
                t.dims[0] = Dim::sym("T");
            }
        }
    }
    let budget = match activations {
        Activations::Int8 => 1e-2,
        Activations::BF16 => 2e-3,
        Activations::F32 => L2,
    };
    let repacked = inputs.iter().map(copy).collect();
    Lane { case: Case { what, kernel, inputs }, inputs: repacked, types, bounds, values, options, budget }
}

fn matmul_cases() -> Vec<Lane> {
    let mut rng = Rng(11);
    let mut out = Vec::new();
    let spec = |s: &str| Kernel::from(MatmulKernel { spec: s.into(), names: vec![] });
    for q in TYPES {
        let odd = if q == QuantType::Q8_0 { 192 } else { 256 };
        for (n, k) in [(1, odd), (37, 512), (130, odd), (9, 2048), (300, 1024)] {
            for (tokens, symbolic) in [(1, false), (2, false), (3, true), (8, false), (20, false)] {
                if n == 300 && tokens > 1 {
                    continue;
                }
                for activations in [Activations::F32, Activations::Int8, Activations::BF16] {
                    // A single number may be small against the terms that it is the sum of.
                    if activations == Activations::Int8 && n * tokens < 8 {
                        continue;
                    }
                    let inputs = vec![floats(&mut rng, &[tokens, k]), weight(&mut rng, q, &[n, k])];
                    let what = format!("{q} [{tokens}, {k}] by {n} {activations:?} symbolic {symbolic}");
                    out.push(lane(what, spec("tk,nk->tn"), inputs, activations, symbolic));
                }
            }
        }
        for tokens in [1, 4] {
            let inputs = vec![floats(&mut rng, &[tokens, 3, 256]), weight(&mut rng, q, &[3, 16, 256])];
            out.push(lane(format!("{q} {tokens} by heads"), spec("thn,hcn->thc"), inputs, Activations::F32, false));
            // Two matrices of different types and heights share x.
            let other = if q == QuantType::Q8_0 { QuantType::Q4_K } else { QuantType::Q8_0 };
            let names = vec!["a".to_owned(), "b".to_owned()];
            let kernel = MatmulKernel { spec: "tk,nk->tn".into(), names }.into();
            let inputs = vec![
                floats(&mut rng, &[tokens, 256]),
                weight(&mut rng, q, &[33, 256]),
                weight(&mut rng, other, &[7, 256]),
            ];
            out.push(lane(format!("{q} {tokens} joined"), kernel, inputs, Activations::F32, false));
        }
    }
    out
}

fn expert_cases() -> Vec<Lane> {
    let mut rng = Rng(12);
    let mut out = Vec::new();
    for q in TYPES {
        for (tokens, slots, n) in [(1u64, 3u64, 16u64), (2, 2, 40), (20, 2, 8)] {
            for per_slot in [false, true] {
                for activations in [Activations::F32, Activations::Int8, Activations::BF16] {
                    let x = if per_slot { vec![tokens, slots, 256] } else { vec![tokens, 256] };
                    let ids: Vec<i64> =
                        (0..tokens * slots).map(|i| if i == 1 { -1 } else { rng.below(5) as i64 }).collect();
                    let ids = In::I(TensorType::new(Elem::I32, [tokens, slots]), ids);
                    let inputs = vec![floats(&mut rng, &x), weight(&mut rng, q, &[5, n, 256]), ids];
                    let what = format!("{q} {x:?} by 5 x {n} {activations:?}");
                    out.push(lane(what, GroupedMatmulKernel {}.into(), inputs, activations, tokens == 2));
                }
            }
        }
    }
    out
}

/// Compares all; how many kernels went through their matrix in stages.
fn check(list: &[Lane], arch: Arch) -> usize {
    let make = |l: &Lane| {
        let request = Request { kernel: &l.case.kernel, inputs: &l.types, syms: &l.bounds, arch, options: &l.options };
        generate(&request).unwrap_or_else(|e| panic!("{}: {e}", l.case.what))
    };
    let mut failures = Vec::new();
    let (mut worst, mut staged) = ([0.0f64; 2], 0);
    let mut configs: std::collections::BTreeMap<String, usize> = Default::default();
    for list in list.chunks(40) {
        let kernels: Vec<Generated> = list.iter().map(make).collect();
        for k in &kernels {
            let kind = if k.body.contains("_lane<") { "lane" } else { "rows or tiles" };
            *configs.entry(kind.into()).or_default() += 1;
            staged += usize::from(k.config.contains("in stages"));
        }
        let program = program(&kernels);
        let pairs: Vec<_> = list.iter().zip(&kernels).map(|(l, k)| job(k, &l.inputs, &l.bounds, &l.values)).collect();
        let jobs: Vec<Job> = pairs.iter().map(|p| p.0.clone()).collect();
        let [up, down] = [Order::Rising, Order::Falling].map(|o| program.run(&jobs, o).expect("it runs"));
        for (((l, (_, bounds)), up), down) in list.iter().zip(&pairs).zip(up).zip(down) {
            let one = || -> Result<(), String> {
                let (up, down) = (up?, down?);
                if up != down {
                    return Err("depends on the order of threads".into());
                }
                let want = meaning(&l.case)?;
                untouched(&up[bounds[0].buffer], &bounds[0])?;
                let (l2, _) = compare(&bounds[0].numbers(&up[0]), &want[0], l.budget)?;
                let at = usize::from(l.options.activations != Activations::F32);
                worst[at] = worst[at].max(l2);
                Ok(())
            };
            if let Err(e) = one() {
                failures.push(format!("{}: {e}", l.case.what));
            }
        }
    }
    println!(
        "{arch}: {} kernels {configs:?}, {staged} in stages, relative L2 up to {:.1e} (f32), {:.1e} (rounded)",
        list.len(),
        worst[0],
        worst[1]
    );
    assert!(configs.len() == 2, "both kinds of kernels must be met: {configs:?}");
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), list.len(), failures.join("\n"));
    staged
}

#[test]
fn matmuls_take_the_lane_layout() {
    let staged = check(&matmul_cases(), Arch::Sm120);
    assert!(staged > 0, "no matrix was larger than its block's shared memory");
}

#[test]
fn experts_take_the_lane_layout() {
    check(&expert_cases(), Arch::Sm90);
}

#[test]
fn machines_without_bulk_copies_take_it_too() {
    let few: Vec<Lane> = matmul_cases().into_iter().step_by(3).chain(expert_cases().into_iter().step_by(5)).collect();
    check(&few, Arch::Sm80);
}

/// One wrong nibble is more than the budget, so the comparisons above have power.
#[test]
fn a_planted_fault_is_found() {
    for mut l in matmul_cases().into_iter().filter(|l| l.budget == L2).step_by(7) {
        let In::W(ty, bytes) = &mut l.inputs[1] else { panic!("a weight") };
        let k = ty.dims.last().and_then(|d| d.extent.as_const()).expect("constant");
        // A whole row of codes moved by one byte: as if an index were off.
        bytes[..(k as usize / 2)].rotate_left(1);
        let request = Request {
            kernel: &l.case.kernel,
            inputs: &l.types,
            syms: &l.bounds,
            arch: Arch::Sm90,
            options: &l.options,
        };
        let k = generate(&request).expect("a kernel");
        let program = program(std::slice::from_ref(&k));
        let (job, bounds) = job(&k, &l.inputs, &l.bounds, &l.values);
        let got = program.run(&[job], Order::Rising).expect("it runs").remove(0).expect("no fault");
        let want = meaning(&l.case).expect("a meaning");
        assert!(compare(&bounds[0].numbers(&got[0]), &want[0], l.budget).is_err(), "{}", l.case.what);
    }
}
