//! The lane layout: repacked on the host and by the device kernel to the same bytes, read back to the reference
//! decoder's bits, and multiplied by every kernel that takes it.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "support/host.rs"]
mod host;

use std::path::Path;

use glmc_codegen_cuda::cases::{Check, In, Rng, blocks, matrices, meaning};
use glmc_codegen_cuda::host::{Buffer, Job, Launch, Order, Program};
use glmc_codegen_cuda::{Activations, Arch, Generated, Tuning, emit, repack};
use glmc_ir::kernel::Kernel;
use glmc_ir::quant::QuantType;
use glmc_ir::ty::TensorType;

const TYPES: [QuantType; 4] = [QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0];

fn program(kernels: &[Generated]) -> Program {
    Program::build(&emit::unit(kernels), Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn host_and_device_repack_to_the_same_bytes() {
    if !host::compiler_is_there() {
        return;
    }
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
                launches: vec![Launch { shape: k.launches[0].clone(), args: vec![0, 1], device: 0 }],
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

fn matmuls() -> Vec<Check> {
    let all = matrices(0, Some(1)).into_iter();
    all.filter(|c| matches!(c.case.kernel, Kernel::Matmul(_) | Kernel::GateUp(_))).collect()
}

fn experts() -> Vec<Check> {
    let all = matrices(0, Some(1)).into_iter();
    all.filter(|c| !matches!(c.case.kernel, Kernel::Matmul(_) | Kernel::GateUp(_))).collect()
}

/// Compares all; how many kernels used their stages again.
fn check(list: &[Check], arch: Arch) -> usize {
    let (staged, kinds) = compare(list, arch);
    assert!(kinds == 2, "both kinds of kernels must be met");
    staged
}

/// Compares all; how many kernels used their stages again, and how many kinds of kernels there are.
fn compare(list: &[Check], arch: Arch) -> (usize, usize) {
    let make = |c: &Check| c.kernel(arch).unwrap_or_else(|e| panic!("{}: {e}", c.what));
    let mut failures = Vec::new();
    let (mut worst, mut staged) = ([0.0f64; 2], 0);
    let mut configs: std::collections::BTreeMap<String, usize> = Default::default();
    for list in list.chunks(40) {
        let kernels: Vec<Generated> = list.iter().map(make).collect();
        for k in &kernels {
            let kind = if k.body.contains("_lane<") { "lane" } else { "rows or tiles" };
            *configs.entry(kind.into()).or_default() += 1;
            staged += usize::from(k.config.contains("in a ring"));
        }
        let program = program(&kernels);
        let pairs: Vec<_> = list.iter().zip(&kernels).map(|(c, k)| c.job(k).expect("a job")).collect();
        let jobs: Vec<Job> = pairs.iter().map(|p| p.0.clone()).collect();
        let [up, down] = [Order::Rising, Order::Falling].map(|o| program.run(&jobs, o).expect("it runs"));
        for (((c, (_, bounds)), up), down) in list.iter().zip(&pairs).zip(up).zip(down) {
            let one = || -> Result<f64, String> {
                let (up, down) = (up?, down?);
                if up != down {
                    return Err("depends on the order of threads".into());
                }
                c.judge(bounds, &up, &meaning(&c.case)?)
            };
            let at = usize::from(c.options.activations != Activations::F32);
            match one() {
                Ok(l2) => worst[at] = worst[at].max(l2),
                Err(e) => failures.push(format!("{}: {e}", c.what)),
            }
        }
    }
    println!(
        "{arch}: {} kernels {configs:?}, {staged} in rings, relative L2 up to {:.1e} (f32), {:.1e} (rounded)",
        list.len(),
        worst[0],
        worst[1]
    );
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), list.len(), failures.join("\n"));
    (staged, configs.len())
}

#[test]
fn matmuls_take_the_lane_layout() {
    if !host::compiler_is_there() {
        return;
    }
    let staged = check(&matmuls(), Arch::Sm120);
    assert!(staged > 0, "no matrix was larger than its block's shared memory");
}

#[test]
fn experts_take_the_lane_layout() {
    if !host::compiler_is_there() {
        return;
    }
    check(&experts(), Arch::Sm90);
}

#[test]
fn machines_without_bulk_copies_take_it_too() {
    if !host::compiler_is_there() {
        return;
    }
    let few: Vec<Check> = matmuls().into_iter().step_by(3).chain(experts().into_iter().step_by(5)).collect();
    check(&few, Arch::Sm80);
}

/// For few tokens gate and up, or products and their weighted sum, are one launch; unless types differ.
#[test]
fn fused_contracts_are_one_launch() {
    let (mut one, mut more) = (0, 0);
    for c in matrices(0, Some(1)) {
        let w: Vec<_> = c.types.iter().filter(|t| t.elem.storage().is_some_and(|q| TYPES.contains(&q))).collect();
        if w.is_empty() || matches!(c.case.kernel, Kernel::Matmul(_) | Kernel::GroupedMatmul(_)) {
            continue;
        }
        let few = c.case.inputs[0].ty().dims[0].extent.as_const() <= Some(8) && w.iter().all(|t| *t == w[0]);
        let launches = c.kernel(Arch::Sm90).unwrap_or_else(|e| panic!("{}: {e}", c.what)).launches.len();
        assert_eq!(launches == 1, few, "{}: {launches} launches", c.what);
        if few { one += 1 } else { more += 1 }
    }
    assert!(one > 20 && more > 5, "{one}, {more}");
}

/// Whatever a benchmark may ask for gives the same numbers.
#[test]
fn every_way_to_deal_rows_is_right() {
    let long = |c: &&Check| c.case.inputs[0].ty().last().is_some_and(|d| d.extent.as_const() >= Some(1024));
    let mut list = Vec::new();
    for c in matrices(3, Some(2)).iter().filter(|c| c.in_lanes()).filter(long) {
        if c.options.activations == Activations::BF16 {
            continue;
        }
        for (i, tuning) in tunings().into_iter().enumerate() {
            let mut c = c.clone();
            c.options.tuning = Some(tuning);
            c.what = format!("{} way {i}", c.what);
            list.push(c);
        }
    }
    let taken = |c: &Check| c.kernel(Arch::Sm90).is_ok_and(|k| k.body.contains("_lane<"));
    list.retain(taken);
    println!("{} ways", list.len());
    assert!(list.len() > 100);
    compare(&list, Arch::Sm90);
}

fn tunings() -> Vec<Tuning> {
    let of = |warps, pass, passes, parts| Tuning { warps, pass, passes, parts, ..Tuning::default() };
    let mut out = vec![of(8, 1, 1, 2), of(4, 2, 1, 2), of(3, 4, 1, 1), of(2, 2, 3, 1), of(5, 1, 2, 1), of(1, 1, 1, 1)];
    out.push(Tuning { shared: 24 << 10, ..of(2, 2, 1, 1) });
    out.push(Tuning { resident: 2, unroll: 6, ..of(12, 1, 1, 2) });
    out
}

/// One wrong row of codes is more than the budget, so the comparisons above have power.
#[test]
fn a_planted_fault_is_found() {
    if !host::compiler_is_there() {
        return;
    }
    for c in matmuls().into_iter().filter(|c| c.options.activations == Activations::F32).step_by(7) {
        let k = c.kernel(Arch::Sm90).expect("a kernel");
        let (mut job, bounds) = c.job(&k).expect("a job");
        let In::W(ty, _) = &c.case.inputs[1] else { panic!("a weight") };
        let Buffer::Input(bytes) = &mut job.buffers[1] else { panic!("a weight is an input") };
        let k = ty.dims.last().and_then(|d| d.extent.as_const()).expect("constant");
        // A whole row of codes moved by one byte: as if an index were off.
        bytes[..(k as usize / 2)].rotate_left(1);
        let program = program(std::slice::from_ref(&c.kernel(Arch::Sm90).expect("a kernel")));
        let got = program.run(&[job], Order::Rising).expect("it runs").remove(0).expect("no fault");
        let want = meaning(&c.case).expect("a meaning");
        assert!(c.judge(&bounds, &got, &want).is_err(), "{}", c.what);
    }
}
