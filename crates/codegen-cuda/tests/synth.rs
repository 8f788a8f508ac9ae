//! Random weights made by device code: the bytes of the host's function, for every type that a file may have.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "support/host.rs"]
mod host;

use std::path::Path;

use glmc_codegen_cuda::host::{Buffer, Job, Launch, Order, Program};
use glmc_codegen_cuda::nvrtc::{Compiler, Unit};
use glmc_codegen_cuda::synth::kernel;
use glmc_codegen_cuda::{Arch, Generated, emit};
use glmc_ir::quant::QuantType;
use glmc_ir::quant::made::{Run, bytes, words};
use glmc_ir::quant::synth::{Fill, tensor_number};

#[test]
fn the_device_makes_the_bytes_of_the_host() {
    if !host::compiler_is_there() {
        return;
    }
    let kernels: Vec<Generated> = QuantType::ALL.iter().map(|q| kernel(*q).expect("a file may have it")).collect();
    let program = Program::build(&emit::unit(&kernels), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let program = program.unwrap_or_else(|e| panic!("{e}"));
    let runs = [
        Run { first: 0, piece: 700, count: 1, stride: 700 },
        Run { first: 5_000_000_000, piece: 3, count: 50, stride: 17 },
        Run { first: 9, piece: 1, count: 1, stride: 1 },
    ];
    let tensor = tensor_number("blk.7.ffn_down_exps.weight");
    let (mut jobs, mut wants) = (Vec::new(), Vec::new());
    for (q, k) in QuantType::ALL.iter().zip(&kernels) {
        for (mean, rms) in [(0.0, 0.0128), (1.0, 0.1), (0.0, 0.0), (-2.0, 3e4), (0.0, 1e-6)] {
            let fill = Fill { seed: 11, tensor, mean, rms };
            let want = bytes(*q, &fill, &runs);
            let what = words(*q, &fill, &runs).iter().flat_map(|w| w.to_le_bytes()).collect();
            let shape = k.launches[0].clone();
            jobs.push(Job {
                buffers: vec![Buffer::Input(what), Buffer::Output(want.len())],
                launches: vec![Launch {
                    device: 0,
                    shape: glmc_codegen_cuda::LaunchShape { grid: [3, 1, 1], ..shape },
                    args: vec![0, 1],
                }],
            });
            wants.push((*q, rms, want));
        }
    }
    for order in [Order::Rising, Order::Falling] {
        for (got, (q, rms, want)) in program.run(&jobs, order).expect("it runs").into_iter().zip(&wants) {
            let got = got.unwrap_or_else(|e| panic!("{q}: {e}"));
            let first = got[0].iter().zip(want).position(|(g, w)| g != w);
            assert!(first.is_none(), "{q} of RMS {rms}: byte {first:?} differs");
        }
    }
    println!("{} tensors of {} types", wants.len(), kernels.len());
}

#[test]
fn the_kernels_compile_for_gpus_also_with_stamps() {
    let compiler = match Compiler::find(None, None) {
        Ok(c) => c,
        Err(e) => return println!("SKIPPED: {e}"),
    };
    let kernels: Vec<Generated> = QuantType::ALL.iter().filter_map(|q| kernel(*q)).collect();
    let plain = Unit { name: "synth".into(), source: emit::unit(&kernels) };
    let traced = Unit { name: "traced".into(), source: format!("#define GLMC_TRACE\n{}", emit::unit(&kernels)) };
    for arch in [Arch::Sm90, Arch::Sm120] {
        let made = compiler.compile_all(&[plain.clone(), traced.clone()], arch, 2, &|_| ());
        for made in made.unwrap_or_else(|e| panic!("{e}")) {
            made.check(&kernels, arch).unwrap_or_else(|e| panic!("{e}"));
            let spills: Vec<_> = made.resources.iter().filter(|r| r.spill_stores + r.spill_loads > 0).collect();
            assert!(spills.is_empty(), "{spills:#?}");
        }
    }
}
